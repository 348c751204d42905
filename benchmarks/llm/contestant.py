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
"""Arrivals of one reply's tokens: time in ms since the request, and number of tokens."""

_STOP_S = 10.0
"""Timeout in s of a process's orderly end; then it is killed."""


@dataclass(frozen=True, slots=True)
class CallerMessage:
    """The caller's message of one turn of a dialogue."""

    text: str
    token_ids: tuple[int, ...]
    """Message with the chat template's tokens around it, from the end of the previous reply (or the
    start of the dialogue) to the start of the next reply."""


class Contestant(Protocol):
    """One engine with one model file. Called in its own process; may raise any exception."""

    @property
    def version(self) -> str: ...

    def prepare(self) -> None:
        """Untimed preparation, once: imports, converting the model file."""
        ...

    def load(self) -> None: ...

    def reply(self, prompt: Sequence[int], num_tokens: int, *, may_end: bool = False) -> Arrivals:
        """Continue token ids greedily with an empty cache, by `num_tokens`; with `may_end` the
        reply may end earlier."""
        ...

    def dialogue(self, turns: Sequence[CallerMessage], num_tokens: int) -> list[float]:
        """Answer each turn with `num_tokens`. Returns the time in ms to each first token, with the
        engine's own cache of the previous turns."""
        ...

    def together(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Arrivals]:
        """Continue several prompts concurrently."""
        ...

    def nats(self, token_ids: Sequence[int]) -> float:
        """Mean of -log p over a text's tokens after the first."""
        ...


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Version, load time and memory of a loaded contestant."""

    version: str
    load_s: float
    resident_mb: float | None
    """Resident memory of the process in MB; None if the platform does not report it."""
    model_mb: float | None
    """Growth of the resident memory in MB while loading."""


class Remote:
    """Contestant in a process of its own. Not thread-safe."""

    def __init__(self, name: str, make: Callable[..., Contestant], **options: Any) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, options), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the contestant, or "start" to prepare and load it. Blocks. Raises
        EngineError with the contestant's exception, or with the exit status of its process."""
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
    """Main loop of the process: answer calls until the connection is closed."""
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
