"""Call detail records in the store: parties, times, outcome and quality of finished calls."""

import sqlite3
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from latency_budget.account.clock import iso_of

from .store_query import connected


@dataclass(frozen=True, slots=True)
class CallRecord:
    """Record of one finished telephone call."""

    session: str
    began_unix_ns: int
    ended_unix_ns: int
    agent: str
    carrier: str
    caller: str
    """The calling number, or the part of it that may be kept; empty where the carrier sends
    none."""
    called: str
    cause: str
    """Cause of the end, in one word."""
    reason: str
    """Cause of the end, as a sentence."""
    turns: int
    p50_ms: float | None
    """Median wait for an answer in ms; None without an answer."""
    p95_ms: float | None
    keys: int
    """Number of DTMF keys that were pressed. Never which: they may be secret."""
    recording: str | None
    """File name of the recording."""
    lost_frames: int = 0
    """Frames of the caller's audio that never arrived, or too late, where the carrier numbers them;
    or that were more than the elapsed time allows."""
    late_frames: int = 0
    """Frames that arrived after they were given up, or twice."""
    answered_by: str = ""
    """Answerer of an outbound call: "human", "machine", "menu"; empty where that is not known."""


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
    """The newest `max_calls` calls, oldest first, each with its row. `before_row`: only calls that
    were stored before it. Blocks. Raises StoreError."""
    newest = 2**63 - 1 if before_row is None else before_row
    with connected(path) as connection:
        rows = connection.execute(
            "SELECT * FROM calls WHERE id < ? ORDER BY id DESC LIMIT ?", (newest, max_calls)
        ).fetchall()
    return [(row["id"], CallRecord(*(row[name] for name in _COLUMNS))) for row in reversed(rows)]


def call_json(row: int, record: CallRecord) -> dict[str, Any]:
    """JSON of a call, for the HTTP endpoint."""
    shown = asdict(record)
    began_ns, ended_ns = shown.pop("began_unix_ns"), shown.pop("ended_unix_ns")
    times = {
        "began_at": iso_of(began_ns),
        "ended_at": iso_of(ended_ns),
        "seconds": round((ended_ns - began_ns) / 1e9, 1),
    }
    return {"row": row, **times, **shown}
