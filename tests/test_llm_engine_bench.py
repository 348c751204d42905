"""The bench on the real model: it measures what it says, and a bad model is one line."""

import json
from pathlib import Path

import pytest

from llm_engine import bench

from .models import model_path


@pytest.mark.models
def test_every_way_to_calculate_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = next(model_path("smollm2-135m-instruct").glob("*.gguf"))
    out = tmp_path / "llm.json"
    assert bench.main(["--model", str(model), "--max-tokens", "3", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    ways = [(row["backend"], row["precision"]) for row in rows]
    assert ways == [("torch", "float32"), ("onnx", "int8")]
    assert all(0 < row["num_tokens"] <= 3 * len(bench.QUESTIONS) for row in rows)
    assert "onnx int8" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--model", "/nowhere.gguf"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
