"""`python -m latency_budget.storage.copy_store FILE ADDRESS`: add a file's turns to a database.

For a server that has kept its turns in SQLite and joins a fleet. Everything is copied in one
transaction, in the order in which it was stored, or nothing is; the file stays as it is.
"""

import argparse
import contextlib
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from .call_records import insert_call, read_calls
from .database import Place, StoreError
from .open_database import database_at, place_of
from .store_query import NO_LIMIT, TurnFilter, connected, read_turns
from .store_schema import insert

CHUNK: Final = 1000
"""Turns that are in memory at a time, at some 10 kB each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m latency_budget.storage.copy_store",
        description="Add the turns and calls of a SQLite file to a PostgreSQL database.",
    )
    parser.add_argument("file", type=Path, help="the file, such as ~/.halfsec/turns.sqlite")
    parser.add_argument("address", help="of the database, like postgresql://HOST/DATABASE")
    parser.add_argument("--replica", default=socket.gethostname(), help="name of the file's server")
    options = parser.parse_args(argv)
    try:
        num_turns, num_calls = copy_store(options.file, place_of(options.address), options.replica)
    except (StoreError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{num_turns} turns and {num_calls} calls were copied")
    return 0


def copy_store(source: Place, target: Place, replica: str) -> tuple[int, int]:
    """Add the turns and calls of a store to another one, as those of `replica` where they name
    none. Returns their numbers. Blocks: some 2 ms a turn. Raises StoreError; then nothing was
    added."""
    with connected(source) as connection:
        rows = [row for (row,) in connection.execute("SELECT id FROM turns ORDER BY id")]
        first = connection.execute("SELECT session FROM turns ORDER BY id LIMIT 1").fetchone()
    calls = read_calls(source, max_calls=NO_LIMIT)
    database = database_at(target)
    try:
        with contextlib.closing(database.connect()) as connection:
            if (
                first
                and connection.execute("SELECT 1 FROM sessions WHERE id = ?", first).fetchone()
            ):
                raise StoreError(f"{target}: the turns of {source} are there already")
            connection.execute(database.begin)
            for begin in range(0, len(rows), CHUNK):
                chunk = rows[begin : begin + CHUNK]
                wanted = TurnFilter(before_row=chunk[-1] + 1, max_turns=len(chunk))
                for stored in read_turns(source, wanted):
                    insert(connection, replace(stored, replica=stored.replica or replica))
            for _, record in calls:
                insert_call(connection, replace(record, replica=record.replica or replica))
            connection.execute("COMMIT")
    except StoreError:
        raise
    except Exception as error:
        if not database.is_from_driver(error):
            raise
        raise StoreError(f"{target}: nothing was copied ({database.explain(error)})") from None
    return len(rows), len(calls)


if __name__ == "__main__":
    sys.exit(main())
