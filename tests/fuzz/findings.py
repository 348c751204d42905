"""Findings: inputs at which a target broke a promise, one for each place in the code, or of a
process that ended (which names no place) one for each input."""

import hashlib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEMORY_STATUS: Final = 76
"""Exit status of a target's process after growth of memory. 77 is libFuzzer's for a crash, 70 for a
hang."""

_OURS: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Finding:
    """One failure of a target."""

    target: str
    kind: str
    """Class of an exception, or `crash`, `hang`, `memory`."""
    where: str
    """Places in the code, or what the process said last."""
    path: Path
    """File with the input."""


class FindingsFolder:
    """Inputs and tracebacks of one target's findings, the shortest input of each."""

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder
        self._target = target
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, data: bytes, error: BaseException) -> None:
        """Note what an input raised. Further ones at the same place replace longer inputs."""
        frames = traceback.extract_tb(error.__traceback__)
        places = [
            f"{Path(frame.filename).relative_to(_OURS)}:{frame.lineno}"
            for frame in frames
            if Path(frame.filename).is_relative_to(_OURS)
        ]
        kind, where = type(error).__name__, " < ".join(reversed(places[-2:]))
        self._keep(data, kind, where, "".join(_text_of(error)), key=where)

    def add_other(self, data: bytes, kind: str, said: str) -> None:
        """Note a crash, a hang, or growth of memory. Growth is one finding, whatever the input: the
        one at which it was noticed has not caused it."""
        key = "" if kind == "memory" else hashlib.sha256(data or said.encode()).hexdigest()
        self._keep(data, kind, "", said, key=key)

    def _keep(self, data: bytes, kind: str, where: str, text: str, *, key: str) -> None:
        name = hashlib.sha256(f"{kind} {key}".encode()).hexdigest()[:12]
        path = self._folder / f"{self._target}-{name}.input"
        if not path.exists() or path.stat().st_size > len(data):
            path.write_bytes(data)
            path.with_suffix(".txt").write_text(f"{kind}\n{where}\n{text}", errors="replace")

    def all(self) -> list[Finding]:
        """Everything noted, in order of names."""
        found = []
        for path in sorted(self._folder.glob(f"{self._target}-*.txt")):
            kind, where, *_ = path.read_text(errors="replace").split("\n", 2)
            found.append(Finding(self._target, kind, where, path.with_suffix(".input")))
        return found


def _text_of(error: BaseException) -> list[str]:
    return traceback.format_exception(error, limit=-12)
