"""Histograms of durations, with bounded memory, no sorting and a known error.

Bucket bounds grow by a tenth, so a quantile read from them is at most 5 % off. 150 buckets reach
from 0.1 ms to over two minutes; what lies outside counts in the first or last one.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from latency_budget.account.budget import TARGET_MS

LOWEST_MS = 0.1
GROWTH = 1.1
NUM_BUCKETS = 150
_LOG_GROWTH = math.log(GROWTH)

CHART_GROWTH: Final = 1.05
"""Ratio of neighbouring bounds of a chart: a bar of 25 ms at 500 ms."""
CHART_BOUND_MS: Final = float(TARGET_MS)
"""A bound of every chart, so that no bar lies on both sides of the usual budget."""
CHART_LOWEST_MS: Final = 1.0
"""Upper bound of the bar of the shortest times; a time of 0 has a bar of its own."""


class Histogram:
    """Counts durations in 150 exponential buckets. Not thread-safe: one thread records; others may
    read a `copy`."""

    def __init__(self) -> None:
        self._counts = [0] * NUM_BUCKETS
        self.count = 0
        self.sum_ms = 0.0

    def record(self, ms: float, times: int = 1) -> None:
        """Count a duration `times` times."""
        place = int(math.log(ms / LOWEST_MS) / _LOG_GROWTH) + 1 if ms > LOWEST_MS else 0
        self._counts[min(place, NUM_BUCKETS - 1)] += times
        self.count += times
        self.sum_ms += ms * times

    def quantile(self, share: float) -> float:
        """The quantile at this share, in ms; 0 without durations."""
        rank = math.ceil(share * self.count)
        passed = 0
        for place, count in enumerate(self._counts):
            passed += count
            if count and passed >= rank:
                return LOWEST_MS * GROWTH ** (place - 0.5 if place else 0)
        return 0.0

    def cumulative(self, every: int = 1) -> list[tuple[float, int]]:
        """Cumulative counts `(upper bound in ms, number)` of every `every`-th bucket. Exact, as
        each bound is a bucket's own. The last bucket has no bound: the total is `count`."""
        sums = list(accumulate(self._counts))
        return [
            (LOWEST_MS * GROWTH**place, sums[place]) for place in range(0, NUM_BUCKETS - 1, every)
        ]

    def copy(self) -> "Histogram":
        """A copy of the counts so far."""
        twin = Histogram()
        twin._counts, twin.count, twin.sum_ms = list(self._counts), self.count, self.sum_ms
        return twin


class Buckets:
    """Counts durations in buckets with given bounds, for figures whose interesting range is known.
    Not thread-safe."""

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        """`bounds_ms`: upper bounds, ascending."""
        self._bounds_ms: Final = tuple(bounds_ms)
        self._counts = [0] * (len(self._bounds_ms) + 1)
        self.sum_ms = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def record(self, ms: float) -> None:
        self._counts[bisect_left(self._bounds_ms, ms)] += 1
        self.sum_ms += ms

    def cumulative(self) -> list[tuple[float, int]]:
        """Cumulative counts `(upper bound in ms, number)`."""
        return list(zip(self._bounds_ms, accumulate(self._counts), strict=False))


def charted_ms(times_ns: Mapping[int, int]) -> list[list[float]]:
    """A chart's histogram of counts by time in ns: `[[upper_ms, count], ...]`, ascending, without
    empty buckets. A time lies in the first bucket whose bound it does not exceed; the first bound
    is 0."""
    counts: dict[float, int] = {}
    for time_ns, times in times_ns.items():
        bound_ms = _chart_bound_ms(time_ns / 1e6)
        counts[bound_ms] = counts.get(bound_ms, 0) + times
    return [[bound_ms, counts[bound_ms]] for bound_ms in sorted(counts)]


def _chart_bound_ms(ms: float) -> float:
    if ms <= 0:
        return 0.0
    step = math.log(max(ms, CHART_LOWEST_MS) / CHART_BOUND_MS) / math.log(CHART_GROWTH)
    place = math.ceil(step - 1e-9)  # a bound itself, in spite of rounding
    return round(float(CHART_BOUND_MS * CHART_GROWTH**place), 3)
