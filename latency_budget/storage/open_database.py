"""The database of a place: which of the two a store is in."""

from pathlib import Path

from .database import Place, StoreDatabase, StoreError
from .postgres_url import INSTALL_POSTGRES, PostgresUrl, is_postgres
from .sqlite_database import SqliteDatabase


def database_at(place: Place) -> StoreDatabase:
    """The database at a path or address. Opens nothing. Raises ModuleNotFoundError for PostgreSQL
    without its driver."""
    if isinstance(place, PostgresUrl):
        # Here, because importing the driver takes 0.1 s and 22 MB.
        from .postgres_database import PostgresDatabase

        return PostgresDatabase(place)
    return SqliteDatabase(place)


def installed_database_at(place: Place) -> StoreDatabase:
    """The database of a command or query. Raises StoreError with what to install."""
    try:
        return database_at(place)
    except ModuleNotFoundError as error:
        raise StoreError(f"{place}: this needs {error.name}: {INSTALL_POSTGRES}") from None


def place_of(text: str) -> Place:
    """The place that an operator wrote. Raises ValueError for an invalid address, without
    repeating it."""
    return postgres_url_of(text) if is_postgres(text) else Path(text)


def postgres_url_of(text: str) -> PostgresUrl:
    """The PostgreSQL database that an operator wrote. Raises ValueError for all else, without
    repeating it."""
    try:
        return PostgresUrl(text)
    except ValueError as error:
        raise ValueError(f"the address of a PostgreSQL database {error}") from None
