"""Small wheels with data in them, and the list of models that wants it."""

import hashlib
import zipfile
from pathlib import Path

from agent.models import Model, ModelFile, WheelMember


def write_wheel(directory: Path, name: str, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts, of version 1.0."""
    package = name.replace("-", "_")
    info = f"{package}-1.0.dist-info"
    path = directory / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        # Importing the package would end the test.
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('imported')")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def model_file(name: str, content: bytes, *parts: tuple[str, str]) -> ModelFile:
    """A file with the right size and hash; each part is (wheel's name, member)."""
    members = tuple(WheelMember(f"{wheel}==1.0", member) for wheel, member in parts)
    return ModelFile(name, len(content), hashlib.sha256(content).hexdigest(), members)


def model(name: str, *files: ModelFile, hub: str | None = None, path: str | None = None) -> Model:
    return Model(
        name=name, stage="asr", licence="MIT", about="", embedded=True, files=files, hub=hub,
        path=path,
    )  # fmt: skip
