"""Timing on the device: captured graphs on a GPU, the clock on a CPU."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from latency_budget.account.clock import SystemClock

Call = Callable[[], Any]

_CLOCK = SystemClock()
_MIN_GRAPH_CALLS = 20
"""Least number of calls in a graph: its own launch, some 5 us, is spread over them."""


def call_us(calls: Sequence[Call], device: torch.device, *, repeats: int) -> float:
    """Median time in us of one call; `calls` are made in turn.

    Together they should use enough memory that no call finds its operands in the cache.
    """
    if device.type == "cuda":
        return _graph_us(calls, repeats)
    calls[0]()
    times = []
    for number in range(repeats):
        start_ns = _CLOCK.now_ns()
        calls[number % len(calls)]()
        times.append((_CLOCK.now_ns() - start_ns) / 1e3)
    return statistics.median(times)


def _graph_us(calls: Sequence[Call], repeats: int) -> float:
    rounds = -(-_MIN_GRAPH_CALLS // len(calls))
    graph = captured([*calls] * rounds)
    return statistics.median(replay_ms(graph, repeats)) * 1e3 / (rounds * len(calls))


def captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """Capture a graph of these calls, after one call of each to compile its kernels."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def replay_ms(graph: torch.cuda.CUDAGraph, repeats: int) -> list[float]:
    """Time in ms of each replay, by the device's clock."""
    for _ in range(3):
        graph.replay()
    events = [(event(), event()) for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


def event() -> torch.cuda.Event:
    """Make an event with a timestamp."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def mean_ms(call: Call, device: torch.device, *, repeats: int) -> float:
    """Mean time in ms of a call that is so long that its launch cost does not matter."""
    call()
    if device.type != "cuda":
        return call_us([call], device, repeats=repeats) / 1e3
    begin, end = event(), event()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / repeats
