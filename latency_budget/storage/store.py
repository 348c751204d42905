"""Finished turns and telephone calls in a SQLite file, written off the event loop.

Theory of operation
-------------------
`add` puts a turn into a bounded queue and returns. The store's `BackgroundWriter` runs a pass every
WRITE_EVERY_S, which writes what has come in one transaction, so that thousands of turns a minute
cost one write a moment, and none of them the audio. The journal is a write-ahead log (WAL): readers
never wait for the writer, and a process that is killed loses what came since the last write.

Nothing that is wrong with the file harms a call or ends the thread.

- What can't be written now (a locked file, a full disk) waits in the queue and is tried again.
- Where the queue is full the newest turns are dropped and counted (`lost`).
- A turn that no table can hold is dropped and counted; the others are written.
- A damaged file is renamed, never deleted, and a new one is created; what waits is written there.
  A file that is damaged again within SET_ASIDE_EVERY_S is left until then: a disk that spoils every
  write must not be filled with copies. Each is logged once and counted (`num_set_aside`).
- Damaged is what SQLite calls so, and whatever else another try can't mend: tables that lack a
  column, a message of SQLite that is no text because it quotes a damaged schema.
- A file of a newer program is left as it is, and nothing is stored.

`problem` says what is wrong, `notice` which file was set aside; both stand in the readiness report.

Age is counted along what was stored, not by the clock alone (`retention.py`).
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from latency_budget.account.clock import Clock, SystemClock, unix_ns

from .background_writer import BackgroundWriter, BoundedQueue
from .call_records import CallRecord, insert_call
from .private_files import make_private_folder, open_private
from .retention import NS_PER_DAY, oldest_kept_ns
from .store_schema import MigrationError, NewerStoreError, StoredTurn, insert, migrate

WRITE_EVERY_S: Final = 0.5
"""Pause between two writes: the most that a killed process loses, besides a write under way."""

MAX_WAITING: Final = 10_000
"""Turns, at some 2 kB each."""

MAX_BATCH: Final = 1000
"""Turns of one transaction: some 0.2 s, so that another process waits no longer for the file."""

BUSY_MS: Final = 2000
"""Time that a write waits for another process before the file counts as locked."""

SET_ASIDE_EVERY_S: Final = 60
"""The shortest time between two damaged files that are renamed."""

NS_PER_S: Final = 10**9

NS_PER_HOUR: Final = 3600 * NS_PER_S

FORGET_EVERY: Final = 100
"""Writes between two deletions of turns and calls that are too old or too many."""

_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
"""Primary result codes of errors that may pass with the file as it is: another process, a full
disk, rights. `sqlite_errorcode` has the extended code, whose low byte this is."""

_UNSTORABLE: Final = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""SQLite's errors about a value that it can't hold: the same now and later. Errors of Python while
a row is made count alike."""

_log = logging.getLogger(__name__)


class TurnStore:
    """The writer of the turn store; owns the file and a thread. Public methods and figures may be
    used from any thread."""

    def __init__(
        self,
        path: Path,
        *,
        max_turns: int = 200_000,
        max_days: int = 90,
        wall_ns: Callable[[], int] = unix_ns,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is opened before `start`. `max_turns` limits calls as well. `wall_ns`: the time
        in ns since 1970; `clock`: how long the process has run. Raises ValueError for limits below
        1."""
        if max_turns < 1 or max_days < 1:
            raise ValueError(f"a store keeps at least one turn and day: {max_turns}, {max_days}")
        self.path: Final = path
        self.num_set_aside = 0
        """Damaged files that were renamed."""
        self._max_turns = max_turns
        self._max_age_ns = max_days * NS_PER_DAY
        self._wall_ns = wall_ns
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.now_ns()
        self._num_unstorable = 0
        self._set_aside_ns: int | None = None
        self._aside: Path | None = None
        self._queue = BoundedQueue[StoredTurn | CallRecord](MAX_WAITING)
        self._connection: sqlite3.Connection | None = None
        self._num_writes = 0
        self._writer = BackgroundWriter(
            "latency-store",
            self._pass,
            recovered=f"{path} is written again",
            on_end=self._disconnect,
        )

    @property
    def problem(self) -> str | None:
        """Reason why turns are not stored, as a sentence; None: they are."""
        return self._writer.problem

    @property
    def notice(self) -> str | None:
        """The damaged file that was set aside, as a sentence, until the operator takes it away."""
        aside = self._aside
        if aside is None or not aside.exists():
            return None
        return f"{self.path} was damaged and set aside as {aside.name}; turns are kept in a new one"

    @property
    def lost(self) -> int:
        """Turns that found the queue full, or that no table can hold."""
        return self._queue.dropped + self._num_unstorable

    @property
    def waiting(self) -> int:
        """Turns and calls that are not written yet."""
        return len(self._queue)

    @property
    def peak_waiting(self) -> int:
        """The most that ever waited at a time."""
        return int(self._queue.peak)

    def start(self) -> None:
        """Open the file and begin to write. Once."""
        self._writer.start()

    def add(self, stored: StoredTurn | CallRecord) -> None:
        """Queue a turn or a call. Returns at once; a full queue drops and counts it."""
        self._queue.put(stored)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Write what was added before. Returns False where that failed or takes longer. Blocks."""
        self._writer.flush(timeout_s)
        return not self.waiting

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left, and close the file. Blocks."""
        self._writer.close(timeout_s)

    def _pass(self, is_closing: bool) -> float | None:
        """Write what waits. After an error the turns stay, and `problem` has the reason."""
        try:
            connection = self._connected()
            while self._queue:
                self._write(connection, self._queue.oldest(MAX_BATCH))
            self._writer.report(None)
        except NewerStoreError as error:
            self._queue.clear()
            self._writer.report(
                f"{self.path}: {error}; it was left as it is, and turns are not kept"
            )
        except (OSError, MemoryError, MigrationError) as error:
            self._tell_of_retry(error)
        except Exception as error:  # whatever a damaged file makes SQLite or its reader do
            if is_passing(error):
                self._tell_of_retry(error)
            else:
                self._disconnect()
                if self._set_aside(error):
                    return 0.0  # with a new file, when closing too
        return None if is_closing else WRITE_EVERY_S

    def _tell_of_retry(self, error: Exception) -> None:
        self._disconnect()
        self._writer.report(f"{self.path} can't be written: {error}; it is tried again")

    def _write(
        self, connection: sqlite3.Connection, batch: Sequence[StoredTurn | CallRecord]
    ) -> None:
        """Write the batch in one transaction. Raises sqlite3.Error."""
        connection.execute("BEGIN IMMEDIATE")
        num_unstorable = 0
        try:
            for stored in batch:
                try:
                    _insert(connection, stored)
                except Exception as error:
                    if isinstance(error, sqlite3.Error) and not isinstance(error, _UNSTORABLE):
                        raise
                    num_unstorable += 1
                    _log.error("a turn or call can't be stored: %s", error)
            if self._num_writes % FORGET_EVERY == 0:
                self._forget(connection)
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        self._num_writes += 1
        self._num_unstorable += num_unstorable
        self._queue.drop_oldest(len(batch))

    def _forget(self, connection: sqlite3.Connection) -> None:
        """Delete what is too old or too much. The freed pages are used again: the file keeps its
        size."""
        for table, column in (("turns", "at_unix_ns"), ("calls", "ended_unix_ns")):
            newest = connection.execute(
                f"SELECT max({column}) FROM {table} GROUP BY {column} / ?", (NS_PER_HOUR,)
            )
            oldest_ns = oldest_kept_ns(
                (at_ns for (at_ns,) in newest),
                self._wall_ns(),
                self._max_age_ns,
                running_ns=self._clock.now_ns() - self._began_ns,
            )
            connection.execute(
                f"DELETE FROM {table}"
                f" WHERE {column} < ? OR id <= (SELECT max(id) FROM {table}) - ?",
                (oldest_ns, self._max_turns),
            )
        connection.execute("DELETE FROM sessions WHERE id NOT IN (SELECT session FROM turns)")

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and not self.path.exists():
            self._disconnect()  # it was deleted: what is written there now can't be found
        if self._connection is None:
            make_private_folder(self.path.parent)
            os.close(open_private(self.path))
            connection = sqlite3.connect(
                self.path, timeout=BUSY_MS / 1e3, isolation_level=None, check_same_thread=True
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA foreign_keys = ON")
                migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _set_aside(self, error: Exception) -> bool:
        """Rename the damaged file, so that a new one is created. Returns False where it stays."""
        now_ns, before_ns = self._wall_ns(), self._set_aside_ns
        if before_ns is not None and 0 <= now_ns - before_ns < SET_ASIDE_EVERY_S * NS_PER_S:
            self._writer.report(
                f"{self.path} is damaged again, though it was new: is the disk sound? It is tried "
                "again"
            )
            return False
        aside = self.path.with_name(f"{self.path.name}.damaged-{now_ns // NS_PER_S}")
        try:
            self.path.rename(aside)
            for suffix in ("-wal", "-shm"):
                beside = self.path.with_name(self.path.name + suffix)
                if beside.exists():
                    beside.rename(aside.with_name(aside.name + suffix))
        except OSError as refusal:
            self._writer.report(
                f"{self.path} is damaged, and can't be set aside: {refusal.strerror}"
            )
            return False
        self._set_aside_ns = now_ns
        self._aside = aside
        self.num_set_aside += 1
        _log.error(
            "%s is damaged (%s); it was set aside as %s", self.path, _shown(error), aside.name
        )
        return True


def is_passing(error: Exception) -> bool:
    """True for an error that may be gone at the next try, with the file as it is."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _PASSING


def _shown(error: Exception) -> str:
    """The error's text. A `UnicodeDecodeError` quotes bytes of the file, which may be a caller's
    words."""
    return "its schema can't be read" if isinstance(error, UnicodeError) else str(error)


def _insert(connection: sqlite3.Connection, stored: StoredTurn | CallRecord) -> None:
    if isinstance(stored, CallRecord):
        insert_call(connection, stored)
    else:
        insert(connection, stored)
