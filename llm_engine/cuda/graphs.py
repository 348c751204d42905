"""Work that is recorded once and then played back, so that the host need not launch its kernels."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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


class EagerGraphs:
    """Where there are no graphs: the work itself."""

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def capture(self, work: Callable[[], None]) -> Replay:
        work()
        return work


class CudaGraphs:
    """Graphs that share one pool of memory, as they never run at the same time: all on one stream.

    It is not the default one, for which everything else on the device would wait, and which waits
    for everything else: a recognizer may be at work beside it.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)  # what was loaded is there
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def running(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def capture(self, work: Callable[[], None]) -> Replay:
        with self.running():
            for _ in range(_WARM_UPS):
                work()
            self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads may load their models meanwhile: what they allocate is no part of this.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            work()
        return graph.replay
