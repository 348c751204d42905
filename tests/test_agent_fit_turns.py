"""Fitting the end of turn: from pauses to weights that ship, and to figures beside the rule."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from agent import fit_turns
from agent.turn_llm import make_judge
from agent.turn_score import Evidence, TurnScore
from asr.turn_pauses import Pause
from tests.models import model_path
from tests.test_agent_turn_trials import pause


def pauses(seed: int = 2) -> list[Pause]:
    """Turns of two pauses, of which the sound tells most and the words something."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(120):
        kind = ("command", "hesitant")[number % 2]
        half = "ab"[number // 2 % 2]
        for is_end in (False, True):
            probability = float(np.clip(rng.normal(0.8 if is_end else 0.2, 0.15), 0.01, 0.99))
            closed = rng.random() < (0.9 if is_end else 0.5)
            found.append(
                pause(
                    file=f"{number}.{kind}",
                    kind=kind,
                    half=half,
                    is_end=is_end,
                    silence_ms=2500 if is_end else int(rng.integers(200, 900)),
                    sound=((96, probability),),
                    final="Yes." if closed else "and the",
                )
            )
    return found


def test_a_witness_that_tells_beats_the_plain_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "pauses.jsonl"
    lines.write_text("".join(json.dumps(dataclasses.asdict(one)) + "\n" for one in pauses()))
    weights, figures = tmp_path / "weights.json", tmp_path / "figures.json"
    arguments = [str(lines), "--write", str(weights), "--json", str(figures)]
    assert fit_turns.main(arguments) == 0
    assert "held_back auto fitted" in capsys.readouterr().out

    score = TurnScore.load(weights)
    sure, unsure = (Evidence(silence_ms=288, sound=p, final="Yes.") for p in (0.9, 0.1))
    assert score.is_over(sure)
    assert not score.is_over(unsure)

    held_back = json.loads(figures.read_text())["held_back"]
    plain, fitted = held_back["auto plain"], held_back["auto fitted"]
    assert plain["command"]["turns"] == fitted["command"]["turns"] == 30
    assert fitted["cost_ms"] < plain["cost_ms"]
    assert fitted["hesitant"]["cut_in_rate"] < plain["hesitant"]["cut_in_rate"]


def test_eagerness_is_an_order_of_thresholds(tmp_path: Path) -> None:
    lines, weights = tmp_path / "pauses.jsonl", tmp_path / "weights.json"
    lines.write_text("".join(json.dumps(dataclasses.asdict(one)) + "\n" for one in pauses()))
    assert fit_turns.main([str(lines), "--write", str(weights)]) == 0
    found = TurnScore.load(weights).thresholds
    assert found["high"] <= found["auto"] <= found["medium"] <= found["low"]


def test_pauses_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_turns.main([str(tmp_path / "none.jsonl")]) == 2
    assert "make them with `python -m asr.turn_pauses`" in capsys.readouterr().err


@pytest.mark.models
def test_the_language_model_knows_when_a_message_ends() -> None:
    judge = make_judge(model_path("smollm2-135m-instruct") / "SmolLM2-135M-Instruct.Q4_1.gguf")
    whole, cut = judge("What is the capital of France?"), judge("What is the capital of")
    assert 0 <= cut < whole <= 1
    assert judge("What is the capital of.") == cut, "Whisper's full stop is no evidence"
