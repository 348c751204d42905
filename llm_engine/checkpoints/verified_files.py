"""Results of checks that read whole files, kept from one start to the next.

Hashing a model and its converted weights, and testing a loaded model's kernels, takes ten seconds
for half a billion parameters, and gives the same result as long as nothing has changed. So each
result is kept beside the *state* that it holds for: of files their sizes, inodes and times of
change (`st_ctime`, which the kernel sets; the time of the last write can be set back), of kernels
their versions and the processor. A result whose state differs is not used, and the check
is made again.

What is not noticed is a disk that changes a file's bytes without writing to it.
"""

import json
import logging
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOG = logging.getLogger(__name__)
_NAME: Final = "verified.json"
_MAX_RESULTS: Final = 64
"""Results that are kept, the newest: three for each model and version that was loaded."""


def file_state(paths: Iterable[Path]) -> str:
    """Names, sizes and times of change of files. Raises OSError."""
    states = []
    for path in paths:
        found = path.stat()
        states.append(f"{path} {found.st_size} {found.st_ctime_ns} {found.st_ino}")
    return "\n".join(states)


class VerifiedFiles:
    """Results in `verified.json` of a directory; none are kept without one.

    Another process may write the file at the same time: then one result is lost, and its check is
    made once more. A file that can't be read counts as empty.
    """

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / _NAME

    def recall(self, subject: str, state: str) -> str | None:
        """Result of the check of `subject` if it was made in this state."""
        found = self._read().get(subject)
        return found[1] if found is not None and found[0] == state else None

    def keep(self, subject: str, state: str, result: str) -> None:
        """Keep a result; the subject's earlier one is replaced. What can't be kept costs the next
        start's time, and is logged."""
        if self._path is None:
            return
        results = self._read()
        results.pop(subject, None)
        results[subject] = state, result
        newest = dict(list(results.items())[-_MAX_RESULTS:])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self._path, json.dumps(newest, indent=1))
        except OSError as error:
            _LOG.warning("%s cannot be written, the next start checks again: %s", self._path, error)

    def _read(self) -> dict[str, tuple[str, str]]:
        if self._path is None:
            return {}
        try:
            stored = json.loads(self._path.read_bytes())
            return {str(subject): (str(of), str(it)) for subject, (of, it) in stored.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _LOG.warning("%s is not used and will be replaced: %s", self._path, error)
            return {}


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(handle, "w") as part:
            part.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
