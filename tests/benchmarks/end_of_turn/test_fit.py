"""Fitting the end of turn: from pauses to what ships, and to figures beside the plain rules."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from agent.turn_taking.end_of_turn_model import EAGERNESS, Evidence, TurnScore
from asr.speech_detection.turn_model import EMBEDDING, read_head
from benchmarks.end_of_turn import fit
from benchmarks.end_of_turn.evaluation import KnownPause, figures, known_turns, outcome, trials_of
from benchmarks.end_of_turn.turn_pauses import Pause


def pause(**changes: object) -> Pause:
    whole = Pause("x.command.wav", "command", "b", 16_000, True, 2500, 10, "Yes.")
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def recorded(folder: Path, seed: int = 2) -> Path:
    """Turns of two pauses, of which one direction of the embedding tells most, the words some."""
    rng = np.random.default_rng(seed)
    lines, embeddings = [], []
    for number in range(160):
        kind = ("command", "hesitant")[number % 2]
        half = "ab"[number // 2 % 2]
        for is_end in (False, True):
            sound = rng.normal(1.0 if is_end else -1.0, 0.7)
            is_closed = rng.random() < (0.9 if is_end else 0.5)
            one = pause(
                file=f"{number}.{kind}.wav",
                kind=kind,
                half=half,
                is_end=is_end,
                silence_ms=2500 if is_end else int(rng.integers(200, 900)),
                final="Yes." if is_closed else "Hello,",
            )
            lines.append(json.dumps(dataclasses.asdict(one)) + "\n")
            noise = np.zeros(EMBEDDING)
            noise[:50] = rng.normal(0, 1, 50)
            noise[7] = sound
            embeddings.append(noise)
    path = folder / "pauses.jsonl"
    path.write_text("".join(lines))
    np.save(folder / "pauses.jsonl.npy", np.array(embeddings, np.float32))
    return path


def test_what_tells_is_found_and_beats_the_plain_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit, "HEAD_FILE", tmp_path / "head.json")
    monkeypatch.setattr(fit, "SCORE_FILE", tmp_path / "score.json")
    monkeypatch.setattr(fit, "HEAD_RIDGE", 30.0)  # fewer pauses than the real ones
    monkeypatch.setattr(fit, "BASES_MS", range(200, 1001, 200))
    monkeypatch.setattr(fit, "SLOPES_MS", (0, 100, 200))
    monkeypatch.setattr(fit, "LEASTS_MS", dict.fromkeys(EAGERNESS, (224, 320)))
    path = recorded(tmp_path)
    saved = tmp_path / "figures.json"
    assert fit.main([str(path), "--write", "--json", str(saved)]) == 0
    assert "held_back auto fitted" in capsys.readouterr().out

    weights, _ = read_head(tmp_path / "head.json")
    assert int(np.argmax(weights)) == 7
    score = TurnScore.load(tmp_path / "score.json")
    waits = [score.wait_ms(Evidence("Yes.", sound), "auto") for sound in (4.0, -4.0)]
    assert waits[0] < waits[1]
    assert list(score.waits) == list(EAGERNESS)

    prices = fit.PRICES_MS["auto"]
    held_back = json.loads(saved.read_text())["held_back"]
    costs = {
        name: fit.cost_ms(held_back[f"auto {name}"], prices)
        for name in ("fitted", "one silence", "by words")
    }
    assert costs["fitted"] < min(costs["one silence"], costs["by words"])
    assert held_back["auto fitted"]["command"]["turns"] == 40


def test_the_head_is_the_ridge_regression_of_all_numbers() -> None:
    rng = np.random.default_rng(5)
    pauses = tuple(pause(is_end=bool(number % 3)) for number in range(90))
    for size in (4, 200):  # fewer than pauses, and more
        embeddings = rng.normal(1.0, 2.0, (90, size))
        embeddings[:, 0] += [2.0 * one.is_end for one in pauses]
        standard = (embeddings - embeddings.mean(axis=0)) / embeddings.std(axis=0)
        matrix = np.hstack([np.ones((90, 1)), standard])
        labels = np.array([one.is_end for one in pauses], float)
        penalty = np.array([0.0] + [fit.HEAD_RIDGE] * size)
        expected = matrix @ fit.newton(matrix, labels, penalty)
        heard = fit.EmbeddedPauses(pauses, embeddings)
        assert np.abs(fit.fit_head(heard).log_odds(heard) - expected).max() < 1e-3


def test_an_answer_a_cut_in_and_a_missed_turn() -> None:
    inner = pause(is_end=False, silence_ms=500, final="Please hold.")
    (trial,) = trials_of([KnownPause(inner, 0.0), KnownPause(pause(), 0.0)])
    (turn,) = known_turns([[trial]])

    def waiting(ms: float) -> tuple[bool, int | None]:
        found = outcome(turn, lambda evidence: ms)
        return found.cut_in, found.after_ms

    assert waiting(480) == (True, None)
    assert waiting(500) == (False, 522), "asked at whole frames of 32 ms"
    assert waiting(10) == (True, None), "nothing is decided before anything is known"
    assert waiting(3000) == (False, None)


def test_without_words_nobody_answers() -> None:
    (trial,) = trials_of([KnownPause(pause(final=""), 5.0)])
    (turn,) = known_turns([[trial]])
    assert outcome(turn, lambda evidence: 300).after_ms is None


def test_a_callers_own_pauses_are_those_before() -> None:
    inner = pause(is_end=False, silence_ms=800)
    trial = trials_of([KnownPause(inner, 0.0), KnownPause(pause(), 0.0)])[0]
    turns = known_turns([[trial] * 6])
    first, last = turns[0].pauses[0][1], turns[-1].pauses[0][1]
    assert first.own_pause_ms < last.own_pause_ms == 800


def test_rates_stand_with_their_interval() -> None:
    (trial,) = trials_of([KnownPause(pause(), 0.0)])
    turns = known_turns([[trial]] * 4)
    found = figures([outcome(turn, lambda evidence: 320) for turn in turns], "command")
    assert (found["turns"], found["cut_ins"], found["p50_ms"]) == (4, 0, 330)
    assert found["cut_in_wilson"][1] > 0.3


def test_pauses_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main([str(tmp_path / "none.jsonl")]) == 2
    assert (
        "make them with `python -m benchmarks.end_of_turn.turn_pauses`" in capsys.readouterr().err
    )
    path = recorded(tmp_path)
    np.save(f"{path}.npy", np.zeros((3, EMBEDDING), np.float32))
    assert fit.main([str(path)]) == 2
    assert "3 embeddings beside it" in capsys.readouterr().err
