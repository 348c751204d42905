"""One engine on several GPUs: a process for each, all doing the same steps.

The engine's process has the first GPU and *leads*; the others *follow*: each has its part of the
model and of the cache, and runs every plan that the leader runs. Nothing else has to be told: what
a step chooses is computed everywhere from the same numbers, so that every process knows the tokens
and launches the same step ahead.

A follower that dies takes the engine with it: what it knew of every conversation is gone. The
leader notices before its next step, and raises.
"""

import contextlib
import multiprocessing as mp
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch.distributed as dist
from torch import Tensor

from llm_engine.backends.base import (
    CacheLayout,
    Plan,
    SequenceRows,
    Slot,
    StepHandle,
    StepResult,
)
from llm_engine.cuda.backend import CudaBackend
from llm_engine.errors import EngineError, ModelError

_GO = "go"
"""All have loaded."""
_MEET = timedelta(minutes=5)
"""For all processes to have started."""
_JOIN_S = 10.0
"""Until a follower that was told to end is ended."""


@dataclass(frozen=True, slots=True)
class Team:
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


Make = Callable[[Team], Callable[[], CudaBackend]]
"""Loads what one rank needs, in its own process, and returns what makes the backend of it: only
that may talk to the others, when all have loaded. To be sent there, so a module's own function with
arguments that can be pickled."""


def _follow(team: Team, make: Make, orders: Connection) -> None:
    """A follower's life: until the leader says so, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader's to answer
    try:
        team.join()
        finish = make(team)
    except Exception as error:
        orders.send(f"{type(error).__name__}: {error}")
        return
    orders.send(None)
    if orders.recv() != _GO:
        return
    backend = finish()
    while True:
        try:
            order = orders.recv()
        except EOFError:
            order = None
        match order:
            case Plan():
                backend.collect(backend.launch(order))
            case SequenceRows():
                backend.logits(order)
            case _:
                break
    dist.destroy_process_group()


class ParallelBackend:
    """The leader's. `Backend`, over its own part and that of all followers."""

    def __init__(
        self, backend: CudaBackend, followers: Sequence[tuple[BaseProcess, Connection]]
    ) -> None:
        self._backend = backend
        self._followers = followers

    @property
    def layout(self) -> CacheLayout:
        return self._backend.layout

    def open_slot(self) -> Slot:
        return self._backend.open_slot()

    def close_slot(self, slot: Slot) -> None:
        self._backend.close_slot(slot)

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        self._backend.copy_prefix(source, target, num_tokens)

    def launch(self, plan: Plan) -> StepHandle:
        """Raises EngineError where a follower is gone."""
        self._tell(plan)
        return self._backend.launch(plan)

    def collect(self, handle: StepHandle) -> StepResult:
        return self._backend.collect(handle)

    def cache_bytes(self) -> int:
        """On all devices."""
        return self._backend.cache_bytes() * (1 + len(self._followers))

    def logits(self, rows: SequenceRows) -> Tensor:
        """As `CudaBackend.logits`."""
        self._tell(rows)
        return self._backend.logits(rows)

    def close(self) -> None:
        """End the followers."""
        for _, orders in self._followers:
            with contextlib.suppress(OSError):  # it is gone already
                orders.send(None)
        for process, orders in self._followers:
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()
            orders.close()
        dist.destroy_process_group()

    def _tell(self, order: Plan | SequenceRows) -> None:
        for rank, (process, orders) in enumerate(self._followers, start=1):
            try:
                orders.send(order)
            except OSError as error:
                code = process.exitcode
                raise EngineError(f"the process of GPU {rank} is gone (exit {code})") from error


def lead(count: int, store: str, library: str, make: Make) -> ParallelBackend:
    """Start a follower for every further rank, and lead them. Raises ModelError where one can't
    start."""
    context = mp.get_context("spawn")
    followers: list[tuple[BaseProcess, Connection]] = []
    for rank in range(1, count):
        ours, theirs = context.Pipe()
        process: BaseProcess = context.Process(
            target=_follow,
            args=(Team(rank, count, store, library), make, theirs),
            name=f"halfsec-gpu-{rank}",
            daemon=True,
        )
        process.start()
        theirs.close()
        followers.append((process, ours))
    try:
        team = Team(0, count, store, library)
        team.join()
        finish = make(team)
        for rank, (_, orders) in enumerate(followers, start=1):
            problem = orders.recv()
            if problem is not None:
                raise ModelError(f"GPU {rank}: {problem}")
        for _, orders in followers:
            orders.send(_GO)
        return ParallelBackend(finish(), followers)
    except BaseException:
        for process, _ in followers:
            process.kill()
        if dist.is_initialized():
            dist.destroy_process_group()
        raise
