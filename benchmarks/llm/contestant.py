"""Contestant: what an engine must do to be compared, and the process that hosts it."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from latency_budget.account.clock import SystemClock
from latency_budget.host import resident_mb
from llm_engine.errors import EngineError

Arrivals = list[tuple[float, int]]
"""Of one reply: milliseconds since it was asked for, and how many tokens came then."""

_STOP_S = 10.0
"""Longest wait for a process that was told to end; then it is killed."""


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """What a caller says in a dialogue."""

    text: str
    token_ids: tuple[int, ...]
    """The message and what a chat template writes around it, from the end of the reply before it
    (or the beginning) to where the next reply begins."""


class Contestant(Protocol):
    """One engine with one file. Called in its own process; may raise anything."""

    @property
    def version(self) -> str: ...

    def prepare(self) -> None:
        """What is done once and not timed: imports, making the file it reads."""
        ...

    def load(self) -> None: ...

    def reply(self, prompt: Sequence[int], num_tokens: int, *, may_end: bool = False) -> Arrivals:
        """Continue token ids greedily, knowing nothing of them yet. Unless it `may_end`, as long as
        asked."""
        ...

    def dialogue(self, turns: Sequence[DialogueTurn], num_tokens: int) -> list[float]:
        """Answer each turn with so many tokens. Milliseconds to the first token of each, with
        whatever the engine keeps of the turns before."""
        ...

    def together(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Arrivals]:
        """Continue several at once."""
        ...

    def nats(self, token_ids: Sequence[int]) -> float:
        """Mean of -log p over a text's tokens after the first."""
        ...


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a contestant tells after loading."""

    version: str
    load_s: float
    resident_mb: float | None
    """Of the whole process; None where the platform does not tell."""
    model_mb: float | None
    """Of these, what came with loading."""


class Remote:
    """A contestant in a process of its own. Not for use across threads."""

    def __init__(self, name: str, make: Callable[..., Contestant], **options: Any) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, options), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Raises EngineError with what the process has to say, or that it died."""
        try:
            self._connection.send((method, arguments, options))
            is_answer, answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(_STOP_S)
            status = self._process.exitcode
            raise EngineError(f"{self.name}: its process ended with status {status}") from None
        if not is_answer:
            raise EngineError(f"{self.name}: {answer}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(connection: Connection, make: Callable[..., Contestant], options: Any) -> None:
    """The process: do what is asked until nobody is there to ask."""
    contestant = make(**options)
    while True:
        try:
            method, arguments, keywords = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if method == "start":
                answer: Any = _start(contestant)
            else:
                answer = getattr(contestant, method)(*arguments, **keywords)
            connection.send((True, answer))
        except KeyboardInterrupt:
            return
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {error}"))


def _start(contestant: Contestant) -> LoadReport:
    clock = SystemClock()
    contestant.prepare()
    before_mb = resident_mb(os.getpid())
    start_ns = clock.now_ns()
    contestant.load()
    load_s = (clock.now_ns() - start_ns) / 1e9
    after_mb = resident_mb(os.getpid())
    grown = None if after_mb is None or before_mb is None else after_mb - before_mb
    return LoadReport(contestant.version, load_s, after_mb, grown)
