"""Turns, and telephone calls, that outlive the process: a SQLite file, written off the event loop.

Theory of operation
-------------------
`add` puts a turn into a bounded queue and returns. A thread of the store's own wakes every
WRITE_EVERY_S and writes what has come, all in one transaction, so that thousands of turns a minute
cost one write a moment, and none of them the audio. The file is journalled ahead (WAL): readers
never wait for the writer, and a process that is killed loses what came since the last write.

Nothing that is wrong with the file harms a call. What can't be written now (a locked file, a full
disk) waits in the queue and is tried again; where the queue is full the newest turns are dropped
and counted. A file that is damaged is set aside under another name, never deleted, and a new one is
begun. A file of a newer program is left as it is, and nothing is stored. `problem` says what is
wrong, for whoever reports how the service is.
"""

import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from latency_budget.account.clock import unix_ns

from .call_records import CallRecord, insert_call
from .store_schema import NewerStoreError, StoredTurn, insert, migrate

WRITE_EVERY_S: Final = 0.5
"""What a killed process loses at most, but for a write under way."""

MAX_WAITING: Final = 10_000
"""Turns, at some 2 kB each."""

BUSY_MS: Final = 2000
"""How long a write waits for another process before it counts as locked."""

NS_PER_DAY: Final = 86_400 * 10**9

FORGET_EVERY: Final = 100
"""Writes between two looks for what is too old."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_UNSTORABLE: Final = (
    *(OverflowError, ValueError, TypeError),
    *(sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
)
"""What binding a value, or the table, says to one that it can't hold: now or later."""

_log = logging.getLogger(__name__)


class TurnStore:
    """Owns the file and a thread. `add` and `problem` belong to any thread."""

    def __init__(
        self,
        path: Path,
        *,
        max_turns: int = 200_000,
        max_days: int = 90,
        wall_ns: Callable[[], int] = unix_ns,
    ) -> None:
        """Nothing is opened before `start`. ValueError for limits below 1."""
        if max_turns < 1 or max_days < 1:
            raise ValueError(f"a store keeps at least one turn and day: {max_turns}, {max_days}")
        self.path: Final = path
        self.lost = 0
        """Turns that found the queue full, or that no table can hold."""
        self._max_turns = max_turns
        self._max_age_ns = max_days * NS_PER_DAY
        self._wall_ns = wall_ns
        self._waiting: deque[StoredTurn | CallRecord] = deque()
        self._problem: str | None = None
        self._connection: sqlite3.Connection | None = None
        self._num_writes = 0
        self._asked = threading.Event()
        self._done = threading.Condition()
        self._num_passes = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="latency-store", daemon=True)

    @property
    def problem(self) -> str | None:
        """What keeps turns from being stored, in words; None where nothing does."""
        return self._problem

    @property
    def waiting(self) -> int:
        """Turns that are not written yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to write. Once."""
        self._thread.start()

    def add(self, stored: StoredTurn | CallRecord) -> None:
        """Keep it. Returns at once; where the queue is full it is lost and counted."""
        if len(self._waiting) >= MAX_WAITING:
            self.lost += 1
        else:
            self._waiting.append(stored)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Write now what was added before. False where it could not be within the time. Blocks."""
        with self._done:
            wanted = self._num_passes + 2  # a pass that is under way may have missed the newest
            self._asked.set()
            self._done.wait_for(
                lambda: self._again(wanted) or not self._thread.is_alive(), timeout_s
            )
        return not self._waiting

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left, and let go of the file. Blocks."""
        self._is_closing = True
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _again(self, wanted: int) -> bool:
        """Whether enough passes are over; asks for another where they are not."""
        if self._num_passes < wanted:
            self._asked.set()
        return self._num_passes >= wanted

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._asked.wait(WRITE_EVERY_S)
            self._asked.clear()
            is_last = self._is_closing
            self._pass()
            with self._done:
                self._num_passes += 1
                self._done.notify_all()
        self._let_go()

    def _pass(self) -> None:
        """Write what waits. Whatever goes wrong is said in `problem`, and the turns stay."""
        try:
            connection = self._opened()
            while self._waiting:
                self._write(connection, min(len(self._waiting), 1000))
            self._say(None)
        except NewerStoreError as error:
            self._waiting.clear()
            self._say(f"{self.path}: {error}; it was left as it is, and turns are not kept")
        except (sqlite3.Error, OSError) as error:
            self._let_go()
            if getattr(error, "sqlite_errorcode", None) in _DAMAGED:
                self._say(_set_aside(self.path, self._wall_ns() // 10**9))
                if self._problem is None:
                    self._asked.set()
            else:
                self._say(f"{self.path} can't be written: {error}; it is tried again")

    def _write(self, connection: sqlite3.Connection, number: int) -> None:
        """The oldest so many that wait, in one transaction. One that no table can hold is lost, and
        does not stop the others."""
        connection.execute("BEGIN IMMEDIATE")
        num_lost = 0
        try:
            for place in range(number):
                try:
                    _insert(connection, self._waiting[place])
                except _UNSTORABLE as error:
                    num_lost += 1
                    _log.error("a turn or call can't be stored: %s", error)
            if self._num_writes % FORGET_EVERY == 0:
                self._forget(connection)
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        self._num_writes += 1
        self.lost += num_lost
        for _ in range(number):
            self._waiting.popleft()

    def _forget(self, connection: sqlite3.Connection) -> None:
        """What is too old or too much. Its pages are used again: the file does not grow."""
        connection.execute(
            "DELETE FROM turns WHERE at_unix_ns < ? OR id <= (SELECT max(id) FROM turns) - ?",
            (self._wall_ns() - self._max_age_ns, self._max_turns),
        )
        connection.execute(
            "DELETE FROM calls WHERE ended_unix_ns < ? OR id <= (SELECT max(id) FROM calls) - ?",
            (self._wall_ns() - self._max_age_ns, self._max_turns),
        )
        connection.execute("DELETE FROM sessions WHERE id NOT IN (SELECT session FROM turns)")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and not self.path.exists():
            self._let_go()  # somebody deleted it: what is written there now, nobody would find
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch(mode=0o600, exist_ok=True)
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

    def _let_go(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _say(self, problem: str | None) -> None:
        """Once for each change."""
        if problem is not None and problem != self._problem:
            _log.error("%s", problem)
        elif problem is None and self._problem is not None:
            _log.warning("%s is written again", self.path)
        self._problem = problem


def _insert(connection: sqlite3.Connection, stored: StoredTurn | CallRecord) -> None:
    if isinstance(stored, CallRecord):
        insert_call(connection, stored)
    else:
        insert(connection, stored)


def _set_aside(path: Path, now_s: int) -> str | None:
    """Keep a damaged file under another name, so that a new one can be begun. What is wrong where
    that is impossible."""
    aside = path.with_name(f"{path.name}.damaged-{now_s}")
    try:
        path.rename(aside)
        for suffix in ("-wal", "-shm"):
            beside = path.with_name(path.name + suffix)
            if beside.exists():
                beside.rename(aside.with_name(aside.name + suffix))
    except OSError as error:
        return f"{path} is damaged, and can't be set aside: {error.strerror}"
    _log.error("%s is damaged; it was set aside as %s", path, aside.name)
    return None
