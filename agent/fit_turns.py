"""`python -m agent.fit_turns PAUSES`: fit the end-of-turn decision, and say what it is worth.

Weights and thresholds come from the recordings of half "a" (see `asr.turn_data`); what is printed
comes from half "b", in the same run as the plain rule. Where a rate needs more turns than half of
the recordings gives, every recording is judged by the weights fitted on the other half ("crossed"):
that judges the procedure, and the held-back half judges what ships.

All of it, from Debian's `asterisk-core-sounds-en-wav`, `asterisk-core-sounds-en` (the texts) and
`pocketsphinx-testdata`, unpacked; about half an hour on two cores:

    python -m asr.turn_data TURNS --sounds .../sounds/en_US_f_Allison .../core-sounds-en.txt.gz \\
        --sounds .../data/librivox .../librivox/transcription \\
        --sounds .../data/cards .../cards/cards.transcription
    python -m asr.turn_pauses TURNS HEARD
    python -m agent.turn_llm HEARD PAUSES
    python -m agent.fit_turns PAUSES --write agent/turn_score.json

The regression is fitted by Newton's method with a ridge (a prior that each weight is small). A
sample is one moment of one pause; all moments up to `FITTED_MS` count, so the long pauses do not
outweigh the early moments in which most is decided.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt

from asr.errors import AudioError
from asr.turn_pauses import read_pauses

from .settings import Eagerness
from .turn_score import Evidence, OwnPauses, Stage, TurnScore, features, stage_of
from .turn_trials import (
    Outcome,
    Timing,
    Trial,
    callers_of,
    moments,
    plain_rule,
    play,
    tally,
    trials_of,
)

Vector = npt.NDArray[np.float64]

RIDGE: Final = 3.0
"""Below 1 the rare word classes take weights from a handful of pauses; at 30 the sound loses."""

FITTED_MS: Final = 800

SEED: Final = 20261121

GRID: Final = tuple(step / 4 for step in range(-8, 25))
"""Thresholds of the curve, log-odds."""

KINDS: Final = ("command", "hesitant")

PRICES_MS: Final[dict[Eagerness, int]] = {"high": 700, "auto": 1000, "medium": 2000, "low": 4000}
"""What one turn's cut-in costs, in ms of every turn's waiting. For `auto` a hundredth of cut-ins
more must win 10 ms: a turn that is reopened costs its caller about a second."""

IMPATIENCES: Final = (0.0, 1.0, 2.0)
"""Log-odds that are added for each factor e of silence. The regressions alone wait too long for the
turns of which little is known: they know the odds, not what waiting costs."""

Weights = Mapping[Stage, Mapping[str, float]]


def fit(calls: Iterable[Sequence[Trial]], timing: Timing, ridge: float = RIDGE) -> Weights:
    """A regression for each stage, over all moments of all pauses of these calls."""
    samples = [each for each in _samples(calls, timing) if each[0].silence_ms <= FITTED_MS]
    return {stage: _fit_stage(stage, samples, ridge) for stage in get_args(Stage)}


def _fit_stage(
    stage: Stage, samples: Sequence[tuple[Evidence, bool]], ridge: float
) -> dict[str, float]:
    known = [(_masked(evidence, stage), is_end) for evidence, is_end in samples]
    rows = [(features(one), is_end) for one, is_end in known if stage_of(one) == stage]
    names = sorted({name for row, _ in rows for name in row})
    if not rows:
        return {}
    matrix = np.array([[row.get(name, 0.0) for name in names] for row, _ in rows])
    labels = np.array([is_end for _, is_end in rows], np.float64)
    penalty = np.array([0.0 if name == "one" else ridge for name in names])
    weights = newton(matrix, labels, penalty)
    return {name: round(float(weight), 4) for name, weight in zip(names, weights, strict=True)}


def _masked(evidence: Evidence, stage: Stage) -> Evidence:
    """What of this would be known in an earlier stage."""
    parts = stage.split()
    return replace(
        evidence,
        sound=evidence.sound if "sound" in parts else None,
        final=evidence.final if "words" in parts else None,
        llm=evidence.llm if "llm" in parts else None,
    )


def newton(matrix: Vector, labels: Vector, penalty: Vector) -> Vector:
    """Weights [n] of the logistic regression of labels [m] on matrix [m, n] with a ridge [n]."""
    weights = np.zeros(matrix.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(matrix @ weights, -30, 30)))
        slope = matrix.T @ (labels - p) - penalty * weights
        curve = (matrix * (p * (1 - p))[:, None]).T @ matrix + np.diag(penalty + 1e-9)
        step = np.linalg.solve(curve, slope)
        weights = weights + step
        if float(np.abs(step).max()) < 1e-6:
            break
    return weights


def _samples(calls: Iterable[Sequence[Trial]], timing: Timing) -> Iterator[tuple[Evidence, bool]]:
    """Each moment of each pause as if all had been known at once, and whether the turn is over."""
    early = replace(timing, sound_ms=0, words_ms=0, llm_ms=0, partial_ms=-(10**6))
    for call in calls:
        own = OwnPauses()
        for trial in call:
            for pause in trial.pauses:
                if pause.final:
                    for evidence in moments(pause, early, own.quantile_ms):
                        yield evidence, pause.is_end
                if not pause.is_end and pause.silence_ms >= timing.noticed_ms:
                    own.add(pause.silence_ms)


def at_threshold(weights: Weights, threshold: float) -> TurnScore:
    return TurnScore(weights, dict.fromkeys(get_args(Eagerness), threshold))


def curve(
    calls: Sequence[Sequence[Trial]], weights: Weights, timing: Timing
) -> list[dict[str, Any]]:
    """Latency against cut-ins as the threshold moves."""
    rows = []
    for threshold in GRID:
        outcomes = play(calls, at_threshold(weights, threshold).is_over, timing)
        rows.append({"threshold": threshold, **_figures(outcomes)})
    return rows


def cost_ms(figures: dict[str, Any], price_ms: int) -> float:
    """Of waiting and cutting in, on the average over command-like and hesitant turns."""
    total = sum(
        figures[kind]["silence_mean_ms"] + price_ms * figures[kind]["cut_in_rate"] for kind in KINDS
    )
    return float(total / len(KINDS))


def impatient(weights: Weights, impatience: float) -> Weights:
    return {
        stage: {**one, "log_silence": round(one.get("log_silence", 0.0) + impatience, 4)}
        for stage, one in weights.items()
    }


def choose(
    calls: Sequence[Sequence[Trial]], weights: Weights, timing: Timing
) -> tuple[Weights, dict[Eagerness, float]]:
    """The impatience that is cheapest for `auto`, and with it the cheapest thresholds."""
    tried = []
    for impatience in IMPATIENCES:
        candidate = impatient(weights, impatience)
        rows = curve(calls, candidate, timing)
        tried.append((min(cost_ms(row, PRICES_MS["auto"]) for row in rows), candidate, rows))
    _, best, rows = min(tried, key=lambda one: one[0])
    thresholds = {
        eagerness: min(rows, key=lambda row: cost_ms(row, price_ms))["threshold"]
        for eagerness, price_ms in PRICES_MS.items()
    }
    return best, thresholds


def _figures(outcomes: Sequence[Outcome], price_ms: int | None = None) -> dict[str, Any]:
    figures: dict[str, Any] = {kind: tally(outcomes, kind).figures() for kind in KINDS}
    if price_ms is not None:
        figures["cost_ms"] = round(cost_ms(figures, price_ms))
    return figures


def report(trials: Sequence[Trial], timing: Timing, llm_ms: int) -> dict[str, Any]:
    """Fit on each half, judge on the other."""
    halves = {half: [one for one in trials if one.half == half] for half in "ab"}
    calls = {half: callers_of(found, SEED) for half, found in halves.items()}
    scores = {
        half: TurnScore(*choose(calls[half], fit(calls[half], timing), timing)) for half in "ab"
    }
    with_llm = replace(timing, llm_ms=llm_ms)
    held_back, crossed = {}, {}
    for eagerness, price_ms in PRICES_MS.items():
        rule = partial(plain_rule, eagerness=eagerness)
        fitted = {half: partial(scores[half].is_over, eagerness=eagerness) for half in "ab"}
        ways = {
            "plain": (rule, rule, timing),
            "fitted": (fitted["b"], fitted["a"], timing),
            "fitted, with llm": (fitted["b"], fitted["a"], with_llm),
        }
        for name, (on_a, on_b, when) in ways.items():
            played = play(calls["b"], on_b, when)
            held_back[f"{eagerness} {name}"] = _figures(played, price_ms)
            both = [*play(calls["a"], on_a, when), *played]
            crossed[f"{eagerness} {name}"] = _figures(both, price_ms)
        unknown = play([[one] for one in halves["b"]], fitted["a"], timing)
        held_back[f"{eagerness} fitted, callers unknown"] = _figures(unknown, price_ms)
    return {
        "bench": "turns",
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "timing": asdict(timing) | {"llm_ms": llm_ms},
        "prices_ms": PRICES_MS,
        "weights": scores["a"].weights,
        "thresholds": scores["a"].thresholds,
        "held_back": held_back,
        "crossed": crossed,
        "curve": curve(calls["b"], scores["a"].weights, timing),
        "curve_with_llm": curve(calls["b"], scores["a"].weights, with_llm),
    }


def _print(result: dict[str, Any]) -> None:
    print(f"thresholds {result['thresholds']}")
    for part in ("held_back", "crossed"):
        for name, figures in result[part].items():
            print(f"{part} {name}: cost {figures['cost_ms']} ms")
            for kind in KINDS:
                print(f"    {_line(kind, figures[kind])}")
    for name in ("curve", "curve_with_llm"):
        for row in result[name]:
            for kind in KINDS:
                print(f"{name} {row['threshold']:5.2f} {_line(kind, row[kind])}")


def _line(kind: str, one: dict[str, Any]) -> str:
    low, high = one["cut_in_wilson"]
    return (
        f"{kind:9} n={one['turns']:3} cut-ins {100 * one['cut_in_rate']:5.1f} % "
        f"({100 * low:4.1f}-{100 * high:4.1f}) missed {one['missed']} silence p50 "
        f"{one['silence_p50_ms']} p95 {one['silence_p95_ms']} mean {one['silence_mean_ms']:.0f} "
        f"max {one['silence_max_ms']}; from the voice's end p50 {one['from_voice_p50_ms']} "
        f"p95 {one['from_voice_p95_ms']} ms"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m agent.fit_turns", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("pauses", type=Path, help="what `python -m asr.turn_pauses` wrote")
    parser.add_argument("--write", type=Path, metavar="FILE", help="save weights and thresholds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures")
    default = Timing()
    for name in ("noticed_ms", "sound_ms", "words_ms"):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=getattr(default, name),
            help="of the service's timing (%(default)s)",
        )  # fmt: skip
    parser.add_argument(
        "--llm-ms", type=int, default=32, help="from the words to the language model's answer"
    )
    args = parser.parse_args(argv)
    timing = Timing(
        noticed_ms=args.noticed_ms, sound_ms=args.sound_ms, words_ms=args.words_ms,
    )  # fmt: skip
    try:
        result = report(trials_of(read_pauses(args.pauses)), timing, args.llm_ms)
        _print(result)
        if args.write:
            shipped = {name: result[name] for name in ("weights", "thresholds")}
            args.write.write_text(json.dumps(shipped, indent=1) + "\n", encoding="utf-8")
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except (AudioError, OSError) as error:
        print(f"agent.fit_turns: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
