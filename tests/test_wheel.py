"""The wheel in an environment that has what it declares and nothing else: no checkout, no torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models import model_path
from tests.support.wheel import PAGES, Installed, build_wheel, link, required

pytestmark = [pytest.mark.slow, pytest.mark.models]

EXTRAS = {
    "torch",
    "triton",
    "piper",
    "llama_cpp",
    "jiwer",
    "opentelemetry",
    "jwt",
    "mcp",
    "twilio",
    "psycopg",
}
"""Modules that extras bring."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Packages are linked from the environment of the tests, those that the wheel requires."""
    home = model_path("smollm2-135m-instruct").parents[1]
    directory = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(directory)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True)
    found = Installed(directory / "venv", home)
    pip = sys.executable, "-m", "pip", "--python", found.python
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--quiet", wheel], check=True)
    for name in required(found.requirements):
        link(name, found.packages)
    return found


def test_it_requires_no_extra(installed: Installed) -> None:
    assert not required(installed.requirements) & {"torch", "triton", "piper-tts", "mcp", "jiwer"}
    names = {path.name for path in installed.packages.iterdir()}
    assert not names & EXTRAS
    assert {"numpy", "onnxruntime", "agent", "web_demo"} <= names


def test_commands_answer(installed: Installed) -> None:
    assert "halfsec 0.1.0" in installed.run(installed.command, "--version")
    for command in ("--help", "serve", "talk", "models", "doctor", "report", "bench"):
        assert "usage" in installed.run(installed.command, command, "--help")
    help_text = installed.run(installed.command, "bench", "--help")
    assert "tests/recordings of a checkout" in help_text


def test_a_call_is_answered_without_torch(installed: Installed) -> None:
    held = installed.hold_call(
        "--set", "latency_budget.store=false", "--set", "access.require_key=never"
    )
    (turn,) = held.report["turns"]
    assert turn["caller_text"]
    assert turn["agent_text"]
    assert set(held.pages) == set(PAGES)
    assert all(held.pages.values())
    assert "onnxruntime" in held.libraries or not Path("/proc").exists()
    assert "torch" not in held.libraries
    assert held.status == 0
    assert os.fspath(installed.packages) in installed.run(
        installed.python, "-c", "import agent; print(agent.__file__)"
    )
