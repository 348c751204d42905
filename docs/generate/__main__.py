"""`python -m docs.generate DIR`: write the generated reference pages to a folder."""

import argparse
from pathlib import Path

from .pages import PAGES, generate

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name in PAGES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(generate(name), encoding="utf-8")
