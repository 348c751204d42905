"""Files that only their owner reads, and that are whole or not there."""

import os
from pathlib import Path

import pytest

from latency_budget.storage.private_files import (
    keep_private,
    make_private_folder,
    write_private_file,
)
from tests.support.full_disk import files_limited_to


def test_a_file_that_does_not_fit_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "reply.wav"
    with files_limited_to(100), pytest.raises(OSError, match="File too large"):
        write_private_file(path, bytes(1000))
    assert not path.exists()
    write_private_file(path, bytes(1000))
    assert path.stat().st_size == 1000
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_could_not_be_opened_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")

    def none_left(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            write_private_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_device_is_neither_removed_nor_made_private() -> None:
    before = os.stat("/dev/full").st_mode
    with pytest.raises(OSError, match="No space left"):
        write_private_file(Path("/dev/full"), b"1")
    assert os.stat("/dev/full").st_mode == before
    write_private_file(Path("/dev/null"), b"1")


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o750)
    make_private_folder(shared / "a" / "b")
    modes = [each.stat().st_mode & 0o777 for each in (shared, shared / "a", shared / "a" / "b")]
    assert modes == [0o750, 0o700, 0o700]
    (shared / "file").write_text("")
    for blocked in (shared / "file", shared / "file" / "under"):
        with pytest.raises(NotADirectoryError):
            make_private_folder(blocked)


def test_a_file_that_exists_is_made_private_and_one_that_is_linked_to_is_made(
    tmp_path: Path,
) -> None:
    path, link = tmp_path / "turns.sqlite", tmp_path / "link"
    link.symlink_to(path)
    keep_private(link)
    path.write_bytes(b"kept")
    path.chmod(0o644)
    keep_private(path)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"kept", 0o600)
    before = os.stat("/dev/null").st_mode
    keep_private(Path("/dev/null"))
    assert os.stat("/dev/null").st_mode == before
