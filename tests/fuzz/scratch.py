"""Files for targets whose readers take a path."""

import atexit
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(tempfile.mkdtemp(prefix="halfsec-fuzz-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_NUMBERS: Final = itertools.count()


@contextlib.contextmanager
def file_of(data: bytes, suffix: str = "") -> Iterator[Path]:
    """A file of its own for each input: what was mapped of an earlier one stays as it was."""
    path = _FOLDER / f"{next(_NUMBERS)}{suffix}"
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.unlink()


@contextlib.contextmanager
def directory_of(files: dict[str, bytes]) -> Iterator[Path]:
    """A directory of its own for each input."""
    folder = _FOLDER / str(next(_NUMBERS))
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    try:
        yield folder
    finally:
        for name in files:
            (folder / name).unlink()
        folder.rmdir()
