"""Comparison of two runs: a significance test, and the difference with its interval.

Turns differ by far more than versions do, so a difference of two medians means little by itself.
The Mann-Whitney test asks how likely the order of the times would be if both runs were the same;
it does not assume a normal distribution. The difference has a 95 % interval by bootstrap.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from latency_budget.account.turn_record import TurnRecord
from latency_budget.statistics.report import percentile

MIN_TURNS: Final = 8
"""Fewest timed turns of each run. Fewer can't show a difference of 100 ms."""

RESAMPLES: Final = 2000

MAX_DRAWN: Final = 4_000_000
"""Most values drawn in all, so that a comparison takes seconds: many turns need fewer resamples."""

SEED: Final = 20261121

SIGNIFICANT: Final = 0.05


class CompareError(ValueError):
    """The runs can't be compared. The message has the reason."""


@dataclass(frozen=True, slots=True)
class PercentileDifference:
    """Difference of one percentile, in ms: the second run's less the first's."""

    name: str
    first_ms: float
    second_ms: float
    low_ms: float
    """Lower end of the 95 % interval of the difference."""
    high_ms: float
    """Upper end of that interval."""

    @property
    def ms(self) -> float:
        return self.second_ms - self.first_ms


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of the times from the caller's last word to the answer."""

    measure: str
    """`e2e_ear_ms` or `e2e_server_ms`: the same on both sides."""
    num_first: int
    num_second: int
    p_value: float
    """Probability of such an order of times if both runs were the same."""
    differences: tuple[PercentileDifference, ...]

    @property
    def verdict(self) -> str:
        """The result as a sentence."""
        by_chance = f"p = {self.p_value:.3f}" if self.p_value >= 0.001 else "p < 0.001"
        if self.p_value >= SIGNIFICANT:
            turns = f"{self.num_first} and {self.num_second} turns"
            return f"no difference that {turns} show ({by_chance})"
        median = self.differences[0]
        word = "slower" if median.ms > 0 else "faster"
        return f"the second is {word} by {abs(median.ms):.0f} ms in the median ({by_chance})"


def compare(first: Sequence[TurnRecord], second: Sequence[TurnRecord]) -> Comparison:
    """Compare two runs. Raises CompareError where one has fewer than MIN_TURNS timed turns."""
    timed = [each for run in (first, second) for each in run if each.e2e_ns is not None]
    at_ear = all(each.e2e_ear_ns is not None for each in timed)
    times = [_times_ns(run, at_ear) for run in (first, second)]
    for name, run_times in zip(("first", "second"), times, strict=True):
        if len(run_times) < MIN_TURNS:
            raise CompareError(
                f"the {name} run has {len(run_times)} turns with a time; "
                f"comparing takes {MIN_TURNS} in each"
            )
    return Comparison(
        measure="e2e_ear_ms" if at_ear else "e2e_server_ms",
        num_first=len(times[0]),
        num_second=len(times[1]),
        p_value=mann_whitney(*times),
        differences=tuple(_difference(rank, *times) for rank in (50, 95)),
    )


def _times_ns(run: Sequence[TurnRecord], at_ear: bool) -> list[int]:
    found = (each.e2e_ear_ns if at_ear else each.e2e_server_ns for each in run)
    return sorted(time_ns for time_ns in found if time_ns is not None)


def mann_whitney(first: Sequence[int], second: Sequence[int]) -> float:
    """Two-sided p-value by the normal approximation with ties, good from 8 values on each side."""
    ordered = sorted([(value, 0) for value in first] + [(value, 1) for value in second])
    rank_sum, tie_sum = 0.0, 0
    at = 0
    while at < len(ordered):
        end = at
        while end < len(ordered) and ordered[end][0] == ordered[at][0]:
            end += 1
        size = end - at
        rank_sum += (at + 1 + end) / 2 * sum(side == 0 for _, side in ordered[at:end])
        tie_sum += size**3 - size
        at = end
    n, m, total = len(first), len(second), len(ordered)
    spread = n * m / 12 * (total + 1 - tie_sum / (total * (total - 1)))
    if spread <= 0:
        return 1.0
    off = abs(rank_sum - n * (n + 1) / 2 - n * m / 2)
    return 2 * (1 - NormalDist().cdf(max(0.0, off - 0.5) / math.sqrt(spread)))


def _difference(rank: int, first: Sequence[int], second: Sequence[int]) -> PercentileDifference:
    rng = random.Random(SEED)
    resamples = min(RESAMPLES, max(200, MAX_DRAWN // (len(first) + len(second))))
    found = sorted(
        percentile(rng.choices(second, k=len(second)), rank)
        - percentile(rng.choices(first, k=len(first)), rank)
        for _ in range(resamples)
    )
    low, high = found[round(0.025 * resamples)], found[round(0.975 * resamples) - 1]
    return PercentileDifference(
        f"p{rank}",
        percentile(first, rank) / 1e6,
        percentile(second, rank) / 1e6,
        low / 1e6,
        high / 1e6,
    )
