"""Interface of the two databases that a turn store can be in: a SQLite file, or PostgreSQL.

Tables, migrations and queries are the same text for both, in the dialect of SQLite as far as
PostgreSQL shares it; `postgres_database.py` translates the few words that differ. What a database
decides for itself is here: how it is opened, what its errors mean, and how rows are limited.

Why not SQLAlchemy Core: importing it (2.1.9) takes 0.47 s of processor time and 33 MB, which every
server would pay, with PostgreSQL or without; psycopg takes 0.11 s and 22 MB, and only where it is
used (two cores, 2026-11-26). Tables and queries would have to be rewritten as its objects, and what
differs here are ten words.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from .postgres_url import PostgresUrl

Place = Path | PostgresUrl
"""Where a store is. As text it holds no credentials."""


class StoreError(Exception):
    """The store can't be read. The message has the reason and the remedy, and no credentials."""


class StoreRows(Protocol):
    """Rows of one statement, as tuples."""

    @property
    def description(self) -> Sequence[Sequence[Any]] | None:
        """The columns, each with its name first; None for a statement without rows."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class StoreConnection(Protocol):
    """Connection to a store, in autocommit mode. Values stand as `?` in the statement."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> StoreRows: ...

    def close(self) -> None: ...


class StoreDatabase(ABC):
    """A database with the tables of a turn store. One thread."""

    begin: ClassVar[str]
    """Statement that begins a transaction of the writer."""

    newest_forgotten: ClassVar[str]
    """Row number of the newest row of `{table}` that is one too many, beyond the newest `?`."""

    num_set_aside = 0
    """Damaged files that were renamed."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def connect(self) -> StoreConnection:
        """Connect the writer, and bring the tables up to date. Raises NewerStoreError,
        MigrationError, OSError, and errors of the driver."""

    @abstractmethod
    def connect_reader(self) -> StoreConnection:
        """Connect a reader, with one snapshot of the tables. Raises StoreError, OSError, and errors
        of the driver."""

    @abstractmethod
    def is_current(self, connection: StoreConnection) -> bool:
        """False where what is written by this connection would be lost."""

    @abstractmethod
    def is_passing(self, error: Exception) -> bool:
        """True for an error that may be gone at the next try, with the database as it is."""

    @abstractmethod
    def is_unstorable(self, error: Exception) -> bool:
        """True for an error of an insertion that is the row's: the same now and later."""

    @abstractmethod
    def is_from_driver(self, error: Exception) -> bool:
        """True for an error of the database, its driver or the connection."""

    @abstractmethod
    def explain(self, error: Exception) -> str:
        """The error on one line, without credentials and without a caller's words."""

    def may_forget(self, connection: StoreConnection) -> bool:
        """True where no other writer deletes old rows at the moment. Within a transaction."""
        return True

    def begin_copy(self, connection: StoreConnection) -> None:
        """Begin a transaction in which no other process adds rows of another store; servers that
        share the database may add theirs. Raises errors of the driver."""
        connection.execute(self.begin)

    def number_of(self, connection: StoreConnection) -> str | None:
        """Number of the current transaction, by which another connection can ask for its end; None
        where a commit can't be lost on its way."""
        return None

    def was_committed(self, connection: StoreConnection, number: str) -> bool:
        """True if the transaction of that number was committed. Raises an error of the driver while
        it is not over."""
        return False

    def set_aside(self, error: Exception, now_ns: int) -> str | None:
        """Rename what is damaged, so that the next connection makes it anew. Returns None, or the
        reason why not, as a sentence."""
        return f"{self.place} is damaged: {self.explain(error)}"

    @property
    def notice(self) -> str | None:
        """What was set aside, as a sentence, until the operator takes it away."""
        return None
