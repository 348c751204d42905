"""Telephone calls that are over, as the store keeps them: who, when, how long, how it ended."""

import sqlite3
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from latency_budget.account.clock import iso_of

from .store_query import connected


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call."""

    session: str
    began_unix_ns: int
    ended_unix_ns: int
    agent: str
    carrier: str
    caller: str
    """A number, or what may be kept of it; empty where the carrier did not tell."""
    called: str
    cause: str
    """Of its end, in one word."""
    reason: str
    """The same in a sentence."""
    turns: int
    p50_ms: float | None
    """Of the waits for an answer; None where nothing was answered."""
    p95_ms: float | None
    keys: int
    """How many were pressed. Never which: they may be secret."""
    recording: str | None
    """The name of its file."""
    lost_frames: int = 0
    """Of the caller's sound: that never came, or too late to be waited for, where the carrier
    numbers them; or that were more than time has passed."""
    late_frames: int = 0
    """That came after that, or twice."""
    answered_by: str = ""
    """Of a call that we placed: "human", "machine", "menu"; empty where that is not known."""


_COLUMNS: Final = tuple(each.name for each in fields(CallRecord))


def insert_call(connection: sqlite3.Connection, record: CallRecord) -> None:
    """Add a call. The caller commits."""
    holes = ", ".join("?" * len(_COLUMNS))
    connection.execute(
        f"INSERT INTO calls ({', '.join(_COLUMNS)}) VALUES ({holes})",
        tuple(asdict(record).values()),
    )


def read_calls(
    path: Path, *, max_calls: int, before_row: int | None = None
) -> list[tuple[int, CallRecord]]:
    """The newest so many, oldest first, each with its row. `before_row`: only what was stored
    before that call. Blocks. Raises StoreError."""
    newest = 2**63 - 1 if before_row is None else before_row
    with connected(path) as connection:
        rows = connection.execute(
            "SELECT * FROM calls WHERE id < ? ORDER BY id DESC LIMIT ?", (newest, max_calls)
        ).fetchall()
    return [(row["id"], CallRecord(*(row[name] for name in _COLUMNS))) for row in reversed(rows)]


def call_json(row: int, record: CallRecord) -> dict[str, Any]:
    """As it is told over HTTP."""
    told = asdict(record)
    began_ns, ended_ns = told.pop("began_unix_ns"), told.pop("ended_unix_ns")
    times = {
        "began_at": iso_of(began_ns),
        "ended_at": iso_of(ended_ns),
        "seconds": round((ended_ns - began_ns) / 1e9, 1),
    }
    return {"row": row, **times, **told}
