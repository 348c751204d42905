"""The set-up: what it keeps, what it says about torch beforehand, and when it has nothing to do."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agent.cli.setup import bootstrap
from agent.cli.setup.bootstrap import BootstrapError
from tests.support.fakes.wheels import write_wheel

CONSTRAINTS = "torchaudio==1.0\ntorch==2.13.0\ntqdm==4.0\n"
HERE = Path(sys.prefix)
"""The environment that runs the tests: its pip answers."""


def test_a_torch_that_will_do_is_kept() -> None:
    kept = bootstrap.keep_torch(CONSTRAINTS, "2.12.1+cu128")
    assert kept == "torchaudio==1.0\ntorch==2.12.1+cu128\ntqdm==4.0\n"
    assert bootstrap.keep_torch(CONSTRAINTS, "2.10.0") == CONSTRAINTS
    assert bootstrap.keep_torch(CONSTRAINTS, None) == CONSTRAINTS
    assert "stays" in bootstrap.torch_notice(HERE, "2.12.1+cu128", "")


def offer_torch(directory: Path, monkeypatch: pytest.MonkeyPatch, *requires: str) -> None:
    write_wheel(directory, "torch", {"torch/x": bytes(1000)}, "2.13.0", requires)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_pip_is_asked_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_torch(tmp_path, monkeypatch)
    notice = bootstrap.torch_notice(HERE, None, "")
    assert notice == f"torch 2.13.0 will be installed: 0.0 GB, from {tmp_path}."
    assert "2.9.0 is too old" in bootstrap.torch_notice(HERE, "2.9.0", "")


@pytest.mark.parametrize(
    ("requires", "needs_cuda"),
    [
        (["jinja2"], False),
        (["nvidia-cublas-cu12==12.8; platform_system == 'Linux'"], sys.platform == "linux"),
        (["cuda-bindings; platform_system == 'Linux'"], sys.platform == "linux"),
    ],
)
def test_a_torch_that_brings_cuda_is_recognized(
    requires: list[str], needs_cuda: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_torch(tmp_path, monkeypatch, *requires)
    assert bootstrap._ask_pip(HERE, "")[2] is needs_cuda


def test_pip_failing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_torch(tmp_path, monkeypatch)
    (tmp_path / "torch-2.13.0-py3-none-any.whl").unlink()
    with pytest.raises(BootstrapError, match="pip failed"):
        bootstrap._ask_pip(HERE, "")


def test_old_python_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert bootstrap.main([str(tmp_path / "venv")]) == 2
    assert "needs Python 3.11 or newer, this is 3.10.4" in capsys.readouterr().err
    assert not (tmp_path / "venv").exists()


def fake_environment(directory: Path, extras: list[str], inputs: str) -> None:
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").symlink_to(sys.executable)
    stamp = {"extras": extras, "inputs": inputs}
    (directory / bootstrap.STAMP_NAME).write_text(json.dumps(stamp))


def refuse(*_: object) -> None:
    raise AssertionError("there was something to do")


def test_a_stamp_that_fits_leaves_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "create", refuse)
    fake_environment(tmp_path, ["dev", "piper"], bootstrap.fingerprint())
    assert bootstrap.main([str(tmp_path), "--extra", "piper"]) == 0


@pytest.mark.parametrize("change", ["extra", "inputs", "python", "stamp"])
def test_any_change_is_something_to_do(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "create", refuse)
    inputs = "old" if change == "inputs" else bootstrap.fingerprint()
    fake_environment(tmp_path, ["piper"], inputs)
    if change == "python":
        (tmp_path / "bin" / "python").unlink()
    if change == "stamp":
        (tmp_path / bootstrap.STAMP_NAME).write_text("[")
    extra = "dev" if change == "extra" else "piper"
    with pytest.raises(AssertionError, match="something to do"):
        bootstrap.main([str(tmp_path), "--extra", extra])


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("run", ["agent.cli.setup.bootstrap", "--serve", "halfsec serve"]),
        ("test", ["--extra dev", "--extra piper", "models fetch", "-m pytest"]),
        ("check", ["--extra dev", "ruff format --check", "ruff check", "mypy"]),
    ],
)
def test_the_targets_of_make(target: str, words: list[str]) -> None:
    done = subprocess.run(
        ["make", "-n", target], cwd=bootstrap.ROOT, capture_output=True, text=True, check=True
    )
    assert [word for word in words if word not in done.stdout] == []


@pytest.mark.parametrize(
    ("settings", "has_driver", "extras"),
    [
        ({}, False, set()),
        ({}, True, {"cuda"}),
        ({"AGENT__PRESET": ""}, True, {"cuda"}),
        ({"AGENT__PRESET": "embedded"}, True, set()),
        ({"AGENT__PRESET": "gpu-8b"}, False, {"cuda"}),
        ({"LLM_ENGINE__DTYPE": "int8"}, False, set()),
        ({"LLM_ENGINE__DTYPE": "float32"}, False, {"torch"}),
        ({"LLM_ENGINE__DTYPE": "int4"}, False, set()),
        ({"LLM_ENGINE__CALIBRATION": "calls.txt"}, False, {"torch"}),
        ({"LLM_ENGINE__DTYPE": "int4", "LLM_ENGINE__DEVICE": "cuda"}, False, {"cuda"}),
        ({"TTS__VOICE": "hibari-emma"}, False, set()),
        ({"TTS__VOICE": "piper-joe"}, False, {"piper"}),
    ],
)
def test_serving_needs_the_extras_of_its_settings(
    settings: dict[str, str],
    has_driver: bool,
    extras: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "_NVIDIA", tmp_path if has_driver else tmp_path / "none")
    environment = {f"HALFSEC_{name}": value for name, value in settings.items()}
    assert bootstrap.extras_of(environment) == extras


def test_the_extras_that_bring_torch_are_known() -> None:
    project = tomllib.loads((bootstrap.ROOT / "pyproject.toml").read_text())["project"]
    found = {
        name
        for name, requirements in project["optional-dependencies"].items()
        if any(each.startswith("torch") for each in requirements)
    }
    assert found == bootstrap.TORCH_EXTRAS
    assert not any(each.startswith("torch") for each in project["dependencies"])


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_helps() -> None:
    done = subprocess.run(
        ["make", "help"], cwd=bootstrap.ROOT, capture_output=True, text=True, check=True
    )
    for words in ("make run", "make test", "PORT=8080", "PRESET=cpu", "TORCH_INDEX=URL"):
        assert words in done.stdout
    assert "VENV" not in done.stdout


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize("place", ["argument", "environment"])
def test_the_preset_of_make_is_a_setting(place: str, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(
        f"include {bootstrap.ROOT / 'Makefile'}\nshow:\n\t@echo $$HALFSEC_AGENT__PRESET\n"
    )
    env = {**os.environ, **({"PRESET": "cpu"} if place == "environment" else {})}
    arguments = ["PRESET=cpu"] if place == "argument" else []
    command = ["make", "-s", "show", *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "cpu\n"
