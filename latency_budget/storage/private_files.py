"""Folders and files that only their owner reads, and files that are whole or not there.

What callers said is in traces, recordings and the store, and umask 022 would show it to every
account of the machine. A disk that is full leaves a file empty or cut; such a file is removed, so
that a file that exists can be read.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_private_folder(path: Path) -> None:
    """Create the folder and its missing parents, mode 0700 whatever the umask. One that exists is
    left as it is: its mode is the operator's decision. Raises OSError."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            folder.mkdir(mode=FOLDER_MODE)
            folder.chmod(FOLDER_MODE)
    path = missing[0] if missing else path
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))


def open_private(path: Path, flags: int = 0) -> int:
    """Open a file for writing, mode 0600 whatever the umask and whatever it was before; a pipe or a
    device is left as it is. Returns its descriptor. Raises OSError. `flags`: besides O_CREAT."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | flags, FILE_MODE)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        with contextlib.suppress(PermissionError):  # it belongs to another account
            os.fchmod(handle, FILE_MODE)
    return handle


def keep_private(path: Path) -> None:
    """Make an empty file, or one that exists, mode 0600 whatever the umask; a pipe or a device is
    left as it is. Raises OSError.

    One that exists is not opened: to close it would release every lock that this process holds on
    it (POSIX, fcntl), those of SQLite's connections in other threads too.
    """
    path = path.resolve()  # a link to what is not there yet
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
    if stat.S_ISREG(path.stat().st_mode):
        with contextlib.suppress(PermissionError):  # it belongs to another account
            path.chmod(FILE_MODE)


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads. Raises OSError; then there is no such file, or the
    one before where it could not be opened."""
    handle = open_private(path, os.O_TRUNC)
    try:
        with open(handle, "wb") as file:
            file.write(content)
    except OSError:
        remove_unfinished(path)
        raise


def remove_unfinished(path: Path) -> None:
    """Remove a regular file that could not be written; a device or pipe stays."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(path.stat().st_mode):
            path.unlink()
