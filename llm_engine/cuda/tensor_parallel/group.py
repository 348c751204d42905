"""One engine on several GPUs: a process for each, all doing the same steps.

The engine's process has the first GPU and *leads*; the others *follow*: each has its part of the
model and of the cache, and runs every plan that the leader runs. Nothing else has to be told: what
a step chooses is computed everywhere from the same numbers, so that every process knows the tokens
and launches the same step ahead.

A follower that dies or hangs takes the engine with it, and so does an error in one process alone:
see `workers.py`. A follower ends with its leader, whatever that died of.
"""

import atexit
import contextlib
import logging
import multiprocessing as mp
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

from llm_engine.backends.base import Plan, SequenceRows, StepHandle, StepResult
from llm_engine.backends.wrapper import BackendWrapper
from llm_engine.cuda.backend import CudaBackend
from llm_engine.errors import DeviceLostError, ModelError

from .workers import Follower, FollowerWatchdog, HangTimeout, Heartbeat, received

_log = logging.getLogger(__name__)

_GO = "go"
"""All have loaded."""
_MEET = timedelta(minutes=5)
"""For all processes to have started."""
_JOIN_S = 10.0
"""Until a follower that was told to end is ended, or a library that waits for one is left alone."""
_SETTLE_S = 1.0
"""After an error of the leader's, for a follower's to be heard that it came from."""
_LEADER = "halfsec-leader"
"""The thread on which the leader does its part."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Processes that compute together."""

    rank: int
    count: int
    store: str
    """A file by which they find one another; it must not exist yet."""
    library: str
    """`nccl`, or `gloo` on a CPU."""

    def join(self) -> None:
        """Meet the others. Blocks until all are there."""
        dist.init_process_group(
            self.library,
            init_method=f"file://{self.store}",
            rank=self.rank,
            world_size=self.count,
            timeout=_MEET,
        )


Make = Callable[[ProcessGroup], Callable[[], CudaBackend]]
"""Loads what one rank needs, in its own process, and returns what makes the backend of it: only
that may talk to the others, when all have loaded. To be sent there, so a module's own function with
arguments that can be pickled."""


def _follow(
    team: ProcessGroup, make: Make, orders: Connection, beats: Heartbeat, patience: HangTimeout
) -> None:
    """A follower's life: until the leader says so, or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the leader's to answer: it may have calls
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_leader, daemon=True).start()
    try:
        team.join()
        orders.send(None)
        finish = make(team)
        orders.send(None)
        if orders.recv() != _GO:
            return
        backend = finish()
        orders.send(None)
    except Exception as error:
        orders.send(f"{type(error).__name__}: {error}")
        return
    for order in received(orders, beats, patience):
        match order:
            case Plan():
                backend.collect(backend.launch(order))
            case SequenceRows():
                backend.logits(order)
            case _:
                break
    backend.close()
    dist.destroy_process_group()


def _end_with_leader() -> None:
    """Also out of a step that waits for it for ever."""
    leader = mp.parent_process()
    assert leader is not None
    leader.join()
    os._exit(1)


class ParallelBackend(BackendWrapper):
    """The leader's: over its own part and that of all followers. Every error is a DeviceLostError:
    some of the processes have done the step, and some have not."""

    def __init__(
        self,
        backend: CudaBackend,
        followers: Sequence[Follower],
        patience: HangTimeout,
        meeting_place: tempfile.TemporaryDirectory[str],
    ) -> None:
        """`meeting_place`: where the team's store is, which libraries go on looking into."""
        super().__init__(backend)
        self._part = backend
        self._meeting_place = meeting_place
        self._followers = followers
        self._watch = FollowerWatchdog(followers, patience)

    def launch(self, plan: Plan) -> StepHandle:
        with self._together():
            self._tell(plan)
            return super().launch(plan)

    def collect(self, handle: StepHandle) -> StepResult:
        with self._together():
            return super().collect(handle)

    def cache_bytes(self) -> int:
        """On all devices."""
        return super().cache_bytes() * (1 + len(self._followers))

    def logits(self, rows: SequenceRows) -> Tensor:
        """As `CudaBackend.logits`."""
        with self._together():
            self._tell(rows)
            return self._part.logits(rows)

    def when_lost(self, tell: Callable[[DeviceLostError], None]) -> None:
        self._watch.when_lost(tell)

    def close(self) -> None:
        """End the followers."""
        self._watch.end()
        for follower in self._followers:
            with contextlib.suppress(OSError):  # it is gone already
                follower.orders.send(None)
        self._watch.join()
        # NCCL takes leave of the others, who do so now. Who is gone does not answer.
        if self._watch.lost is None:
            _take_leave(self._part.close)
        elif dist.get_backend() != "nccl":
            _take_leave()
        for follower in self._followers:
            follower.process.join(_JOIN_S)
        _end(self._followers)
        if not dist.is_initialized():
            self._meeting_place.cleanup()

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Nobody is asked once they are lost, and any error loses them."""
        if self._watch.lost is not None:
            raise DeviceLostError(str(self._watch.lost))
        try:
            yield
        except Exception as error:
            raise DeviceLostError(str(self._watch.loss(error))) from error

    def _tell(self, order: Plan | SequenceRows) -> None:
        for follower in self._followers:
            follower.orders.send(order)


def lead(
    count: int,
    library: str,
    make: Make,
    patience: HangTimeout | None = None,
    *,
    make_own: Make | None = None,
) -> ParallelBackend:
    """Start a follower for every further rank, and lead them. `make_own`: what the leader does
    instead of `make`, on another thread; it need not be sent anywhere. Raises ModelError where one
    can't start, DeviceLostError where those that were led before have not ended."""
    if dist.is_initialized() or any(each.name == _LEADER for each in threading.enumerate()):
        raise DeviceLostError("a model on several GPUs has not ended in this process")
    patience = patience or HangTimeout()
    meeting_place = tempfile.TemporaryDirectory(prefix="halfsec-", ignore_cleanup_errors=True)
    store = str(Path(meeting_place.name, "store"))
    own, *others = (ProcessGroup(rank, count, store, library) for rank in range(count))
    followers: list[Follower] = []
    atexit.register(_end, followers)  # they don't heed who asks them to end when Python does
    try:
        followers.extend(_started(team, make, patience) for team in others)
        _beside(own.join, followers)
        finish = _beside(partial(make_own or make, own), followers)
        for follower in followers:
            with contextlib.suppress(OSError):  # what it died of is heard below
                follower.orders.send(_GO)
        backend = _beside(finish, followers)
        return ParallelBackend(backend, followers, patience, meeting_place)
    except BaseException:
        _end(followers)
        if dist.is_initialized():
            _take_leave()
        if not dist.is_initialized():
            meeting_place.cleanup()
        raise


def _beside(work: Callable[[], T], followers: Sequence[Follower]) -> T:
    """The leader's part of some work, until each follower has said that it has done its own. Raises
    ModelError where one has not: the leader may then wait for it for ever, and is left behind, on a
    thread under which Python can't end (`os._exit` can)."""
    outcome: Future[T] = Future()
    end, at_end = mp.Pipe(duplex=False)

    def run() -> None:
        with at_end:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

    threading.Thread(target=run, name=_LEADER, daemon=True).start()
    busy = {each.orders: each for each in followers}
    is_working, error = True, None
    with end:
        while busy or is_working:
            ready = wait([*busy, *[end] * is_working], None if error is None else _SETTLE_S)
            for follower in [each for each in followers if each.orders in ready]:
                del busy[follower.orders]
                problem = _problem(follower)
                if problem is not None:
                    raise ModelError(f"GPU {follower.rank}: {problem}") from error
            if end in ready:
                is_working, error = False, outcome.exception()
            elif not ready:
                break
    return outcome.result()


def _take_leave(close: Callable[[], None] = lambda: None) -> None:
    """Of the other processes, behind `close`, as far as that and the library get: they may wait for
    who is gone."""

    def leave() -> None:
        try:
            close()
            dist.destroy_process_group()
        except Exception as error:  # all that it held ends with the process
            _log.warning("the GPUs' processes part in disorder: %r", error)

    leaving = threading.Thread(target=leave, name="halfsec-leaving", daemon=True)
    leaving.start()
    leaving.join(_JOIN_S)


def _end(followers: Sequence[Follower]) -> None:
    """Kill those that live, and wait: their memory is free then."""
    atexit.unregister(_end)
    for follower in followers:
        follower.process.kill()
    for follower in followers:
        follower.process.join(_JOIN_S)
        follower.orders.close()


def _started(team: ProcessGroup, make: Make, patience: HangTimeout) -> Follower:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    beats = context.RawValue("Q")
    process = context.Process(
        target=_follow,
        args=(team, make, theirs, beats, patience),
        name=f"halfsec-gpu-{team.rank}",
        daemon=True,
    )
    process.start()
    theirs.close()
    return Follower(team.rank, process, ours, beats)


def _problem(follower: Follower) -> str | None:
    """Wait for a follower's next word: why it could not do its part; None: it could."""
    try:
        problem: str | None = follower.orders.recv()
    except (EOFError, OSError):
        follower.process.join(_JOIN_S)
        return f"its process ended (exit {follower.process.exitcode})"
    return problem
