"""Small wheels with data in them, and the list of models that wants it."""

import hashlib
import zipfile
from pathlib import Path

from agent.stages.model_store.catalogue import Model, ModelFile, WheelMember


def write_wheel(
    directory: Path,
    name: str,
    members: dict[str, bytes],
    version: str = "1.0",
    requires: tuple[str, ...] = (),
) -> Path:
    """A wheel that pip accepts."""
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    path = directory / f"{package}-{version}-py3-none-any.whl"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        # Importing the package would end the test.
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('imported')")
        archive.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
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
