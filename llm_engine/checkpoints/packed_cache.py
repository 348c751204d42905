"""On-disk cache of converted weights: conversion takes seconds, mapping a file does not.

A file holds named arrays that a session can map, so that their memory is the file's, and the system
may reclaim it. It is named after its model, written to a temporary name and renamed, and verified
in full against its checksum before it is used: one that is damaged or of another version is treated
as absent and replaced, so that a model has one file.

Layout: the arrays, aligned; a JSON header with key, and name, dtype, shape and first byte of each;
8 bytes length of the header; SHA-256 of all that; `_MAGIC`. The header stands last, as it is known
only after the conversion, so that one array at a time is in memory.

The directory is bounded: it keeps the files of the `MAX_MODELS` models that were loaded last, and
partial files of killed processes are removed after a while. Removal is safe: a process that has
mapped a file keeps it, and one that needs it again converts again.

Without a directory, or where it can't be written to, the same file is made in the system's
temporary one and removed once it is mapped.
"""

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from latency_budget.account.clock import unix_ns

Array: TypeAlias = npt.NDArray[Any]
Convert: TypeAlias = Callable[[], Iterable[tuple[str, Array]]]

_LOG = logging.getLogger(__name__)
_MAGIC = b"HALFSEC\x01"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_ALIGNMENT = 4096
"""A page of memory: what a session maps alone begins at one."""
_PIECE = 1 << 22
"""Bytes hashed at a time."""
_MODEL_FILES = ("*.safetensors", "*.json")
_SUFFIX = ".weights"
_PART_SUFFIX = ".weights.part"
_NAME_DIGITS = 32
"""Digits of the model's fingerprint in a file's name."""

_WEIGHTS = re.compile(rf"[0-9a-f]{{{_NAME_DIGITS}}}{re.escape(_SUFFIX)}")

MAX_MODELS = 4
"""Models whose files are kept. Lower: switching between some models waits for conversions. Higher:
weights of unused models fill the disk, several GB each."""
ABANDONED_NS = 3_600_000_000_000
"""Age after which a partial file is removed: between two arrays lie seconds, a minute for the
largest on a slow machine. A writer that was suspended that long only fails to keep its work."""


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Location of an array in a file."""

    dtype: str
    shape: tuple[int, ...]
    first_byte: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A verified file and its arrays."""

    path: Path
    arrays: Mapping[str, StoredArray]


def fingerprint(path: Path) -> str:
    """SHA-256 of a model: of a file's bytes, or of the names and bytes of a directory's weights and
    settings. Raises OSError."""
    digest = hashlib.sha256()
    if path.is_file():
        _hash_file(digest, path)
    else:
        for file in sorted({file for kind in _MODEL_FILES for file in path.glob(kind)}):
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
            _hash_file(digest, file)
    return digest.hexdigest()


@contextmanager
def stored_weights(
    directory: Path | None, source: Path, kind: str, convert: Convert
) -> Iterator[WeightFile]:
    """Provide a file with the arrays of `convert` for the model at `source`: cached, or new.

    `kind` names the conversion and its version; another kind's file is never taken. The file may
    be gone after the context: map it inside. A directory that can't be written to is reported in
    the log, and costs only the next start's time. Raises OSError without room in the temporary
    directory.
    """
    if directory is not None:
        model = fingerprint(source)
        key = f"{kind} {model}"
        path = directory / f"{model[:_NAME_DIGITS]}{_SUFFIX}"
        with suppress(OSError):
            os.utime(path)  # used last, so that a concurrent `tidy` keeps it
        file = read(path, key)
        if file is None:
            try:
                file = write(path, key, convert())
            except OSError as error:
                _LOG.warning("converted weights cannot be kept in %s: %s", directory, error)
        if file is not None:
            with suppress(OSError):
                tidy(directory)
            yield file
            return
    with tempfile.TemporaryDirectory(prefix="halfsec-") as temporary:
        yield write(Path(temporary) / "model.weights", kind, convert())


def read(path: Path, key: str) -> WeightFile | None:
    """Open and verify a file; None if it is missing, damaged or of another key."""
    try:
        with path.open("rb") as file:
            return WeightFile(path, _read(file, key))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOG.warning("%s is not used and will be replaced: %s", path, error)
        return None


def write(path: Path, key: str, arrays: Iterable[tuple[str, Array]]) -> WeightFile:
    """Write a file atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = path.parent
    with tempfile.NamedTemporaryFile(dir=directory, suffix=_PART_SUFFIX, delete=False) as part:
        try:
            stored = _write(part, key, arrays)
            part.flush()
            os.fsync(part.fileno())
            os.replace(part.name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part.name)
            raise
    return WeightFile(path, stored)


def tidy(directory: Path) -> None:
    """Remove the files of all models but those used last, and abandoned partial files. Touches no
    other files; what can't be removed stays."""
    used_ns: list[tuple[int, Path]] = []
    for path in directory.iterdir():
        with suppress(OSError):  # another process may remove it first
            changed_ns = path.stat().st_mtime_ns
            if _WEIGHTS.fullmatch(path.name):
                used_ns.append((changed_ns, path))
            elif path.name.endswith(_PART_SUFFIX) and unix_ns() - changed_ns > ABANDONED_NS:
                path.unlink()
    for _, path in sorted(used_ns, reverse=True)[MAX_MODELS:]:
        with suppress(OSError):
            path.unlink()
            _LOG.info("removed %s: its model has not been loaded for long", path)


def _write(
    file: IO[bytes], key: str, arrays: Iterable[tuple[str, Array]]
) -> dict[str, StoredArray]:
    digest = hashlib.sha256()
    stored: dict[str, StoredArray] = {}
    end = 0

    def put(data: bytes | memoryview) -> None:
        nonlocal end
        digest.update(data)
        end += file.write(data)

    for name, array in arrays:
        put(bytes(-end % _ALIGNMENT))
        stored[name] = StoredArray(array.dtype.name, array.shape, end, array.nbytes)
        put(np.ascontiguousarray(array).data.cast("B"))
    entries = {name: asdict(array) for name, array in stored.items()}
    header = json.dumps({"key": key, "arrays": entries}).encode()
    put(header + len(header).to_bytes(_LENGTH_BYTES, "little"))
    file.write(digest.digest() + _MAGIC)
    return stored


def _read(file: IO[bytes], key: str) -> dict[str, StoredArray]:
    """Read the header. Raises ValueError, KeyError or TypeError for anything that `_write` did not
    write for this key."""
    num_hashed = os.fstat(file.fileno()).st_size - _DIGEST_BYTES - len(_MAGIC)
    if num_hashed < _LENGTH_BYTES:
        raise ValueError("it is too short")
    digest = hashlib.sha256()
    tail = b""
    for first in range(0, num_hashed, _PIECE):
        piece = file.read(min(_PIECE, num_hashed - first))
        digest.update(piece)
        tail = (tail + piece)[-_LENGTH_BYTES:]
    if file.read() != digest.digest() + _MAGIC:
        raise ValueError("its contents do not fit its checksum")
    length = int.from_bytes(tail, "little")
    file.seek(num_hashed - _LENGTH_BYTES - length)
    header = json.loads(file.read(length))
    if header["key"] != key:
        raise ValueError("it was written for another model or by another version")
    return {
        name: StoredArray(**{**entry, "shape": tuple(entry["shape"])})
        for name, entry in header["arrays"].items()
    }


def _hash_file(digest: "hashlib._Hash", path: Path) -> None:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
