"""`halfsec bench llm` and `python -m llm_engine.bench`: entry point of the engine's benches.

What is measured on a GPU and what on a CPU has little in common, so each has options of its own,
and imports only what it needs.
"""

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status of the bench for the device."""
    parser = argparse.ArgumentParser(prog="halfsec bench llm", add_help=False, allow_abbrev=False)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options, rest = parser.parse_known_args(argv)
    if options.device == "cuda":
        from .gpu import command

        return command.main(rest)
    from . import comparison

    return comparison.main(rest)


if __name__ == "__main__":
    sys.exit(main())
