"""The machine's events and commands as flat JSON objects, and back.

A record is `{"type": class name, ...fields}`. The shape of each is its dataclass and nothing else,
so that a new event needs no line here. Reading is strict: a trace that another version wrote is
refused with the name of what differs, rather than replayed as something else.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    NewType,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from .commands import Command
from .events import Event

Record = dict[str, Any]

_EVENTS: Final[dict[str, type]] = {kind.__name__: kind for kind in get_args(Event)}
_COMMANDS: Final[dict[str, type]] = {kind.__name__: kind for kind in get_args(Command)}


class RecordError(ValueError):
    """A record that is no event or command of this version. The message says what is wrong."""


def to_record(value: Event | Command) -> Record:
    """Of JSON scalars only, except that `RulesChanged.rules` is an object of its own."""
    return {"type": type(value).__name__, **asdict(value)}


def event_from_record(record: Mapping[str, Any]) -> Event:
    """Raises RecordError."""
    return cast(Event, _from_record(record, _EVENTS, "event"))


def command_from_record(record: Mapping[str, Any]) -> Command:
    """Raises RecordError."""
    return cast(Command, _from_record(record, _COMMANDS, "command"))


def _from_record(record: Mapping[str, Any], kinds: Mapping[str, type], what: str) -> object:
    name = record.get("type")
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise RecordError(f"unknown {what} type {name!r}; known: {', '.join(sorted(kinds))}")
    return _build(kind, {key: value for key, value in record.items() if key != "type"})


def _build(kind: type, values: Mapping[str, Any]) -> object:
    hints = _hints(kind)
    for what, names in (
        ("has no field", values.keys() - hints.keys()),
        ("lacks its field", hints.keys() - values.keys()),
    ):
        if names:
            listed = ", ".join(repr(name) for name in sorted(names))
            raise RecordError(f"{kind.__name__} {what} {listed}")
    return kind(**{name: _value(values[name], hint, kind, name) for name, hint in hints.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _value(value: Any, hint: Any, kind: type, name: str) -> Any:
    """`value` as field `name` of `kind` holds it."""
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return _build(hint, value)
    if not _fits(value, hint):
        raise RecordError(f"{kind.__name__}.{name} can't be {value!r}")
    return value


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, NewType):
        return _fits(value, hint.__supertype__)
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint is NoneType:
        return value is None
    return type(value) is hint  # a bool is no int here: JSON keeps them apart
