"""`python -m latency_budget.storage.copy_store FILE ADDRESS`: add a file's turns to a database.

For a server that has kept its turns in SQLite and joins a fleet. The file stays as it is, and what
the database has already is not added again: a copy that broke off, or of a file that a server goes
on writing, is completed by another one. Servers may write to the database meanwhile.

A turn is known by its session, number and time, a call by its session and the time of its end: both
are set once, and the same in every copy. The name of the server is not, because rows of old
versions get theirs here. There is no unique index on them, as databases exist in which earlier
versions of this program have doubled turns; instead the rows of one chunk are compared and added in
one transaction, for which copies wait for each other.
"""

import argparse
import contextlib
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from .call_records import CallRecord, insert_call, read_calls
from .database import Place, StoreConnection, StoreDatabase, StoreError
from .open_database import installed_database_at, place_of
from .store_query import NO_LIMIT, TurnFilter, connected, read_turns
from .store_schema import MigrationError, NewerStoreError, insert

CHUNK: Final = 250
"""Rows of one transaction, some 0.5 s: a server that adds a turn to one of the same sessions waits
for it, and gives up after 2 s. They are in memory at a time, at some 10 kB each."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Numbers of rows of a copy."""

    added: int
    known: int
    """Rows that the target had."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0; 2 with one line on stderr where not everything
    could be copied."""
    parser = argparse.ArgumentParser(
        prog="python -m latency_budget.storage.copy_store",
        description="Add the turns and calls of a SQLite file to a PostgreSQL database, but for"
        " those that it has.",
    )
    parser.add_argument("file", type=Path, help="the file, such as ~/.halfsec/turns.sqlite")
    parser.add_argument("address", help="of the database, like postgresql://HOST/DATABASE")
    parser.add_argument("--replica", default=socket.gethostname(), help="name of the file's server")
    options = parser.parse_args(argv)
    try:
        turns, calls = copy_store(options.file, place_of(options.address), options.replica)
    except (StoreError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{turns.added} turns and {calls.added} calls were copied")
    if turns.known or calls.known:
        print(f"{turns.known} turns and {calls.known} calls were there already")
    return 0


def copy_store(source: Place, target: Place, replica: str) -> tuple[Copied, Copied]:
    """Add the turns and calls of a store to another one, but for those that it has, as those of
    `replica` where they name none. Returns the numbers of turns and of calls. Blocks: some 2 ms a
    turn. Raises StoreError; what was added before stays."""
    with connected(source) as connection:
        rows = [row for (row,) in connection.execute("SELECT id FROM turns ORDER BY id")]
    calls = [record for _, record in read_calls(source, max_calls=NO_LIMIT)]
    database = installed_database_at(target)
    try:
        with contextlib.closing(_connected(database)) as connection:
            turns = _copy_turns(source, rows, database, connection, replica)
            return turns, _copy_calls(calls, database, connection, replica)
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


def _copy_turns(
    source: Place,
    rows: Sequence[int],
    database: StoreDatabase,
    connection: StoreConnection,
    replica: str,
) -> Copied:
    """Add these rows of the source. Raises StoreError, and errors of the driver."""
    num_added = num_known = 0
    for begin in range(0, len(rows), CHUNK):
        chunk = rows[begin : begin + CHUNK]
        wanted = TurnFilter(before_row=chunk[-1] + 1, max_turns=len(chunk))
        # Where a server has deleted some of them meanwhile, older ones come in their place.
        found = [each for each in read_turns(source, wanted) if each.row >= chunk[0]]
        database.begin_copy(connection)
        known = _found(
            connection,
            "SELECT session, turn, at_unix_ns FROM turns WHERE at_unix_ns",
            [stored.at_unix_ns for stored in found],
        )
        for stored in found:
            key = (stored.entry.session, stored.entry.record.turn, stored.at_unix_ns)
            if key in known:
                num_known += 1
                continue
            known.add(key)
            insert(connection, replace(stored, replica=stored.replica or replica))
            num_added += 1
        connection.execute("COMMIT")
    return Copied(num_added, num_known)


def _copy_calls(
    calls: Sequence[CallRecord], database: StoreDatabase, connection: StoreConnection, replica: str
) -> Copied:
    """Add these calls. Raises errors of the driver."""
    num_added = num_known = 0
    for begin in range(0, len(calls), CHUNK):
        chunk = calls[begin : begin + CHUNK]
        database.begin_copy(connection)
        known = _found(
            connection,
            "SELECT session, ended_unix_ns FROM calls WHERE ended_unix_ns",
            [record.ended_unix_ns for record in chunk],
        )
        for record in chunk:
            key = (record.session, record.ended_unix_ns)
            if key in known:
                num_known += 1
                continue
            known.add(key)
            insert_call(connection, replace(record, replica=record.replica or replica))
            num_added += 1
        connection.execute("COMMIT")
    return Copied(num_added, num_known)


def _found(connection: StoreConnection, select: str, times: Sequence[int]) -> set[tuple[Any, ...]]:
    """Keys of the rows that have one of these times."""
    if not times:
        return set()
    return set(connection.execute(f"{select} IN ({', '.join('?' * len(times))})", times).fetchall())


if __name__ == "__main__":
    sys.exit(main())
