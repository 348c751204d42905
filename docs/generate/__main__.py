"""`python -m docs.generate DIR`: write the source of the site to a folder."""

import argparse
import shutil
from pathlib import Path

from .pages import source

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("folder", type=Path, help="is emptied first")
    folder = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in source().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
