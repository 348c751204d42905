"""Set-up of the virtual environment of `make`. Needs only Python and its pip.

    python3 -m agent.cli.setup.bootstrap .venv --serve
    python3 -m agent.cli.setup.bootstrap .venv --extra piper --extra dev

An installation leaves a stamp made of pyproject.toml, constraints.txt and the extras; while it
matches, the set-up returns at once. torch is installed only with an extra that needs it. It is by
far the largest part and comes from the index of pip's settings, so pip is queried first, and size
and origin are printed before anything is downloaded. A torch that is in the environment already is
kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .pip import PipError, run_pip

ROOT: Final = Path(__file__).resolve().parents[3]
STAMP_NAME: Final = ".halfsec-installed.json"
TORCH_EXTRAS: Final = frozenset({"torch", "cuda", "bench", "dev"})
"""Extras that bring torch."""
_NVIDIA: Final = Path("/proc/driver/nvidia")
_OLDEST_PYTHON: Final = (3, 11)
_OLDEST_TORCH: Final = (2, 11)
_CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
_CPU_GB: Final = 0.2
"""A torch without CUDA; 2.13 for x86-64 has 190 MB, for Apple silicon about 90."""
_CUDA_GB: Final = 3.0
"""torch with the NVIDIA packages that it asks for on Linux, to the nearest half."""


class BootstrapError(Exception):
    """A problem that the operator can solve; the message says how."""


def main(argv: list[str] | None = None) -> int:
    """Run the set-up. Returns 0 when the environment is ready, else 2."""
    parser = argparse.ArgumentParser(
        prog="agent.cli.setup.bootstrap", description=__doc__.split("\n")[0]
    )
    parser.add_argument("venv", type=Path, help="directory of the virtual environment")
    parser.add_argument("--extra", action="append", default=[], help="extra to install as well")
    parser.add_argument(
        "--serve", action="store_true", help="extras that settings in the environment need, as well"
    )
    parser.add_argument("--torch-index", default="", help="index to take torch from")
    options = parser.parse_args(argv)
    try:
        extras = set(options.extra) | (extras_of(os.environ) if options.serve else set())
        prepare(options.venv, extras, options.torch_index)
    except BootstrapError as error:
        print(f"halfsec set-up: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("halfsec set-up: stopped; run it again to go on.", file=sys.stderr)
        return 2
    return 0


def prepare(venv: Path, extras: set[str], torch_index: str = "") -> None:
    """Install halfsec into `venv` with these extras, and those it had before. Raises
    BootstrapError."""
    if sys.version_info < _OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        raise BootstrapError(
            f"needs Python 3.11 or newer, this is {found}. Name another: make run PYTHON=python3.12"
        )
    stamp = read_stamp(venv)
    extras = extras | set(stamp.get("extras", ()))
    wanted = {"extras": sorted(extras), "inputs": fingerprint()}
    if stamp == wanted and python_of(venv).exists():
        return
    create(venv)
    installed = installed_torch(venv)
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    needs_torch = bool(extras & TORCH_EXTRAS)
    if needs_torch:
        print(torch_notice(venv, installed, torch_index), flush=True)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "constraints.txt"
        path.write_text(keep_torch(constraints, installed), encoding="utf-8")
        if needs_torch and torch_index and installed is None:
            pip(venv, "install", "-c", str(path), "--index-url", torch_index, "torch")
            installed = installed_torch(venv)
            path.write_text(keep_torch(constraints, installed), encoding="utf-8")
        target = f"{ROOT}[{','.join(sorted(extras))}]" if extras else str(ROOT)
        print("Installing halfsec and what it needs; this takes a minute or more.", flush=True)
        pip(venv, "install", "-c", str(path), "-e", target)
    (venv / STAMP_NAME).write_text(json.dumps(wanted), encoding="utf-8")


def extras_of(environment: Mapping[str, str]) -> set[str]:
    """Extras that settings in the environment need; "auto", the default preset, takes a GPU where
    there is one. Settings in a file are not looked at: the server says what they need."""
    extras = set()
    preset = environment.get("HALFSEC_AGENT__PRESET") or "auto"
    dtype = environment.get("HALFSEC_LLM_ENGINE__DTYPE", "")
    device = environment.get("HALFSEC_LLM_ENGINE__DEVICE", "")
    if preset.startswith("gpu") or (preset == "auto" and _NVIDIA.exists()):
        extras.add("cuda")
    if device == "cuda" or dtype in ("bfloat16", "fp8"):
        extras.add("cuda")
    elif dtype == "float32" or environment.get("HALFSEC_LLM_ENGINE__CALIBRATION"):
        extras.add("torch")
    if not environment.get("HALFSEC_TTS__VOICE", "hibari").startswith("hibari"):
        extras.add("piper")
    return extras


def fingerprint() -> str:
    """Hash of everything that decides what is installed."""
    digest = hashlib.sha256(str(ROOT).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def read_stamp(venv: Path) -> dict[str, Any]:
    """The stamp of the last installation; empty without one."""
    try:
        stamp = json.loads((venv / STAMP_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def python_of(venv: Path) -> Path:
    """The interpreter of an environment."""
    return venv / "bin" / "python"


def create(venv: Path) -> None:
    """Create an environment with pip, unless it works already. Raises BootstrapError."""
    if python_of(venv).exists() and _pip_works(venv):
        return
    print(f"Creating {venv} with Python {sys.version.split()[0]}", flush=True)
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=False)
    if done.returncode or not _pip_works(venv):
        raise BootstrapError(
            f"could not create {venv}. On Debian and Ubuntu: apt install python3-venv"
        )


def _pip_works(venv: Path) -> bool:
    command = [str(python_of(venv)), "-m", "pip", "--version"]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def installed_torch(venv: Path) -> str | None:
    """The version of torch in the environment, like "2.13.0+cpu"; None without torch."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    command = [str(python_of(venv)), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def is_new_enough(version: str) -> bool:
    """True where this version of torch is supported."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return numbers >= _OLDEST_TORCH


def keep_torch(constraints: str, installed: str | None) -> str:
    """The constraints with torch pinned to the installed version, if it is supported."""
    if installed is None or not is_new_enough(installed):
        return constraints
    return re.sub(r"(?m)^torch==.*$", f"torch=={installed}", constraints)


def torch_notice(venv: Path, installed: str | None, torch_index: str) -> str:
    """Notice about torch, printed before anything is downloaded."""
    if installed and is_new_enough(installed):
        return f"torch {installed} is installed and stays."
    replaced = f"torch {installed} is too old and will be replaced. " if installed else ""
    version, url, needs_cuda = _ask_pip(venv, torch_index)
    if url.startswith("file:"):
        path = Path(urllib.request.url2pathname(urllib.parse.urlparse(url).path))
        size = f"{path.stat().st_size / 1e9:.1f} GB, from {path.parent}"
    elif needs_cuda:
        size = f"about {_CUDA_GB:.0f} GB with NVIDIA's CUDA libraries"
    else:
        size = f"about {_CPU_GB:.1f} GB"
    text = f"{replaced}torch {version} will be installed: {size}."
    if needs_cuda and not _NVIDIA.exists():
        text += (
            "\n  This machine shows no NVIDIA driver. A torch without CUDA does the same here with "
            f"{_CPU_GB:.1f} GB:\n  stop with Ctrl-C and run: make run TORCH_INDEX={_CPU_INDEX}"
        )
    return text


def _ask_pip(venv: Path, torch_index: str) -> tuple[str, str, bool]:
    """Version, address and need of CUDA packages of the torch that pip would install."""
    pin = re.search(r"(?m)^torch==\S+", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    requirement = pin[0] if pin else "torch"
    print(f"Asking pip where {requirement} would come from", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        arguments = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
        arguments += ["--report", str(report), requirement]
        pip(venv, *arguments, *(["--index-url", torch_index] if torch_index else []))
        (found,) = json.loads(report.read_text(encoding="utf-8"))["install"]
    metadata = found["metadata"]
    needs_cuda = any(
        name.startswith(("nvidia-", "cuda-")) and _applies_here(name)
        for name in metadata.get("requires_dist", ())
    )
    return metadata["version"], found["download_info"]["url"], needs_cuda


def _applies_here(requirement: str) -> bool:
    """True where the marker of a requirement holds. torch's markers name the system only."""
    return ("Linux" not in requirement and "linux" not in requirement) or sys.platform == "linux"


def pip(venv: Path, *arguments: str) -> None:
    """Run pip of the environment. Raises BootstrapError."""
    try:
        run_pip(python_of(venv), *arguments)
    except PipError as error:
        raise BootstrapError(
            f"pip failed: {error} Once the cause is removed, run the same again."
        ) from None


if __name__ == "__main__":
    sys.exit(main())
