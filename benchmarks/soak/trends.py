"""Trends of a soak: slopes with their intervals, latency at the end beside the beginning. Pure.

A sample resembles the one before it, so that an interval of a plain regression over all samples is
too narrow. Samples are averaged over `NUM_BLOCKS` stretches of time first, and the line is fitted
through the averages. Parts of a soak (after a resumption) have levels of their own and one slope.

A metric grows where the whole 95 % interval of its slope lies above zero *and* the line rises by
more than its allowance over the time judged: a slope of two bytes an hour may be significant, and
is nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from agent.calls.registry import MAX_TRACES
from llm_engine.chat.conversation_pool import MAX_IDLE

NUM_BLOCKS: Final = 16
"""Averages that a line is fitted through. Fewer widen the interval, more are not independent."""
MIN_BLOCKS: Final = 6

WARM_UP: Final = 0.3
"""Share of each part that is not judged: bounded stores fill, and allocators keep what they have
freed."""

ALLOWANCES: Final[Mapping[str, float]] = {
    "rss_mb": 24.0,
    "malloc_mb": 24.0,
    "heap_mb": 4.0,
    "threads": 1.0,
    "tasks": 24.0,
    "descriptors": 4.0,
    "traces": MAX_TRACES + 4.0,
    "pages": 64.0,
    "sequences": MAX_IDLE + 4.0,
    "store_waiting": 8.0,
}
"""Rise over the time judged that is no growth. Memory: as in `bench phone --churn`; where it rises
and what the allocator has in use does not, it is fragmentation, or a mapping. Traces of calls
that are over and conversations of the HTTP API are kept up to a number. The others: what the calls
that happen to be in progress make up (a call has a dozen tasks); without calls they are compared
exactly (`command.AT_REST`)."""

HEAP_ALLOWANCE_MB: Final = 2.0
"""The same for the heap of one subsystem."""

DRIFT: Final = 1.2
"""Greatest ratio of the median latency of the last tenth to that of the first."""
MIN_TENTH: Final = 8
"""Latencies in a tenth; with fewer the drift is not judged."""
NUM_RESAMPLES: Final = 2000

_T_975: Final = {4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228, 12: 2.179, 14: 2.145}
"""Student's t, two-sided 95 %, by degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Slope of one metric, in its unit an hour, with the 95 % interval."""

    name: str
    num_samples: int
    first: float
    """Level of the fitted line where the judged time begins; with several parts their mean."""
    per_hour: float | None
    low: float | None
    high: float | None
    rise: float | None
    """Rise of the line over the time judged."""
    allowance: float
    grows: bool
    smallest: float | None = None
    """Slope an hour from which on growth is found: it takes more than the allowance and more than
    half of the interval. One of just this size is found every other time."""

    @property
    def is_judged(self) -> bool:
        return self.per_hour is not None


@dataclass(frozen=True, slots=True)
class Drift:
    """Latency of the last tenth beside the first, each over its kind's median."""

    num_tenth: int
    first: float | None
    last: float | None
    ratio: float | None
    low: float | None
    """95 % interval of the ratio, by resampling."""
    high: float | None
    drifts: bool

    @property
    def is_judged(self) -> bool:
        return self.ratio is not None


Point = tuple[float, int, float]
"""Time in s, part, value."""


def fit_trend(name: str, points: Sequence[Point], allowance: float) -> Trend:
    """Fit the line after the warm-up. Too few points: not judged."""
    judged = _judged(points)
    blocks = _blocks(judged)
    level = float(np.mean([value for _, _, value in judged])) if judged else 0.0
    num_parts = len({part for _, part, _ in blocks})
    freedom = len(blocks) - num_parts - 1
    if len(blocks) < MIN_BLOCKS or freedom < 3:
        return Trend(name, len(judged), level, None, None, None, None, allowance, grows=False)
    hours = np.array([at_s / 3600 for at_s, _, _ in blocks])
    values = np.array([value for _, _, value in blocks])
    parts = np.array([part for _, part, _ in blocks])
    for part in set(parts):
        own = parts == part
        hours[own] -= hours[own].mean()
        values[own] -= values[own].mean()
    spread = float((hours**2).sum())
    slope = float((hours * values).sum()) / spread
    rest = values - slope * hours
    error = float(np.sqrt((rest**2).sum() / freedom / spread))
    half = _t(freedom) * error
    judged_h = _judged_s(judged) / 3600
    rise = slope * judged_h
    grows = slope - half > 0 and rise > allowance
    first = level - rise / 2 / max(1, num_parts)
    smallest = max(half, allowance / judged_h)
    low, high = slope - half, slope + half
    return Trend(name, len(judged), first, slope, low, high, rise, allowance, grows, smallest)


def _t(freedom: int) -> float:
    known = [each for each in _T_975 if each <= freedom]
    return _T_975[max(known)] if known else 3.182


def _judged(points: Sequence[Point]) -> list[Point]:
    """The points after each part's warm-up."""
    kept: list[Point] = []
    for part in sorted({part for _, part, _ in points}):
        own = [point for point in points if point[1] == part]
        begin_s, end_s = own[0][0], own[-1][0]
        kept += [point for point in own if point[0] >= begin_s + WARM_UP * (end_s - begin_s)]
    return kept


def _judged_s(points: Sequence[Point]) -> float:
    total = 0.0
    for part in {part for _, part, _ in points}:
        own = [at_s for at_s, its, _ in points if its == part]
        total += max(own) - min(own)
    return total


def _blocks(points: Sequence[Point]) -> list[Point]:
    """Averages of stretches of about the same number of points, none over two parts."""
    size = max(1, round(len(points) / NUM_BLOCKS))
    blocks: list[Point] = []
    for part in sorted({part for _, part, _ in points}):
        own = [point for point in points if point[1] == part]
        for first in range(0, len(own) - size + 1, size):
            some = own[first : first + size]
            at_s = float(np.mean([point[0] for point in some]))
            blocks.append((at_s, part, float(np.mean([point[2] for point in some]))))
    return blocks


def fit_drift(latencies: Sequence[tuple[float, str, float]], warm_up_s: float = 0.0) -> Drift:
    """Compare the first and the last tenth of latencies `(at_s, kind, ms)` after the warm-up. Each
    is divided by the median of its kind, so that the mix of kinds does not count."""
    known = sorted(each for each in latencies if each[0] >= warm_up_s)
    by_kind: dict[str, list[float]] = {}
    for _, kind, ms in known:
        by_kind.setdefault(kind, []).append(ms)
    medians = {kind: float(np.median(found)) for kind, found in by_kind.items()}
    relative = np.array([ms / medians[kind] for _, kind, ms in known if medians[kind] > 0])
    size = len(relative) // 10
    if size < MIN_TENTH:
        return Drift(size, None, None, None, None, None, drifts=False)
    first, last = relative[:size], relative[-size:]
    ratio = float(np.median(last) / np.median(first))
    rng = np.random.default_rng(1)
    drawn = np.median(rng.choice(last, (NUM_RESAMPLES, size)), axis=1) / np.median(
        rng.choice(first, (NUM_RESAMPLES, size)), axis=1
    )
    low, high = (float(each) for each in np.percentile(drawn, (2.5, 97.5)))
    drifts = ratio > DRIFT and low > 1.0
    return Drift(size, float(np.median(first)), float(np.median(last)), ratio, low, high, drifts)
