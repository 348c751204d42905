"""Converted weights on disk: written atomically, verified, replaced when damaged."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latency_budget.account.clock import unix_ns
from llm_engine.checkpoints import packed_cache
from llm_engine.checkpoints.packed_cache import (
    ABANDONED_NS,
    MAX_FILES,
    Array,
    WeightFile,
    fingerprint,
    read,
    stored_weights,
    write,
)
from llm_engine.errors import ModelError

ARRAYS: dict[str, Array] = {
    "codes": np.arange(70, dtype=np.uint8).reshape(2, 7, 5),
    "scales": np.linspace(0, 1, 14, dtype=np.float32).reshape(2, 7),
    "embedding": np.ones((3, 1), np.float16),
    "turned": np.arange(12, dtype=np.float32).reshape(3, 4).T,
}


def contents(file: WeightFile) -> dict[str, Array]:
    data = file.path.read_bytes()
    return {
        name: np.frombuffer(
            data, array.dtype, array.num_bytes // np.dtype(array.dtype).itemsize, array.first_byte
        ).reshape(array.shape)
        for name, array in file.arrays.items()
    }


def assert_holds(file: WeightFile | None, arrays: dict[str, Array] = ARRAYS) -> None:
    assert file is not None
    stored = contents(file)
    assert stored.keys() == arrays.keys()
    for name, array in arrays.items():
        assert stored[name].dtype == array.dtype
        np.testing.assert_array_equal(stored[name], array)
        assert file.arrays[name].first_byte % 64 == 0


def files_of(directory: Path) -> set[Path]:
    """All files but the list of what was verified."""
    return set(directory.iterdir()) - {directory / "verified.json"}


class Conversion:
    """Counts how often it is asked for."""

    def __init__(self) -> None:
        self.num_runs = 0

    def __call__(self) -> Iterator[tuple[str, Array]]:
        self.num_runs += 1
        yield from ARRAYS.items()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.weights"
    assert_holds(write(path, "key", ARRAYS.items()))
    assert_holds(read(path, "key"))
    assert [file.name for file in path.parent.iterdir()] == ["file.weights"]
    write(path, "key", iter({"other": ARRAYS["codes"]}.items()))
    assert_holds(read(path, "key"), {"other": ARRAYS["codes"]})


def test_every_damaged_byte_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file.weights"
    write(path, "key", ARRAYS.items())
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:  # written anew, it would go to the disk each time
        for position, byte in enumerate(whole):
            os.pwrite(file.fileno(), bytes([byte ^ 1]), position)
            assert read(path, "key") is None, position
            os.pwrite(file.fileno(), bytes([byte]), position)
        assert_holds(read(path, "key"))
        for length in reversed(range(len(whole))):
            file.truncate(length)
            assert read(path, "key") is None, length
    path.write_bytes(whole + b"\0")
    assert read(path, "key") is None
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    path.write_bytes(whole)
    assert_holds(read(path, "key"))


def test_another_version_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "file.weights"
    write(path, "int8 1", ARRAYS.items())
    assert read(path, "int8 2") is None
    assert read(tmp_path / "nothing", "int8 1") is None


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Iterator[tuple[str, Array]]:
        yield "codes", ARRAYS["codes"]
        raise ValueError("the model is damaged")

    with pytest.raises(ValueError, match="the model is damaged"):
        write(tmp_path / "file.weights", "key", fail())
    assert not list(tmp_path.iterdir())


def test_a_model_is_converted_once(tmp_path: Path, model: Path) -> None:
    convert, directory = Conversion(), tmp_path / "cache"
    for _ in range(3):
        with stored_weights(directory, model, "int8 1", convert) as file:
            assert_holds(file)
    assert convert.num_runs == 1
    with stored_weights(directory, model, "int8 2", convert) as file:
        assert_holds(file)
    assert convert.num_runs == 2
    model.write_bytes(b"other weights")
    with stored_weights(directory, model, "int8 2", convert) as file:
        assert_holds(file)
    assert convert.num_runs == 3
    file.path.write_bytes(b"")
    with stored_weights(directory, model, "int8 2", convert) as file:
        assert_holds(file)
    assert convert.num_runs == 4


def test_an_unchanged_file_is_read_whole_only_once(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_whole: list[str] = []
    for name in ("_hash_file", "_verify"):
        monkeypatch.setattr(packed_cache, name, counted(getattr(packed_cache, name), read_whole))
    convert, directory = Conversion(), tmp_path / "cache"

    def start() -> list[str]:
        read_whole.clear()
        with stored_weights(directory, model, "int8 1", convert) as file:
            assert_holds(file)
        return list(map(os.path.basename, read_whole))

    assert start() == ["model.gguf"]
    (name,) = (path.name for path in files_of(directory))
    assert start() == [name]
    assert start() == []
    os.utime(model)
    assert start() == ["model.gguf"]
    os.utime(directory / name)
    assert start() == [name]
    (directory / "verified.json").write_text("[1")
    assert start() == ["model.gguf", name]
    assert start() == []
    assert convert.num_runs == 1


@pytest.mark.parametrize("which", ["model", "weights"])
def test_a_change_that_keeps_size_and_time_is_noticed(
    tmp_path: Path, model: Path, which: str
) -> None:
    directory = tmp_path / "cache"
    for _ in range(3):
        with stored_weights(directory, model, "int8 1", Conversion()) as file:
            stored = file.path
    changed = model if which == "model" else stored
    before, content = changed.stat(), bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    convert = Conversion()
    with stored_weights(directory, model, "int8 1", convert) as file:
        assert_holds(file)
        assert (file.path == stored) == (which == "weights")
    assert convert.num_runs == 1


def counted(run: Callable[..., None], names: list[str]) -> Callable[..., None]:
    """The function, which notes the names of the files that it is called with."""

    def call(*arguments: Any) -> None:
        names.append(str(getattr(arguments[-1], "name", arguments[-1])))
        run(*arguments)

    return call


def test_another_kind_does_not_replace_a_file_that_is_about_to_be_mapped(
    tmp_path: Path, model: Path
) -> None:
    """As two processes with other settings or versions do at once."""
    directory, convert = tmp_path / "cache", Conversion()
    with (
        stored_weights(directory, model, "int8 1", convert) as first,
        stored_weights(
            directory, model, "int4 1", lambda: {"other": ARRAYS["codes"]}.items()
        ) as other,
        stored_weights(directory, model, "int8 1", convert) as again,
    ):
        assert_holds(first)
        assert_holds(again)
        assert_holds(other, {"other": ARRAYS["codes"]})
    assert convert.num_runs == 1
    assert files_of(directory) == {first.path, other.path}


def test_a_new_file_counts_as_used_when_it_is_whole(tmp_path: Path, model: Path) -> None:
    """Others may have been used while it was converted."""
    directory, others = tmp_path / "cache", []

    def convert() -> Iterator[tuple[str, Array]]:
        yield from ARRAYS.items()
        for number in range(MAX_FILES):
            others.append(write(directory / f"{number:032x}.weights", "key", ARRAYS.items()).path)
            os.utime(others[-1], ns=(unix_ns(), 0))

    with stored_weights(directory, model, "int8 1", convert) as file:
        assert_holds(file)
    assert files_of(directory) == {file.path, *others[1:]}


def test_files_not_used_for_long_are_removed(tmp_path: Path) -> None:
    directory, models = tmp_path / "cache", []
    for number in range(MAX_FILES + 2):
        models.append(tmp_path / f"{number}.gguf")
        models[-1].write_bytes(b"weights %d" % number)
    (tmp_path / "cache").mkdir()
    foreign = directory / "my.weights"
    foreign.write_text("not ours")
    names: dict[Path, str] = {}
    for age, model in enumerate([*models[:MAX_FILES], models[0], *models[MAX_FILES:]]):
        with stored_weights(directory, model, "int8 1", Conversion()) as file:
            names[model] = file.path.name
            assert file.path.exists()
        os.utime(file.path, ns=(age, 0))
    kept = {path.name for path in files_of(directory)}
    assert kept == {foreign.name, *(names[models[number]] for number in (0, 3, 4, 5))}


def test_what_a_killed_writer_left_goes_after_a_while(tmp_path: Path, model: Path) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    left, growing, foreign = (
        directory / name for name in ("tmp1.weights.part", "tmp2.weights.part", "film.part")
    )
    for path in (left, growing, foreign):
        path.write_bytes(b"half")
    for path in (left, foreign):
        os.utime(path, ns=(0, unix_ns() - ABANDONED_NS - 1))
    with stored_weights(directory, model, "int8 1", Conversion()) as file:
        assert files_of(directory) == {file.path, growing, foreign}


def test_a_part_that_was_taken_away_costs_only_the_keeping(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "cache"

    def convert() -> Iterator[tuple[str, Array]]:
        for part in directory.glob("*.part") if directory.exists() else ():
            part.unlink()
        yield from ARRAYS.items()

    with stored_weights(directory, model, "int8 1", convert) as file:
        assert_holds(file)
    assert "cannot be kept" in caplog.text
    assert not files_of(directory)


def test_a_conversion_that_cannot_read_is_not_a_directory_that_cannot_be_written(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    num_runs = 0

    def fail() -> Iterator[tuple[str, Array]]:
        nonlocal num_runs
        num_runs += 1
        yield "codes", ARRAYS["codes"]
        raise OSError("input/output error")

    for directory in (tmp_path / "cache", None):
        refused = stored_weights(directory, model, "int8 1", fail)
        with (
            pytest.raises(ModelError, match=r"model\.gguf cannot be converted: input/output"),
            refused,
        ):
            pass
    assert num_runs == 2
    assert not caplog.messages
    assert not files_of(tmp_path / "cache")


def test_without_a_directory_nothing_stays(model: Path) -> None:
    with stored_weights(None, model, "int8 1", Conversion()) as file:
        assert_holds(file)
    assert not file.path.exists()
    assert not file.path.parent.exists()


def test_a_directory_that_cannot_be_used_is_reported(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a directory")
    with stored_weights(in_the_way, model, "int8 1", Conversion()) as file:
        assert_holds(file)
    assert "cannot be kept" in caplog.text


def test_a_disk_without_room_costs_the_keeping_alone(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the directory nor the temporary one has room: the file is made in memory."""
    free = {tmp_path / "memory": 1 << 40}
    usage = shutil.disk_usage(tmp_path)

    def disk_usage(path: Path) -> Any:
        return usage._replace(free=free.get(path, 5 << 20))

    (tmp_path / "memory").mkdir()
    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    monkeypatch.setattr(packed_cache, "_IN_MEMORY", tmp_path / "memory")
    convert = Conversion()
    directory = tmp_path / "cache"
    with stored_weights(directory, model, "int8 1", convert, expected_bytes=9 << 20) as file:
        assert_holds(file)
        assert file.path.is_relative_to(tmp_path / "memory")
    assert convert.num_runs == 1, "nothing is written in vain"
    (line,) = caplog.messages
    assert "they take about 9 MB, and 5 MB are free; the next start converts anew" in line
    assert not list((tmp_path / "memory").iterdir())
    free.clear()
    refused = stored_weights(directory, model, "int8 1", convert, expected_bytes=9 << 20)
    with pytest.raises(OSError, match="they take about 9 MB"), refused:
        pass


def test_a_fingerprint_covers_every_weight_and_setting(tmp_path: Path) -> None:
    for name in ("config.json", "model-1.safetensors", "model-2.safetensors", "notes.txt"):
        (tmp_path / name).write_text(name)
    before = fingerprint(tmp_path)
    (tmp_path / "notes.txt").write_text("other")
    assert fingerprint(tmp_path) == before
    for name in ("config.json", "model-2.safetensors"):
        (tmp_path / name).write_text(f"{name}!")
        assert fingerprint(tmp_path) != before
        before = fingerprint(tmp_path)
    (tmp_path / "model-2.safetensors").rename(tmp_path / "model-3.safetensors")
    assert fingerprint(tmp_path) != before
