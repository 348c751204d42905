"""pip as the set-up runs it: short while all goes well, all of it and the reason where it fails."""

import io
import os
import sys
from pathlib import Path

import pytest

from agent.cli.setup.pip import PipError, StatusLine, explain, run_pip
from tests.support.fakes.wheels import write_wheel

REFUSED = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(\"HTTPS"
    "Connection(host='pypi.org', port=443): Failed to establish a new connection\")'\n"
    "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\n"
)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path


def download(name: str, directory: Path) -> None:
    run_pip(sys.executable, "download", "--no-deps", "--dest", str(directory), name)


def test_nothing_is_said_of_what_goes_well(
    wheels: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_wheel(wheels, "small", {"small/x": bytes(1000)})
    download("small", tmp_path / "to")
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["small-1.0-py3-none-any.whl"]
    assert capfd.readouterr() == ("", "")


def test_a_failure_shows_what_pip_said_and_why(
    wheels: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PipError, match="nothing called absent"):
        download("absent", wheels)
    assert "No matching distribution found for absent" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (REFUSED, "cannot reach the package index"),
        (REFUSED + "ERROR: ResolutionImpossible: for help visit", "network"),
        ("ERROR: [Errno 28] No space left on device\n", "disk is full"),
        ("ERROR: Could not build wheels for x\n", "above"),
        (
            "ERROR: Could not find a version that satisfies the requirement x==9 (from versions: "
            "1.0)\nERROR: No matching distribution found for x==9\n",
            "above",
        ),
    ],
)
def test_the_reason_in_words(output: str, words: str) -> None:
    assert words in explain(output)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PIP_LINES = (
    "Collecting torch==2.13.0",
    "  Downloading torch-2.13.0-cp311-none-any.whl (190.1 MB)",
    "Progress 0 of 200",
    "Progress 50 of 200",
    "  Downloading jinja2-3.1-py3-none-any.whl (134 kB)",
    "Installing collected packages: jinja2, torch",
)


def shown(out: io.StringIO) -> str:
    status = StatusLine(out)
    for line in PIP_LINES:
        status.show(line)
    status.clear()
    return out.getvalue()


def test_without_a_terminal_only_large_downloads_are_logged() -> None:
    assert shown(io.StringIO()) == "Downloading torch-2.13.0-cp311-none-any.whl (190.1 MB)\n"


def test_on_a_terminal_one_line_is_overwritten() -> None:
    text = shown(Terminal())
    assert "\n" not in text
    assert "(190.1 MB): 25 %" in text
    assert text.split("\r\x1b[K")[-2:] == ["Installing collected packages: jinja2, torch", ""]
