"""Recorded turns played against an end-of-turn decision, in the service's timing.

A trial is one turn with its pauses (`asr.turn_pauses`). A decision is asked at every 32 ms of every
pause, with what the service would know by then, until it says that the turn is over: in the last
pause that is an answer after so much silence, in an earlier one a cut-in.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from asr.turn_pauses import Pause
from latency_budget.report import percentile

from .end_of_turn import TurnRules, required_silence_ms
from .figures import wilson_interval
from .settings import Eagerness
from .turn_score import Evidence, OwnPauses

STEP_MS: Final = 32
"""The detector's frame."""

HORIZON_MS: Final = 2500
"""Silence behind every recorded turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When what is known of a pause is known, on two cores. All in ms."""

    noticed_ms: int = 96
    """Silence at which a pause is noticed; the detector's `pause_ms`."""
    sound_ms: int = 40
    """The turn model's time beside the final pass: 22 there, 35 in one of twenty, 13 alone."""
    words_ms: int = 184
    """The final pass's time, from the pause to its words."""
    partial_ms: int = 150
    """From the end of a partial's audio to its words."""
    llm_ms: int | None = None
    """From the final's words to the language model's answer; None: it is not asked."""


Decision = Callable[[Evidence], bool]
"""Whether the turn is over."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One turn. The last pause is its end."""

    file: str
    kind: str
    half: str
    pauses: tuple[Pause, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a decision made of one trial. `silence_ms` is None for a cut-in and a missed turn."""

    kind: str
    cut_in: bool
    silence_ms: int | None
    """Of the detector's counting."""
    voiced_ms: int | None
    """The same from the last voiced 20 ms, where reported latencies begin."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Figures over the outcomes of one kind of turn."""

    turns: int
    cut_ins: int
    missed: int
    silences_ms: tuple[int, ...]
    """Ascending."""
    from_voice_ms: tuple[int, ...]
    """Ascending."""

    @property
    def cut_in_rate(self) -> float:
        return self.cut_ins / self.turns if self.turns else 0.0

    @property
    def mean_ms(self) -> float:
        return sum(self.silences_ms) / max(1, len(self.silences_ms))

    def figures(self) -> dict[str, object]:
        """As JSON: rates with their Wilson interval, times in ms."""
        low, high = wilson_interval(self.cut_ins, self.turns)
        times: dict[str, object] = {}
        for name, values in (("silence", self.silences_ms), ("from_voice", self.from_voice_ms)):
            for rank in (50, 95, 99):
                times[f"{name}_p{rank}_ms"] = percentile(list(values), rank) if values else None
        return {
            "turns": self.turns,
            "missed": self.missed,
            "cut_ins": self.cut_ins,
            "cut_in_rate": round(self.cut_in_rate, 4),
            "cut_in_wilson": [round(low, 4), round(high, 4)],
            "silence_mean_ms": round(self.mean_ms, 1),
            "silence_max_ms": self.silences_ms[-1] if self.silences_ms else None,
            **times,
        }


def trials_of(pauses: Iterable[Pause]) -> list[Trial]:
    """Grouped by turn, in the order of the file; turns whose end was not noticed included."""
    grouped: dict[str, list[Pause]] = {}
    for pause in pauses:
        grouped.setdefault(pause.file, []).append(pause)
    return [
        Trial(file, found[0].kind, found[0].half, tuple(found)) for file, found in grouped.items()
    ]


def callers_of(trials: Sequence[Trial], seed: int, turns_each: int = 8) -> list[list[Trial]]:
    """The trials as calls of a few turns, from callers who hardly hesitate to such who often do.

    Each trial is in one call. Most callers are of both kinds, or their own pauses would tell.
    """
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, 0.6, len(trials))
    keys = [float(noise[i]) + (one.kind == "hesitant") for i, one in enumerate(trials)]
    order = [trials[i] for i in np.argsort(np.array(keys), kind="stable")]
    calls = [order[first : first + turns_each] for first in range(0, len(order), turns_each)]
    return [[call[i] for i in rng.permutation(len(call))] for call in calls]


def moments(pause: Pause, timing: Timing, own_ms: int | None = None) -> Iterator[Evidence]:
    """What is known at each step of a pause, for as long as it lasts."""
    first = -(-timing.noticed_ms // STEP_MS) * STEP_MS
    for silence_ms in range(first, min(pause.silence_ms, HORIZON_MS) + 1, STEP_MS):
        waited_ms = silence_ms - timing.noticed_ms
        has_words = waited_ms >= timing.words_ms
        has_llm = timing.llm_ms is not None and waited_ms >= timing.words_ms + timing.llm_ms
        has_partial = pause.partial_lag_ms >= 0
        has_partial &= silence_ms + pause.partial_lag_ms >= timing.partial_ms
        yield Evidence(
            silence_ms=silence_ms,
            sound=dict(pause.sound)[timing.noticed_ms] if waited_ms >= timing.sound_ms else None,
            partial=pause.partial if has_partial else None,
            partial_lag_ms=max(0, pause.partial_lag_ms),
            final=pause.final if has_words else None,
            llm=pause.llm if has_llm else None,
            own_pause_ms=own_ms,
        )


def plain_rule(evidence: Evidence, eagerness: Eagerness = "auto") -> bool:
    """The rule that needs no fitting: the final's words decide how much silence is due."""
    if evidence.final is None:
        return False
    return evidence.silence_ms >= required_silence_ms(
        TurnRules(eagerness=eagerness), evidence.final
    )


def play(calls: Iterable[Sequence[Trial]], decide: Decision, timing: Timing) -> list[Outcome]:
    """All calls, each with a caller of its own. With calls of one turn nobody is known."""
    outcomes = []
    for call in calls:
        own = OwnPauses()
        outcomes += [_outcome(trial, decide, timing, own) for trial in call]
    return outcomes


def _outcome(trial: Trial, decide: Decision, timing: Timing, own: OwnPauses) -> Outcome:
    result = Outcome(trial.kind, False, None, None)
    open_turn = True
    for pause in trial.pauses:
        if pause.silence_ms < timing.noticed_ms:
            continue
        if open_turn and pause.final:  # without words nobody answers
            for evidence in moments(pause, timing, own.quantile_ms):
                if decide(evidence):
                    result = _committed(trial, pause, evidence.silence_ms)
                    open_turn = False
                    break
        if not pause.is_end:
            own.add(pause.silence_ms)
    return result


def _committed(trial: Trial, pause: Pause, silence_ms: int) -> Outcome:
    if not pause.is_end:
        return Outcome(trial.kind, True, None, None)
    return Outcome(trial.kind, False, silence_ms, silence_ms + pause.voiced_ms)


def tally(outcomes: Iterable[Outcome], kind: str) -> Tally:
    """Of one kind of turn."""
    ours = [one for one in outcomes if one.kind == kind]
    answered = [one for one in ours if one.silence_ms is not None]
    return Tally(
        turns=len(ours),
        cut_ins=sum(one.cut_in for one in ours),
        missed=sum(one.silence_ms is None and not one.cut_in for one in ours),
        silences_ms=tuple(sorted(one.silence_ms or 0 for one in answered)),
        from_voice_ms=tuple(sorted(one.voiced_ms or 0 for one in answered)),
    )
