"""Results of checks: kept for a state, forgotten with it, never required."""

import json
import logging
from pathlib import Path

import pytest

from llm_engine.checkpoints.verified_files import _MAX_RESULTS, VerifiedFiles, file_state


def test_a_result_holds_for_its_state(tmp_path: Path) -> None:
    VerifiedFiles(tmp_path / "deep").keep("model", "1 MB", "sound")
    verified = VerifiedFiles(tmp_path / "deep")
    assert verified.recall("model", "1 MB") == "sound"
    assert verified.recall("model", "2 MB") is None
    assert verified.recall("other", "1 MB") is None
    verified.keep("model", "2 MB", "sound as well")
    assert verified.recall("model", "1 MB") is None
    assert verified.recall("model", "2 MB") == "sound as well"


def test_the_newest_results_are_kept(tmp_path: Path) -> None:
    verified = VerifiedFiles(tmp_path)
    for number in range(_MAX_RESULTS):
        verified.keep(str(number), "state", "result")
    verified.keep("0", "state", "again")
    verified.keep("last", "state", "result")
    assert verified.recall("0", "state") == "again"
    assert verified.recall("1", "state") is None
    assert verified.recall("2", "state") == "result"
    assert len(json.loads((tmp_path / "verified.json").read_bytes())) == _MAX_RESULTS


@pytest.mark.parametrize("content", [b"", b"[1", b"[1]", b'{"a": 1}', b'{"a": ["b"]}', b"\xff\xfe"])
def test_a_damaged_file_counts_as_empty(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "verified.json").write_bytes(content)
    verified = VerifiedFiles(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert verified.recall("a", "b") is None
    assert "verified.json is not used and will be replaced" in caplog.text
    verified.keep("a", "b", "c")
    assert verified.recall("a", "b") == "c"


def test_without_a_directory_nothing_is_kept(tmp_path: Path) -> None:
    VerifiedFiles(None).keep("a", "b", "c")
    assert VerifiedFiles(None).recall("a", "b") is None


def test_a_directory_that_cannot_be_written_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a directory")
    verified = VerifiedFiles(in_the_way)
    verified.keep("a", "b", "c")
    assert "the next start checks again" in caplog.text
    assert verified.recall("a", "b") is None


def test_the_state_of_files_follows_each_change(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    second.write_text("2")
    states = {file_state([first]), file_state([first, second])}
    first.write_text("12")
    states.add(file_state([first, second]))
    second.rename(first)
    states.add(file_state([first]))
    assert len(states) == 4
    with pytest.raises(FileNotFoundError):
        file_state([second])
