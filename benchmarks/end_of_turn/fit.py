"""`python -m benchmarks.end_of_turn.fit PAUSES`: fit the end-of-turn model and evaluate it.

Everything is fitted on half "a" of the speakers and recordings (see `turn_data.py`); every figure
printed comes from half "b", whose speakers were heard by no fit: waits and cut-ins, and whether the
probability is calibrated (`calibration.py`). Beside it stand, on the same pauses, one silence for
all turns and, with `--line-score` and `--line-head`, the decision of version 1. With `--shipped`
nothing is fitted, and what the service loads is judged.

`python -m benchmarks.end_of_turn` makes PAUSES and all else from what `turn_data.py` names, and
runs this; an hour on two cores, of which recognition takes most.

Four fits run one after the other. The *head* of the turn model is a small network on its embedding
(`head_training.py`), trained on the pauses, on more of the same speakers' whose words were not
recognized, and on all of them in noise.
For the *weights* half "a" is split again by speaker, and each part is judged by a head fitted on
the others, because a head is overconfident on its own training data. The weights are those of a
logistic regression over pauses *and silences*: every pause counts once for each silence of a grid
that it lasted, with the question whether the turn was over. So what is fitted is the probability
that the turn is over given how long the caller has been silent. Kinds of turns count alike, however
many of each there are. The *releases* (threshold, least and most) are those of a grid around which
turns are cheapest at a stated price of a cut-in.
"""

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agent.session.api.settings import Eagerness
from agent.turn_taking.end_of_turn_model import (
    ALL_KNOWN,
    EAGERNESS,
    SILENCE,
    VERSION,
    Evidence,
    Known,
    Release,
    ScoreVersionError,
    TurnScore,
    features,
    known_of,
    silence_feature,
)
from asr.errors import AudioError, ModelError
from asr.speech_detection.turn_model import HEAD_FILE
from asr.speech_detection.turn_model_head import TurnModelHead
from latency_budget.account.clock import unix_ns
from latency_budget.host import machine

from .calibration import calibration, decision_times, show
from .evaluation import (
    Decision,
    KnownPause,
    KnownTurn,
    TurnOutcome,
    calls_of,
    figures,
    known_turns,
    outcome,
    trials_of,
)
from .head_training import trained_head
from .line_score import LineScore, read_line_head
from .message_ends import read_message_ends
from .turn_pauses import Pause, read_embeddings, read_pauses

Vector = npt.NDArray[np.float64]

ROOT: Final = Path(__file__).resolve().parents[2]

WEIGHTS_RIDGE: Final = 30.0
"""Ridge of the weights, on rows of pauses and silences. Below 10 the rare word classes take weights
from a handful of pauses."""

LEAST_MS: Final = 192
"""Shortest pause in ms to fit on: no decision falls before."""

SILENCES_MS: Final = range(LEAST_MS, 1217, 64)
"""Silences at which a pause that lasts as long is a row of the fit."""

NUM_PARTS: Final = 4
"""Parts of a half. With two, each head of the fit has heard half the speakers that the final one
has, and is less sure: the threshold that is right for it is low for the final one."""

SEED: Final = 20261121

KINDS: Final = ("command", "hesitant", "halting", "numbers")

PRICE_MS: Final[dict[Eagerness, int]] = {
    "high": 1000,
    "auto": 4000,
    "medium": 10_000,
    "low": 16_000,
}
"""Price of a cut-in on one turn, in ms of every turn's wait. For `auto` cutting in on 1 % of the
turns must win 40 ms. At 6000 prompts of the held-back half wait 150 ms longer in the median, and
one turn in a hundred fewer is cut in on."""

LEASTS_MS: Final[dict[Eagerness, tuple[int, ...]]] = {
    "high": (256, 320),
    "auto": (416,),
    "medium": (416, 480),
    "low": (512, 608),
}
"""Candidates in ms for the shortest wait. Of read sentences an eighth has a pause of 350 ms in it.
With 352 the surest turns of `auto` would be answered 64 ms sooner, and 3 % more of the unseen
speakers' cut in on; and the answer is ready after 360 at best."""

MOSTS_MS: Final[dict[Eagerness, tuple[int, ...]]] = {
    "high": (600, 800),
    "auto": (1000,),
    "medium": (1200,),
    "low": (1500, 1800),
}
"""Candidates in ms for the silence that ends any turn, except after numbers and "and". Not fitted
for `auto`: after a second callers ask whether anybody is there, and the price does not know it."""

NOISE_STEPS_DB: Final = (0, 5, 10, 15, 25)
"""Bounds in dB of the voice above the noise between which pauses in noise are judged together."""

LOG_ODDS_STEP: Final = 0.25

LOG_ODDS: Final = tuple(np.round(np.arange(-0.5, 4.01, LOG_ODDS_STEP), 2).tolist())
"""Candidates for the threshold."""


@dataclass(frozen=True, slots=True)
class EmbeddedPauses:
    """Pauses with the input of the turn model's head."""

    pauses: tuple[Pause, ...]
    embeddings: npt.NDArray[np.float32]
    """[pauses, EMBEDDING]."""

    def where(self, keep: Callable[[Pause], bool]) -> "EmbeddedPauses":
        mask = np.array([keep(pause) for pause in self.pauses], bool)
        kept = tuple(pause for pause, is_kept in zip(self.pauses, mask, strict=True) if is_kept)
        return EmbeddedPauses(kept, self.embeddings[mask])

    def of_half(self, half: str) -> "EmbeddedPauses":
        return self.where(lambda pause: pause.half == half)

    def __add__(self, other: "EmbeddedPauses") -> "EmbeddedPauses":
        embeddings = np.concatenate([self.embeddings, other.embeddings])
        return EmbeddedPauses(self.pauses + other.pauses, embeddings)


def fit_head(heard: EmbeddedPauses) -> TurnModelHead:
    """Train the head on all pauses of at least `LEAST_MS`."""
    heard = heard.where(lambda pause: pause.silence_ms >= LEAST_MS)
    is_end = np.array([pause.is_end for pause in heard.pauses], bool)
    return trained_head(heard.embeddings, is_end, [pause.kind for pause in heard.pauses])


def newton(matrix: Vector, labels: Vector, penalty: Vector, counts: Vector | None = None) -> Vector:
    """Weights [n] of the logistic regression of labels [m] on matrix [m, n] with a ridge [n].
    `counts` [m]: how often each row counts; once by default.

    By hand: scikit-learn 1.9 finds the same weights to 1e-6. But it and scipy are 200 MB in every
    environment of development.
    """
    times = np.ones(len(labels)) if counts is None else counts
    weights = np.zeros(matrix.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(matrix @ weights, -30, 30)))
        slope = matrix.T @ (times * (labels - p)) - penalty * weights
        curve = (matrix * (times * p * (1 - p))[:, None]).T @ matrix + np.diag(penalty + 1e-9)
        step = np.linalg.solve(curve, slope)
        weights = weights + step
        if float(np.abs(step).max()) < 1e-6:
            break
    return weights


def part_of(pause: Pause) -> int:
    """Part of a half, below `NUM_PARTS`: all turns of a speaker, or all kinds of a recording."""
    name = pause.speaker or pause.file.removesuffix(f".{pause.kind}.wav")
    return zlib.crc32(name.encode()) // 2 % NUM_PARTS


def crossed(heard: EmbeddedPauses, more: EmbeddedPauses) -> list[KnownPause]:
    """Judge each part of these pauses by a head fitted on the other parts, and on the more pauses
    of their speakers."""
    judged: list[KnownPause] = []
    for part in range(NUM_PARTS):
        ours = heard.where(partial(_is_in, part))
        if ours.pauses:
            judged += judge(ours, fit_head((heard + more).where(partial(_is_out, part))))
    return judged


def _is_in(part: int, pause: Pause) -> bool:
    return part_of(pause) == part


def _is_out(part: int, pause: Pause) -> bool:
    return part_of(pause) != part


def judge(heard: EmbeddedPauses, head: TurnModelHead) -> list[KnownPause]:
    odds = head.log_odds(heard.embeddings)
    return [KnownPause(one, float(odd)) for one, odd in zip(heard.pauses, odds, strict=True)]


def turns_of(judged: Sequence[KnownPause], ends: Mapping[str, float]) -> list[KnownTurn]:
    """Evidence of all turns, call by call. `ends`: the language model's log-probabilities."""
    return known_turns(calls_of(trials_of(judged), SEED), ends)


def limited(evidence: Evidence, known: Known) -> Evidence:
    """Evidence without what is not known."""
    return replace(
        evidence,
        sound=evidence.sound if "sound" in known else None,
        message_end=evidence.message_end if "message_end" in known else None,
    )


def fit_weights(turns: Sequence[KnownTurn], known: Known) -> dict[str, float]:
    """Weights for pauses of which so much is known. Raises AudioError where there are none."""
    rows: list[dict[str, float]] = []
    labels: list[bool] = []
    counts: list[float] = []
    num_turns = {kind: sum(turn.kind == kind for turn in turns) for kind in KINDS}
    for turn in turns:
        for pause, evidence in turn.pauses:
            seen = limited(evidence, known)
            if known_of(seen) != known:
                continue
            values = features(seen)
            for silence_ms in SILENCES_MS:
                if silence_ms <= pause.silence_ms:
                    rows.append(values | {SILENCE: silence_feature(silence_ms)})
                    labels.append(pause.is_end)
                    counts.append(1 / num_turns[turn.kind])
    if not rows:
        raise AudioError(
            f"no pause of which {known} is known: "
            "give PAUSES with words, and --message-ends of them"
        )
    names = sorted({name for row in rows for name in row})
    matrix = np.array([[row.get(name, 0.0) for name in names] for row in rows])
    penalty = np.array([0.0 if name in ("one", SILENCE) else WEIGHTS_RIDGE for name in names])
    times = np.array(counts) * (len(counts) / max(1e-12, sum(counts)))
    weights = newton(matrix, np.array(labels, np.float64), penalty, times)
    return {name: round(float(weight), 4) for name, weight in zip(names, weights, strict=True)}


def fit_score(turns: Sequence[KnownTurn]) -> TurnScore:
    """Weights and releases for these turns; of each pair of evidence all four combinations."""
    score = TurnScore({known: fit_weights(turns, known) for known in ALL_KNOWN}, {})
    for eagerness in EAGERNESS:
        releases = {**score.releases, eagerness: best_release(turns, score, eagerness)}
        score = replace(score, releases=releases)
    return score


def best_release(turns: Sequence[KnownTurn], score: TurnScore, eagerness: Eagerness) -> Release:
    """The cheapest release of the grid; none of its numbers is below that of a higher eagerness."""
    lower = Release(-9.0, 0.0, 0.0)
    for name in EAGERNESS[: EAGERNESS.index(eagerness)]:
        lower = score.releases[name]
    grid = product(LOG_ODDS, LEASTS_MS[eagerness], MOSTS_MS[eagerness])
    candidates = [Release(*each) for each in grid]
    fitting = [
        one
        for one in candidates
        if one.log_odds >= lower.log_odds
        and one.least_ms >= lower.least_ms
        and one.most_ms >= lower.most_ms
    ]

    @cache
    def cost(release: Release) -> float:
        trying = replace(score, releases=dict.fromkeys(EAGERNESS, release))
        found = outcomes(turns, lambda evidence: trying.wait_ms(evidence, "high"))
        return cost_ms(tally(found), PRICE_MS[eagerness])

    return min(fitting, key=partial(smoothed, cost))


def smoothed(cost: Callable[[Release], float], release: Release) -> float:
    """Cost of a release, averaged with those one step of the threshold beside it: around the
    cheapest threshold it is so flat that another order of the head's training moves that by two
    steps."""
    steps = (-LOG_ODDS_STEP, 0.0, LOG_ODDS_STEP)
    return sum(cost(replace(release, log_odds=release.log_odds + step)) for step in steps) / 3


def outcomes(turns: Sequence[KnownTurn], decide: Decision) -> list[TurnOutcome]:
    return [outcome(turn, decide) for turn in turns]


def tally(found: Sequence[TurnOutcome]) -> dict[str, Any]:
    """Figures of each kind of turn that there is, and of all."""
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in found)]
    return {kind: figures(found, kind) for kind in kinds} | {"all": figures(found, None)}


def cost_ms(found: dict[str, Any], price_ms: int) -> float:
    """Cost in ms of waits and cut-ins, averaged over the kinds of turns."""
    costs = [
        one["mean_ms"] + price_ms * one["cut_in_rate"]
        for kind, one in found.items()
        if kind != "all"
    ]
    return float(sum(costs)) / len(costs)


def _constant(silence_ms: float) -> Decision:
    return lambda evidence: silence_ms


def decision(score: TurnScore, eagerness: Eagerness, known: Known | None = None) -> Decision:
    """Decision by a score, with no more evidence than `known`."""
    if known is None:
        return lambda evidence: score.wait_ms(evidence, eagerness)
    return lambda evidence: score.wait_ms(limited(evidence, known), eagerness)


def curves(
    turns: Sequence[KnownTurn], score: TurnScore, line: list[tuple[KnownTurn, LineScore]]
) -> dict[str, Any]:
    """Waits against cut-ins of `auto` over thresholds, of version 1 over scales of its waits, and
    of one silence."""
    found: dict[str, Any] = {"fitted": {}, "one silence": {}, "version 1": {}}
    bounds = score.releases["auto"]
    for log_odds in LOG_ODDS:
        moved = replace(
            score, releases=dict.fromkeys(EAGERNESS, replace(bounds, log_odds=log_odds))
        )
        found["fitted"][str(log_odds)] = tally(outcomes(turns, decision(moved, "high")))
    for silence_ms in range(256, 1217, 64):
        found["one silence"][str(silence_ms)] = tally(outcomes(turns, _constant(silence_ms)))
    for scale in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0) if line else ():
        scaled = [outcome(turn, partial(_scaled, old, scale)) for turn, old in line]
        found["version 1"][str(scale)] = tally(scaled)
    return found


def _scaled(old: LineScore, scale: float, evidence: Evidence) -> float:
    return scale * old.wait_ms(evidence, "auto")


def at_equal_cut_ins(curve: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Of a curve, the point with the shortest mean wait whose turns are cut in on no more often
    than in `other`, over the kinds alike."""

    def rate(point: Mapping[str, Any]) -> float:
        return float(np.mean([point[kind]["cut_in_rate"] for kind in point if kind != "all"]))

    def mean_ms(point: Mapping[str, Any]) -> float:
        return float(np.mean([point[kind]["mean_ms"] for kind in point if kind != "all"]))

    fitting = {name: point for name, point in curve.items() if rate(point) <= rate(other)}
    if not fitting:
        return {}
    name = min(fitting, key=lambda each: mean_ms(fitting[each]))
    found = fitting[name]
    return {
        "at": name,
        "mean_ms": round(mean_ms(found), 1),
        "other_mean_ms": round(mean_ms(other), 1),
        "cut_in_rate": round(rate(found), 4),
        "other_cut_in_rate": round(rate(other), 4),
    }


def areas(heard: EmbeddedPauses, head: TurnModelHead) -> dict[str, float]:
    """Area under the ROC curve by kind of turn: how often the head scores an end of turn above a
    pause of at least `LEAST_MS`; 0.5 is chance."""
    found = {}
    for kind in KINDS:
        ours = heard.where(partial(_is_judged, kind))
        if ours.pauses:
            odds = head.log_odds(ours.embeddings).astype(np.float64)
            found[kind] = _area(odds, [pause.is_end for pause in ours.pauses])
    return found


def in_noise(more: EmbeddedPauses, head: TurnModelHead) -> dict[str, Any]:
    """Areas for the pauses of half "b" that were heard in noise, by kind of noise and by how many
    dB the voice is above it."""
    found: dict[str, Any] = {}
    noisy = more.of_half("b").where(lambda pause: "@" in pause.channel)
    for kind in sorted({pause.channel.partition("@")[0] for pause in noisy.pauses}):
        for low, high in pairwise(NOISE_STEPS_DB):
            ours = noisy.where(partial(_is_noise, kind, low, high))
            labels = [pause.is_end for pause in ours.pauses]
            if any(labels) and not all(labels):
                odds = head.log_odds(ours.embeddings).astype(np.float64)
                area = _area(odds, labels)
                found[f"{kind}, {low}-{high} dB"] = {"pauses": len(labels), "area": area}
    return {"areas_in_noise": found}


def _is_noise(kind: str, low: float, high: float, pause: Pause) -> bool:
    name, _, snr_db = pause.channel.partition("@")
    return name == kind and low <= float(snr_db) < high and pause.silence_ms >= LEAST_MS


def end_areas(heard: EmbeddedPauses, ends: Mapping[str, float]) -> dict[str, float]:
    """The same of the language model's log-probabilities."""
    found = {}
    for kind in KINDS:
        ours = [one for one in heard.pauses if _is_judged(kind, one) and one.final in ends]
        if ours:
            odds = np.array([ends[one.final] for one in ours])
            found[kind] = _area(odds, [one.is_end for one in ours])
    return found


def _area(odds: Vector, labels: Sequence[bool]) -> float:
    is_end = np.array(labels, bool)
    above = np.sign(odds[is_end][:, None] - odds[~is_end])
    return round(float(1 + above.mean()) / 2, 4) if above.size else 0.5


def _is_judged(kind: str, pause: Pause) -> bool:
    return pause.kind == kind and pause.silence_ms >= LEAST_MS


def report(
    real: EmbeddedPauses,
    more: EmbeddedPauses,
    ends: Sequence[Mapping[str, float]],
    line: tuple[LineScore, TurnModelHead] | None = None,
) -> tuple[TurnModelHead, TurnScore, dict[str, Any]]:
    """Fit on half "a", judge on half "b". `ends`: of several language models; all are fitted on,
    and each is judged."""
    ours, ours_more = real.of_half("a"), more.of_half("a")
    head = fit_head(ours + ours_more)
    judged = crossed(ours, ours_more)
    score = fit_score([turn for each in ends for turn in turns_of(judged, each)])
    return head, score, evaluated(real, head, score, ends, line) | in_noise(more, head)


def evaluated(
    real: EmbeddedPauses,
    head: TurnModelHead,
    score: TurnScore,
    ends: Sequence[Mapping[str, float]],
    line: tuple[LineScore, TurnModelHead] | None = None,
) -> dict[str, Any]:
    """Judge a decision on half "b". `ends`: of several language models, of which the first one is
    used everywhere. `line`: the decision of version 1, to be judged on the same pauses."""
    held_back = real.of_half("b")
    with_head = judge(held_back, head)
    result: dict[str, Any] = {"held_back": {}, "areas": {"sound": areas(held_back, head)}}
    known: list[KnownTurn] = []
    for number, each in enumerate(ends, start=1):
        turns = turns_of(with_head, each)
        known = known or turns
        result["areas"][f"language model {number}"] = end_areas(held_back, each)
        for eagerness in EAGERNESS:
            found = tally(outcomes(turns, decision(score, eagerness)))
            result["held_back"][f"{eagerness} fitted, language model {number}"] = found
    for limit in ALL_KNOWN:
        found = tally(outcomes(known, decision(score, "auto", limit)))
        result["held_back"][f"auto fitted, {limit} only"] = found
    lines: list[tuple[KnownTurn, LineScore]] = []
    if line is not None:
        old, old_head = line
        result["areas"]["sound, version 1"] = areas(held_back, old_head)
        old_turns = turns_of(judge(held_back, old_head), {})
        lines = [(turn, old) for turn in old_turns]
        for eagerness in EAGERNESS:
            found = tally(outcomes(old_turns, partial(old.wait_ms, eagerness=eagerness)))
            result["held_back"][f"{eagerness} version 1"] = found
    result["calibration"] = calibration(known, score)
    result["decision_time"] = decision_times(known, score)
    result["curves"] = curves(known, score, lines)
    if lines:
        fitted, before = result["curves"]["fitted"], result["held_back"]["auto version 1"]
        result["equal_cut_ins"] = at_equal_cut_ins(fitted, before)
    return result


def _print(result: dict[str, Any]) -> None:
    for what, found in result["areas"].items():
        print(f"area under the curve, {what}: {found}")
    for what, found in result["areas_in_noise"].items():
        print(f"area under the curve, sound in {what}: {found['area']} ({found['pauses']} pauses)")
    for name, found in _rows(result):
        for kind, one in found.items():
            low, high = one["cut_in_wilson"]
            print(
                f"{name:44} {kind:9} n={one['turns']:3} missed {one['missed']} cut-ins "
                f"{100 * one['cut_in_rate']:5.1f} % ({100 * low:4.1f}-{100 * high:4.1f}) after "
                f"the voice p50 {one['p50_ms']} {one['p50_interval']} p90 {one['p90_ms']} "
                f"p95 {one['p95_ms']} {one['p95_interval']} mean {one['mean_ms']:.0f} ms"
            )
    print("at equal cut-ins:", result.get("equal_cut_ins"))
    show(result["calibration"], result["decision_time"])


def _rows(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from result["held_back"].items()
    for name, points in result["curves"].items():
        for at, found in points.items():
            yield f"{name} {at}", {"all": found["all"]}


def read(path: Path) -> EmbeddedPauses:
    """Read the output of `turn_pauses.py`. Raises AudioError."""
    pauses = read_pauses(path)
    embeddings = read_embeddings(path)
    if len(pauses) != len(embeddings):
        raise AudioError(
            f"{path}: {len(pauses)} pauses, but {len(embeddings)} embeddings beside it"
        )
    return EmbeddedPauses(tuple(pauses), embeddings)


def read_all(paths: Sequence[Path]) -> EmbeddedPauses:
    """Read several outputs together. Raises AudioError."""
    found = read(paths[0])
    for path in paths[1:]:
        found += read(path)
    return found


SCORE_FILE: Final = ROOT / "agent/turn_taking/end_of_turn_model.json"


def _write(head: TurnModelHead, score: TurnScore) -> None:
    head.write(HEAD_FILE)
    releases = {name: asdict(release) for name, release in score.releases.items()}
    data = {"version": VERSION, "weights": score.weights, "releases": releases}
    SCORE_FILE.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _line(args: argparse.Namespace) -> tuple[LineScore, TurnModelHead] | None:
    if args.line_score is None or args.line_head is None:
        return None
    return LineScore.load(args.line_score), read_line_head(args.line_head)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_turn.fit", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "pauses",
        type=Path,
        nargs="+",
        help="output of `python -m benchmarks.end_of_turn.turn_pauses`",
    )
    parser.add_argument(
        "--more", type=Path, action="append", default=[], metavar="PAUSES",
        help="more pauses, for the turn model's head alone: the same ones in noise too; may be "
        "repeated",
    )  # fmt: skip
    parser.add_argument(
        "--message-ends", type=Path, action="append", required=True, metavar="ENDS",
        help="output of `python -m benchmarks.end_of_turn.message_ends` for a language model; may "
        "be repeated",
    )  # fmt: skip
    parser.add_argument("--line-score", type=Path, metavar="FILE", help="weights of version 1")
    parser.add_argument("--line-head", type=Path, metavar="FILE", help="head of version 1")
    parser.add_argument(
        "--shipped",
        action="store_true",
        help="fit nothing: judge the models that the service loads",
    )
    parser.add_argument(
        "--write", action="store_true", help="write the models that the service loads"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures")
    args = parser.parse_args(argv)
    try:
        real = read_all(args.pauses)
        more = read_all(args.more) if args.more else EmbeddedPauses((), real.embeddings[:0])
        ends = [read_message_ends(path) for path in args.message_ends]
        if args.shipped:
            head, score = TurnModelHead.read(HEAD_FILE), TurnScore.load(SCORE_FILE)
            result = evaluated(real, head, score, ends, _line(args)) | in_noise(more, head)
        else:
            head, score, result = report(real, more, ends, _line(args))
        _print(result)
        if args.write and not args.shipped:
            _write(head, score)
        if args.json:
            figures_of = {
                "bench": "end of turn",
                "models": "shipped" if args.shipped else "fitted in this run",
                "machine": machine(),
                "date": datetime.fromtimestamp(unix_ns() / 1e9, UTC).isoformat(timespec="seconds"),
                "prices_ms": PRICE_MS,
                **result,
            }
            args.json.write_text(json.dumps(figures_of, indent=1) + "\n", encoding="utf-8")
    except (AudioError, ModelError, ScoreVersionError, OSError) as error:
        print(f"fit: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
