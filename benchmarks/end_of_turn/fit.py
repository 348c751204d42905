"""`python -m benchmarks.end_of_turn.fit PAUSES`: fit the end-of-turn model and evaluate it.

Everything is fitted on half "a" of the recordings (see `turn_data.py`); figures printed as held
back come from half "b", in the same run as the best plain rules: one silence for all turns, and one
for each way in which the words can end. If a rate needs more turns than half of the recordings has,
every recording is judged by the fit on the other half ("crossed"): that judges the procedure, and
the held-back half judges the shipped model.

All of it, from Debian's `asterisk-core-sounds-en-wav`, `asterisk-core-sounds-en` (the texts) and
`pocketsphinx-testdata`, unpacked; about half an hour on two cores:

    python -m benchmarks.end_of_turn.turn_data TURNS --sounds .../sounds/en_US_f_Allison
    .../core-sounds-en.txt.gz \\
        --sounds .../data/librivox .../librivox/transcription \\
        --sounds .../data/cards .../cards/cards.transcription
    python -m benchmarks.end_of_turn.turn_pauses TURNS PAUSES
    python -m benchmarks.end_of_turn.synthetic_readers TURNS SPOKEN --voice hibari     (and again
    for piper-joe)
    python -m benchmarks.end_of_turn.turn_data TURNS2 --sounds SPOKEN SPOKEN/texts.txt
    python -m benchmarks.end_of_turn.turn_pauses TURNS2 MORE --no-words
    python -m benchmarks.end_of_turn.fit PAUSES --more MORE --write

Three fits run one after the other. The *head* of the turn model is a ridge regression on its
embedding, fitted on the recorded voice and on synthetic voices that read the same texts, so that it
does not overfit one reader. The *score* combines the head's output and the words; for it half "a"
is split again, and each part is judged by a head fitted on the other part and the synthetic voices,
because a head is overconfident on its own training data. The *lines* from score to silence are the
cheapest of a grid.
"""

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agent.session.api.settings import Eagerness
from agent.turn_taking.end_of_turn_model import (
    EAGERNESS,
    Evidence,
    TurnScore,
    Wait,
    features,
    word_class,
)
from asr.errors import AudioError
from latency_budget.host import machine

from .evaluation import (
    Decision,
    KnownPause,
    KnownTurn,
    TurnOutcome,
    callers_of,
    figures,
    known_turns,
    outcome,
    trials_of,
)
from .turn_pauses import Pause, read_embeddings, read_pauses

Vector = npt.NDArray[np.float64]

ROOT: Final = Path(__file__).resolve().parents[2]

HEAD_RIDGE: Final = 800.0
"""Ridge of the head, on standardized numbers. Between 400 and 1600 the areas under the curve
differ by 0.005."""

SCORE_RIDGE: Final = 3.0
"""Ridge of the score. Below 1 the rare word classes take weights from a handful of pauses."""

LEAST_MS: Final = 160
"""Shortest pause in ms to fit on: shorter ones end before any decision."""

SEED: Final = 20261121

KINDS: Final = ("command", "hesitant")

PRICES_MS: Final[dict[Eagerness, dict[str, int]]] = {
    "high": {"command": 1000, "hesitant": 250},
    "auto": {"command": 3000, "hesitant": 1000},
    "medium": {"command": 6000, "hesitant": 2000},
    "low": {"command": 10_000, "hesitant": 4000},
}
"""Price of a cut-in on one turn, in ms of every turn's wait. For `auto` cutting in on 1 % of the
command-like turns must win 30 ms: a caller who speaks without hesitating must not be interrupted. A
caller who hesitates for most of a second is used to it, and continues: 10 ms."""

MOST_MS: Final[dict[Eagerness, int]] = {"high": 600, "auto": 1000, "medium": 1200, "low": 1500}
"""Silence in ms that ends any turn, except after numbers and "and"."""

BASES_MS: Final = range(200, 1001, 40)
SLOPES_MS: Final = (0, 40, 80, 110, 140, 180, 220, 260, 300)
LEASTS_MS: Final[dict[Eagerness, range]] = {
    "high": range(224, 481, 32),
    "auto": range(352, 481, 32),
    "medium": range(352, 545, 32),
    "low": range(416, 609, 32),
}
"""Candidates in ms for the shortest wait. Half of the command-like turns have a pause of 150 ms in
them, a quarter one of 250, an eighth one of 350. A hundred turns do not show the cost of an answer
within those, so `auto` has none."""


@dataclass(frozen=True, slots=True)
class EmbeddedPauses:
    """Pauses with the input of the turn model's head."""

    pauses: tuple[Pause, ...]
    embeddings: Vector
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


@dataclass(frozen=True, slots=True)
class Head:
    """Head of the turn model: a linear layer on its embedding."""

    weights: Vector
    bias: float

    def log_odds(self, heard: EmbeddedPauses) -> Vector:
        found: Vector = heard.embeddings @ self.weights + self.bias
        return found


def fit_head(heard: EmbeddedPauses) -> Head:
    """Fit the head on all pauses of at least `LEAST_MS`."""
    heard = heard.where(lambda pause: pause.silence_ms >= LEAST_MS)
    mean = heard.embeddings.mean(axis=0)
    spread = heard.embeddings.std(axis=0) + 1e-6
    standard = (heard.embeddings - mean) / spread
    labels = np.array([pause.is_end for pause in heard.pauses], np.float64)
    # With a ridge the weights lie in the span of the pauses, which has fewer dimensions.
    squares, directions = np.linalg.eigh(standard @ standard.T)
    kept = squares > 1e-9 * squares[-1]
    sizes = np.sqrt(squares[kept])
    reduced = directions[:, kept] * sizes
    matrix = np.hstack([np.ones((len(reduced), 1)), reduced])
    penalty = np.full(matrix.shape[1], HEAD_RIDGE)
    penalty[0] = 0.0
    fitted = newton(matrix, labels, penalty)
    found = standard.T @ (directions[:, kept] @ (fitted[1:] / sizes))
    weights = np.round(found / spread, 6)
    return Head(weights, round(float(fitted[0] - mean @ weights), 6))


def newton(matrix: Vector, labels: Vector, penalty: Vector) -> Vector:
    """Weights [n] of the logistic regression of labels [m] on matrix [m, n] with a ridge [n].

    By hand: scikit-learn 1.9 finds the same weights to 1e-6, and a head on 2,000 pauses in 0.3 s
    instead of 4.3. But it and scipy are 200 MB in every environment of development, for six heads
    in a fit of half an hour.
    """
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


def fit(real: EmbeddedPauses, more: EmbeddedPauses) -> tuple[Head, TurnScore]:
    """Fit head and score on these recordings and these other voices."""
    first = real.where(_is_first)
    parts = [first, real.where(lambda pause: not _is_first(pause))]
    judged: list[KnownPause] = []
    for part, other in (parts, parts[::-1]):
        judged += judge(part, fit_head(other + more))
    known = known_turns(callers_of(trials_of(judged), SEED))
    samples = [
        (evidence, pause.is_end)
        for turn in known
        for pause, evidence in turn.pauses
        if pause.silence_ms >= LEAST_MS
    ]
    with_sound = fit_score(samples)
    words_alone = fit_score([(_unheard(evidence), is_end) for evidence, is_end in samples])
    score = TurnScore(with_sound, words_alone, {})
    for eagerness in EAGERNESS:
        waits = {**score.waits, eagerness: best_wait(known, score, eagerness)}
        score = replace(score, waits=waits)
    return fit_head(real + more), score


def _is_first(pause: Pause) -> bool:
    """True for the first part of a half. Both kinds of a recording are in the same part."""
    name = pause.file.removesuffix(f".{pause.kind}.wav")
    return zlib.crc32(name.encode()) // 2 % 2 == 0


def _unheard(evidence: Evidence) -> Evidence:
    return Evidence(evidence.words, None, evidence.own_pause_ms)


def judge(heard: EmbeddedPauses, head: Head) -> list[KnownPause]:
    odds = head.log_odds(heard)
    return [KnownPause(one, float(odd)) for one, odd in zip(heard.pauses, odds, strict=True)]


def fit_score(samples: Sequence[tuple[Evidence, bool]]) -> dict[str, float]:
    rows = [features(evidence) for evidence, _ in samples]
    names = sorted({name for row in rows for name in row})
    matrix = np.array([[row.get(name, 0.0) for name in names] for row in rows])
    labels = np.array([is_end for _, is_end in samples], np.float64)
    penalty = np.array([0.0 if name == "one" else SCORE_RIDGE for name in names])
    weights = newton(matrix, labels, penalty)
    return {name: round(float(weight), 4) for name, weight in zip(names, weights, strict=True)}


def best_wait(known: Sequence[KnownTurn], score: TurnScore, eagerness: Eagerness) -> Wait:
    """Find the cheapest line for these turns; `score` holds the lines of higher eagerness."""
    most_ms = MOST_MS[eagerness]
    lines = (
        Wait(base, slope, least, most_ms)
        for base, slope, least in product(BASES_MS, SLOPES_MS, LEASTS_MS[eagerness])
    )

    def cost(line: Wait) -> float:
        trying = replace(score, waits={**score.waits, eagerness: line})
        found = outcomes(known, lambda evidence: trying.wait_ms(evidence, eagerness))
        return cost_ms(tally(found), PRICES_MS[eagerness])

    return min(lines, key=cost)


def outcomes(known: Sequence[KnownTurn], decide: Decision) -> list[TurnOutcome]:
    return [outcome(turn, decide) for turn in known]


def tally(found: Sequence[TurnOutcome]) -> dict[str, Any]:
    """Figures of both kinds of turns."""
    return {kind: figures(found, kind) for kind in KINDS}


def cost_ms(found: dict[str, Any], prices_ms: dict[str, int]) -> float:
    """Cost in ms of waits and cut-ins, averaged over command-like and hesitant turns."""
    costs = [
        found[kind]["mean_ms"] + price_ms * found[kind]["cut_in_rate"]
        for kind, price_ms in prices_ms.items()
    ]
    return float(sum(costs)) / len(costs)


def plain_rules() -> Iterator[tuple[str, Decision]]:
    """Rules without a fitted score: one silence, or three by the ending of the words."""
    for silence_ms in range(224, 1025, 32):
        yield f"one {silence_ms} ms", _constant(silence_ms)
    for closed_ms, open_ms in product(range(224, 801, 32), range(352, 1025, 96)):
        if closed_ms < open_ms:
            yield f"words {closed_ms}/{open_ms} ms", _by_words(closed_ms, open_ms)


def _constant(silence_ms: int) -> Decision:
    return lambda evidence: silence_ms


def _by_words(closed_ms: int, open_ms: int) -> Decision:
    def decide(evidence: Evidence) -> float:
        how = word_class(evidence.words)
        return 1200 if how == "dangling" else closed_ms if how in _CLOSED else open_ms

    return decide


_CLOSED: Final = ("closed", "question")


def best_plain(known: Sequence[KnownTurn], prices_ms: dict[str, int], begin: str) -> Decision:
    """Find the cheapest of the rules whose name begins with `begin`."""
    rules = [rule for name, rule in plain_rules() if name.startswith(begin)]
    return min(rules, key=lambda rule: cost_ms(tally(outcomes(known, rule)), prices_ms))


def report(real: EmbeddedPauses, more: EmbeddedPauses) -> tuple[Head, TurnScore, dict[str, Any]]:
    """Fit on each half, judge on the other. Also returns the fit on half "a"."""
    halves = {half: (real.of_half(half), more.of_half(half)) for half in "ab"}
    fitted = {half: fit(*halves[half]) for half in "ab"}
    known = {}
    for half, other in ("ab", "ba"):
        judged = judge(halves[half][0], fitted[other][0])
        known[half] = known_turns(callers_of(trials_of(judged), SEED))
    result: dict[str, Any] = {"held_back": {}, "crossed": {}}
    for eagerness, prices_ms in PRICES_MS.items():
        ways = {
            "fitted": [_decision(fitted[half][1], eagerness) for half in "ab"],
            "one silence": [best_plain(known[half], prices_ms, "one") for half in "ab"],
            "by words": [best_plain(known[half], prices_ms, "words") for half in "ab"],
        }
        for name, (from_a, from_b) in ways.items():
            on_b = outcomes(known["b"], from_a)
            result["held_back"][f"{eagerness} {name}"] = tally(on_b)
            both = [*outcomes(known["a"], from_b), *on_b]
            result["crossed"][f"{eagerness} {name}"] = tally(both)
    head, score = fitted["a"]
    result["areas"] = areas(halves["b"][0], head)
    result["curve"] = {
        f"{silence_ms} ms": tally(outcomes(known["b"], _constant(silence_ms)))
        for silence_ms in range(224, 1025, 32)
    }
    return head, score, result


def areas(heard: EmbeddedPauses, head: Head) -> dict[str, float]:
    """Area under the ROC curve by kind of turn: how often the head scores an end of turn above a
    pause of at least `LEAST_MS`; 0.5 is chance."""
    found = {}
    for kind in KINDS:
        ours = heard.where(partial(_is_judged, kind))
        odds = head.log_odds(ours)
        is_end = np.array([pause.is_end for pause in ours.pauses], bool)
        above = np.sign(odds[is_end][:, None] - odds[~is_end])
        found[kind] = round(float(1 + above.mean()) / 2, 4)
    return found


def _is_judged(kind: str, pause: Pause) -> bool:
    return pause.kind == kind and pause.silence_ms >= LEAST_MS


def _decision(score: TurnScore, eagerness: Eagerness) -> Decision:
    return lambda evidence: score.wait_ms(evidence, eagerness)


def _print(result: dict[str, Any]) -> None:
    print("area under the head's curve, held back:", result["areas"])
    for part in ("held_back", "crossed", "curve"):
        for name, found in result[part].items():
            for kind in KINDS:
                one = found[kind]
                low, high = one["cut_in_wilson"]
                print(
                    f"{part} {name:20} {kind:9} n={one['turns']:3} missed {one['missed']} cut-ins "
                    f"{100 * one['cut_in_rate']:5.1f} % ({100 * low:4.1f}-{100 * high:4.1f}) after "
                    f"the voice p50 {one['p50_ms']} p90 {one['p90_ms']} p95 {one['p95_ms']} "
                    f"p99 {one['p99_ms']} mean {one['mean_ms']:.0f} ms"
                )


def read(path: Path) -> EmbeddedPauses:
    """Read the output of `turn_pauses.py`. Raises AudioError."""
    pauses = read_pauses(path)
    embeddings = read_embeddings(path).astype(np.float64)
    if len(pauses) != len(embeddings):
        raise AudioError(
            f"{path}: {len(pauses)} pauses, but {len(embeddings)} embeddings beside it"
        )
    return EmbeddedPauses(tuple(pauses), embeddings)


HEAD_FILE: Final = ROOT / "asr/speech_detection/turn_model_head.json"
SCORE_FILE: Final = ROOT / "agent/turn_taking/end_of_turn_model.json"


def _write(head: Head, score: TurnScore) -> None:
    shipped = {"bias": head.bias, "weights": head.weights.tolist()}
    HEAD_FILE.write_text(json.dumps(shipped, indent=1) + "\n", encoding="utf-8")
    SCORE_FILE.write_text(json.dumps(asdict(score), indent=1) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_of_turn.fit", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "pauses", type=Path, help="output of `python -m benchmarks.end_of_turn.turn_pauses`"
    )
    parser.add_argument(
        "--more", type=Path, action="append", default=[], metavar="PAUSES",
        help="pauses of other voices, for the turn model's head; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--write", action="store_true", help="write the models that the service loads"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures")
    args = parser.parse_args(argv)
    try:
        real = read(args.pauses)
        more = EmbeddedPauses((), real.embeddings[:0])
        for path in args.more:
            more += read(path)
        head, score, result = report(real, more)
        _print(result)
        if args.write:
            _write(head, score)
        if args.json:
            figures_of = {"bench": "end of turn", "machine": machine(), **result}
            args.json.write_text(json.dumps(figures_of, indent=1) + "\n", encoding="utf-8")
    except (AudioError, OSError) as error:
        print(f"fit: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
