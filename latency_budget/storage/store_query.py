"""Reader of the turn store, for other processes and for threads beside the writer."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.turn import Stage
from latency_budget.account.turn_record import StageTime

from .database import Place, StoreConnection, StoreError, StoreRows
from .open_database import installed_database_at
from .store_schema import StoredTurn, stored_turns

NO_LIMIT: Final = 2**63 - 1


class WindowError(ValueError):
    """The asked windows are none, or too many."""


@dataclass(frozen=True, slots=True)
class TurnFilter:
    """Selection of turns; a field that is None does not restrict it."""

    session: str | None = None
    profile: str | None = None
    agent: str | None = None
    """Only turns of the agent of this name."""
    replica: str | None = None
    """Only turns of the server of this name."""
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
            ("agent = ?", self.agent),
            ("turns.replica = ?", self.replica),
            ("at_unix_ns >= ?", self.since_unix_ns),
            ("at_unix_ns < ?", self.until_unix_ns),
            ("turns.id < ?", self.before_row),
        ]
        used = [(condition, value) for condition, value in wanted if value is not None]
        text = " AND ".join(condition for condition, _ in used) or "1 = 1"
        return text, [value for _, value in used]


def read_turns(place: Place, wanted: TurnFilter | None = None) -> list[StoredTurn]:
    """The turns of a store, oldest first. Blocks: some 20 us a turn. Raises StoreError."""
    wanted = wanted or TurnFilter()
    where, values = wanted.where()
    limit = NO_LIMIT if wanted.max_turns is None else wanted.max_turns
    chosen = f"SELECT turns.id FROM turns WHERE {where} ORDER BY turns.id DESC LIMIT ?"
    with connected(place) as connection:
        rows = by_column(
            connection.execute(
                f"SELECT * FROM turns WHERE id IN ({chosen}) ORDER BY id",
                (*values, limit),
            )
        )
        stages: dict[int, dict[Stage, StageTime]] = {}
        for turn_id, stage, spent_ns, exposed_ns in connection.execute(
            f"SELECT turn_id, stage, spent_ns, exposed_ns FROM stages WHERE turn_id IN ({chosen})",
            (*values, limit),
        ):
            stages.setdefault(turn_id, {})[Stage(stage)] = StageTime(spent_ns, exposed_ns)
        actions: dict[int, list[ActionTaken]] = {}
        for turn_id, action, predicted_ms, saved_ms in connection.execute(
            "SELECT turn_id, action, predicted_ms, saved_ms FROM actions"
            f" WHERE turn_id IN ({chosen})",
            (*values, limit),
        ):
            taken = ActionTaken(Action(action), predicted_ms, saved_ms)
            actions.setdefault(turn_id, []).append(taken)
        return stored_turns(rows, stages, actions)


def by_column(rows: StoreRows) -> list[dict[str, Any]]:
    """The rows with the names of their columns."""
    names = [column[0] for column in rows.description or ()]
    return [dict(zip(names, row, strict=True)) for row in rows]


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
def connected(place: Place) -> Iterator[StoreConnection]:
    """A read-only connection with one snapshot of the store. Raises StoreError."""
    database = installed_database_at(place)
    try:
        with contextlib.closing(database.connect_reader()) as connection:
            yield connection
    except (StoreError, WindowError):
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        # a damaged page: a text that is none, JSON cut off, a stage that does not exist
        raise StoreError(f"{place}: not readable as a store of turns (it is damaged)") from error
    except Exception as error:
        if not database.is_from_driver(error):
            raise
        reason = database.explain(error)
        raise StoreError(f"{place}: not readable as a store of turns ({reason})") from error
