"""Recorded turns read by another voice, with the real one."""

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile

from benchmarks.asr.latency import find_recordings, read_transcripts
from benchmarks.end_of_turn.synthetic_readers import MAX_WORDS, main


def turns(folder: Path, *texts: str) -> Path:
    folder.mkdir()
    lines: list[dict[str, Any]] = [
        {"name": f"menu/{number}", "kind": kind, "half": "a", "file": "x.wav", "text": text,
         "end": 16_000, "pauses": []}
        for number, text in enumerate(texts)
        for kind in ("command", "hesitant")
    ]  # fmt: skip
    (folder / "turns.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_each_text_is_read_once_under_its_recordings_name(tmp_path: Path) -> None:
    announcement = "word " * (MAX_WORDS + 1)
    source = turns(tmp_path / "turns", "Please hold the line.", announcement)
    out = tmp_path / "spoken"
    assert main([str(source), str(out), "--voice", "hibari"]) == 0
    (found,) = find_recordings(out, read_transcripts(out / "texts.txt"), 4)
    assert (found.name, found.text) == ("menu/0", "Please hold the line.")
    assert soundfile.info(found.path).duration > 0.5


def test_no_turns_and_no_such_voice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), str(tmp_path / "out"), "--voice", "hibari"]) == 2
    assert "make them with `python -m benchmarks.end_of_turn.turn_data`" in capsys.readouterr().err
    source = turns(tmp_path / "turns", "Hello there, you.")
    assert main([str(source), str(tmp_path / "out"), "--voice", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err
