"""Tensor parallelism: one engine on several GPUs, a process for each, all running the same steps.

The engine's process has the first GPU and is the *leader*; the others are *followers*: each has its
shard of the model and of the cache, and runs every plan that the leader runs. Nothing else is sent:
the chosen tokens are computed everywhere from the same numbers, so that every process has them and
launches the same step ahead.

A follower that dies or hangs ends the engine, and so does an error in one process alone: see
`workers.py`. A follower ends with its leader, however that ended.
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

from .follower_watchdog import Follower, FollowerWatchdog, HangTimeout, Heartbeat, received

_log = logging.getLogger(__name__)

_GO = "go"
"""Order to continue: all processes have loaded."""
_MEET = timedelta(minutes=5)
"""Timeout for all processes to join the group."""
_JOIN_S = 10.0
"""Seconds after which a follower that was asked to end is killed, or a library that waits for one
is abandoned."""
_KILLED_S = 60.0
"""The same for a follower that was killed: it ends as soon as the system comes to it."""
_SETTLE_S = 1.0
"""Seconds after an error of the leader in which a follower's error may arrive as its cause."""
_LEADER = "halfsec-leader"
"""Name of the thread on which the leader loads."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Processes that compute together (a torch.distributed group)."""

    rank: int
    count: int
    store: str
    """File by which the processes find each other; it must not exist yet."""
    library: str
    """Backend of torch.distributed: `nccl`, or `gloo` on a CPU."""

    def join(self) -> None:
        """Join the group. Blocks until all processes have joined."""
        dist.init_process_group(
            self.library,
            init_method=f"file://{self.store}",
            rank=self.rank,
            world_size=self.count,
            timeout=_MEET,
        )


Make = Callable[[ProcessGroup], Callable[[], CudaBackend]]
"""Loads one rank's shard in its own process, and returns a function that makes the backend of it:
only that may communicate, when all ranks have loaded. It is sent to the process, so it must be a
module's function with picklable arguments."""


def _follow(
    team: ProcessGroup, make: Make, orders: Connection, beats: Heartbeat, hang_timeout: HangTimeout
) -> None:
    """Main function of a follower: load, then run plans until the leader ends it or is gone."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # only the leader handles them: it may have calls
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
    for order in received(orders, beats, hang_timeout):
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
    """Exit with the leader, even out of a step that waits for it for ever."""
    leader = mp.parent_process()
    assert leader is not None
    leader.join()
    os._exit(1)


class ParallelBackend(BackendWrapper):
    """The leader's backend, over its own shard and those of all followers. Every error becomes a
    DeviceLostError: some processes have done the step, and some have not."""

    def __init__(
        self,
        backend: CudaBackend,
        followers: Sequence[Follower],
        hang_timeout: HangTimeout,
        store_directory: tempfile.TemporaryDirectory[str],
    ) -> None:
        """`store_directory`: holds the group's store file, which libraries go on reading."""
        super().__init__(backend)
        self._own = backend
        self._store_directory = store_directory
        self._followers = followers
        self._watchdog = FollowerWatchdog(followers, hang_timeout)

    def launch(self, plan: Plan) -> StepHandle:
        with self._together():
            self._send(plan)
            return super().launch(plan)

    def collect(self, handle: StepHandle) -> StepResult:
        with self._together():
            return super().collect(handle)

    def cache_bytes(self) -> int:
        """Bytes of keys and values on all devices."""
        return super().cache_bytes() * (1 + len(self._followers))

    def logits(self, rows: SequenceRows) -> Tensor:
        """`CudaBackend.logits`, over all shards."""
        with self._together():
            self._send(rows)
            return self._own.logits(rows)

    def when_lost(self, on_lost: Callable[[DeviceLostError], None]) -> None:
        self._watchdog.when_lost(on_lost)

    def close(self) -> None:
        """End the followers."""
        self._watchdog.end()
        for follower in self._followers:
            with contextlib.suppress(OSError):  # it has ended already
                follower.orders.send(None)
        self._watchdog.join()
        # NCCL waits for the other processes, which leave now. One that has died does not answer.
        if self._watchdog.lost is None:
            _leave_group(self._own.close)
        elif dist.get_backend() != "nccl":
            _leave_group()
        for follower in self._followers:
            follower.process.join(_JOIN_S)
        _end(self._followers)
        if not dist.is_initialized():
            self._store_directory.cleanup()

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Refuse work once a process is lost; turn any error into a loss."""
        if self._watchdog.lost is not None:
            raise DeviceLostError(str(self._watchdog.lost))
        try:
            yield
        except Exception as error:
            raise DeviceLostError(str(self._watchdog.declare_lost(error))) from error

    def _send(self, order: Plan | SequenceRows) -> None:
        for follower in self._followers:
            follower.orders.send(order)


def lead(
    count: int,
    library: str,
    make: Make,
    hang_timeout: HangTimeout | None = None,
    *,
    make_own: Make | None = None,
) -> ParallelBackend:
    """Start a follower for every further rank, load, and return the leader's backend. `make_own`:
    replaces `make` for the leader, on another thread; it need not be picklable. Raises ModelError
    where a process can't start, DeviceLostError while an earlier group has not ended."""
    if dist.is_initialized() or any(each.name == _LEADER for each in threading.enumerate()):
        raise DeviceLostError("a model on several GPUs has not ended in this process")
    hang_timeout = hang_timeout or HangTimeout()
    store_directory = tempfile.TemporaryDirectory(prefix="halfsec-", ignore_cleanup_errors=True)
    store = str(Path(store_directory.name, "store"))
    own, *others = (ProcessGroup(rank, count, store, library) for rank in range(count))
    followers: list[Follower] = []
    atexit.register(_end, followers)  # they ignore the signals that end Python
    try:
        followers.extend(_started(team, make, hang_timeout) for team in others)
        _with_followers(own.join, followers)
        finish = _with_followers(partial(make_own or make, own), followers)
        for follower in followers:
            with contextlib.suppress(OSError):  # its error is received below
                follower.orders.send(_GO)
        backend = _with_followers(finish, followers)
        return ParallelBackend(backend, followers, hang_timeout, store_directory)
    except BaseException:
        _end(followers)
        if dist.is_initialized():
            _leave_group()
        if not dist.is_initialized():
            store_directory.cleanup()
        raise


def _with_followers(work: Callable[[], T], followers: Sequence[Follower]) -> T:
    """Do the leader's part of some work, and wait until each follower has reported its own. Raises
    ModelError where one has failed: the leader may then wait for it for ever, and is abandoned on a
    thread that keeps Python from ending (`os._exit` still can)."""
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


def _leave_group(close: Callable[[], None] = lambda: None) -> None:
    """Run `close` and leave the process group, with a timeout: both may wait for a process that has
    died."""

    def leave() -> None:
        try:
            close()
            dist.destroy_process_group()
        except Exception as error:  # its resources end with the process
            _log.warning("the GPUs' process group could not be closed: %r", error)

    leaving = threading.Thread(target=leave, name="halfsec-leaving", daemon=True)
    leaving.start()
    leaving.join(_JOIN_S)


def _end(followers: Sequence[Follower]) -> None:
    """Kill followers that still run, and wait until their memory is free."""
    atexit.unregister(_end)
    for follower in followers:
        follower.process.kill()
    for follower in followers:
        follower.process.join(_KILLED_S)
        follower.orders.close()


def _started(team: ProcessGroup, make: Make, hang_timeout: HangTimeout) -> Follower:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    beats = context.RawValue("Q")
    process = context.Process(
        target=_follow,
        args=(team, make, theirs, beats, hang_timeout),
        name=f"halfsec-gpu-{team.rank}",
        daemon=True,
    )
    process.start()
    theirs.close()
    return Follower(team.rank, process, ours, beats)


def _problem(follower: Follower) -> str | None:
    """Wait for a follower's next report: its error, or None for success."""
    try:
        problem: str | None = follower.orders.recv()
    except (EOFError, OSError):
        follower.process.join(_JOIN_S)
        return f"its process ended (exit {follower.process.exitcode})"
    return problem
