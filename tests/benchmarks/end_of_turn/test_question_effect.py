"""The effect of the agent's question on recorded turns: asked turns wait, others change nothing."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.speech_detection.turn_model import HEAD_FILE
from asr.speech_detection.turn_model_head import TurnModelHead
from benchmarks.end_of_turn import question_effect
from benchmarks.end_of_turn.turn_pauses import Pause

END_MS = 2700


def turn(part: str, number: int, *texts: str) -> list[Pause]:
    """A turn whose pauses, of 1100 ms, follow these words."""
    kind = "numbers" if part else "halting"
    file = f"corpus_{part}-{number}.{kind}.wav"
    return [
        Pause(
            file, kind, "b", 16_000 * at, at == len(texts), END_MS if at == len(texts) else 1100, 0,
            text, "corpus", f"s{number}",
        )
        for at, text in enumerate(texts, start=1)
    ]  # fmt: skip


def undecided() -> NDArray[np.float32]:
    """Sound of which the turn model says that it is even."""
    head = TurnModelHead.read(HEAD_FILE)
    towards = head.output @ head.hidden / np.linalg.norm(head.output @ head.hidden)
    low, high = np.float32(-1e3), np.float32(1e3)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if head.log_odds(middle * towards) > 0 else (middle, high)
    return (middle * towards).astype(np.float32)


def test_only_turns_that_answer_the_question_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses = [
        *turn("numbers", 1, "555.", "555, 123, 4567."),
        *turn("addresses", 2, "741.", "741 Ridge Road."),
        *turn("names", 3, "S M I T H."),
        *turn("", 4, "I would like to go.", "I would like to go home."),
    ]
    path, ends, saved = (tmp_path / name for name in ("p.jsonl", "ends.json", "out.json"))
    path.write_text("".join(json.dumps(dataclasses.asdict(each)) + "\n" for each in pauses))
    np.save(tmp_path / "p.jsonl.npy", np.tile(undecided(), (len(pauses), 1)))
    ends.write_text("{}")
    arguments = [str(path), "--message-ends", str(ends), "--json", str(saved)]
    assert question_effect.main(arguments) == 0
    found = json.loads(saved.read_text())["held_back"]
    counts = {name: [pair[each]["cut_ins"] for each in pair] for name, pair in found.items()}
    assert counts["numbers"] == counts["addresses"] == [1, 0]
    assert counts["names"] == [0, 0]
    assert counts["all parts"] == [2, 0]
    others = found["halting, asked for a number"]
    assert others["nothing asked"] == others["asked"]
    assert others["asked"]["turns"] == 1
    assert "all parts" in capsys.readouterr().out


def test_no_pauses_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "none.jsonl")
    assert question_effect.main([missing, "--message-ends", missing]) == 2
    assert "question_effect: " in capsys.readouterr().err
