"""Perplexity of each quantization scheme; the quick backend stays within 1 % of float32."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.llm import quality
from llm_engine.backends.base import CacheLayout, SequenceRows, Slot
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import Precision
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.models import model_path

pytestmark = pytest.mark.slow


class Successors:
    """Thinks that each token is followed by the next higher one, with odds of 3 to 1 to each of
    the others."""

    def open_slot(self) -> Slot:
        return Slot(1)

    layout = CacheLayout(16, 1, shares_pages=False)

    def close_slot(self, slot: Slot) -> None:
        assert slot == 1

    def logits(self, rows: SequenceRows) -> Tensor:
        assert rows.num_sampled == len(rows.token_ids)
        logits = torch.zeros(rows.num_sampled, 10)
        following = torch.tensor(rows.token_ids) + 1
        return logits.index_put(
            (torch.arange(rows.num_sampled), following), torch.tensor(3.0).log()
        )


def test_a_score_is_the_mean_surprise() -> None:
    scores = quality.score(Successors(), [0, 1, 2, 7, 8])
    expected = -(3 * math.log(3 / 12) + math.log(1 / 12)) / 4
    assert scores.nats == pytest.approx(expected)
    assert scores.likeliest.tolist() == [1, 2, 3, 8]


def test_the_command_prints_and_saves_a_row_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "_CALIBRATION_TOKENS", 600)
    save_tiny_model(tmp_path / "model", "llama")
    text, saved = tmp_path / "text", tmp_path / "result.json"
    text.write_text("the cat sat on the mat and said hello " * 20)
    arguments = ["--model", str(tmp_path / "model"), "--text", str(text), "--tokens", "90"]
    assert quality.main([*arguments, "--json", str(saved)]) == 0
    printed = capsys.readouterr().out
    assert "onnx int8" in printed
    rows = json.loads(saved.read_text())["rows"]
    names = [scheme.name for scheme in quality.SCHEMES]
    assert [row["precision"] for row in rows] == ["float32", "int8", "int4", *names]
    assert rows[0]["ratio"] == rows[0]["agreement"] == 1
    assert rows[0]["error"] == 0 < rows[1]["error"] < rows[2]["error"]
    assert len({row["perplexity"] for row in rows}) == len(rows)
    by_name = {row["precision"]: row for row in rows}
    assert by_name["bfloat16"]["ratio"] == pytest.approx(1, abs=0.01)
    assert by_name["bfloat16"]["bf16_ratio"] == 1
    assert by_name["bfloat16"]["bf16_error"] == 0
    for name in names[1:]:
        assert 0.5 < by_name[name]["bf16_ratio"] < 2
        assert by_name[name]["bf16_error"] > 0
        assert f"cuda {name} " in printed
    result = json.loads(saved.read_text())
    assert result["tokens"] == 90
    assert {"machine", "date", "command"} <= result.keys()


def test_the_error_is_that_of_the_difference() -> None:
    """Tokens that are difficult for both add nothing to it."""
    likeliest = torch.zeros(4, dtype=torch.long)
    sixteen = quality._Scores(torch.tensor([1.0, 9.0, 2.0, 5.0]), likeliest)
    eight = quality._Scores(torch.tensor([1.2, 9.0, 2.2, 5.0]), likeliest)
    row = quality._row("cuda", "fp8", eight, sixteen, sixteen)
    assert row.bf16_ratio == row.ratio == pytest.approx(math.exp(0.1))
    assert row.bf16_error == row.error == pytest.approx(math.exp(0.1) * 0.1 / 2)


def test_four_bits_are_judged_over_all_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_model(tmp_path / "model", "llama")
    arguments = ["--model", str(tmp_path / "model"), "--tokens", "90", "--cpu"]
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"the {name} sat on the mat and said hello " * 20)
        arguments += ["--text", str(tmp_path / name)]
    saved = tmp_path / "result.json"
    assert quality.main([*arguments, "--json", str(saved), "--gate-int4", "2"]) == 0
    assert "int4 over 2 texts: " in capsys.readouterr().out
    result = json.loads(saved.read_text())
    assert result["texts"] == ["one", "two"]
    named = [(row["precision"], row["text"]) for row in result["rows"]]
    assert named == [
        (each, text) for each in ("float32", "int8", "int4") for text in ("one", "two")
    ]
    rows = [quality.SchemeFigures(**row) for row in result["rows"]]
    mean = quality.mean_ratio(rows, "int4")
    assert mean == pytest.approx(math.sqrt(rows[4].ratio * rows[5].ratio))
    assert quality.missed_gates(rows, None, None, mean) == []
    assert len(quality.missed_gates(rows, None, None, mean - 0.001)) == 1
    assert len(quality.missed_gates(rows[:4], None, None, 9.0)) == 1, "not measured is not held"


def test_gates_judge_weights_and_activations_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        quality.SchemeFigures("cuda", scheme.name, 10, 1, 0, 1, bf16_ratio=1.012, bf16_error=0.001)
        for scheme in quality.SCHEMES
    ]
    assert quality.missed_gates(rows, None, None) == []
    assert quality.missed_gates(rows, 1.013, 1.015) == []
    weights = quality.missed_gates(rows, 1.01, None)
    activations = quality.missed_gates(rows, None, 1.01)
    assert {line.split(":")[0] for line in activations} == {
        "fp8 blocks, fp8 activations",
        "fp8 rows, fp8 activations",
        "calibrated, bf16 head, fp8 activations",
        "calibrated, fp8 activations",
    }
    both = {scheme.name for scheme in quality.SCHEMES if scheme.weights.body is Precision.FP8}
    assert {line.split(":")[0] for line in weights + activations} == both
    assert len(quality.missed_gates([replace(rows[-1], bf16_ratio=math.nan)], 1, 1)) == 1


def test_what_cannot_be_measured_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quality.main(["--model", str(tmp_path / "none.gguf")]) == 2
    save_tiny_model(tmp_path / "model", "llama")
    (tmp_path / "empty").touch()
    model = ["--model", str(tmp_path / "model")]
    assert quality.main([*model, "--text", str(tmp_path / "empty")]) == 2
    assert quality.main([*model, "--text", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.count("bench quality:") == 3


@pytest.mark.models
@pytest.mark.timeout(600)
def test_what_eight_bits_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats without calibration some hundredths, with such a small model: what calibration gives
    back takes minutes to measure, and stands in `benchmarks/`. What whole numbers cost is found in
    `tests/llm_engine/backends/test_onnx_smollm2.py`, where they are compared in more ways."""
    monkeypatch.setattr(quality, "CONFIGS", quality.CONFIGS[:1])
    path = model_path("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
    checkpoint = load_checkpoint(path)
    text = quality.LICENCE.read_text(encoding="utf-8")
    schemes = [
        scheme for scheme in quality.SCHEMES if scheme.name in ("bfloat16", "fp8 rows, bf16 head")
    ]
    rows = list(quality.measure(checkpoint, {"licence": text}, quality.NUM_TOKENS, schemes))
    print(*map(quality.line_of, rows), sep="\n")
    exact, bfloat16, fp8 = rows
    assert (exact.backend, exact.precision, exact.ratio) == ("torch", "float32", 1)
    assert abs(bfloat16.ratio - 1) < 0.005
    assert bfloat16.agreement > 0.95
    assert fp8.bf16_ratio is not None
    assert abs(fp8.bf16_ratio - 1) < 0.03
    assert fp8.agreement > 0.88
