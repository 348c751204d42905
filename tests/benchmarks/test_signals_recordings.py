"""Which recordings are played as turns, and where their labels say that they end."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from agent.errors import BenchError
from benchmarks.signals.recordings import find_recordings


def write(path: Path, seconds: float) -> Path:
    soundfile.write(path, np.full(int(seconds * 8000), 900, np.int16), 8000)
    return path


def names(*paths: Path, turns: int = 9, seed: int = 1, half: str = "", kind: str = "") -> list[str]:
    return [one.path.name for one in find_recordings(paths, turns, seed, half=half, kind=kind)]


def test_folders_and_files_of_a_turns_length_shuffled_by_the_seed(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for number in range(6):
        write(tmp_path / "deep" / f"{number}.wav", 2)
    write(tmp_path / "short.wav", 0.5)
    write(tmp_path / "long.wav", 13)
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    found = names(tmp_path)
    assert sorted(found) == [f"{number}.wav" for number in range(6)]
    assert names(tmp_path) == found
    assert any(names(tmp_path, seed=seed) != found for seed in range(2, 6))
    assert names(tmp_path, turns=2) == found[:2]
    assert names(tmp_path / "deep" / "3.wav") == ["3.wav"]


def test_labels_in_one_file_or_beside_a_recording(tmp_path: Path) -> None:
    """A turn with a long tail is as long as its speech."""
    lines = [
        {"file": "a.wav", "end": 32_000, "kind": "command", "half": "a", "text": "?", "pauses": []},
        {"file": "b.wav", "end": 40_000, "kind": "hesitant", "half": "b"},
    ]
    (tmp_path / "turns.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write(tmp_path / "a.wav", 13)
    write(tmp_path / "b.wav", 4)
    write(tmp_path / "c.wav", 4)
    (tmp_path / "c.json").write_text('{"end": 48000}')
    write(tmp_path / "d.wav", 4)
    (tmp_path / "d.json").write_text('{"speaker": 7}')
    found = {one.path.name: one for one in find_recordings([tmp_path], 9, 1)}
    assert {name: one.voiced_s for name, one in found.items()} == {
        "a.wav": 2.0,
        "b.wav": 2.5,
        "c.wav": 3.0,
        "d.wav": None,
    }
    assert [found[name].kind for name in ("a.wav", "b.wav", "c.wav")] == ["command", "hesitant", ""]
    assert names(tmp_path, half="b") == ["b.wav"]
    assert names(tmp_path, kind="command") == ["a.wav"]
    with pytest.raises(BenchError, match="labelled so"):
        names(tmp_path, half="a", kind="hesitant")


def test_by_telephone_the_turn_ends_where_its_label_says(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", 2)
    (tmp_path / "a.json").write_text('{"end": 24000}')
    (one,) = find_recordings([tmp_path], 9, 1)
    line = one.by_telephone()
    assert (line.rate_hz, len(line.pcm), line.voiced_s) == (8000, 16_000, 1.5)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 1: not JSON"),
        ("[1]", "line 1: a label is a JSON object"),
        ('{"end": 5}', "`file` has to name"),
        ('{"file": "a.wav"}', "`end` has to be a number"),
        ('{"file": "a.wav", "end": "5"}', "`end` has to be a number"),
        ('{"file": "a.wav", "end": 5, "kind": 1}', "have to be texts"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, line: str, complaint: str) -> None:
    write(tmp_path / "a.wav", 2)
    (tmp_path / "turns.jsonl").write_text(line + "\n")
    with pytest.raises(BenchError, match=complaint):
        names(tmp_path)


def test_a_folder_without_recordings(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"no recording of 1 to 12 s in "):
        names(tmp_path, tmp_path / "missing")
