"""Recordings of many speakers: from a folder or a git repository, with known licences only."""

import os
import subprocess
from pathlib import Path

import pytest

from asr.errors import AudioError
from benchmarks.end_of_turn.corpora import (
    ALPHANUMERIC,
    LICENCES,
    SPEECHOCEAN,
    alphanumeric,
    files_of,
    speechocean,
)


def saved(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def committed(folder: Path) -> Path:
    """The folder's files as a bare repository."""
    who = {
        f"GIT_{role}_{what}": f"{role}@x"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    bare = folder.with_suffix(".git")
    for command in (
        ["init", "-q", str(folder)],
        ["-C", str(folder), "add", "."],
        ["-C", str(folder), "commit", "-q", "-m", "all"],
        ["clone", "-q", "--bare", str(folder), str(bare)],
    ):
        subprocess.run(["git", *command], check=True, env={**os.environ, **who})
    return bare


OCEAN = {
    "README.md": f"It is available for {LICENCES[SPEECHOCEAN][1]}.",
    "train/text": "a1\tONE TWO\na2\tA LONGER TEXT\na3\tSHORT\n",
    "train/wav.scp": "a1\tWAVE/a1.WAV\na2\tWAVE/a2.WAV\na3\tWAVE/a3.WAV\n",
    "train/utt2spk": "a1 0001\na2 0001\na3 0002\n",
    "test/text": "b1\tWELL\n",
    "test/wav.scp": "b1\tWAVE/b1.WAV\n",
    "test/utt2spk": "b1 9001\n",
    "WAVE/a1.WAV": "sound of a1",
}

SPELLED = {
    "LICENSE": "MIT License\n\nCopyright",
    "metadata.csv": (
        "Response_ID,file_name,Name,Number,Address\n"
        'R_1,audio_data/Names/R_1.wav,Ann,555,"1, High Street"\n'
        'R_1,audio_data/Addresses/R_1.wav,Ann,555,"1, High Street"\n'
        "R_2,audio_data/Numbers/R_2.wav,Bob,556,Here\n"
    ),
}


@pytest.fixture(params=["folder", "repository"])
def ocean(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = saved(tmp_path / "ocean", OCEAN)
    return folder if request.param == "folder" else committed(folder)


def test_each_speaker_is_in_one_half(ocean: Path) -> None:
    found = speechocean(files_of(ocean, SPEECHOCEAN), per_speaker=1)
    assert [(one.speaker, one.half) for one in found] == [
        ("0001", "a"),
        ("0002", "a"),
        ("9001", "b"),
    ]
    both = speechocean(files_of(ocean, SPEECHOCEAN), per_speaker=2)
    assert {one.name for one in both} == {"a1", "a2", "a3", "b1"}
    assert {one.text for one in both if one.name == "a2"} == {"A LONGER TEXT"}


def test_files_that_are_not_there_are_left_out(ocean: Path) -> None:
    files = files_of(ocean, SPEECHOCEAN)
    assert list(files.read_all(["WAVE/a1.WAV", "WAVE/a2.WAV", "WAVE/a1.WAV"])) == [
        b"sound of a1",
        None,
        b"sound of a1",
    ]
    with pytest.raises(AudioError, match=r"a2\.WAV"):
        files.read("WAVE/a2.WAV")


def test_names_numbers_and_addresses(tmp_path: Path) -> None:
    found = alphanumeric(files_of(saved(tmp_path / "spelled", SPELLED), ALPHANUMERIC))
    assert [(one.name, one.text) for one in found] == [
        ("names-R_1", "Ann"),
        ("addresses-R_1", "1, High Street"),
        ("numbers-R_2", "556"),
    ]
    assert found[0].half == found[1].half


def test_another_licence_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "ocean", OCEAN | {"README.md": "All rights reserved."})
    with pytest.raises(AudioError, match="does not state the licence"):
        files_of(folder, SPEECHOCEAN)


def test_a_folder_that_is_not_the_corpus(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="no such folder"):
        files_of(tmp_path / "none", SPEECHOCEAN)
    (tmp_path / "empty").mkdir()
    with pytest.raises(AudioError, match="neither the corpus nor a git repository"):
        files_of(tmp_path / "empty", SPEECHOCEAN)
    columns = saved(tmp_path / "spelled", SPELLED | {"metadata.csv": "name\nx\n"})
    with pytest.raises(AudioError, match="is not that of"):
        alphanumeric(files_of(columns, ALPHANUMERIC))
