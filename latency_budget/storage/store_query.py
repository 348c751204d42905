"""Reader of the turn store, for other processes and for threads beside the writer."""

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.turn import Stage
from latency_budget.account.turn_record import StageTime

from .store_schema import MIGRATIONS, StoredTurn, stored_turns

BUSY_MS: Final = 2000


class StoreError(Exception):
    """The store can't be read. The message has the reason and the remedy."""


class WindowError(ValueError):
    """The asked windows are none, or too many."""


@dataclass(frozen=True, slots=True)
class TurnFilter:
    """Selection of turns; a field that is None does not restrict it."""

    session: str | None = None
    profile: str | None = None
    since_unix_ns: int | None = None
    until_unix_ns: int | None = None
    """End of the period, exclusive."""
    before_row: int | None = None
    """Only turns that were stored before this row: for the next page."""
    max_turns: int | None = None
    """Only the newest turns, up to this number."""

    def where(self) -> tuple[str, list[Any]]:
        """The selection as an SQL condition and its values."""
        wanted = [
            ("turns.session = ?", self.session),
            ("profile = ?", self.profile),
            ("at_unix_ns >= ?", self.since_unix_ns),
            ("at_unix_ns < ?", self.until_unix_ns),
            ("turns.id < ?", self.before_row),
        ]
        used = [(condition, value) for condition, value in wanted if value is not None]
        text = " AND ".join(condition for condition, _ in used) or "1"
        return text, [value for _, value in used]


def read_turns(path: Path, wanted: TurnFilter | None = None) -> list[StoredTurn]:
    """The turns of a store, oldest first. Blocks: some 20 us a turn. Raises StoreError."""
    wanted = wanted or TurnFilter()
    where, values = wanted.where()
    limit = -1 if wanted.max_turns is None else wanted.max_turns
    chosen = f"SELECT turns.id FROM turns WHERE {where} ORDER BY turns.id DESC LIMIT ?"
    with connected(path) as connection:
        rows = connection.execute(
            "SELECT turns.*, agent, fingerprint FROM turns"
            f" JOIN sessions ON sessions.id = turns.session WHERE turns.id IN ({chosen})"
            " ORDER BY turns.id",
            (*values, limit),
        ).fetchall()
        stages: dict[int, dict[Stage, StageTime]] = {}
        for row in connection.execute(
            f"SELECT * FROM stages WHERE turn_id IN ({chosen})", (*values, limit)
        ):
            time = StageTime(row["spent_ns"], row["exposed_ns"])
            stages.setdefault(row["turn_id"], {})[Stage(row["stage"])] = time
        actions: dict[int, list[ActionTaken]] = {}
        for row in connection.execute(
            f"SELECT * FROM actions WHERE turn_id IN ({chosen})", (*values, limit)
        ):
            taken = ActionTaken(Action(row["action"]), row["predicted_ms"], row["saved_ms"])
            actions.setdefault(row["turn_id"], []).append(taken)
        return stored_turns(rows, stages, actions)


def unix_ns_of(text: str) -> int:
    """Parse seconds since 1970, or a date with or without a time, in UTC unless it names a zone.

    Raises ValueError.
    """
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is no time; one is seconds since 1970, or like 2026-11-21T09:30:00Z"
            ) from None
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not abs(seconds) < 2**33:  # nor is it NaN
        raise ValueError(f"{text!r} lies outside of all times that are kept")
    return round(seconds * 1e9)


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection with one snapshot of the file. Raises StoreError."""
    if not path.is_file():
        raise StoreError(f"{path}: there is no store; a server that keeps turns makes one")
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_MS / 1e3
        )
        with contextlib.closing(connection):
            connection.row_factory = sqlite3.Row
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != len(MIGRATIONS):
                raise StoreError(
                    f"{path}: its tables are of version {version}, and this program reads version "
                    f"{len(MIGRATIONS)}; a server of this version brings older ones up to date"
                )
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise StoreError(f"{path}: not readable as a store of turns ({error})") from error
    except WindowError:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        # a damaged page: a text that is none, JSON cut off, a stage that does not exist
        raise StoreError(f"{path}: not readable as a store of turns (it is damaged)") from error
