"""Command `halfsec train-heads`: from questions to heads, resumable at any point."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.errors import ModelError
from llm_engine.models.medusa_heads import FILE, load_heads
from llm_engine.training import train_heads
from llm_engine.training.draft_head_training import Training
from llm_engine.training.train_heads import (
    HELD_OUT_EVERY,
    QUESTIONS,
    REPLIES,
    REPORT,
    STATE,
    read_replies,
)
from tests.support.fakes.llm_models import save_tiny_model

SETTINGS = ["--replies", "8", "--max-tokens", "16", "--epochs", "3", "--tokens", "60"]
SETTINGS += ["--batch", "16", "--heads", "2", "--inner", "24", "--quiet", "--precision", "float32"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "llama")
    (path / "questions").write_text("what time is it\n\nthe cat\nhello there\nsaid who\n")
    return path


def run(model: Path, out: Path, *more: str) -> int:
    prompts = ["--prompts", str(model / "questions")]
    return train_heads.main(["--model", str(model), "--out", str(out), *prompts, *SETTINGS, *more])


def test_heads_are_made_and_reported(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, tmp_path) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / REPORT).read_text())
    heads = load_heads(tmp_path, load_checkpoint(model))
    assert (heads.shape.num_heads, heads.shape.inner_size) == (2, 24)
    assert len(heads.tokens) <= 60
    assert len(printed["held_out"]["accepted_by_position"]) == 2
    assert 1 <= printed["held_out"]["tokens_a_step"] <= 3
    assert not (tmp_path / STATE).exists()
    lines = (tmp_path / REPLIES).read_text().splitlines()
    assert len(lines) == 1 + 8
    # Of the four questions the first is held out, in both rounds.
    assert printed["rows"] == sum(
        len(tokens) for index, _, tokens in map(json.loads, lines[1:]) if index % 4 > 0
    )


def test_stopped_anywhere_it_ends_with_the_same_heads(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(model, tmp_path / "whole") == 0
    out = tmp_path / "stopped"
    assert run(model, out) == 0
    (out / FILE).unlink()
    (out / REPORT).unlink()
    kept = (out / REPLIES).read_text().splitlines(keepends=True)
    (out / REPLIES).write_text("".join(kept[:4]) + kept[4][: len(kept[4]) // 2])
    steps: list[int] = []
    step = Training.step

    def interrupted(self: Any) -> float:
        steps.append(self.num_done)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Training, "step", interrupted)
    assert run(model, out) == 130
    assert (out / STATE).exists()
    assert not (out / FILE).exists()
    assert run(model, out) == 0
    assert steps[3] == steps[4] == 3, "went on with the step that was not made"
    ours, theirs = (load_file(path / FILE) for path in (out, tmp_path / "whole"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(values, theirs[name]) for name, values in ours.items())


def test_what_does_not_belong_together_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, tmp_path) == 0
    assert run(model, tmp_path, "--max-tokens", "17") == 2
    assert run(model, tmp_path / "new", "--model", str(tmp_path / "none")) == 2
    empty = tmp_path / "empty"
    empty.write_text("only one\n")
    assert run(model, tmp_path / "new", "--prompts", str(empty)) == 2
    long = tmp_path / "long"
    long.write_text("short\n" + "the cat sat on the mat " * 400)
    assert run(model, tmp_path / "new", "--prompts", str(long)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "with other settings; remove it" in lines[0]
    assert "no such file" in lines[1]
    assert "fewer than two questions" in lines[2]
    assert "the context holds 512" in lines[3]


def test_a_file_of_replies_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / REPLIES
    file.write_text("nonsense\n")
    with pytest.raises(ModelError, match="remove it"):
        read_replies(file, {"model": "m"})


def test_the_questions_are_enough_and_no_question_stands_twice() -> None:
    questions = QUESTIONS.read_text(encoding="utf-8").splitlines()
    assert len(set(questions)) == len(questions) >= 10 * HELD_OUT_EVERY
    assert all(question.strip() == question != "" for question in questions)
