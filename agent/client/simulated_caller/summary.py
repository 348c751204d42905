"""Summary of spoken turns: percentiles of latency at the ear, answered turns, cut-ins."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from latency_budget.account.turn_record import Outcome
from latency_budget.statistics.intervals import wilson_interval
from latency_budget.statistics.report import percentile

from .caller import SpokenTurn

PERCENTILES: Final = (50, 90, 95, 99)


def summarize_exchanges(exchanges: Sequence[SpokenTurn]) -> dict[str, Any]:
    """`{turns, answered, p50, p90, p95, p99, e2e_raw_ms: {p50, ...}, openers, cut_in_rate,
    cut_in_interval, outcomes}`, times in ms at the ear; `e2e_raw_ms`: less the time held back on
    purpose; `outcomes`: turns by `SpokenTurn.outcome`."""
    timed = [exchange for exchange in exchanges if not exchange.cut_in]
    cut_ins = sum(exchange.cut_in for exchange in exchanges)
    return {
        "turns": len(exchanges),
        "answered": sum(exchange.answered for exchange in exchanges),
        **percentiles_ms(exchange.e2e_ear_ms for exchange in timed),
        "e2e_raw_ms": percentiles_ms(exchange.e2e_raw_ms for exchange in timed),
        "openers": sum(exchange.opener for exchange in exchanges),
        "cut_in_rate": cut_ins / len(exchanges) if exchanges else None,
        "cut_in_interval": list(wilson_interval(cut_ins, len(exchanges))) if exchanges else None,
        "outcomes": {
            outcome.value: sum(exchange.outcome is outcome for exchange in exchanges)
            for outcome in Outcome
        },
    }


def percentiles_ms(values: Iterable[float | None]) -> dict[str, float | None]:
    """`{p50, p90, p95, p99}` of the known values; None without any."""
    ordered = sorted(round(value * 1e6) for value in values if value is not None)
    return {
        f"p{rank}": percentile(ordered, rank) / 1e6 if ordered else None for rank in PERCENTILES
    }
