"""The processes that follow, and whoever notices that one of them does not any more.

A follower may die, and it may hang: stopped, or stuck in its step. The leader cannot tell from its
own steps. It waits for a follower inside a collective, that is in a library or in a kernel, where
no exception of ours gets, and a recorded one has no timeout either. So each follower *beats*: its
working loop counts up a number in shared memory when it has nothing to do, and after each step. A
thread of the leader looks at these numbers, and waits for processes that end.

One that is gone or has not moved takes all of it along, for what it knew of every conversation is
gone: the others are killed, and whoever asked is told by that thread. Killing ends a collective of
`gloo`, whose connections break, so that the engine's thread comes back and raises too; one of
`nccl` may wait for ever, and is left behind when the process ends.

Time is counted in looks, not by the clock: where the leader itself was stopped for a while, that is
one look, and no follower is blamed for having waited for it.
"""

import contextlib
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Protocol

from llm_engine.errors import DeviceLostError

_SETTLE_S: Final = 1.0
"""After an error of the leader's step, for a follower to turn out dead, whose fault it then was.
Its connections break some milliseconds before its end is known."""


@dataclass(frozen=True, slots=True)
class HangTimeout:
    """How long a follower may take for a step."""

    look_s: float = 0.5
    """From one look to the next, and from one beat of an idle follower to the next."""
    num_looks: int = 6
    """Without a beat, until it counts as hung: after 3 to 3.5 s, and the longest step, 512 rows of
    a prompt, takes a fraction of one. With fewer a machine that swaps for a moment ends the
    service. With more the engine's user takes it for hung first (the agent after 5 s), and cannot
    say why; to load it anew is refused while these processes live."""

    def __str__(self) -> str:
        return f"{self.look_s * self.num_looks:g} s"


class Heartbeat(Protocol):
    """A number in shared memory. One process writes."""

    value: int


@dataclass(frozen=True, slots=True)
class Follower:
    """As the leader knows it."""

    rank: int
    process: BaseProcess
    orders: Connection
    beats: Heartbeat


def received(orders: Connection, beats: Heartbeat, patience: HangTimeout) -> Iterator[Any]:
    """A follower's: orders until the leader is gone. Beats while there are none, and after each."""
    arrivals = select.poll()  # made once: `Connection.poll` would make one for every order
    arrivals.register(orders.fileno(), select.POLLIN)
    while True:
        while not arrivals.poll(patience.look_s * 1000):
            beats.value += 1
        try:
            order = orders.recv()
        except (EOFError, OSError):
            return
        yield order
        beats.value += 1


class FollowerWatchdog:
    """Looks after followers, on a thread of its own, until `end`."""

    def __init__(self, followers: Sequence[Follower], patience: HangTimeout) -> None:
        self.lost: DeviceLostError | None = None
        """Set once; any thread may look."""
        self._followers = followers
        self._patience = patience
        self._tell: Callable[[DeviceLostError], None] = lambda error: None
        self._changing = threading.Lock()
        self._is_settled = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="halfsec-followers", daemon=True)
        self._thread.start()

    def when_lost(self, tell: Callable[[DeviceLostError], None]) -> None:
        """Call this once they are lost, on the thread that notices; at once if they are."""
        with self._changing:
            self._tell = tell
            lost = self.lost
        if lost is not None:
            tell(lost)

    def loss(self, error: Exception) -> DeviceLostError:
        """What an error of the leader's own step comes to. It ends the followers: they are at
        another step now, or wait inside this one."""
        self._is_settled.wait(_SETTLE_S)
        reason = f"the GPUs are out of step: {type(error).__name__}: {error}"
        self._lose(error if isinstance(error, DeviceLostError) else DeviceLostError(reason))
        assert self.lost is not None
        return self.lost

    def end(self) -> None:
        """Look no more. What becomes of the followers now is no loss."""
        self._is_over = True

    def join(self) -> None:
        """Wait for the thread, which ends with the first follower or the next look."""
        self._thread.join()

    def _run(self) -> None:
        seen = [follower.beats.value for follower in self._followers]
        num_still = [0] * len(seen)
        sentinels = {each.process.sentinel: each for each in self._followers}
        while True:
            ended = wait(list(sentinels), self._patience.look_s)
            if self._is_over or self.lost is not None:
                return
            for sentinel in ended:
                dead = sentinels[sentinel]  # type: ignore[index]
                dead.process.join(_SETTLE_S)
                code = dead.process.exitcode
                self._lose(DeviceLostError(f"the process of GPU {dead.rank} is gone (exit {code})"))
                return
            for index, follower in enumerate(self._followers):
                beats = follower.beats.value
                num_still[index] = num_still[index] + 1 if beats == seen[index] else 0
                seen[index] = beats
                if num_still[index] >= self._patience.num_looks:
                    name = f"the process of GPU {follower.rank}"
                    self._lose(DeviceLostError(f"{name} has not moved for {self._patience}"))
                    return

    def _lose(self, error: DeviceLostError) -> None:
        """Once: what comes after the first time follows from it."""
        with self._changing:
            if self.lost is not None:
                return
            self.lost = error
            tell = self._tell
        # First of all: whoever is told may end this process without ending others.
        for follower in self._followers:
            with contextlib.suppress(OSError):
                follower.process.kill()
        self._is_settled.set()
        tell(error)
