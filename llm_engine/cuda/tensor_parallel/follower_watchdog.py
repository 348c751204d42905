"""Heartbeat of follower processes, and the watchdog that kills the group when one dies or hangs.

`group` starts the followers and runs their loops.

A follower may die, and it may hang: stopped, or stuck in its step. The leader cannot tell from its
own steps: it waits for a follower inside a collective, in a library or a kernel, where no exception
reaches it, and a captured collective has no timeout. So each follower has a *heartbeat*: its loop
increments a number in shared memory while idle, and after each step. A thread of the leader polls
these numbers, and waits for processes that end.

If one has died or does not move, the whole group is lost, as its shard of every conversation is
gone: the watchdog kills the others and calls the engine back. Killing ends a collective of `gloo`,
whose connections break, so that the engine's thread returns and raises too; one of `nccl` may wait
for ever, and is abandoned when the process ends.

Time is counted in polls, not by the clock: where the leader itself was stopped for a while, that is
one poll, and no follower is blamed for having waited for it.
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
"""Seconds after an error of the leader's step in which a dead follower may be found as its cause:
its connections break some milliseconds before its end is known."""


@dataclass(frozen=True, slots=True)
class HangTimeout:
    """Timeout after which a follower counts as hung."""

    poll_s: float = 0.5
    """Seconds between two polls, and between two heartbeats of an idle follower."""
    num_polls: int = 6
    """Polls without a heartbeat after which a follower counts as hung: 3 to 3.5 s, and the longest
    step, 512 rows of a prompt, takes a fraction of one. Lower: a machine that swaps for a moment
    ends the service. Higher: the engine's user takes the engine for hung first (the agent after
    5 s), without the reason; loading it again is refused while these processes live."""

    def __str__(self) -> str:
        return f"{self.poll_s * self.num_polls:g} s"


class Heartbeat(Protocol):
    """Counter in shared memory. One process writes it."""

    value: int


@dataclass(frozen=True, slots=True)
class Follower:
    """A follower process, as the leader sees it."""

    rank: int
    process: BaseProcess
    orders: Connection
    beats: Heartbeat


def received(orders: Connection, beats: Heartbeat, hang_timeout: HangTimeout) -> Iterator[Any]:
    """Yield the leader's orders until it is gone. Beats while there are none, and after each."""
    arrivals = select.poll()  # made once: `Connection.poll` would make one for every order
    arrivals.register(orders.fileno(), select.POLLIN)
    while True:
        while not arrivals.poll(hang_timeout.poll_s * 1000):
            beats.value += 1
        try:
            order = orders.recv()
        except (EOFError, OSError):
            return
        yield order
        beats.value += 1


class FollowerWatchdog:
    """Watches followers, on a thread of its own, until `end`."""

    def __init__(self, followers: Sequence[Follower], hang_timeout: HangTimeout) -> None:
        self.lost: DeviceLostError | None = None
        """Set once a follower is lost; any thread may read it."""
        self._followers = followers
        self._hang_timeout = hang_timeout
        self._on_lost: Callable[[DeviceLostError], None] = lambda error: None
        self._changing = threading.Lock()
        self._is_settled = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="halfsec-followers", daemon=True)
        self._thread.start()

    def when_lost(self, on_lost: Callable[[DeviceLostError], None]) -> None:
        """Register a callback for the loss, called on the thread that detects it; at once if the
        followers are lost already."""
        with self._changing:
            self._on_lost = on_lost
            lost = self.lost
        if lost is not None:
            on_lost(lost)

    def declare_lost(self, error: Exception) -> DeviceLostError:
        """Turn an error of the leader's own step into the loss of the group. Kills the followers:
        they are at another step now, or wait inside this one."""
        self._is_settled.wait(_SETTLE_S)
        reason = f"the GPUs are out of step: {type(error).__name__}: {error}"
        self._lose(error if isinstance(error, DeviceLostError) else DeviceLostError(reason))
        assert self.lost is not None
        return self.lost

    def end(self) -> None:
        """Stop watching: the end of a follower is no loss any more."""
        self._is_over = True

    def join(self) -> None:
        """Wait for the thread, which ends with the first follower or the next poll."""
        self._thread.join()

    def _run(self) -> None:
        seen = [follower.beats.value for follower in self._followers]
        num_still = [0] * len(seen)
        sentinels = {each.process.sentinel: each for each in self._followers}
        while True:
            ended = wait(list(sentinels), self._hang_timeout.poll_s)
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
                if num_still[index] >= self._hang_timeout.num_polls:
                    name = f"the process of GPU {follower.rank}"
                    self._lose(DeviceLostError(f"{name} has not moved for {self._hang_timeout}"))
                    return

    def _lose(self, error: DeviceLostError) -> None:
        """Record a loss, once: later ones follow from the first."""
        with self._changing:
            if self.lost is not None:
                return
            self.lost = error
            on_lost = self._on_lost
        # Before the callback, which may end this process without ending the others.
        for follower in self._followers:
            with contextlib.suppress(OSError):
                follower.process.kill()
        self._is_settled.set()
        on_lost(error)
