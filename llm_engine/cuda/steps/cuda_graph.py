"""Work that is recorded once and then played back, so that the host need not launch its kernels."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

Replay = Callable[[], None]

_WARM_UPS = 2
"""Runs before a recording: the first compiles kernels and lets libraries choose theirs."""


class Graphs(Protocol):
    """Records work of one thread."""

    def running(self) -> AbstractContextManager[object]:
        """In which all work is launched, recorded or not, in the order in which it is done."""
        ...

    def capture(self, work: Callable[[], None]) -> Replay:
        """Run some work, and return what runs it again on the same tensors. It may not allocate
        what outlives it, nor look at a tensor's values."""
        ...

    def release(self) -> None:
        """Forget all that was recorded, when it has run. Nothing may be replayed any more."""
        ...


class EagerGraphs:
    """Where there are no graphs: the work itself."""

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def capture(self, work: Callable[[], None]) -> Replay:
        work()
        return work

    def release(self) -> None:
        pass


class CudaGraphs:
    """Graphs that share one pool of memory, as they never run at the same time: all on one stream.

    It is not the default one, for which everything else on the device would wait, and which waits
    for everything else: a recognizer may be at work beside it.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)  # what was loaded is there
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._recorded: list[torch.cuda.CUDAGraph] = []

    def running(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def capture(self, work: Callable[[], None]) -> Replay:
        with self.running():
            for _ in range(_WARM_UPS):
                work()
            self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads may load their models meanwhile: what they allocate is no part of this.
        with (
            _nothing_collected(),
            torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
        ):
            work()
        with self.running():
            graph.replay()  # the first time takes longer: it goes to the device then
            self._stream.synchronize()
        self._recorded.append(graph)
        return graph.replay

    def release(self) -> None:
        self._stream.synchronize()
        for graph in self._recorded:
            graph.reset()
        self._recorded.clear()


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Garbage may hold page-locked memory, which asks its stream for an event when it is freed: in
    the midst of a recording, if that is when it is collected."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
