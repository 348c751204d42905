"""Evaluation of an end-of-turn decision on recorded turns, in the service's timing.

A trial is one turn with its pauses (`turn_pauses.py`). A decision gives for each pause the
silence after which the turn is over: in the last pause this is an answer, in an earlier pause that
lasted longer it is a cut-in.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from agent.turn_taking.end_of_turn_model import Evidence, PauseHistory
from benchmarks.statistics import wilson_interval
from latency_budget.statistics.report import percentile

from .turn_pauses import Pause

STEP_MS: Final = 32
"""Interval of decisions in ms: the detector's frame."""

READY_MS: Final = 230
"""Silence in ms at which sound, words and the language model's opinion on them are known: a pause
is noticed after 84, a final pass takes 75 to 100 on two cores, and the prefill of its words 30 to
50."""

NUM_RESAMPLES: Final = 400
"""Resamples of the bootstrap that gives the intervals of percentiles."""

Decision = Callable[[Evidence], float]
"""Function from a pause's evidence to the silence in ms after which the turn is over."""


@dataclass(frozen=True, slots=True)
class KnownPause:
    """A pause with the turn model's log-odds."""

    pause: Pause
    sound: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One turn. The last pause is its end."""

    kind: str
    half: str
    pauses: tuple[KnownPause, ...]


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """A trial with the service's evidence in each pause that has words."""

    kind: str
    pauses: tuple[tuple[Pause, Evidence], ...]


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """Outcome of a decision on one trial. `after_ms` is None for a cut-in and a missed turn."""

    kind: str
    cut_in: bool
    after_ms: int | None
    """Time in ms from the last voiced 20 ms to the answer."""


def trials_of(pauses: Iterable[KnownPause]) -> list[Trial]:
    """Group pauses by turn, in the order of the file."""
    grouped: dict[str, list[KnownPause]] = {}
    for one in pauses:
        grouped.setdefault(one.pause.file, []).append(one)
    firsts = [(found[0].pause, found) for found in grouped.values()]
    return [Trial(first.kind, first.half, tuple(found)) for first, found in firsts]


def callers_of(trials: Sequence[Trial], seed: int, turns_each: int = 8) -> list[list[Trial]]:
    """Group trials into calls of a few turns, from callers who rarely hesitate to frequent ones.

    Each trial is in one call. Most callers have turns of both kinds; otherwise a caller's earlier
    pauses would reveal the kind.
    """
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, 0.6, len(trials))
    keys = [float(noise[i]) + (one.kind == "hesitant") for i, one in enumerate(trials)]
    order = [trials[i] for i in np.argsort(np.array(keys), kind="stable")]
    calls = [order[first : first + turns_each] for first in range(0, len(order), turns_each)]
    return [[call[i] for i in rng.permutation(len(call))] for call in calls]


def calls_of(trials: Sequence[Trial], seed: int) -> list[list[Trial]]:
    """Group trials into calls: one for each speaker, where speakers are known, else as
    `callers_of`."""
    by_speaker: dict[str, list[Trial]] = {}
    for one in trials:
        pause = one.pauses[0].pause
        if pause.speaker:
            by_speaker.setdefault(f"{pause.source} {pause.speaker}", []).append(one)
    others = [one for one in trials if not one.pauses[0].pause.speaker]
    spoken = [by_speaker[name] for name in sorted(by_speaker)]
    return [*callers_of(others, seed), *spoken]


def known_turns(
    calls: Iterable[Sequence[Trial]], message_ends: Mapping[str, float] | None = None
) -> list[KnownTurn]:
    """Evidence of the turns, in order; each call has a caller of its own. `message_ends`:
    log-probabilities of the language model, by the words."""
    ends = message_ends or {}
    found = []
    for call in calls:
        own = PauseHistory()
        for trial in call:
            known = []
            for one in trial.pauses:
                pause = one.pause
                if pause.final:  # without words there is no answer
                    end = ends.get(pause.final)
                    evidence = Evidence(pause.final, one.sound, own.quantile_ms, end)
                    known.append((pause, evidence))
                if not pause.is_end:
                    own.add(pause.silence_ms)
            found.append(KnownTurn(trial.kind, tuple(known)))
    return found


def outcome(turn: KnownTurn, decide: Decision) -> TurnOutcome:
    for pause, evidence in turn.pauses:
        wait_ms = max(READY_MS, decide(evidence))
        waited_ms = math.ceil(wait_ms / STEP_MS) * STEP_MS
        if waited_ms <= pause.silence_ms:
            after_ms = waited_ms + pause.voiced_ms if pause.is_end else None
            return TurnOutcome(turn.kind, not pause.is_end, after_ms)
    return TurnOutcome(turn.kind, False, None)


def figures(outcomes: Iterable[TurnOutcome], kind: str | None) -> dict[str, Any]:
    """Figures of one kind of turn; None: of all."""
    ours = [one for one in outcomes if kind in (None, one.kind)]
    times = sorted(one.after_ms for one in ours if one.after_ms is not None)
    cut_ins = sum(one.cut_in for one in ours)
    low, high = wilson_interval(cut_ins, len(ours))
    return {
        "turns": len(ours),
        "missed": len(ours) - cut_ins - len(times),
        "cut_ins": cut_ins,
        "cut_in_rate": round(cut_ins / max(1, len(ours)), 4),
        "cut_in_wilson": [round(low, 4), round(high, 4)],
        "mean_ms": round(sum(times) / max(1, len(times)), 1),
        **{f"p{rank}_ms": percentile(times, rank) if times else None for rank in (50, 90, 95, 99)},
        "p50_interval": percentile_interval(times, 50),
        "p95_interval": percentile_interval(times, 95),
    }


def percentile_interval(times: Sequence[int], rank: int) -> list[int]:
    """95 % interval of a percentile by the bootstrap; the same for the same times. Empty for no
    times."""
    if not times:
        return []
    rng = np.random.default_rng(rank)
    drawn = rng.choice(np.array(times), (NUM_RESAMPLES, len(times)))
    found = np.quantile(np.quantile(drawn, rank / 100, axis=1), (0.025, 0.975))
    return [int(each) for each in found]
