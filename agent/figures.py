"""Figures over exchanges as the caller's ear measured them."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

from latency_budget.report import percentile

from .caller import Exchange

PERCENTILES: Final = (50, 90, 95, 99)


def summarize_exchanges(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """`{turns, answered, p50, p90, p95, p99, cut_in_rate}`, times in ms at the ear."""
    times = sorted(
        round(exchange.e2e_ear_ms * 1e6)
        for exchange in exchanges
        if exchange.e2e_ear_ms is not None and not exchange.cut_in
    )
    cut_ins = sum(exchange.cut_in for exchange in exchanges)
    return {
        "turns": len(exchanges),
        "answered": sum(exchange.answered for exchange in exchanges),
        **{f"p{rank}": percentile(times, rank) / 1e6 if times else None for rank in PERCENTILES},
        "cut_in_rate": cut_ins / len(exchanges) if exchanges else None,
    }


def median_stages(turns: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median ms spent and exposed of each stage, over turns as JSON that have stages."""
    collected: dict[str, dict[str, list[float]]] = {}
    for turn in turns:
        for stage, times in turn["stages"].items():
            for kind, value in times.items():
                collected.setdefault(stage, {}).setdefault(kind, []).append(value)
    return {
        stage: {kind: statistics.median(values) for kind, values in kinds.items()}
        for stage, kinds in collected.items()
    }


def wilson_interval(hits: int, trials: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927): honest for rates near 0, unlike the normal one."""
    if not trials:
        return (0.0, 1.0)
    z = 1.959964
    rate = hits / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return (max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale))
