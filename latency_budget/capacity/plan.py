"""Capacity plan: the replicas and autoscaler settings with which a load is refused seldom enough.

The goal is a share of refused calls in the busiest hour, as telephone networks set it (grade of
service). A fixed number of replicas follows from Erlang B at the busiest moment. Below that, the
autoscaler's settings are tried in simulations, and those that take the fewest hours of replicas
win:

- the target per replica, as a share of what it holds (`UTILIZATIONS`). Higher: fewer replicas, and
  fewer free lines for the calls that come while another replica starts;
- the least number of replicas, by bisection between what the quietest hour needs and the fixed
  number. A burst that is over before a replica has started needs them all the time.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

from latency_budget.statistics.intervals import wilson_interval

from .erlang import lines_for
from .fleet import FleetResult, FleetSimulation, ReplicaFigures, ScalingRules
from .load import DAY_S, HOUR_S, CallLoad

UTILIZATIONS: Final = (0.9, 0.8, 0.7, 0.6, 0.5)

MIN_ARRIVALS: Final = 20_000
"""Calls of one simulation, for which a small load is simulated over up to `MAX_DAYS`. At a share of
1 in 1000 that is 20 refusals, known within half of that."""

MAX_DAYS: Final = 3

MAX_ARRIVALS: Final = 400_000
"""Calls of one simulation in the search, 2 s; of a larger load only the hours are tried in which
most changes."""

ENOUGH: Final = 20
"""Refusals beyond twice the goal after which a simulation of the search is given up."""

SETTLE_S: Final = 1800.0
"""Time before such an hour that is simulated as well."""


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Replicas and settings for one load."""

    figures: ReplicaFigures
    max_refused: float
    """The goal: greatest share of refused calls in the busiest hour."""
    most_offered: float
    """Calls at once at the busiest moment, if none were refused."""
    num_lines: int
    """Lines that these need by Erlang B."""
    fixed: ScalingRules
    fixed_result: FleetResult
    """Simulation without autoscaling."""
    rules: ScalingRules
    result: FleetResult
    """Simulation of what is recommended."""


def capacity_plan(
    load: CallLoad, figures: ReplicaFigures, max_refused: float = 0.001, seed: int = 0
) -> CapacityPlan:
    """Plan for a load. Raises ValueError for a goal that can't be met."""
    span = _span(load)
    tried = _stretches(load, span)
    num_lines = lines_for(load.most_offered, max_refused)
    num_fixed = max(1, math.ceil(num_lines / figures.calls))

    def cost(rules: ScalingRules) -> float | None:
        """Hours of replicas; None where the goal is missed."""
        hours = 0.0
        for begin_s, end_s in tried:
            most = 2 * max_refused * _arrivals(load, begin_s, end_s) + ENOUGH
            simulation = FleetSimulation(figures, rules, seed)
            found = simulation.run(load, begin_s, end_s, max_refused=most)
            if not keeps(load, found, max_refused):
                return None
            hours += found.replica_hours
        return hours

    fixed = _fixed(num_fixed, figures)
    while (fixed_cost := cost(fixed)) is None:  # a burst, or chance
        num_fixed += max(1, num_fixed // 50)
        fixed = _fixed(num_fixed, figures)
    num_least = max(1, math.ceil(lines_for(load.least_offered, max_refused) / figures.calls))
    best, best_cost = fixed, fixed_cost
    for utilization in UTILIZATIONS:
        target = target_for(figures.calls, utilization)
        most = max(num_fixed, math.ceil(num_lines / target))
        rules = ScalingRules(num_least, most, round(target, 3))
        low, high = num_least - 1, num_fixed  # `low` misses the goal, `high` may meet it
        while high - low > max(1, num_fixed // 25):
            middle = num_least if low < num_least else (low + high) // 2
            one = replace(rules, min_replicas=middle)
            if (found := cost(one)) is None:
                low = middle
                continue
            if found < best_cost:
                best, best_cost = one, found
            high = middle
    fixed_result = FleetSimulation(figures, fixed, seed).run(load, *span)
    result = FleetSimulation(figures, best, seed).run(load, *span)
    return CapacityPlan(
        figures, max_refused, load.most_offered, num_lines, fixed, fixed_result, best, result
    )


def keeps(load: CallLoad, found: FleetResult, max_refused: float) -> bool:
    """True if no more than this share of calls is refused, of all and of those of hours that are
    alike, as far as their number tells: the 95 % interval does not lie above it."""
    all_hours = list(range(24))
    return not any(
        wilson_interval(*found.refused_of(hours))[0] > max_refused
        for hours in (all_hours, *alike(load))
    )


def worst_hours(load: CallLoad, found: FleetResult) -> tuple[int, int]:
    """Calls refused and arrived in those hours that are alike in which the greatest share was
    refused."""
    return max(map(found.refused_of, alike(load)), key=lambda each: each[0] / max(1, each[1]))


def alike(load: CallLoad) -> list[list[int]]:
    """Hours of the day in groups of the same rate; an hour with a burst stands alone."""
    groups: defaultdict[tuple[float, int], list[int]] = defaultdict(list)
    bursts = {int(burst.at_s // HOUR_S) for burst in load.bursts}
    for hour in range(24):
        groups[load.rate(hour * HOUR_S), hour if hour in bursts else -1].append(hour)
    return list(groups.values())


def target_for(calls: int, utilization: float) -> float:
    """Calls per replica that the autoscaler aims at: this share of what a replica holds, and so few
    that a lone replica is joined by another while it has a free line."""
    return min(utilization * calls, max(calls - 1.0, 0.5)) * 0.99


def _fixed(num_replicas: int, figures: ReplicaFigures) -> ScalingRules:
    return ScalingRules(num_replicas, num_replicas, float(figures.calls))


def _arrivals(load: CallLoad, begin_s: float, end_s: float) -> float:
    """Expected number of ordinary calls."""
    hours = range(int(begin_s // HOUR_S), math.ceil(end_s / HOUR_S))
    return sum(
        load.rate(hour * HOUR_S) * (min(end_s, (hour + 1) * HOUR_S) - max(begin_s, hour * HOUR_S))
        for hour in hours
    )


def _span(load: CallLoad) -> tuple[float, float]:
    """Time that is simulated for the result."""
    if not load.varies:
        num_hours = math.ceil(MIN_ARRIVALS / max(load.per_hour[0], 1))
        return 0.0, HOUR_S * min(num_hours, 24 * MAX_DAYS)
    num_days = math.ceil(MIN_ARRIVALS / max(_arrivals(load, 0, DAY_S), 1))
    return 0.0, DAY_S * min(num_days, MAX_DAYS)


def _stretches(load: CallLoad, span: tuple[float, float]) -> list[tuple[float, float]]:
    """Times that are simulated in the search: all, or the hours of bursts, of the most calls, and
    of the steepest rise."""
    if not load.varies:
        return [span]
    if _arrivals(load, 0, DAY_S) <= MAX_ARRIVALS:
        return [(0.0, DAY_S)]
    hours = range(24)
    rates = [load.rate(hour * HOUR_S) for hour in hours]
    chosen = {max(hours, key=rates.__getitem__)}
    chosen.add(max(hours, key=lambda hour: rates[hour] - rates[hour - 1]))
    chosen |= {int(burst.at_s // HOUR_S) for burst in load.bursts}
    return [
        (max(0.0, hour * HOUR_S - SETTLE_S), (hour + 1) * HOUR_S + SETTLE_S)
        for hour in sorted(chosen)
    ]
