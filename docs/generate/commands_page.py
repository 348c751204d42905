"""Reference of the commands, from their own `--help`."""

import argparse
import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from unittest import mock

from agent.__main__ import build_parser, main
from agent.cli.bench import BENCHES

_ROOT: Final = Path(__file__).resolve().parents[2]

_HEAD: Final = """\
# Commands

What each command prints with `--help`. The page is generated from the code. The commands are in
`.venv/bin` after `make run`; `. .venv/bin/activate` puts them on the path.

Exit status of `halfsec`: 0 done; 1 the answer is no (a gate was missed, a check failed); 2 it could
not be done, and one line on stderr says what to do. `PYTHONDEVMODE=1` shows tracebacks.
"""


def commands() -> Iterator[tuple[str, ...]]:
    """Every command with its subcommands, for instance `("keys", "add")`."""
    for name, parser in _subparsers(build_parser()).items():
        yield (name,)
        for inner in _subparsers(parser):
            yield (name, inner)
        if name == "bench":
            yield from (("bench", bench) for bench in BENCHES)


def help_of(command: Sequence[str]) -> str:
    """What `halfsec COMMAND --help` prints."""
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "100"}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main([*command, "--help"])
    return out.getvalue().rstrip().replace(str(Path.home()), "~")


def page() -> str:
    """Markdown of the page."""
    parts = [_HEAD, _entry(())]
    parts += map(_entry, commands())
    parts += [_make(), _modules()]
    return "\n".join(parts)


def _entry(command: tuple[str, ...]) -> str:
    level = "##" if len(command) < 2 else "###"
    name = " ".join(("halfsec", *command))
    return f"{level} {name}\n\n```text\n{help_of(command)}\n```\n"


def _make() -> str:
    """The head of the Makefile, which `make help` prints."""
    lines = (_ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    head = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in head)
    return f"## make\n\n```text\n{text}\n```\n"


def _modules() -> str:
    """Packages that can be run with `python -m`."""
    rows = ["## python -m\n", "| command | what it does |", "| --- | --- |"]
    for package in ("agent", "asr", "llm_engine", "tts", "latency_budget"):
        source = (_ROOT / package / "__main__.py").read_text(encoding="utf-8")
        line = " ".join(source.split('"""')[1].split("\n\n")[0].split())
        rows.append(f"| `python -m {package}` | {line.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
