"""Work that is recorded once and then played back, so that the host need not launch its kernels."""

from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]

_WARM_UPS = 2
"""Runs before a recording: the first compiles kernels and lets libraries choose theirs."""


class Graphs(Protocol):
    """Records work of one thread."""

    def capture(self, work: Callable[[], None]) -> Replay:
        """Run some work, and return what runs it again on the same tensors. It may not allocate
        what outlives it, nor look at a tensor's values."""
        ...


class EagerGraphs:
    """Where there are no graphs: the work itself."""

    def capture(self, work: Callable[[], None]) -> Replay:
        work()
        return work


class CudaGraphs:
    """Graphs that share one pool of memory: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Replay:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay
