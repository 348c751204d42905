"""Runner of pip with a status line of downloads, and with the cause where it fails.

pip prints several lines for every package; here they become one that is overwritten on a terminal
(elsewhere: a line for each large download). The whole output is kept and shown where pip fails,
with the cause as a sentence: pip reports a missing network only as a package that can't be found.

Needs only the standard library: the set-up runs it before anything is installed.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

_MAX_LINES: Final = 2000
"""Lines of pip's output that are kept; a set-up has about 200."""
_LARGE_MB: Final = 10.0
"""Smallest download with a line of its own without a terminal: at 1 MB/s it takes ten seconds."""
_RAW_PROGRESS: Final = (24, 1)
"""First version of pip with a progress format for programs."""

_DOWNLOADING: Final = re.compile(r"\s*Downloading (\S+) \((\d+(?:\.\d+)?) ([kMG]?B)\)")
_PROGRESS: Final = re.compile(r"Progress (\d+) of (\d+)")
_MB: Final = {"B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}

_UNREACHABLE: Final = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError|ConnectionRefused"
    r"|name resolution|Network is unreachable|Max retries exceeded|connection broken by"
    r"|Tunnel connection failed"
)
_NOT_FOUND: Final = re.compile(r"No matching distribution found for (\S+)")


class PipError(Exception):
    """pip failed. The message has the reason, as far as its output shows it."""


def run_pip(python: Path | str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
    """Run pip of this interpreter with the user's own settings. Raises PipError."""
    base = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    action, *rest = arguments
    command = [*base, action, "--progress-bar", _progress_bar(base), *rest]
    kept: deque[str] = deque(maxlen=_MAX_LINES)
    status = StatusLine(sys.stderr)
    with subprocess.Popen(
        command,
        env={**(os.environ if env is None else env), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if not _PROGRESS.match(line):
                    kept.append(line)
                status.show(line.rstrip())
        except BaseException:
            process.kill()
            raise
        finally:
            status.clear()
    if process.returncode:
        sys.stderr.writelines(kept)
        sys.stderr.flush()
        raise PipError(explain("".join(kept)))


def explain(output: str) -> str:
    """The cause of a failure: the end of a sentence, with its full stop or question mark."""
    if "No space left on device" in output:
        return "the disk is full."
    if _UNREACHABLE.search(output):
        return (
            "it cannot reach the package index: is there a network, and does it take a proxy "
            "(HTTPS_PROXY) or an index of its own (PIP_INDEX_URL)?"
        )
    found = _NOT_FOUND.search(output)
    if found and "(from versions: none)" in output:
        return (
            f"its package index has nothing called {found[1]}: is there a network, and is it the "
            "right index (`pip config list`, PIP_INDEX_URL, PIP_NO_INDEX)?"
        )
    return "what it says stands above."


def _progress_bar(base: list[str]) -> str:
    done = subprocess.run(
        [*base, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    version = re.match(r"pip (\d+)\.(\d+)", done.stdout)
    knows_raw = version and (int(version[1]), int(version[2])) >= _RAW_PROGRESS
    return "raw" if knows_raw else "off"


class StatusLine:
    """Status line of the current download."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._overwrites = out.isatty()
        self._download = ""

    def show(self, line: str) -> None:
        progress = _PROGRESS.match(line)
        download = _DOWNLOADING.match(line)
        if progress and self._download:
            done, total = int(progress[1]), max(1, int(progress[2]))
            self._overwrite(f"{self._download}: {100 * done // total} %")
        elif download:
            name, size, unit = download.groups()
            self._download = f"Downloading {name} ({size} {unit})"
            self._overwrite(self._download)
            if not self._overwrites and float(size) * _MB[unit] >= _LARGE_MB:
                print(self._download, file=self._out, flush=True)
        elif not progress:
            self._download = ""
            self._overwrite(line.strip())

    def clear(self) -> None:
        if self._overwrites:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _overwrite(self, text: str) -> None:
        if self._overwrites:
            width = shutil.get_terminal_size().columns
            self._out.write(f"\r\x1b[K{text[: width - 1]}")
            self._out.flush()
