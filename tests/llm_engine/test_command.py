"""Command `python -m llm_engine`: an answer, or the error in one line."""

from pathlib import Path

import pytest

import llm_engine
from llm_engine.__main__ import main
from tests.support.fakes.llm_models import save_tiny_model


def test_an_answer_and_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path, "llama", num_hidden_layers=1)
    capsys.readouterr()
    options = ["--model", str(tmp_path), "--system", "Be brief.", "--max-tokens", "5"]
    sampling = ["--temperature", "0.8", "--seed", "3", "--threads", "1"]
    assert main(["hello", *options, *sampling]) == 0
    first = capsys.readouterr()
    assert main(["hello", *options, *sampling, "--precision", "int8"]) == 0
    assert first.out.endswith("\n")
    assert "tokens, first token after" in first.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--model", "/nowhere.gguf"], "/nowhere.gguf: no such file"),
        (["x", "--temperature", "9"], "temperature: must be a number in [0, 2], not 9.0"),
        (
            ["x", "--precision", "int3"],
            "precision: 'int3' is not one of float32, int8, int4, bfloat16, fp8",
        ),
        (["x"], "no GGUF file; run `halfsec models fetch`"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("llm_engine: ")
    assert told.err.count("\n") == 1
    assert message in told.err


def test_public_names_exist() -> None:
    for name in llm_engine.__all__:
        assert getattr(llm_engine, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = llm_engine.Motor
