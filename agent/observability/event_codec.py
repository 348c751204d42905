"""Codec of the turn machine's events and commands: flat JSON objects in traces.

A record is `{"type": class name, ...fields}`; the fields of a dataclass within one stand beside the
others. The format of each is its dataclass and nothing else, so that a new event needs no line
here. Reading is strict: a trace of another version is rejected with the name of the field or class
that differs, rather than replayed as something else. A field that was added later names its value
in older traces (`IN_OLDER_TRACES`), by which the machine decides as it did then.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
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

from agent.turn_taking.commands import Command
from agent.turn_taking.end_of_turn import IN_OLDER_TRACES
from agent.turn_taking.events import Event

Record = dict[str, Any]

_EVENTS: Final[dict[str, type]] = {kind.__name__: kind for kind in get_args(Event)}
_COMMANDS: Final[dict[str, type]] = {kind.__name__: kind for kind in get_args(Command)}


class RecordError(ValueError):
    """A record is not an event or command of this version. The message names the difference."""


def to_record(value: Event | Command) -> Record:
    """Flat record of an event or command. Its values are JSON scalars."""
    return {"type": type(value).__name__, **_flat(value)}


def event_from_record(record: Mapping[str, Any]) -> Event:
    """Event of a record. A `turn` is ignored if the event has no such field: each trace line has
    one.

    Raises RecordError.
    """
    return cast(Event, _from_record(record, _EVENTS, "event"))


def command_from_record(record: Mapping[str, Any]) -> Command:
    """Command of a record. `turn` and errors as in `event_from_record`."""
    return cast(Command, _from_record(record, _COMMANDS, "command"))


def _flat(value: Any) -> Record:
    record: Record = {}
    for field in fields(value):
        within = getattr(value, field.name)
        record.update(_flat(within) if is_dataclass(within) else {field.name: within})
    return record


def _from_record(record: Mapping[str, Any], kinds: Mapping[str, type], what: str) -> object:
    name = record.get("type")
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise RecordError(f"unknown {what} type {name!r}; known: {', '.join(sorted(kinds))}")
    values = {key: value for key, value in record.items() if key not in ("type", "turn")}
    if "turn" in record and "turn" in _hints(kind):
        values["turn"] = record["turn"]
    built = _build(kind, values)
    if values:
        names = ", ".join(repr(key) for key in sorted(values))
        raise RecordError(f"{kind.__name__} has no field {names}")
    return built


def _build(kind: type, values: Record) -> object:
    """Build a dataclass and remove its fields from `values`. Raises RecordError."""
    built: Record = {}
    for name, hint in _hints(kind).items():
        if isinstance(hint, type) and is_dataclass(hint):
            built[name] = _build(hint, values)
            continue
        if name in values:
            built[name] = values.pop(name)
        elif name in (older := _older_values(kind)):
            built[name] = older[name]
        else:
            raise RecordError(f"{kind.__name__} lacks its field {name!r}")
        if not _fits(built[name], hint):
            raise RecordError(f"{kind.__name__}.{name} can't be {built[name]!r}")
    return kind(**built)


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _older_values(kind: type) -> dict[str, Any]:
    """Values of the fields that older traces lack."""
    return {
        field.name: field.metadata[IN_OLDER_TRACES]
        for field in fields(kind)
        if IN_OLDER_TRACES in field.metadata
    }


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, NewType):
        return _fits(value, hint.__supertype__)
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    return type(value) is hint  # a bool is no int here: JSON keeps them apart
