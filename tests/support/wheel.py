"""The wheel: built from this checkout, installed outside of it, and made to hold a call."""

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE_S: Final = 240.0
SOURCES: Final = (
    "agent", "asr", "benchmarks", "engine_plugins", "languages", "latency_budget", "llm_engine",
    "tts", "web_demo", "pyproject.toml", "README.md", "LICENSE",
)  # fmt: skip


def build_wheel(directory: Path) -> Path:
    """Build the wheel from a copy, so that no build folder remains in the checkout, with the
    setuptools of this environment."""
    copy = directory / "source"
    copy.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "results")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(directory)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(copy)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    shutil.rmtree(copy)
    (wheel,) = directory.glob("halfsec-*.whl")
    return wheel


def required(requirements: Iterable[str], extra: str = "") -> set[str]:
    """Names of the distributions that these requirements call for, with all that those need."""
    found: set[tuple[str, str]] = set()
    waiting = [(line, extra) for line in requirements]
    while waiting:
        line, extra = waiting.pop()
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = str(canonicalize_name(requirement.name))
        for each in {"", *requirement.extras} - {own for named, own in found if named == name}:
            found.add((name, each))
            waiting += [(below, each) for below in importlib.metadata.requires(name) or ()]
    return {name for name, _ in found}


def link(distribution: str, packages: Path) -> None:
    """Link the modules of an installed distribution into another environment's packages."""
    for file in importlib.metadata.files(distribution) or ():
        top = file.parts[0]
        source = Path(str(importlib.metadata.distribution(distribution).locate_file(top)))
        target = packages / top
        if top not in ("..", "__pycache__") and not target.exists():
            target.symlink_to(source)


class Installed:
    """An environment with halfsec in it."""

    def __init__(self, venv: Path, home: Path) -> None:
        self.python = venv / "bin" / "python"
        self.command = venv / "bin" / "halfsec"
        self._directory = venv.parent
        """Working directory: outside of the checkout."""
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "HALFSEC_", "PORT"))
        } | {"HALFSEC_HOME": str(home), "HALFSEC_AGENT__PRESET": "embedded"}

    @property
    def packages(self) -> Path:
        (found,) = self.python.parents[1].glob("lib/python*/site-packages")
        return found

    @property
    def requirements(self) -> list[str]:
        """What the installed wheel declares."""
        (info,) = self.packages.glob("halfsec-*.dist-info")
        return importlib.metadata.PathDistribution(info).requires or []

    def run(self, *command: str | Path) -> str:
        """Run to the end; returns the output. Fails with what it wrote where its status isn't 0."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def hold_call(self, *arguments: str) -> "Held":
        """Serve, open the pages, play the sample question, stop."""
        log = self._directory / "serve.log"
        with log.open("w") as output:
            server = subprocess.Popen(
                [str(self.command), "serve", "--port", "0", *arguments],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
            try:
                address = _address(server, log)
                pages = {path: _get(address + path) for path in PAGES}
                maps = Path(f"/proc/{server.pid}/maps")
                libraries = maps.read_text() if maps.exists() else ""
                url = address.replace("http", "ws", 1)
                report = json.loads(self.run(self.command, "talk", "--json", "--url", url))
                server.send_signal(signal.SIGTERM)
                server.communicate(timeout=PATIENCE_S)
            finally:
                server.kill()
                server.communicate()
        return Held(report, pages, libraries, log.read_text(), server.returncode)


PAGES: Final = ("/", "/dashboard", "/app.js", "/openapi.json", "/metrics", "/healthz")
"""What the server reads from package data."""


class Held:
    """What was seen of a server and one call."""

    def __init__(
        self, report: Any, pages: Mapping[str, bytes], libraries: str, log: str, status: int
    ) -> None:
        self.report = report
        self.pages = pages
        self.libraries = libraries
        """Memory map of the server."""
        self.log = log
        self.status = status
        """The server's exit status after SIGTERM."""


def _address(server: "subprocess.Popen[str]", log: Path) -> str:
    """Wait for readiness; the server's address."""
    assert server.stdout is not None
    lines = []
    address = ""
    for line in server.stdout:
        lines.append(line)
        if line.startswith("halfsec listens on "):
            address = line.split()[3].rstrip("/")
        if line.startswith("Ready "):
            return address
    raise AssertionError(f"never ready: {lines}; {log.read_text()}")


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        content: bytes = answer.read()
        return content
