"""Committed inputs of the targets: one file each, an input a line, in base64.

They are short ones of a long run's corpus, each of which reached lines that others did not, and
behind a line `#findings` every input that was a finding once.
"""

import base64
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
FINDINGS: Final = "#findings"


def corpus_file(name: str) -> Path:
    return FOLDER / f"{name}.txt"


def read_corpus(name: str) -> list[bytes]:
    """Inputs of one target, findings included; none where it has no file."""
    return [base64.b64decode(line) for line in _lines(name) if line != FINDINGS]


def read_findings(name: str) -> list[bytes]:
    """Inputs that were findings."""
    lines = _lines(name)
    begin = lines.index(FINDINGS) + 1 if FINDINGS in lines else len(lines)
    return [base64.b64decode(line) for line in lines[begin:]]


def _lines(name: str) -> list[str]:
    path = corpus_file(name)
    return path.read_text(encoding="ascii").split() if path.exists() else []
