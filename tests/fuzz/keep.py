"""Put the shortest inputs of a run's corpus, and its findings, into the committed corpus.

    python -m tests.fuzz.keep [NAME ...]

Findings that stand there already are kept.
"""

import base64
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.fuzz.__main__ import FOLDER
from tests.fuzz.corpus import FINDINGS, corpus_file, read_findings
from tests.fuzz.targets import TARGETS

MAX_BYTES: Final = 12_000
"""Of one target's inputs, findings not counted: the whole corpus is to stay small."""


def keep(name: str, run: Path) -> tuple[int, int]:
    """Write one target's file from a run's folder. Returns how many inputs and findings it has."""
    corpus = sorted(
        {path.read_bytes() for path in (run / "corpus" / name).glob("*") if _is_found(path)},
        key=lambda data: (len(data), data),
    )
    chosen: list[bytes] = []
    for data in corpus:
        if sum(map(len, chosen)) + len(data) <= MAX_BYTES:
            chosen.append(data)
    new = (path.read_bytes() for path in sorted((run / "findings").glob(f"{name}-*.input")))
    findings = list(dict.fromkeys([*read_findings(name), *new]))
    kept = [data for data in chosen if data and data not in findings]
    text = "".join((*_lines(kept), FINDINGS, "\n", *_lines(findings)))
    corpus_file(name).write_text(text, encoding="ascii")
    return len(kept), len(findings)


def _is_found(path: Path) -> bool:
    """True for what the run has found: the target makes its seeds itself."""
    return not path.name.startswith("seed-")


def _lines(inputs: Iterable[bytes]) -> Iterable[str]:
    return (f"{base64.b64encode(data).decode()}\n" for data in inputs)


if __name__ == "__main__":
    for name in sys.argv[1:] or TARGETS:
        print(f"{name}: %d inputs, %d findings" % keep(name, FOLDER))
