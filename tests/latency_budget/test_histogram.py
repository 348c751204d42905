"""Quantiles from buckets stay near the exact ones."""

import math

from hypothesis import given
from hypothesis import strategies as st

from latency_budget.statistics.histogram import LOWEST_MS, Buckets, Histogram, charted_ms

DURATIONS = st.lists(st.floats(LOWEST_MS, 60_000), min_size=1, max_size=60)


@given(DURATIONS, st.floats(0.01, 1))
def test_quantiles_are_within_five_percent(durations: list[float], share: float) -> None:
    histogram = Histogram()
    for ms in durations:
        histogram.record(ms)
    exact = sorted(durations)[math.ceil(share * len(durations)) - 1]
    assert abs(histogram.quantile(share) / exact - 1) <= 0.05
    assert histogram.count == len(durations)
    assert math.isclose(histogram.sum_ms, sum(durations))


def test_the_ends_hold_everything_beyond() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) == 0
    histogram.record(0, times=3)
    histogram.record(1e9)
    assert histogram.count == 4
    assert histogram.quantile(0.75) == LOWEST_MS
    assert histogram.quantile(1) > 60_000


@given(DURATIONS, st.integers(1, 20))
def test_cumulative_counts_are_exact(durations: list[float], every: int) -> None:
    histogram = Histogram()
    for ms in durations:
        histogram.record(ms)
    buckets = histogram.cumulative(every)
    for bound_ms, number in buckets:
        near = sum(math.isclose(ms, bound_ms, rel_tol=1e-9) for ms in durations)
        assert abs(number - sum(ms <= bound_ms for ms in durations)) <= near
    assert [bound for bound, _ in buckets] == sorted({bound for bound, _ in buckets})
    assert buckets[-1][0] > 10_000


def test_a_copy_stands_still() -> None:
    histogram = Histogram()
    histogram.record(5)
    copy = histogram.copy()
    histogram.record(5)
    assert (copy.count, histogram.count) == (1, 2)


@given(DURATIONS)
def test_buckets_count_what_is_at_most_their_bound(durations: list[float]) -> None:
    bounds = (0.5, 10.0, 500.0, 30_000.0)
    buckets = Buckets(bounds)
    for ms in (*durations, 500.0):
        buckets.record(ms)
    expected = [(bound, sum(ms <= bound for ms in (*durations, 500.0))) for bound in bounds]
    assert buckets.cumulative() == expected
    assert buckets.count == len(durations) + 1
    assert math.isclose(buckets.sum_ms, sum(durations) + 500)


def test_the_bars_of_a_chart_part_at_the_budget() -> None:
    """Half a second is in time, a microsecond more is not; nothing at all has a bar of its own."""
    ms = 1_000_000
    times = {0: 3, 1: 1, 1 * ms: 1, 500 * ms: 2, 500 * ms + 1000: 1, 60_000 * ms: 1}
    bars = {bar[0]: bar[1] for bar in charted_ms(times)}
    assert (bars[0], bars[500], bars[525]) == (3, 2, 1)
    assert sum(bars.values()) == sum(times.values())
    bounds = [bound for bound, _ in charted_ms(times)]
    assert bounds == sorted(bounds)
    assert 1 <= bounds[1] < 1.05
    assert 60_000 <= bounds[-1] < 60_000 * 1.05
    assert charted_ms({}) == []


@given(st.dictionaries(st.integers(0, 10**12), st.integers(1, 5), max_size=50))
def test_every_time_lies_below_its_bound_and_above_the_one_before(times: dict[int, int]) -> None:
    for time_ns in times:
        ((bound_ms, count),) = charted_ms({time_ns: 1})
        assert count == 1
        assert time_ns / 1e6 <= bound_ms * 1.001
        assert bound_ms <= max(time_ns / 1e6 * 1.0501, 1.06)
    assert sum(count for _, count in charted_ms(times)) == sum(times.values())
