"""Calibration of the end of turn: what the probability says, and how often it happens.

The decision is a threshold on a probability: that the turn is over, given all that is known of a
pause and how long it has lasted. A reliability table compares it with what happened: of the pauses
of which it says 70 to 80 %, 70 to 80 % should be ends of turns. The half that nothing was fitted
on is judged, once at each of `SILENCES_MS`: every pause that lasted as long and has words is one
row, so no pause counts twice in a table.

Two numbers sum a table up. The *Brier score* is the mean square of what is missing between the
probability and the truth; "always the base rate" stands beside it. The *expected calibration
error* (ECE) is the distance between predicted and observed, averaged over the bins by their rows.
Kinds of turns have other shares of ends, and stand apart: a probability that is calibrated over all
can be too high for one kind.

Beside it: the processor time of one decision. It is that of the pure code from a pause's evidence
to its wait, the first time that its words are seen. `python -m benchmarks.end_of_turn.fit` prints
both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from agent.turn_taking import end_of_turn_model
from agent.turn_taking.end_of_turn_model import Evidence, TurnScore
from benchmarks.statistics import wilson_interval
from latency_budget.account.clock import processor_ns
from latency_budget.statistics.report import percentile

from .evaluation import KnownTurn

SILENCES_MS: Final = (300, 416, 800)
"""Silences at which the probability is judged: where the page's table of waits has it, the least
wait of `auto`, and late."""

NUM_BINS: Final = 10


@dataclass(frozen=True, slots=True)
class ProbabilityBin:
    """Pauses whose probabilities lie between `low` and `high`."""

    low: float
    high: float
    count: int
    predicted: float | None
    """Mean probability; None without pauses."""
    observed: float | None
    """Share of the pauses that were ends of turns."""
    interval: tuple[float, float]
    """95 % interval of that share, by Wilson."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """Reliability table."""

    count: int
    brier: float
    base_brier: float
    """Brier score of a probability that is always the share of ends."""
    expected_calibration_error: float
    bins: tuple[ProbabilityBin, ...]


def reliability(predicted: Sequence[float], observed: Sequence[bool]) -> Reliability:
    """Table of probabilities (0 to 1) and what happened, as many of each, at least one."""
    p, is_end = np.array(predicted, np.float64), np.array(observed, np.float64)
    places = np.minimum((p * NUM_BINS).astype(int), NUM_BINS - 1)
    bins = tuple(
        _bin(place, p[places == place], is_end[places == place]) for place in range(NUM_BINS)
    )
    error = sum(
        one.count * abs(one.predicted - one.observed)
        for one in bins
        if one.predicted is not None and one.observed is not None
    )
    return Reliability(
        len(p),
        round(float(((p - is_end) ** 2).mean()), 4),
        round(float(is_end.var()), 4),
        round(error / len(p), 4),
        bins,
    )


def _bin(
    place: int, predicted: np.ndarray[Any, Any], observed: np.ndarray[Any, Any]
) -> ProbabilityBin:
    low, high = place / NUM_BINS, (place + 1) / NUM_BINS
    count, ends = len(predicted), int(observed.sum())
    if not count:
        return ProbabilityBin(low, high, 0, None, None, (0.0, 1.0))
    interval = tuple(round(each, 4) for each in wilson_interval(ends, count))
    mean = round(float(predicted.mean()), 4)
    return ProbabilityBin(
        low, high, count, mean, round(ends / count, 4), (interval[0], interval[1])
    )


def judged_at(
    turns: Sequence[KnownTurn], score: TurnScore, silence_ms: int
) -> tuple[list[float], list[bool]]:
    """Probabilities after this silence of all pauses that lasted as long, and whether the turn was
    over."""
    predicted, observed = [], []
    for turn in turns:
        for pause, evidence in turn.pauses:
            if pause.silence_ms >= silence_ms:
                predicted.append(_probability(score.log_odds(evidence, silence_ms)))
                observed.append(pause.is_end)
    return predicted, observed


def _probability(log_odds: float) -> float:
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, log_odds))))


def calibration(turns: Sequence[KnownTurn], score: TurnScore) -> dict[str, Any]:
    """Reliability tables by silence: of all turns, and of each kind of them."""
    found: dict[str, Any] = {}
    for silence_ms in SILENCES_MS:
        groups = {"all": list(turns)}
        for turn in turns:
            groups.setdefault(turn.kind, []).append(turn)
        tables = {}
        for name, ours in groups.items():
            predicted, observed = judged_at(ours, score, silence_ms)
            if predicted:
                tables[name] = asdict(reliability(predicted, observed))
        found[str(silence_ms)] = tables
    return found


def decision_times(turns: Sequence[KnownTurn], score: TurnScore) -> dict[str, Any]:
    """Processor time in us of one decision by `auto`, over all pauses: median and 99th percentile.
    What is kept of words that were seen before is forgotten first, so each new text costs its
    time."""
    for cached in (end_of_turn_model.word_class, end_of_turn_model.is_mid_number,
                   end_of_turn_model.num_digits):  # fmt: skip
        cached.cache_clear()
    evidences: list[Evidence] = [evidence for turn in turns for _, evidence in turn.pauses]
    times = []
    for evidence in evidences:
        began_ns = processor_ns()
        score.wait_ms(evidence, "auto")
        times.append((processor_ns() - began_ns) / 1000)
    times.sort()
    if not times:
        return {"decisions": 0, "p50_us": None, "p99_us": None}
    p50_us, p99_us = (round(percentile(times, rank), 1) for rank in (50, 99))
    return {"decisions": len(times), "p50_us": p50_us, "p99_us": p99_us}


def show(tables: Mapping[str, Any], times: Mapping[str, Any]) -> None:
    """Print the tables of all turns, the sums of each kind, and the time of a decision."""
    for silence_ms, by_kind in tables.items():
        for kind, table in by_kind.items():
            print(
                f"calibration after {silence_ms} ms, {kind:9} {table['count']:4} pauses: Brier "
                f"{table['brier']:.3f} (base rate {table['base_brier']:.3f}), expected calibration "
                f"error {table['expected_calibration_error']:.3f}"
            )
            if kind == "all":
                _show_bins(table["bins"])
    print(
        f"processor time of one decision: p50 {times['p50_us']} us, p99 {times['p99_us']} us, "
        f"{times['decisions']} decisions"
    )


def _show_bins(bins: Sequence[Mapping[str, Any]]) -> None:
    for one in bins:
        if one["count"]:
            low, high = one["interval"]
            print(
                f"  {one['low']:.1f}-{one['high']:.1f}  {one['count']:4} pauses  predicted "
                f"{100 * one['predicted']:5.1f} %  over {100 * one['observed']:5.1f} % "
                f"({100 * low:.1f}-{100 * high:.1f})"
            )
