"""The stock clients, and the environment that each one runs in.

Environments lie in `.clients/` at the root of the repository, one for each folder here that pins
packages. They are built when they are missing or when the pins have changed, from the caches of pip
and npm where these have the packages.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
CACHE: Final = ROOT / ".clients"

BUILD_S: Final = 900.0
"""For one environment: two of them are 500 MB of packages."""

SCENARIOS: Final = ("spoken_turn", "barge_in", "tool_call", "cancel", "error", "reconnect")


class MissingTool(RuntimeError):
    """What a client runs on is not on this machine."""


@dataclass(frozen=True)
class Peer:
    """One client. Its folder has `scenarios.py`, `requirements.txt`, or their like for Node."""

    name: str
    folder: str
    arguments: tuple[str, ...] = ()
    tls: bool = False
    """It refuses to connect without TLS, even to this machine."""
    more: tuple[str, ...] = ()
    """Scenarios besides those of all clients."""

    @property
    def is_node(self) -> bool:
        return (HERE / self.folder / "package.json").exists()

    @property
    def environment(self) -> Path:
        return CACHE / self.folder

    def command(self) -> tuple[str, ...]:
        """Runs all its scenarios. The environment has to be built.

        Raises MissingTool where Node is too old for it.
        """
        if not self.is_node:
            python = str(self.environment / "bin" / "python")
            return (python, "-m", f"tests.clients.{self.folder}.scenarios", *self.arguments)
        flags: tuple[str, ...] = ()
        if "native" in self.arguments and (version := node_version()) < (22, 0):
            if version < (20, 10):
                raise MissingTool("Node has a WebSocket of its own only from 20.10 on")
            flags = ("--experimental-websocket",)
        return ("node", *flags, str(self.environment / "scenarios.mjs"), *self.arguments)


PEERS: Final = (
    Peer("openai-python", "openai_python", more=("typed_turns", "beta")),
    Peer("openai-agents-python", "openai_agents_python"),
    Peer("openai-js-ws", "openai_js", ("ws",), tls=True, more=("beta",)),
    Peer("openai-js-native", "openai_js", ("native",), tls=True, more=("beta",)),
    Peer("openai-agents-js", "openai_agents_js"),
    Peer("pipecat", "pipecat"),
    Peer("livekit", "livekit"),
)


def node_version() -> tuple[int, int]:
    """Raises MissingTool where there is no Node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise MissingTool("node or npm is missing (Debian: apt-get install nodejs npm)")
    text = subprocess.run(("node", "--version"), check=True, capture_output=True, text=True).stdout
    major, minor = text.strip().removeprefix("v").split(".")[:2]
    return int(major), int(minor)


def build(folder: str) -> Path:
    """The environment of the peers in a folder, built where need be. Raises as `environment`."""
    here, there = HERE / folder, environment(HERE / folder)
    for script in (HERE / "scene.mjs", *here.glob("*.mjs")):  # modules are looked for beside them
        shutil.copy(script, there)
    return there


def environment(here: Path) -> Path:
    """What is pinned in `here`, for Node or for Python, built where need be.

    Raises MissingTool, and CalledProcessError with what pip or npm said.
    """
    there = CACHE / here.name
    is_node = (here / "package.json").exists()
    pins = here / ("package-lock.json" if is_node else "requirements.txt")
    stamp = there / "built-from"
    pinned = hashlib.sha256(pins.read_bytes()).hexdigest()
    wanted = f"{there} {sys.version_info[:2]} {pinned}"  # an environment can't be moved
    if is_node:
        node_version()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir(parents=True)
        if is_node:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(here / name, there)
            run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=there)
        else:
            run(sys.executable, "-m", "venv", str(there), cwd=ROOT)
            pip = (str(there / "bin" / "pip"), "install", "--quiet", "--requirement", str(pins))
            run(*pip, cwd=ROOT)
        stamp.write_text(wanted)
    return there


def run(*command: str, cwd: Path) -> str:
    """What it printed. Raises CalledProcessError with it."""
    environment = os.environ | {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        timeout=BUILD_S,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        print(done.stdout)
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
    return done.stdout
