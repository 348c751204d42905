"""Reader of turns: of a session's trace, or of a store in a file or a PostgreSQL database.

Files are distinguished by their first bytes.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from latency_budget.account.ledger import records_of
from latency_budget.account.turn import SessionId
from latency_budget.account.turn_record import TurnRecord
from latency_budget.storage.database import Place, StoreError
from latency_budget.storage.history import TurnEntry
from latency_budget.storage.open_database import place_of
from latency_budget.storage.postgres_url import PostgresUrl
from latency_budget.storage.store_query import TurnFilter, read_turns

from .trace import MAX_LINE_CHARS, Trace, TraceError, read_trace

SQLITE_HEAD: Final = b"SQLite format 3\0"


MAX_READ: Final = 20_000
"""Most turns of a store that are read unless more are asked for: some seconds, 0.15 GB."""


class SourceError(Exception):
    """The source has no turns to report. The message has its name and the reason."""


@dataclass(frozen=True, slots=True)
class Source:
    """Turns of a trace or a store."""

    name: str
    """Path of the file, or address of the database without credentials."""
    session: str | None
    """Session of the trace, or the one that was selected."""
    entries: tuple[TurnEntry, ...]
    """At least one turn; without words where they are not kept."""
    doubts: tuple[str, ...] = ()
    """Warnings about missing turns, as sentences without a full stop."""
    is_trace: bool = False
    """True for a trace: every turn of one session."""

    @property
    def records(self) -> list[TurnRecord]:
        return [entry.record for entry in self.entries]


def read_source(source: str | Place, wanted: TurnFilter | None = None) -> Source:
    """Read the turns of a trace, or the selected ones of a store. Raises SourceError."""
    wanted = wanted or TurnFilter()
    try:
        place = place_of(source) if isinstance(source, str) else source
        if isinstance(place, PostgresUrl):
            return _store(place, wanted)
        with place.open("rb") as file:
            is_store = file.read(len(SQLITE_HEAD)) == SQLITE_HEAD
        return _store(place, wanted) if is_store else _trace(place, wanted)
    except OSError as error:
        raise SourceError(f"{place}: {error.strerror}") from None
    except TraceError as error:
        raise SourceError(f"{place}: {error}") from None
    except (StoreError, ValueError) as error:
        raise SourceError(str(error)) from None


def _store(place: Place, wanted: TurnFilter) -> Source:
    bounded = wanted if wanted.max_turns else replace(wanted, max_turns=MAX_READ + 1)
    found = read_turns(place, bounded)
    if not found:
        raise SourceError(f"{place}: no turn in it is as asked for")
    entries = tuple(stored.entry for stored in found)
    if wanted.max_turns or len(found) <= MAX_READ:
        return Source(str(place), wanted.session, entries)
    doubt = f"only the newest {MAX_READ} turns were read; --last N takes more"
    return Source(str(place), wanted.session, entries[1:], (doubt,))


def _trace(path: Path, wanted: TurnFilter) -> Source:
    if replace(wanted, max_turns=None) != TurnFilter():
        raise SourceError(
            f"{path}: a trace is one session's; only a store has turns to choose from"
        )
    trace = _read(path)
    records = records_of(trace.marks())
    if not records:
        raise TraceError("the trace holds no marks: no turn was timed in this session")
    session = SessionId(trace.header.session)
    dropped = trace.header.dropped
    doubt = f"the first {dropped} records of the session are not in this trace"
    newest = records[-wanted.max_turns :] if wanted.max_turns else records
    entries = tuple(TurnEntry(session, record) for record in newest)
    return Source(str(path), session, entries, (doubt,) if dropped else (), is_trace=True)


def _read(path: Path) -> Trace:
    try:
        with path.open(encoding="utf-8") as file:
            # Bounded, because a file that is no trace may be one endless line.
            return read_trace(iter(lambda: file.readline(MAX_LINE_CHARS + 1), ""))
    except UnicodeDecodeError:
        raise TraceError("not UTF-8 text, so this is not a trace") from None
