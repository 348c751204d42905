"""Dialogues of `halfsec bench chat`, read from TOML files and checked."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.errors import BenchError

from .domains import DOMAINS, Domain
from .tuning_domains import TUNING_DOMAINS

FOLDER: Final = Path(__file__).resolve().parent / "dialogues"
_DOMAINS: Final = {**DOMAINS, **TUNING_DOMAINS}


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A tool call that a turn must make."""

    name: str
    arguments: Mapping[str, Any]
    """Strings are regular expressions of the whole value."""


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """A line of the caller, and what the agent's reply must fulfil."""

    caller: str
    expect: tuple[re.Pattern[str], ...] = ()
    """Each must be found in the reply."""
    reject: tuple[re.Pattern[str], ...] = ()
    """None may be found in it."""
    max_words: int | None = None
    calls: tuple[ExpectedCall, ...] = ()
    no_call: bool = False
    """True: this turn must call no tool."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A scripted dialogue."""

    id: str
    category: str
    turns: tuple[DialogueTurn, ...]
    domain: Domain | None = None
    state: Mapping[str, Any] | None = None
    """Part of the domain's state that must hold at the end."""


def read_dialogues(paths: Iterable[Path] = (FOLDER,)) -> list[Dialogue]:
    """Read TOML files, or all of a folder. Raises BenchError that names file and dialogue."""
    dialogues: list[Dialogue] = []
    for path in paths:
        for file in sorted(path.glob("*.toml")) if path.is_dir() else [path]:
            try:
                tables = tomllib.loads(file.read_text(encoding="utf-8"))["dialogue"]
            except (OSError, UnicodeError, tomllib.TOMLDecodeError, KeyError) as error:
                raise BenchError(f"{file}: no dialogues can be read: {error!r}") from None
            dialogues += [_dialogue(table, file) for table in tables]
    names = [each.id for each in dialogues]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BenchError(f"dialogues of the same id: {', '.join(sorted(twice))}")
    return dialogues


def _dialogue(table: Mapping[str, Any], file: Path) -> Dialogue:
    try:
        _refuse_others(table, {"id", "category", "domain", "turn", "state"})
        domain = _DOMAINS[table["domain"]] if "domain" in table else None
        turns = tuple(_turn(each) for each in table["turn"])
        return Dialogue(table["id"], table["category"], turns, domain, table.get("state"))
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise BenchError(f"{file}: dialogue {table.get('id')!r}: {error!r}") from None


def _turn(table: Mapping[str, Any]) -> DialogueTurn:
    _refuse_others(table, {"caller", "expect", "reject", "max_words", "call", "no_call"})
    calls = tuple(
        ExpectedCall(each["name"], each.get("arguments", {})) for each in table.get("call", ())
    )
    return DialogueTurn(
        table["caller"],
        _patterns(table.get("expect", ())),
        _patterns(table.get("reject", ())),
        table.get("max_words"),
        calls,
        bool(table.get("no_call", False)),
    )


def _patterns(values: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    if isinstance(values, str):
        raise TypeError("expect and reject are lists")
    return tuple(re.compile(value, re.IGNORECASE) for value in values)


def _refuse_others(table: Mapping[str, Any], known: set[str]) -> None:
    others = set(table) - known
    if others:
        raise ValueError(f"unknown: {', '.join(sorted(others))}")
