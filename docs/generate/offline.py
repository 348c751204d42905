"""`python -m docs.generate.offline DIR`: fail where a built page loads from another host."""

import argparse
import re
import sys
from pathlib import Path
from typing import Final

_LOADED: Final = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc=[\"']?(?:https?:)?//[^>]*"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon))"
    r"[^>]*?\bhref=[\"']?(?:https?:)?//[^>]*"
)
"""Elements that a browser fetches from another host."""


def foreign(html: str) -> list[str]:
    """Elements of a page that are loaded from another host."""
    return _LOADED.findall(html)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m docs.generate.offline", description=__doc__)
    parser.add_argument("folder", type=Path)
    problems = [
        f"{path}: {element}"
        for path in sorted(parser.parse_args().folder.rglob("*.html"))
        for element in foreign(path.read_text(encoding="utf-8"))
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))
