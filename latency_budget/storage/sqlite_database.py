"""SQLite file of a turn store: private, with a write-ahead log, set aside where it is damaged.

The journal is a write-ahead log (WAL): readers never wait for the writer, and a process that is
killed loses what came since the last write. A damaged file is renamed, never deleted. Damaged is
what SQLite calls so, and whatever else another try can't mend: tables that lack a column, a message
of SQLite that is no text because it quotes a damaged schema.
"""

import contextlib
import logging
import sqlite3
from pathlib import Path
from typing import Final

from latency_budget.account.clock import NS_PER_S

from .database import StoreConnection, StoreDatabase, StoreError
from .private_files import keep_private, make_private_folder
from .store_schema import (
    MigrationError,
    NewerStoreError,
    newest_version,
    require_readable,
    statements_from,
)

BUSY_MS: Final = 2000
"""Time that a write or a read waits for another process before the file counts as locked."""

SET_ASIDE_EVERY_S: Final = 60
"""The shortest time between two damaged files that are renamed."""

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


class SqliteDatabase(StoreDatabase):
    """A SQLite file with the tables of a turn store. One thread, but for `notice`."""

    begin = "BEGIN IMMEDIATE"
    newest_forgotten = "SELECT max(id) - ? FROM {table}"

    def __init__(self, path: Path) -> None:
        """Opens nothing."""
        super().__init__(path)
        self._path = path
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that the last connection opened."""
        self._set_aside_ns: int | None = None
        self._aside: Path | None = None

    def connect(self) -> StoreConnection:
        make_private_folder(self._path.parent)
        keep_private(self._path)
        self._file = _file_at(self._path)
        connection = sqlite3.connect(
            self._path, timeout=BUSY_MS / 1e3, isolation_level=None, check_same_thread=True
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def connect_reader(self) -> StoreConnection:
        path = self._path
        if not path.is_file():
            raise StoreError(f"{path}: there is no store; a server that keeps turns makes one")
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_MS / 1e3
        )
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            require_readable(path, version)
            connection.execute("BEGIN")
        except BaseException:
            connection.close()
            raise
        return connection

    def is_current(self, connection: StoreConnection) -> bool:
        # It was deleted or replaced: what is written there can't be found.
        return self._file == _file_at(self._path) is not None

    def is_passing(self, error: Exception) -> bool:
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and code & 0xFF in _PASSING

    def is_unstorable(self, error: Exception) -> bool:
        return not isinstance(error, sqlite3.Error) or isinstance(error, _UNSTORABLE)

    def is_from_driver(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.Error | OSError)

    def explain(self, error: Exception) -> str:
        # A UnicodeDecodeError quotes bytes of the file, which may be a caller's words.
        return "its schema can't be read" if isinstance(error, UnicodeError) else str(error)

    def set_aside(self, error: Exception, now_ns: int) -> str | None:
        path, before_ns = self._path, self._set_aside_ns
        if self._file is not None and self._file != _file_at(path):
            return None  # another process has set the damaged one aside: use the new one
        if before_ns is not None and 0 <= now_ns - before_ns < SET_ASIDE_EVERY_S * NS_PER_S:
            return (
                f"{path} is damaged again, though it was new: is the disk sound? It is tried again"
            )
        aside = path.with_name(f"{path.name}.damaged-{now_ns // NS_PER_S}")
        while aside.exists():
            aside = aside.with_name(f"{aside.name}-again")
        try:
            path.rename(aside)
            for suffix in ("-wal", "-shm"):
                beside = path.with_name(path.name + suffix)
                if beside.exists():
                    beside.rename(aside.with_name(aside.name + suffix))
        except OSError as refusal:
            return f"{path} is damaged, and can't be set aside: {refusal.strerror}"
        self._set_aside_ns = now_ns
        self._aside = aside
        self.num_set_aside += 1
        _log.error(
            "%s is damaged (%s); it was set aside as %s", path, self.explain(error), aside.name
        )
        return None

    @property
    def notice(self) -> str | None:
        aside = self._aside
        if aside is None or not aside.exists():
            return None
        return (
            f"{self.place} was damaged and set aside as {aside.name}; turns are kept in a new one"
        )


def _file_at(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to date. The `user_version` of a file is the number of migrations that
    were applied to it.

    Raises NewerStoreError, MigrationError, and sqlite3.Error: of the latter, `SQLITE_ERROR` says
    that the tables are not those of the file's version.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > newest_version():
        raise NewerStoreError(version)
    if version == newest_version():
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been quicker.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > newest_version():
            raise NewerStoreError(version)
        _apply(connection, version)
    except BaseException as error:
        with contextlib.suppress(sqlite3.Error):  # a disk that fails has had it rolled back
            connection.execute("ROLLBACK")
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            _check_migrations()
        raise
    connection.execute("COMMIT")


def _apply(connection: sqlite3.Connection, version: int) -> None:
    for statement in statements_from(version):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {newest_version()}")


def _check_migrations() -> None:
    """Raise MigrationError where they fail on an empty file."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
        try:
            _apply(empty, 0)
        except sqlite3.Error as error:
            raise MigrationError(f"its tables can't be brought up to date: {error}") from None
