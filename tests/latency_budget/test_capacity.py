"""Capacity planning: Erlang B, the simulation of a fleet, and the plan made from it."""

import random
import statistics
from dataclasses import replace

import pytest

from latency_budget.capacity.erlang import erlang_b, lines_for
from latency_budget.capacity.fleet import (
    Autoscaler,
    FleetSimulation,
    ReplicaFigures,
    ScalingRules,
)
from latency_budget.capacity.load import CallBurst, CallLoad, Distribution
from latency_budget.capacity.plan import (
    UTILIZATIONS,
    capacity_plan,
    keeps,
    target_for,
    worst_hours,
)

H = 3600.0
DAY = (*[20.0] * 7, 120, 300, 400, 380, 350, 300, 340, 360, 300, 240, 150, 80, 60, *[20] * 4)


def fixed(num_replicas: int) -> ScalingRules:
    return ScalingRules(num_replicas, num_replicas, 1.0)


# Erlang B


def test_erlang_b_of_the_tables() -> None:
    assert erlang_b(0, 3) == 1
    assert erlang_b(1, 1) == 0.5
    assert erlang_b(2, 1) == pytest.approx(0.2)
    assert erlang_b(15, 10) == pytest.approx(0.03650, abs=5e-6)


def test_lines_for_is_the_fewest() -> None:
    assert lines_for(10, 0.01) == 18
    assert erlang_b(18, 10) <= 0.01 < erlang_b(17, 10)
    assert lines_for(0, 0.01) == 1
    with pytest.raises(ValueError, match="share of refused calls"):
        lines_for(10, 0)


# Load


def test_calls_come_in_order_and_as_many_as_the_hours_say() -> None:
    load = CallLoad((*[0.0] * 8, 900, *[3600] * 15), 60, bursts=(CallBurst(8.5 * H, 500, 10),))
    calls = list(load.arrivals(7 * H, 10 * H, random.Random(3)))
    times = [call.at_s for call in calls]
    assert times == sorted(times)
    assert not [at_s for at_s in times if at_s < 8 * H]
    burst = [at_s for at_s in times if 8.5 * H <= at_s < 8.5 * H + 10]
    assert 500 <= len(burst) <= 520
    assert sum(at_s < 9 * H for at_s in times) - 500 == pytest.approx(900, abs=4 * 30)
    assert sum(at_s >= 9 * H for at_s in times) == pytest.approx(3600, abs=4 * 60)
    assert statistics.fmean(call.length_s for call in calls) == pytest.approx(60, abs=4)
    assert calls == list(load.arrivals(7 * H, 10 * H, random.Random(3)))


def test_what_is_offered_at_the_busiest_moment() -> None:
    load = CallLoad(DAY, 180)
    assert load.most_offered == pytest.approx(400 * 180 / H)
    assert load.least_offered == pytest.approx(1)
    sudden = replace(load, bursts=(CallBurst(0, 100, 0.1),))
    assert sudden.most_offered == pytest.approx(100 + 1, abs=0.1)


# Simulation


@pytest.mark.parametrize("distribution", ["exponential", "fixed"])
def test_a_fixed_fleet_refuses_as_erlang_b_says(distribution: Distribution) -> None:
    """The mean of 20 runs is within 3.5 standard errors; lengths of another distribution change
    nothing."""
    load = CallLoad((1800.0,), 60, distribution)
    shares = []
    for seed in range(20):
        result = FleetSimulation(ReplicaFigures(4, 9), fixed(8), seed).run(load, 0, 2 * H)
        assert result.peak_calls == 32
        assert result.refused == sum(result.refused_by_hour)
        shares.append(result.refused / result.arrived)
    error = statistics.stdev(shares) / len(shares) ** 0.5
    assert error < 0.004
    assert abs(statistics.fmean(shares) - erlang_b(32, 30)) < 3.5 * error


def test_calls_that_may_wait_are_refused_less_often() -> None:
    """M/M/c/K: c lines, and K - c that wait. Its states follow from the balance of flows."""
    lines, room, offered = 8, 3, 8.0
    weights = [1.0]
    for state in range(1, lines + room + 1):
        weights.append(weights[-1] * offered / min(state, lines))
    expected = weights[-1] / sum(weights)
    rules = replace(fixed(4), max_queued_requests=room)
    load = CallLoad((480.0,), 60)
    runs = [
        FleetSimulation(ReplicaFigures(2, 9), rules, seed).run(load, 0, 8 * H) for seed in range(20)
    ]
    shares = [result.refused / result.arrived for result in runs]
    error = statistics.stdev(shares) / len(shares) ** 0.5
    assert error < 0.004
    assert abs(statistics.fmean(shares) - expected) < 3.5 * error
    assert expected < erlang_b(lines, offered) - 10 * error


def test_a_fixed_fleet_with_room_refuses_nobody_and_costs_its_hours() -> None:
    load = CallLoad((600.0,), 120)
    result = FleetSimulation(ReplicaFigures(5, 3), fixed(20), 1).run(load, 0, 20 * H)
    assert result.refused == 0
    assert result.duration_s == 20 * H
    assert result.replica_hours == pytest.approx(400)


def test_a_burst_waits_for_no_replica() -> None:
    """All come at once, within the time that a replica starts in: only free lines help."""
    load = CallLoad((0.0,), 60, "fixed", (CallBurst(100, 30, 0.01),))
    rules = ScalingRules(1, 10, 2.0)
    result = FleetSimulation(ReplicaFigures(4, 5), rules).run(load, 0, 300, warm=False)
    assert (result.arrived, result.refused, result.peak_calls) == (30, 26, 4)


def test_replicas_come_before_the_last_line_is_taken() -> None:
    """Twelve calls, one each minute: with free lines left each time, none is refused."""
    load = CallLoad((0.0,), H, "fixed", tuple(CallBurst(60 * n, 1, 0.01) for n in range(12)))
    rules = ScalingRules(1, 10, target_for(4, 0.9))
    result = FleetSimulation(ReplicaFigures(4, 5), rules).run(load, 0, 900, warm=False)
    assert (result.refused, result.peak_calls) == (0, 12)
    late = replace(rules, target_ongoing_requests=4.0)
    result = FleetSimulation(ReplicaFigures(4, 90), late).run(load, 0, 900, warm=False)
    assert result.refused > 0


@pytest.mark.parametrize(("drain_s", "num_ended"), [(60.0, 0), (10.0, 2)])
def test_a_removed_replica_keeps_its_calls_to_the_end_of_the_drain(
    drain_s: float, num_ended: int
) -> None:
    """Four calls fill a replica, a second comes and takes two more, and is removed when the four
    have ended: 40 s before its own would."""
    bursts = (CallBurst(0, 4, 0.01), CallBurst(50, 2, 0.01))
    load = CallLoad((0.0,), 100, "fixed", bursts)
    rules = ScalingRules(1, 4, 3.0, downscale_delay_s=5)
    result = FleetSimulation(ReplicaFigures(4, 1, drain_s), rules).run(load, 0, 400, warm=False)
    assert (result.arrived, result.refused, result.peak_calls) == (6, 0, 6)
    assert result.ended_by_drain == num_ended


def test_the_same_seed_gives_the_same_run() -> None:
    load, figures = CallLoad((600.0,), 60), ReplicaFigures(2, 4)
    rules = ScalingRules(1, 20, 0.99)
    runs = [FleetSimulation(figures, rules, seed).run(load, 0, 2 * H) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


# Autoscaler


def test_the_autoscaler_waits_until_the_answer_has_stayed() -> None:
    rules = ScalingRules(1, 5, 2.0, upscale_delay_s=3, downscale_delay_s=2)
    scaler = Autoscaler(rules)
    assert [scaler.decide(7, 1) for _ in range(4)] == [1, 1, 1, 4]
    assert [scaler.decide(7, 1), scaler.decide(2, 1), scaler.decide(7, 1)] == [1, 1, 1]
    assert [scaler.decide(100, 4) for _ in range(3)][-1] == 5
    scaler = Autoscaler(rules)
    assert [scaler.decide(0, 4) for _ in range(3)] == [4, 4, 1]


@pytest.mark.parametrize("utilization", UTILIZATIONS)
def test_a_lone_replica_is_joined_while_it_has_a_free_line(utilization: float) -> None:
    for calls in range(2, 30):
        target = target_for(calls, utilization)
        scaler = Autoscaler(ScalingRules(1, 9, target, upscale_delay_s=0))
        assert scaler.decide(calls - 1, 1) >= 2
    assert 0 < target_for(1, utilization) < 1


# Plan


def test_a_plan_keeps_its_goal_with_fewer_replicas_than_a_fixed_fleet() -> None:
    load = CallLoad(DAY, 180)
    plan = capacity_plan(load, ReplicaFigures(4, 4), 0.01)
    assert plan.num_lines == lines_for(20, 0.01) == 30
    assert plan.fixed.min_replicas == 8
    assert plan.rules.min_replicas < 8
    assert keeps(load, plan.result, 0.01)
    assert plan.result.mean_replicas < 0.75 * plan.fixed_result.mean_replicas


def test_a_burst_faster_than_a_start_needs_its_lines_all_the_time() -> None:
    load = CallLoad((60.0,), 60, bursts=(CallBurst(9 * H, 40, 5),))
    plan = capacity_plan(load, ReplicaFigures(4, 60), 0.02)
    assert plan.rules.min_replicas * 4 >= 36
    refused, arrived = worst_hours(load, plan.result)
    assert arrived < 500
    assert refused <= 0.05 * arrived


def test_impossible_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one call"):
        ReplicaFigures(0, 4)
    with pytest.raises(ValueError, match="24 hours"):
        CallLoad((1.0, 2.0), 60)
    with pytest.raises(ValueError, match="below 0"):
        CallLoad((-1.0,), 60)
