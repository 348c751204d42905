"""Perplexity by each way to calculate; the quick backend stays within 1 % of float32."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llm_engine import quality
from llm_engine.backends.base import CacheLayout, SequenceRows, Slot
from llm_engine.weights import load_checkpoint
from tests.fakes.llm_models import save_tiny_model
from tests.models import model_path


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_model(tmp_path / "model", "llama")
    text, saved = tmp_path / "text", tmp_path / "result.json"
    text.write_text("the cat sat on the mat and said hello " * 20)
    arguments = ["--model", str(tmp_path / "model"), "--text", str(text), "--tokens", "90"]
    assert quality.main([*arguments, "--json", str(saved)]) == 0
    printed = capsys.readouterr().out
    assert "onnx int8" in printed
    rows = json.loads(saved.read_text())["rows"]
    assert [row["precision"] for row in rows] == ["float32", "int8"]
    assert rows[0]["ratio"] == rows[0]["agreement"] == 1
    assert rows[0]["perplexity"] != rows[1]["perplexity"]


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
@pytest.mark.timeout(300)
def test_eight_bits_cost_less_than_a_hundredth() -> None:
    path = model_path("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
    checkpoint = load_checkpoint(path)
    text = quality.LICENCE.read_text(encoding="utf-8")
    rows = quality.measure(checkpoint, text, quality.NUM_TOKENS)
    print(quality.table(rows))
    onnx = rows[-1]
    assert onnx.backend == "onnx"
    assert abs(onnx.ratio - 1) < 0.01
    assert onnx.agreement > 0.95
