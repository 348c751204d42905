"""Session traces: events, commands and marks of one session, as JSON lines.

JSON lines. First a header, then one record a line, in the order in which things happened to the
session (their times may step back a little: a mark carries the time at which it was made):

    {"format":1,"session":"...","started_unix_ns":N,"config_fingerprint":"...","dropped":0}
    {"at_ns":N,"kind":"event"|"command"|"mark","turn":N,"type":"...", further fields}

`at_ns` counts from the session's start; `turn` is 0 where no turn is concerned. Further fields are
JSON scalars or lists of them. A session keeps the last `max_records` in memory and forgets the
oldest; `dropped` says how many, because a trace without its beginning cannot be replayed.
"""

import contextlib
import itertools
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, cast, get_args

from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, TurnId

FORMAT = 1
Kind = Literal["event", "command", "mark"]
Scalar = str | int | float | bool | None
Value = Scalar | list["Value"]
_Stored = Scalar | tuple["_Stored", ...]
_StoredRecord = tuple[_Stored, ...]
"""A record in the ring: time, kind, turn, type, then name and value of each field in turn.

A tuple of numbers, strings and such tuples leaves the garbage collector's lists at its first
collections, and needs no dict. A full ring takes 5.3 MB instead of the 8.0 of `TraceRecord`s, and a
full collection visits none of it instead of 33,000 objects, 2.5 ms for each call (CPython 3.11, two
cores of an AMD EPYC, 2026-11-28). A server keeps the traces of some twenty calls."""

MAX_LINE_CHARS = 1 << 20
"""Longest line. A record has a few hundred characters; a longer line is of another kind of file."""

MAX_NESTED_LISTS = 8
"""Nothing in a session is deeper than a list of pairs; a bound keeps the copy from recursing."""

_KINDS = frozenset(get_args(Kind))
_MARKS = frozenset(name.value for name in MarkName)
_ACTIONS = frozenset(action.value for action in Action)
_PLAIN = frozenset({str, int, bool, type(None)})
_RESERVED = ("at_ns", "kind", "turn", "type")


class TraceError(ValueError):
    """The input is not a valid trace. The message has the line and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """First line of a trace."""

    session: SessionId
    started_unix_ns: int
    config_fingerprint: str
    dropped: int = 0
    """Records dropped from the beginning."""


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One line of a trace."""

    at_ns: int
    """ns since the session's start."""
    kind: Kind
    turn: int
    """Number of the turn; 0 without one."""
    type: str
    fields: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """Header and records of a trace."""

    header: TraceHeader
    records: tuple[TraceRecord, ...]

    def of_kind(self, kind: Kind) -> Iterator[TraceRecord]:
        return (record for record in self.records if record.kind == kind)

    def marks(self) -> Iterator[Mark]:
        """The marks, on the session's clock. Raises `TraceError` for a count that is none."""
        return (
            Mark(
                TurnId(record.turn),
                MarkName(record.type),
                record.at_ns,
                _count(record, "prompt_tokens"),
                _count(record, "output_tokens"),
                _action(record) if record.type == MarkName.ACTED else None,
            )
            for record in self.of_kind("mark")
        )


class TraceWriter:
    """Ring buffer of a session's trace records. One thread: the session's loop."""

    def __init__(
        self,
        session: SessionId,
        *,
        started_unix_ns: int,
        config_fingerprint: str,
        origin_ns: int = 0,
        max_records: int = 20_000,
    ) -> None:
        """`origin_ns` is the clock's reading at the session's start, taken off every time.

        20,000 records are about 10 minutes with an event for every 32 ms of audio, and some
        5 MB. Raises ValueError for a ring that holds nothing.
        """
        if max_records < 1:
            raise ValueError(f"a trace holds at least one record, not {max_records}")
        self._header = TraceHeader(session, started_unix_ns, config_fingerprint)
        self._origin_ns = origin_ns
        self._records: deque[_StoredRecord] = deque(maxlen=max_records)
        self._appended = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def dropped(self) -> int:
        """Number of the oldest records that were dropped."""
        return self._appended - len(self._records)

    def append(self, at_ns: int, kind: Kind, turn: int, type: str, **fields: Any) -> None:
        """Append a record. It is encoded later; lists are copied.

        Raises `TraceError` for an unknown kind or mark, or a field that JSON cannot hold.
        """
        _check_type(kind, turn, type)
        record: list[_Stored] = [at_ns - self._origin_ns, kind, turn, type]
        for name, value in fields.items():
            record += name, value if value.__class__ in _PLAIN else _plain(name, value)
        self._records.append(tuple(record))
        self._appended += 1

    def append_mark(self, mark: Mark) -> None:
        """Append a mark, with its counts or its action."""
        counts: dict[str, Value] = {}
        if mark.prompt_tokens or mark.output_tokens:
            counts = {"prompt_tokens": mark.prompt_tokens, "output_tokens": mark.output_tokens}
        if mark.taken is not None:
            counts = {
                "action": mark.taken.action.value,
                "predicted_ms": mark.taken.predicted_ms,
                "saved_ms": mark.taken.saved_ms,
                "left_out": mark.taken.left_out,
            }
        self.append(mark.at_ns, "mark", mark.turn, mark.name.value, **counts)

    def lines(self) -> Iterator[str]:
        """The current trace, one line at a time, each ending in a newline. The records are taken
        now; each is encoded when the iterator comes to it, on any thread."""
        header, records = self._header, tuple(self._records)
        first: dict[str, object] = {
            "format": FORMAT,
            "session": header.session,
            "started_unix_ns": header.started_unix_ns,
            "config_fingerprint": header.config_fingerprint,
            "dropped": self.dropped,
        }
        return map(_line, itertools.chain([first], map(_entry, records)))


def read_trace(lines: Iterable[str]) -> Trace:
    """Read and check a trace. Blank lines at the end are allowed.

    Raises `TraceError` naming the first line that is wrong, for an empty input too.
    """
    header: TraceHeader | None = None
    records: list[TraceRecord] = []
    blank_at: int | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            blank_at = blank_at or number
            continue
        if blank_at is not None:
            raise TraceError(f"line {blank_at}: blank, and the trace goes on after it")
        entry = _decode(number, line)
        try:
            if header is None:
                header = _read_header(entry)
            else:
                records.append(_read_record(entry))
        except TraceError as error:
            raise TraceError(f"line {number}: {error}") from None
    if header is None:
        raise TraceError("line 1: the trace is empty")
    return Trace(header, tuple(records))


def _count(record: TraceRecord, name: str) -> int:
    value = record.fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TraceError(f"mark {record.type}: {name} is {value!r}, not a count")
    return value


def _action(record: TraceRecord) -> ActionTaken:
    name = record.fields.get("action")
    times = [record.fields.get(key) for key in ("predicted_ms", "saved_ms")]
    if name not in _ACTIONS:
        raise TraceError(f"mark {record.type}: there is no action named {name!r}")
    predicted_ms, saved_ms = (None if t is None else _milliseconds(record, t) for t in times)
    left_out = record.fields.get("left_out") is True
    return ActionTaken(Action(name), predicted_ms or 0.0, saved_ms, left_out)


def _milliseconds(record: TraceRecord, value: Value) -> float:
    if not isinstance(value, bool) and isinstance(value, int | float):
        with contextlib.suppress(OverflowError):  # an integer of hundreds of digits
            if math.isfinite(milliseconds := float(value)):
                return milliseconds
    raise TraceError(f"mark {record.type}: {str(value)[:40]!r} is no time in ms")


def _line(entry: dict[str, object]) -> str:
    # ASCII, so that no reader splits a record at U+2028 or chokes on a lone surrogate.
    return json.dumps(entry, separators=(",", ":"), allow_nan=False) + "\n"


def _entry(record: _StoredRecord) -> dict[str, object]:
    at_ns, kind, turn, type, *fields = record
    entry: dict[str, object] = {"at_ns": at_ns, "kind": kind, "turn": turn, "type": type}
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        assert isinstance(name, str)
        entry[name] = value
    return entry


def _plain(name: str, value: object, depth: int = 0) -> _Stored:
    """A copy in Python's built-in types, which JSON can hold; lists as tuples."""
    match value:
        case bool() | None:
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            if math.isfinite(value):
                return float(value)
            raise TraceError(f"field {name!r} is {value}, which JSON does not have")
        case list() | tuple() if depth < MAX_NESTED_LISTS:
            return tuple([_plain(name, item, depth + 1) for item in value])
        case list() | tuple():
            raise TraceError(f"field {name!r} nests lists more than {MAX_NESTED_LISTS} deep")
    raise TraceError(
        f"field {name!r} is a {type(value).__name__}; a trace holds strings, numbers, booleans,"
        " null, and lists of them"
    )


def _check_type(kind: str, turn: int, type: str) -> None:
    if kind not in _KINDS:
        raise TraceError(f"kind {kind!r} is none of {', '.join(get_args(Kind))}")
    if turn < 0:
        raise TraceError(f"turn {turn}: turns count from 1, and 0 stands for none")
    if kind == "mark":
        if type not in _MARKS:
            raise TraceError(f"there is no mark named {type!r}")
        if turn == 0:
            raise TraceError(f"mark {type} belongs to no turn")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _decode(number: int, line: str) -> dict[str, object]:
    if len(line) > MAX_LINE_CHARS:
        raise TraceError(f"line {number}: longer than {MAX_LINE_CHARS} characters: not a trace")
    try:
        entry = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        if number > 1 and not line.endswith("\n"):
            raise TraceError(f"line {number}: cut off in the middle of a record") from None
        raise TraceError(f"line {number}: not JSON, so this is not a trace") from None
    if not isinstance(entry, dict):
        raise TraceError(f"line {number}: a JSON object is wanted, not {line.strip()[:40]}")
    return entry


def _read_header(entry: dict[str, object]) -> TraceHeader:
    if "format" not in entry:
        raise TraceError('no trace header; it starts with {"format":1,"session":...')
    if entry["format"] != FORMAT or entry["format"] is True:
        raise TraceError(f"format {entry['format']!r}; this program reads format {FORMAT}")
    dropped = _integer(entry, "dropped") if "dropped" in entry else 0
    if dropped < 0:
        raise TraceError(f"dropped is {dropped}; it is a count")
    return TraceHeader(
        session=SessionId(_string(entry, "session")),
        started_unix_ns=_integer(entry, "started_unix_ns"),
        config_fingerprint=_string(entry, "config_fingerprint"),
        dropped=dropped,
    )


def _read_record(entry: dict[str, object]) -> TraceRecord:
    at_ns, turn = _integer(entry, "at_ns"), _integer(entry, "turn")
    kind, type = _string(entry, "kind"), _string(entry, "type")
    _check_type(kind, turn, type)
    fields = {name: value for name, value in entry.items() if name not in _RESERVED}
    for name, value in fields.items():
        _plain(name, value)  # raises for what no trace holds; the value itself is JSON's already
    return TraceRecord(at_ns, cast(Kind, kind), turn, type, cast(dict[str, Value], fields))


def _integer(entry: dict[str, object], name: str) -> int:
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        raise TraceError(_wanted(entry, name, "an integer of 64 bits"))
    return value


def _string(entry: dict[str, object], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise TraceError(_wanted(entry, name, "a string"))
    return value


def _wanted(entry: dict[str, object], name: str, kind: str) -> str:
    if name not in entry:
        return f"{name} is missing"
    return f"{name} is {entry[name]!r}, not {kind}"
