"""PostgreSQL database of a turn store, which the servers of a fleet share.

Theory of operation
-------------------
Every server writes with one connection of its own, on the thread of its store; queries of pages and
reports connect for themselves. Nothing else of a server waits for the database.

- The statements are those for SQLite. `translated` replaces the few words that differ.
- Servers that start at the same time take an advisory lock for the migrations: one applies them,
  the others find them applied. Another one keeps two servers from deleting old rows together.
- A server that is gone or hangs is noticed: a connection attempt ends after CONNECT_S, a statement
  after WRITE_S or READ_S, a wait for a lock after LOCK_S, and a network that swallows packets after
  some seconds more (TCP's own limits). Every one of them is an error that passes: what waits is
  tried again on a new connection.
- Limits are set within each transaction, and statements are not prepared, so that a pooler
  (PgBouncer) may stand between.
- A host's name is looked up here. libpq would do so while it holds Python's lock, and with it the
  event loop, for as long as a name server takes.
- A commit whose answer is lost is asked for by its number after the connection came back, so that
  no turn is stored twice.

The driver is psycopg 3 with its own libpq (`psycopg[binary]`), imported with this module only.
"""

import contextlib
import re
import socket
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from .database import StoreConnection, StoreDatabase, StoreError, StoreRows
from .postgres_url import PostgresUrl
from .store_schema import (
    MigrationError,
    NewerStoreError,
    newest_version,
    require_readable,
    statements_from,
)

MIN_SERVER_VERSION: Final = 130_000
"""PostgreSQL 13, of 2020: the oldest that Debian's releases in support have; nothing older was
tried."""

CONNECT_S: Final = 5
"""Time limit of one connection attempt to one address."""

WRITE_S: Final = 20
"""Time limit of one statement of the writer; deleting MAX_FORGOTTEN old rows takes some seconds."""

READ_S: Final = 30
"""Time limit of one query of a page or a report."""

LOCK_S: Final = 2
"""Time limit of a wait for another transaction, as SQLite's BUSY_MS."""

MIGRATE_S: Final = 600
"""Time limit of one step that brings the tables up to date: an index over millions of rows takes
minutes, and without it nothing can be stored."""

MIGRATION_LOCK: Final = 0x68616C66736563  # "halfsec"
"""Number of the advisory lock under which the tables are brought up to date."""

FORGETTING_LOCK: Final = MIGRATION_LOCK + 1
"""Number of the advisory lock under which old rows are deleted."""

COPY_LOCK: Final = MIGRATION_LOCK + 2
"""Number of the advisory lock under which rows of another store are added."""

_PARAMETERS: Final = {
    "application_name": "halfsec",
    "client_encoding": "UTF8",
    "connect_timeout": CONNECT_S,
    # Kerberos would look for tickets and names at every connection; an address may ask for it.
    "gssencmode": "disable",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Parameters of libpq that the address may override."""

_WORDS: Final = (
    ("?", "%s"),
    ("last_insert_rowid()", "lastval()"),
    ("id INTEGER PRIMARY KEY", "id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    (" INTEGER", " BIGINT"),
    (" REAL", " DOUBLE PRECISION"),
    (" WITHOUT ROWID", ""),
)
"""Words of SQLite, and what PostgreSQL calls them."""

_REASONS: Final = (
    ("password authentication failed", "28P01", "the user or the password is wrong"),
    ("no password supplied", "", "it asks for a password, and the address has none"),
    ('role ".*" does not exist', "", "there is no such user"),
    (r"no pg_hba\.conf entry", "", "it admits no such user from this host (pg_hba.conf)"),
    ('database ".*" does not exist', "3D000", "there is no database of this name"),
    ("permission denied", "42501", "the user may not make or use tables there"),
    ("Connection refused|No such file or directory", "", "nothing listens at its address"),
)
"""Pattern of the message, SQLSTATE, and the reason in our words. An error of a connection attempt
has no SQLSTATE."""


def _begin(statement_s: int, lock_s: int, mode: str = "") -> str:
    """Statement that begins a transaction with these time limits, in seconds."""
    return (
        f"BEGIN {mode}; SET LOCAL statement_timeout = '{statement_s}s';"
        f" SET LOCAL lock_timeout = '{lock_s}s'"
    )


class PostgresConnection:
    """Connection to PostgreSQL that takes the statements of a store."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    @property
    def is_closed(self) -> bool:
        """True once the connection was closed or lost."""
        return self._connection.closed

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> StoreRows:
        return self._connection.execute(translated(statement), values or None)

    def close(self) -> None:
        self._connection.close()


class PostgresDatabase(StoreDatabase):
    """A PostgreSQL database with the tables of a turn store. One thread."""

    begin = _begin(WRITE_S, LOCK_S)
    # Numbers of rows have gaps, where a transaction failed, and so don't tell how many there are.
    newest_forgotten = "SELECT id FROM {table} ORDER BY id DESC LIMIT 1 OFFSET ?"

    def __init__(self, url: PostgresUrl) -> None:
        """Opens nothing."""
        super().__init__(url)
        self._url = url

    def connect(self) -> StoreConnection:
        connection = self._connect()
        try:
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def connect_reader(self) -> StoreConnection:
        connection = self._connect()
        try:
            connection.execute(_begin(READ_S, LOCK_S, "ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            version = _version(connection)
            if version == 0:
                raise StoreError(
                    f"{self.place}: there is no store; a server that keeps turns there makes one"
                )
            require_readable(self.place, version)
        except BaseException:
            connection.close()
            raise
        return connection

    def is_current(self, connection: StoreConnection) -> bool:
        return isinstance(connection, PostgresConnection) and not connection.is_closed

    def is_passing(self, error: Exception) -> bool:
        return True  # there is nothing that could be set aside

    def is_unstorable(self, error: Exception) -> bool:
        if not isinstance(error, psycopg.Error):
            return not isinstance(error, OSError | MemoryError)  # of Python, while a row is made
        if isinstance(error, psycopg.errors.ForeignKeyViolation):
            return False  # another server has just deleted the session's last turns
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
            return True
        return isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None

    def is_from_driver(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error | OSError)

    def explain(self, error: Exception) -> str:
        if isinstance(error, socket.gaierror):
            return f"its host's name is not known ({error.strerror})"
        if not isinstance(error, psycopg.Error):
            return self._url.redacted(str(error))
        # Not the detail: it quotes the row, and with it a caller's words.
        text, state = error.diag.message_primary or str(error), error.sqlstate
        for pattern, code, reason in _REASONS:
            if state == code if state else re.search(pattern, text):
                return reason
        # psycopg lists all attempts, with their addresses, behind the last one's reason; libpq's
        # own words follow the address, the user and the attempts before this one.
        text = text.partition("\nMultiple connection attempts")[0]
        return self._url.redacted(text.strip().rpartition("failed: ")[2]) or type(error).__name__

    def may_forget(self, connection: StoreConnection) -> bool:
        (has_lock,) = connection.execute(
            f"SELECT pg_try_advisory_xact_lock({FORGETTING_LOCK})"
        ).fetchone()
        return bool(has_lock)

    def begin_copy(self, connection: StoreConnection) -> None:
        connection.execute(_begin(WRITE_S, WRITE_S))
        connection.execute(f"SELECT pg_advisory_xact_lock({COPY_LOCK})")

    def number_of(self, connection: StoreConnection) -> str | None:
        (number,) = connection.execute("SELECT CAST(pg_current_xact_id() AS text)").fetchone()
        return str(number)

    def was_committed(self, connection: StoreConnection, number: str) -> bool:
        try:
            (status,) = connection.execute(
                "SELECT pg_xact_status(CAST(? AS xid8))", (number,)
            ).fetchone()
        except psycopg.DataError:  # another server has taken over, and does not know it
            return False
        if status == "in progress":
            raise psycopg.OperationalError("the last transaction is not over yet")
        return bool(status == "committed")

    def describe(self) -> str:
        """Connect, and say what is there. Changes nothing. Raises StoreError with the reason why
        turns can't be kept there."""
        try:
            with contextlib.closing(self._connect()) as connection:
                (server,) = connection.execute("SHOW server_version").fetchone()
                version = _version(connection)
                (may_create,) = connection.execute(
                    "SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
                ).fetchone()
        except (psycopg.Error, OSError) as error:
            raise StoreError(f"{self.place}: {self.explain(error)}") from None
        if version > newest_version():
            raise StoreError(f"{self.place}: {NewerStoreError(version)}")
        if version < newest_version() and not may_create:
            raise StoreError(f"{self.place}: the user may not make tables there")
        state = "tables are there" if version == newest_version() else "the server makes its tables"
        return f"PostgreSQL {server}; {state}"

    def _connect(self) -> PostgresConnection:
        """Raises psycopg.Error, also for a server that is too old, and OSError for a name that is
        not known."""
        parameters = {**_PARAMETERS, **conninfo_to_dict(self._url.reveal())}
        connection = psycopg.connect(
            "", autocommit=True, prepare_threshold=None, **_resolved(parameters)
        )
        number = connection.info.server_version
        if number < MIN_SERVER_VERSION:
            connection.close()
            raise psycopg.NotSupportedError(
                f"PostgreSQL {number // 10_000} is too old: "
                f"{MIN_SERVER_VERSION // 10_000} or newer is needed"
            )
        return PostgresConnection(connection)

    def _migrate(self, connection: PostgresConnection) -> None:
        """Bring the tables up to date. Raises NewerStoreError, MigrationError, psycopg.Error."""
        if _version(connection) == newest_version():
            return
        connection.execute(_begin(MIGRATE_S, MIGRATE_S))
        try:
            connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            version = _version(connection)  # another server may have had the lock before
            if version > newest_version():
                raise NewerStoreError(version)
            if version == 0:
                connection.execute("CREATE TABLE store_version (version INTEGER NOT NULL)")
                connection.execute("INSERT INTO store_version VALUES (0)")
            try:
                for statement in statements_from(version):
                    connection.execute(statement)
            except psycopg.ProgrammingError as error:
                raise MigrationError(
                    f"its tables can't be brought up to date: {self.explain(error)}"
                ) from None
            connection.execute("UPDATE store_version SET version = ?", (newest_version(),))
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _version(connection: PostgresConnection) -> int:
    """Version of the tables; 0 where there are none."""
    # Not to_regclass: it may answer from before another server's transaction.
    (num_tables,) = connection.execute(
        "SELECT count(*) FROM pg_tables"
        " WHERE schemaname = current_schema() AND tablename = 'store_version'"
    ).fetchone()
    if num_tables == 0:
        return 0
    row = connection.execute("SELECT version FROM store_version").fetchone()
    return 0 if row is None else int(row[0])


@lru_cache(maxsize=256)
def translated(statement: str) -> str:
    """A statement for SQLite as PostgreSQL has it."""
    for word, other in _WORDS:
        statement = statement.replace(word, other)
    return statement


def _resolved(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters with the addresses of the hosts, one attempt for each. Raises OSError where no
    host's name is known. Blocks, without Python's lock."""
    if not parameters.get("host") or parameters.get("hostaddr"):
        return parameters
    hosts = str(parameters["host"]).split(",")
    ports = str(parameters.get("port", "")).split(",")
    attempts: list[tuple[str, str, str]] = []
    unknown: OSError | None = None
    for host, port in zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=True):
        try:
            attempts += [(host, address, port) for address in _addresses(host)]
        except OSError as error:
            unknown = error  # another host may do
    if not attempts and unknown is not None:
        raise unknown
    names, addresses, numbers = zip(*attempts, strict=True)
    return {
        **parameters,
        "host": ",".join(names),
        "hostaddr": ",".join(addresses),
        "port": ",".join(numbers),
    }


def _addresses(host: str) -> Iterator[str]:
    if not host or host.startswith(("/", "@")):  # a socket of this machine
        yield ""
        return
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "it can't be a host's name") from None
    yield from dict.fromkeys(str(address[0]) for *_, address in found)
