"""`python -m latency_budget.storage.copy_store FILE ADDRESS`: add a file's rows to a database.

For a server that has kept its turns in SQLite and joins a fleet. Turns, calls, and documents of
calls are copied, with the webhook messages that wait. The file stays as it is, and what the
database has already is not added again: a copy that broke off, or of a file that a server goes on
writing, is completed by another one. Servers may write to the database meanwhile.

A turn is known by its session, number and time, a call and a document by its session and the time
of its end: all are set once, and the same in every copy. The name of the server is not, because
rows of old versions get theirs here. There is no unique index on them, as databases exist in which
earlier versions of this program have doubled turns; instead the rows of one chunk are compared and
added in one transaction, for which copies wait for each other.

A message is removed once it is delivered, so that the target can't know it. It goes with its
document: a second copy, which does not add that, does not send it again.
"""

import argparse
import contextlib
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from .call_documents import EndedCall, insert_ended, read_ended
from .call_records import CallRecord, insert_call, read_calls
from .database import Place, StoreConnection, StoreDatabase, StoreError
from .open_database import installed_database_at, postgres_url_of
from .store_query import TurnFilter, connected, read_turns
from .store_schema import MigrationError, NewerStoreError, StoredTurn, insert

Row = TypeVar("Row", StoredTurn, CallRecord, EndedCall)

CHUNK: Final = 250
"""Rows of one transaction, some 0.5 s: a server that adds a turn to one of the same sessions waits
for it, and gives up after 2 s. They are in memory at a time, at some 10 kB each."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Numbers of rows of a copy."""

    added: int
    known: int
    """Rows that the target had."""
    dropped: int = 0
    """Webhook messages that found the queue of their endpoint full."""


@dataclass(frozen=True, slots=True)
class _Table(Generic[Row]):
    """A table to copy. The caller of `insert` commits."""

    name: str
    key_columns: tuple[str, ...]
    """Columns by which a row is known, the time last."""
    read: Callable[[Place, int, int], list[tuple[int, Row]]]
    """Reads from a store the newest so many rows before a row number, each with its number. Raises
    StoreError."""
    key: Callable[[Row], tuple[Any, ...]]
    """Values of `key_columns`."""
    insert: Callable[[StoreConnection, Row], int]
    """Adds a row. Returns the number of messages that it drops. Raises errors of the driver."""


def _read_turns(place: Place, before_row: int, max_rows: int) -> list[tuple[int, StoredTurn]]:
    found = read_turns(place, TurnFilter(before_row=before_row, max_turns=max_rows))
    return [(stored.row, stored) for stored in found]


def _insert_turn(connection: StoreConnection, stored: StoredTurn) -> int:
    insert(connection, stored)
    return 0


def _insert_call(connection: StoreConnection, record: CallRecord) -> int:
    insert_call(connection, record)
    return 0


_TURNS: Final[_Table[StoredTurn]] = _Table(
    "turns",
    ("session", "turn", "at_unix_ns"),
    _read_turns,
    lambda stored: (stored.entry.session, stored.entry.record.turn, stored.at_unix_ns),
    _insert_turn,
)
_CALLS: Final[_Table[CallRecord]] = _Table(
    "calls",
    ("session", "ended_unix_ns"),
    lambda place, before_row, max_rows: read_calls(
        place, max_calls=max_rows, before_row=before_row
    ),
    lambda record: (record.session, record.ended_unix_ns),
    _insert_call,
)
_DOCUMENTS: Final[_Table[EndedCall]] = _Table(
    "call_documents",
    ("session", "ended_unix_ns"),
    lambda place, before_row, max_rows: read_ended(
        place, max_calls=max_rows, before_row=before_row
    ),
    lambda ended: (ended.session, ended.ended_unix_ns),
    lambda connection, ended: len(insert_ended(connection, ended)),
)


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """Numbers of rows of a copy, by table."""

    turns: Copied
    calls: Copied
    documents: Copied


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0; 2 with one line on stderr where not everything
    could be copied."""
    parser = argparse.ArgumentParser(
        prog="python -m latency_budget.storage.copy_store",
        description="Add the turns, calls and documents of calls of a SQLite file to a PostgreSQL"
        " database, but for those that it has.",
    )
    parser.add_argument("file", type=Path, help="the file, such as ~/.halfsec/turns.sqlite")
    parser.add_argument("address", help="of the database, like postgresql://HOST/DATABASE")
    parser.add_argument("--replica", default=socket.gethostname(), help="name of the file's server")
    options = parser.parse_args(argv)
    try:
        copy = copy_store(options.file, postgres_url_of(options.address), options.replica)
    except (StoreError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    turns, calls, documents = copy.turns, copy.calls, copy.documents
    print(f"{turns.added} turns, {calls.added} calls and {documents.added} documents were copied")
    if turns.known or calls.known or documents.known:
        print(
            f"{turns.known} turns, {calls.known} calls and {documents.known} documents were there"
            " already"
        )
    if documents.dropped:
        print(f"{documents.dropped} webhook messages were dropped: too many wait", file=sys.stderr)
        return 2
    return 0


def copy_store(source: Place, target: Place, replica: str) -> StoreCopy:
    """Add the rows of a store to another one, but for those that it has, as those of `replica`
    where they name none. Blocks: some 2 ms a turn. Raises StoreError; what was added before
    stays."""
    with connected(source):
        pass  # a source that can't be read leaves the target alone
    database = installed_database_at(target)
    try:
        with contextlib.closing(_connected(database)) as connection:
            return StoreCopy(
                _copy(_TURNS, source, database, connection, replica),
                _copy(_CALLS, source, database, connection, replica),
                _copy(_DOCUMENTS, source, database, connection, replica),
            )
    except Exception as error:
        if not database.is_from_driver(error):
            raise
        reason = database.explain(error)
        raise StoreError(f"{target}: {reason}; copy again to add what is missing") from None


def _connected(database: StoreDatabase) -> StoreConnection:
    """A connection that writes. Raises StoreError."""
    try:
        return database.connect()
    except NewerStoreError as error:
        raise StoreError(f"{database.place}: {error}; update this program to copy there") from None
    except MigrationError as error:
        raise StoreError(f"{database.place}: {error}") from None
    except Exception as error:
        if not database.is_from_driver(error):
            raise
        raise StoreError(f"{database.place}: {database.explain(error)}") from None


def _copy(
    table: _Table[Row],
    source: Place,
    database: StoreDatabase,
    connection: StoreConnection,
    replica: str,
) -> Copied:
    """Add the rows of a table. Raises StoreError, and errors of the driver."""
    with connected(source) as reader:
        rows = [row for (row,) in reader.execute(f"SELECT id FROM {table.name} ORDER BY id")]
    num_added = num_known = num_dropped = 0
    for begin in range(0, len(rows), CHUNK):
        chunk = rows[begin : begin + CHUNK]
        # Where a server has deleted some of them meanwhile, older ones come in their place.
        found = [
            each for row, each in table.read(source, chunk[-1] + 1, len(chunk)) if row >= chunk[0]
        ]
        database.begin_copy(connection)
        known = _known(connection, table, found)
        for each in found:
            key = table.key(each)
            if key in known:
                num_known += 1
                continue
            known.add(key)
            num_dropped += table.insert(connection, replace(each, replica=each.replica or replica))
            num_added += 1
        connection.execute("COMMIT")
    return Copied(num_added, num_known, num_dropped)


def _known(
    connection: StoreConnection, table: _Table[Row], rows: Sequence[Row]
) -> set[tuple[Any, ...]]:
    """Keys of the target's rows that have the time of one of these."""
    if not rows:
        return set()
    columns, times = table.key_columns, [table.key(each)[-1] for each in rows]
    found = connection.execute(
        f"SELECT {', '.join(columns)} FROM {table.name}"
        f" WHERE {columns[-1]} IN ({', '.join('?' * len(times))})",
        times,
    )
    return set(found.fetchall())


if __name__ == "__main__":
    sys.exit(main())
