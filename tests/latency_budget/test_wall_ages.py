"""Ages by a wall clock that is put right."""

import pytest

from latency_budget.account.clock import NS_PER_S
from latency_budget.storage.retention import NS_PER_DAY
from latency_budget.storage.wall_ages import MAX_STEPS, MIN_STEP_NS, WallAges

START = 20_000 * NS_PER_DAY
HOUR = 3600 * NS_PER_S


def test_without_a_step_the_age_is_that_of_the_clock() -> None:
    ages = WallAges(0, START)
    ages.look(HOUR, START + HOUR + MIN_STEP_NS - 1)
    ages.look(2 * HOUR, START + 2 * HOUR)
    assert ages.age_ns(START + HOUR) == HOUR
    assert ages.age_ns(START - NS_PER_DAY) == NS_PER_DAY + 2 * HOUR, "another process's"
    assert ages.age_ns(START + 3 * HOUR) is None, "ahead of the clock"
    assert ages.younger_than(HOUR) == [(START + HOUR, START + 2 * HOUR)]


@pytest.mark.parametrize("step", [-30 * NS_PER_DAY, -HOUR, 2 * HOUR, 30 * NS_PER_DAY])
def test_a_step_of_the_clock_makes_nothing_older_or_younger(step: int) -> None:
    ages = WallAges(0, START)
    ages.look(HOUR, START + HOUR)
    # The step, and both times of this moment, lie between two looks.
    before, after = START + HOUR + MIN_STEP_NS, START + HOUR + MIN_STEP_NS + step
    ages.look(HOUR + 2 * MIN_STEP_NS, START + HOUR + 2 * MIN_STEP_NS + step)
    assert ages.age_ns(before) == ages.age_ns(after) == MIN_STEP_NS
    ages.look(2 * HOUR, START + 2 * HOUR + step)
    assert ages.age_ns(START + 1) == 2 * HOUR - 1 or step == -HOUR
    assert ages.age_ns(after) == HOUR - MIN_STEP_NS
    kept = ages.younger_than(HOUR)
    assert any(first <= after <= last for first, last in kept)
    assert any(first <= before <= last for first, last in kept)
    old = START + HOUR - 1
    assert not any(first <= old <= last for first, last in kept) or step == -HOUR


def test_times_that_the_clock_has_shown_twice_are_those_after_the_step() -> None:
    ages = WallAges(0, START)
    ages.look(2 * HOUR, START + 2 * HOUR)
    ages.look(2 * HOUR, START + HOUR)
    assert ages.age_ns(START + HOUR + 1) == HOUR - 1, "not shown again yet"
    ages.look(3 * HOUR, START + 2 * HOUR)
    assert ages.age_ns(START + HOUR + 1) == HOUR - 1
    assert ages.age_ns(START + 2 * HOUR) == 0


def test_a_clock_that_steps_without_end_takes_no_memory() -> None:
    ages = WallAges(0, START)
    for number in range(1, 100):
        ages.look(number, START + number % 2 * HOUR)
    assert len(ages.younger_than(NS_PER_DAY)) == MAX_STEPS + 1
