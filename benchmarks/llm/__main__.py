"""`halfsec bench llm` and `python -m llm_engine.bench`: entry point of the engine's benches.

The benches on a GPU and on a CPU share little, so each has its own options, and imports only what
it needs.
"""

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench of the chosen device. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="halfsec bench llm", add_help=False, allow_abbrev=False)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--speculation", action="store_true")
    options, rest = parser.parse_known_args(argv)
    if options.device == "cuda":
        from .gpu import command

        return command.main(rest)
    if options.speculation:
        from . import speculation

        return speculation.main(rest)
    from . import comparison

    return comparison.main(rest)


if __name__ == "__main__":
    sys.exit(main())
