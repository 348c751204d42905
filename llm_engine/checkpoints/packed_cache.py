"""On-disk cache of converted weights: conversion takes seconds, mapping a file does not.

A file holds named arrays that a session can map, so that their memory is the file's, and the system
may reclaim it. It is named after its model and conversion, so that processes with other settings or
versions don't replace a file that is about to be mapped. It is written to a temporary name and
renamed, and verified in full against its checksum before it is first used and whenever it has
changed since (`verified_files`): one that is damaged is treated as absent and replaced.

Layout: the arrays, aligned; a JSON header with key, and name, dtype, shape and first byte of each;
8 bytes length of the header; SHA-256 of all that; `_MAGIC`. The header stands last, as it is known
only after the conversion, so that one array at a time is in memory.

The directory is bounded: it keeps the `MAX_FILES` files that were used last, by their time of
access, and partial files of killed processes are removed after a while. Removal is safe: a process
that has mapped a file keeps it, and one that needs it again converts again.

Without a directory, or where it can't be written to or has too little room, the same file is made
in the system's temporary one, or in memory (`/dev/shm`), and removed once it is mapped.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from latency_budget.account.clock import unix_ns
from llm_engine.errors import ModelError

from .verified_files import VerifiedFiles, file_state

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
"""Digits of the key's hash in a file's name."""

_WEIGHTS = re.compile(rf"[0-9a-f]{{{_NAME_DIGITS}}}{re.escape(_SUFFIX)}")

_IN_MEMORY = Path("/dev/shm")
"""A file system in memory, where the platform has one."""

MAX_FILES = 4
"""Files that are kept. Lower: switching between some models or precisions waits for conversions.
Higher: weights of unused models fill the disk, several GB each."""
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
    key: str
    """Model and conversion."""


def fingerprint(path: Path) -> str:
    """SHA-256 of a model: of a file's bytes, or of the names and bytes of a directory's weights and
    settings. Raises OSError."""
    digest = hashlib.sha256()
    for file in _model_files(path):
        if file != path:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        _hash_file(digest, file)
    return digest.hexdigest()


def _model_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted({file for kind in _MODEL_FILES for file in path.glob(kind)})


@contextmanager
def stored_weights(
    directory: Path | None, source: Path, kind: str, convert: Convert, *, expected_bytes: int = 0
) -> Iterator[WeightFile]:
    """Provide a file with the arrays of `convert` for the model at `source`: cached, or new.

    `kind` names the conversion and its version; another kind's file is never taken. The file may
    be gone after the context: map it inside. A directory that can't be written to, or has no room
    for the `expected_bytes` of a new file, is reported in the log, and costs only the next start's
    time. Raises OSError where there is no room elsewhere either, and ModelError where `convert`
    raises one.
    """
    key = kind
    if directory is not None:
        verified = VerifiedFiles(directory)
        model = _known_fingerprint(source, verified)
        key = f"{kind} {model}"
        path = directory / file_name(key)
        file = _known_file(path, key, verified)
        if file is None:
            try:
                _require_room(directory, expected_bytes)
                file = write(path, key, _converted(source, convert))
            except OSError as error:
                _LOG.warning(
                    "converted weights cannot be kept in %s: %s; the next start converts anew",
                    directory,
                    error,
                )
        if file is not None:
            with suppress(OSError):
                tidy(directory)
            yield file
            return
    with scratch_directory(expected_bytes) as temporary:
        yield write(temporary / "model.weights", key, _converted(source, convert))


def file_name(key: str) -> str:
    """Name of the file of a model and conversion."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:_NAME_DIGITS]}{_SUFFIX}"


def _converted(source: Path, convert: Convert) -> Iterator[tuple[str, Array]]:
    """The arrays, with errors of the conversion apart from those of the file that they go to."""
    try:
        yield from convert()
    except OSError as error:
        raise ModelError(f"the weights of {source} cannot be converted: {error}") from error


@contextmanager
def scratch_directory(num_bytes: int) -> Iterator[Path]:
    """Provide a directory with room for so many bytes, removed at the end: the system's temporary
    one, or in memory. Raises OSError where neither has room."""
    places = [Path(tempfile.gettempdir()), *([_IN_MEMORY] if _IN_MEMORY.is_dir() else [])]
    for place in places:
        try:
            _require_room(place, num_bytes)
        except OSError:
            if place == places[-1]:
                raise
        else:
            with tempfile.TemporaryDirectory(prefix="halfsec-", dir=place) as temporary:
                yield Path(temporary)
            return


def _require_room(directory: Path, num_bytes: int) -> None:
    """Raise OSError where a directory's disk has no room for so many bytes."""
    existing = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise OSError(f"they take about {num_bytes >> 20} MB, and {free >> 20} MB are free")


def _known_fingerprint(source: Path, verified: VerifiedFiles) -> str:
    subject, state = f"model {source.absolute()}", file_state(_model_files(source))
    model = verified.recall(subject, state)
    if model is None:
        model = fingerprint(source)
        verified.keep(subject, state, model)
    return model


def _known_file(path: Path, key: str, verified: VerifiedFiles) -> WeightFile | None:
    """The file if it is sound, which is verified where it is not known. It counts as used now."""
    subject, is_known = f"weights {path.name}", False
    try:
        is_known = verified.recall(subject, file_state([path])) == key
        # Used last, so that a concurrent `tidy` keeps it. That is a change like any other, after
        # which the file is known by its new state.
        os.utime(path, ns=(unix_ns(), path.stat().st_mtime_ns))
        state = file_state([path])
    except FileNotFoundError:
        return None
    except OSError:
        # Its times can't be set: on a read-only disk, or as another account's.
        return read(path, key, is_verified=is_known)
    file = read(path, key, is_verified=is_known)
    if file is not None:
        verified.keep(subject, state, key)
    return file


def read(path: Path, key: str, *, is_verified: bool = False) -> WeightFile | None:
    """Open and verify a file; None if it is missing, damaged or of another key. Of one that
    `is_verified` no more than the header is read."""
    try:
        with path.open("rb") as file:
            if not is_verified:
                _verify(file)
            return WeightFile(path, _read_header(file, key), key)
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
            now_ns = unix_ns()  # used now, for `tidy`, and not when the conversion began
            os.utime(part.name, ns=(now_ns, now_ns))
            os.replace(part.name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part.name)
            raise
    return WeightFile(path, stored, key)


def tidy(directory: Path) -> None:
    """Remove all files of weights but those used last, and abandoned partial files. Touches no
    other files; what can't be removed stays."""
    used_ns: list[tuple[int, Path]] = []
    for path in directory.iterdir():
        with suppress(OSError):  # another process may remove it first
            found = path.stat()
            if _WEIGHTS.fullmatch(path.name):
                used_ns.append((found.st_atime_ns, path))
            elif path.name.endswith(_PART_SUFFIX) and unix_ns() - found.st_mtime_ns > ABANDONED_NS:
                path.unlink()
    for _, path in sorted(used_ns, reverse=True)[MAX_FILES:]:
        with suppress(OSError):
            path.unlink()
            _LOG.info("removed %s: it has not been used for long", path)


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
        del array  # not to be kept while the next one is made
    entries = {name: asdict(array) for name, array in stored.items()}
    header = json.dumps({"key": key, "arrays": entries}).encode()
    put(header + len(header).to_bytes(_LENGTH_BYTES, "little"))
    file.write(digest.digest() + _MAGIC)
    return stored


def _verify(file: IO[bytes]) -> None:
    """Read all of a file. Raises ValueError where it does not fit its checksum."""
    digest = hashlib.sha256()
    num_hashed = _num_hashed(file)
    for first in range(0, num_hashed, _PIECE):
        digest.update(file.read(min(_PIECE, num_hashed - first)))
    if file.read() != digest.digest() + _MAGIC:
        raise ValueError("its contents do not fit its checksum")


def _read_header(file: IO[bytes], key: str) -> dict[str, StoredArray]:
    """Read the header. Raises ValueError, KeyError or TypeError for anything that `_write` did not
    write for this key."""
    end = _num_hashed(file) - _LENGTH_BYTES
    file.seek(end)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    file.seek(end - length)
    header = json.loads(file.read(length))
    if header["key"] != key:
        raise ValueError("it was written for another model or by another version")
    return {
        name: StoredArray(**{**entry, "shape": tuple(entry["shape"])})
        for name, entry in header["arrays"].items()
    }


def _num_hashed(file: IO[bytes]) -> int:
    num_hashed = os.fstat(file.fileno()).st_size - _DIGEST_BYTES - len(_MAGIC)
    if num_hashed < _LENGTH_BYTES:
        raise ValueError("it is too short")
    return num_hashed


def _hash_file(digest: "hashlib._Hash", path: Path) -> None:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
