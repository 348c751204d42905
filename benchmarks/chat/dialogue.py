"""Dialogues of `halfsec bench chat`, read from TOML files and checked."""

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.errors import BenchError

from .domains import DOMAINS, Domain
from .tuning_domains import TUNING_DOMAINS

FOLDER: Final = Path(__file__).resolve().parent / "dialogues"
_DOMAINS: Final = {**DOMAINS, **TUNING_DOMAINS}

PAUSE: Final = "|"
"""Mark of a hesitation in a caller's line; `pause_ms` has the lengths."""
MAX_PAUSE_MS: Final = 5000
"""Longest hesitation in ms: any rule has ended the turn by then."""
MAX_INTERRUPTS_AFTER_MS: Final = 20_000
"""Latest interruption in ms: no reply is as long."""


@dataclass(frozen=True, slots=True)
class RequiredCall:
    """A tool call that a turn must make."""

    name: str
    arguments: Mapping[str, Any]
    """Strings are regular expressions of the whole value."""


@dataclass(frozen=True, slots=True)
class Hesitation:
    """A hesitation of the caller."""

    at_char: int
    """Character of the line before which the caller pauses: the first one of a word."""
    length_ms: int


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """A line of the caller, and what the agent's reply must fulfil."""

    caller: str
    """What is said, in writing."""
    expect: tuple[re.Pattern[str], ...] = ()
    """Each must be found in the reply."""
    reject: tuple[re.Pattern[str], ...] = ()
    """None may be found in it."""
    max_words: int | None = None
    calls: tuple[RequiredCall, ...] = ()
    no_call: bool = False
    """True: this turn must call no tool."""
    pauses: tuple[Hesitation, ...] = ()
    """Hesitations within the line, in order. Only over voice."""
    interrupts_after_ms: int | None = None
    """Time after the first audible sample of the answer before at which this line is begun, over
    that answer; None: the answer is heard to its end. Only over voice."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A scripted dialogue."""

    id: str
    category: str
    turns: tuple[DialogueTurn, ...]
    domain: Domain | None = None
    state: Mapping[str, Any] | None = None
    """Part of the domain's state that must hold at the end."""

    @property
    def needs_voice(self) -> bool:
        """True if its caller hesitates or interrupts: over text neither can happen."""
        return any(turn.pauses or turn.interrupts_after_ms is not None for turn in self.turns)


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
        _check_interruptions(turns)
        return Dialogue(table["id"], table["category"], turns, domain, table.get("state"))
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise BenchError(f"{file}: dialogue {table.get('id')!r}: {error!r}") from None


def _turn(table: Mapping[str, Any]) -> DialogueTurn:
    known = {"caller", "expect", "reject", "max_words", "call", "no_call"}
    _refuse_others(table, known | {"pause_ms", "interrupts_after_ms"})
    calls = tuple(
        RequiredCall(each["name"], each.get("arguments", {})) for each in table.get("call", ())
    )
    caller, pauses = _line(table["caller"], table.get("pause_ms", []))
    after_ms = table.get("interrupts_after_ms")
    if after_ms is not None:
        _check_ms("interrupts_after_ms", after_ms, 0, MAX_INTERRUPTS_AFTER_MS)
    return DialogueTurn(
        caller,
        _patterns(table.get("expect", ())),
        _patterns(table.get("reject", ())),
        table.get("max_words"),
        calls,
        bool(table.get("no_call", False)),
        pauses,
        after_ms,
    )


def _line(marked: Any, lengths_ms: Any) -> tuple[str, tuple[Hesitation, ...]]:
    """A line without its marks, and the pauses that they stand for."""
    if not isinstance(marked, str):
        raise TypeError("caller must be a text")
    parts = [part.strip() for part in marked.split(PAUSE)]
    if not isinstance(lengths_ms, list) or len(lengths_ms) != len(parts) - 1:
        raise ValueError(
            f"pause_ms must be a list with a length for each {PAUSE!r} of the line, which has "
            f"{len(parts) - 1}"
        )
    if len(parts) > 1 and not all(any(map(str.isalnum, part)) for part in parts):
        raise ValueError(f"caller: each {PAUSE!r} must have words before and after it")
    pauses, at_char = [], 0
    for part, length_ms in zip(parts, lengths_ms, strict=False):
        _check_ms("pause_ms", length_ms, 1, MAX_PAUSE_MS)
        at_char += len(part) + 1
        pauses.append(Hesitation(at_char, length_ms))
    return " ".join(parts), tuple(pauses)


def _check_ms(field: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{field} must be whole milliseconds from {least} to {most}, not {value}")


def _check_interruptions(turns: Sequence[DialogueTurn]) -> None:
    if turns and turns[0].interrupts_after_ms is not None:
        raise ValueError("interrupts_after_ms: there is no answer before the first line")
    for before, turn in itertools.pairwise(turns):
        if turn.interrupts_after_ms is not None and before.expect:
            raise ValueError("expect can't be asked of an answer that the next line interrupts")


def _patterns(values: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    if isinstance(values, str):
        raise TypeError("expect and reject are lists")
    return tuple(re.compile(value, re.IGNORECASE) for value in values)


def _refuse_others(table: Mapping[str, Any], known: set[str]) -> None:
    others = set(table) - known
    if others:
        raise ValueError(f"unknown: {', '.join(sorted(others))}")
