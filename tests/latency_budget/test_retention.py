"""Age limit of what is stored, with a clock that is right and one that steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_budget.storage.retention import MAX_GAP_NS, NS_PER_DAY, oldest_kept_ns

NOW_NS = 20_000 * NS_PER_DAY
DAILY = [NOW_NS - age * NS_PER_DAY for age in range(60)]


def kept(times_ns: list[int], now_ns: int, max_days: int) -> list[int]:
    oldest_ns = oldest_kept_ns(times_ns, now_ns, max_days * NS_PER_DAY)
    return [at_ns for at_ns in times_ns if at_ns >= oldest_ns]


def test_with_a_clock_that_is_right_the_limit_is_the_limit() -> None:
    assert kept(DAILY, NOW_NS, 30) == DAILY[:31]
    assert kept(DAILY, NOW_NS, 90) == DAILY
    assert oldest_kept_ns([], NOW_NS, NS_PER_DAY) == 0


@pytest.mark.parametrize("step_days", [40, 4000])
def test_a_step_ahead_counts_as_a_week(step_days: int) -> None:
    assert kept(DAILY, NOW_NS + step_days * NS_PER_DAY, 30) == DAILY[:24]


def test_a_service_that_runs_forgets_though_nobody_calls() -> None:
    now_ns, limit_ns = NOW_NS + 180 * NS_PER_DAY, 30 * NS_PER_DAY
    assert oldest_kept_ns(DAILY, now_ns, limit_ns) < NOW_NS, "the clock may have stepped"
    running = oldest_kept_ns(DAILY, now_ns, limit_ns, running_ns=180 * NS_PER_DAY)
    assert running > NOW_NS, "it was there all the time"
    a_day = oldest_kept_ns(DAILY, now_ns, limit_ns, running_ns=NS_PER_DAY)
    assert [at for at in DAILY if at >= a_day] == DAILY[:23]


def test_a_gap_counts_in_full_some_days_after_it_ended() -> None:
    old = [NOW_NS - (100 + age) * NS_PER_DAY for age in range(10)]
    for days, is_kept in ((0, True), (2, True), (4, False)):
        new = [NOW_NS - age * NS_PER_DAY for age in range(days + 1)]
        assert kept([*new, *old], NOW_NS, 90) == (new + old if is_kept else new)


def test_calls_once_a_month_are_kept_some_weeks_longer_at_most() -> None:
    monthly = [NOW_NS - age * 30 * NS_PER_DAY for age in range(20)]
    assert kept(monthly, NOW_NS, 90) == monthly[:4]


def test_times_ahead_of_the_clock_are_kept_and_change_nothing() -> None:
    ahead = NOW_NS + 400 * NS_PER_DAY
    assert kept([ahead, *DAILY], NOW_NS, 30) == [ahead, *DAILY[:31]]


@given(
    st.lists(st.integers(0, 400 * NS_PER_DAY), max_size=30),
    st.integers(0, 4000 * NS_PER_DAY),
    st.integers(1, 90),
)
def test_nothing_within_the_limit_is_deleted(times: list[int], now_ns: int, days: int) -> None:
    for at_ns in times:
        if 0 <= now_ns - at_ns <= days * NS_PER_DAY:
            assert at_ns in kept(times, now_ns, days)


@given(
    st.lists(st.integers(0, 30 * NS_PER_DAY), min_size=1, max_size=30),
    st.integers(0, 4000 * NS_PER_DAY),
)
def test_a_step_deletes_no_more_than_a_week_would(times: list[int], step_ns: int) -> None:
    now_ns, max_days = max(times), 20
    after_a_week = kept(times, now_ns + MAX_GAP_NS, max_days)
    assert set(after_a_week) <= set(kept(times, now_ns + step_ns, max_days))
