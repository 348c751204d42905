"""The installed package is this repository, and `pyproject.toml` lists all of it."""

import importlib
import importlib.metadata
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = (
    "agent", "asr", "engine_plugins", "languages", "llm_engine", "tts", "latency_budget",
    "benchmarks",
)  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_comes_from_this_repository(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__
    assert Path(module.__file__).resolve() == ROOT / name / "__init__.py"


@pytest.mark.parametrize("name", PACKAGES)
def test_no_other_distribution_claims_a_name(name: str) -> None:
    claims = importlib.metadata.packages_distributions().get(name, [])
    assert set(claims) <= {"halfsec"}


def test_every_folder_with_code_is_listed() -> None:
    on_disk = {
        ".".join(path.relative_to(ROOT).parent.parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == on_disk | {"web_demo"}
    without_init = {
        str(path.parent.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert not without_init


def test_every_file_that_is_no_code_is_in_the_wheel() -> None:
    """What is read at run time and not listed is missing only where it is installed."""
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]
    listed = {
        path
        for name in patterns
        for each in patterns[name]
        for path in (ROOT / name).glob(each)
        if path.is_file() and path.suffix != ".md"
    }
    on_disk = {
        path
        for package in (*PACKAGES, "web_demo")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md")
        if path.parent != ROOT / "benchmarks" / "results"  # data for readers of the repository
    }
    assert on_disk == listed


def test_constraints_pin_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {normal(name) for name in pins}
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    # torch's CUDA builds ask for exactly their triton and bindings; environments come with a pip.
    not_ours = {"triton", "cuda-bindings", "pip"}
    assert {normal(requirement) for requirement in wanted} - not_ours <= pinned
    assert pins["torch"] == "2.13.0"
    assert not [pin for pin in pins.values() if "+" in pin], "a local version fits one build only"


def normal(requirement: str) -> str:
    """The name in "openai[realtime]>=2; marker", as indexes compare names."""
    name = requirement
    for character in "<>=!~;[ ":
        name = name.partition(character)[0]
    return name.lower().replace("_", "-").replace(".", "-")


def test_the_gpl_part_is_an_extra() -> None:
    names = {normal(requirement) for requirement in PYPROJECT["project"]["dependencies"]}
    assert "piper-tts" not in names


def test_the_command_is_installed() -> None:
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="halfsec")
    assert command.value == "agent.__main__:main"
