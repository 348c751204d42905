"""Call detail records in the store: parties, times, outcome and quality of finished calls."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from latency_budget.account.clock import iso_of

from .database import Place, StoreConnection
from .store_query import NO_LIMIT, by_column, connected
from .store_schema import storable_text


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
    replica: str = ""
    """Name of the server that had the call; empty in rows of versions that kept none."""


_COLUMNS: Final = tuple(each.name for each in fields(CallRecord))


def insert_call(connection: StoreConnection, record: CallRecord) -> None:
    """Add a call. The caller commits."""
    holes = ", ".join("?" * len(_COLUMNS))
    connection.execute(
        f"INSERT INTO calls ({', '.join(_COLUMNS)}) VALUES ({holes})",
        tuple(
            storable_text(value) if isinstance(value, str) else value
            for value in asdict(record).values()
        ),
    )


def read_calls(
    place: Place, *, max_calls: int, before_row: int | None = None, replica: str | None = None
) -> list[tuple[int, CallRecord]]:
    """The newest `max_calls` calls, oldest first, each with its row. `before_row`: only calls that
    were stored before it; `replica`: only calls of the server of this name. Blocks. Raises
    StoreError."""
    where = "id < ?"
    values: list[object] = [NO_LIMIT if before_row is None else before_row]
    if replica is not None:
        where += " AND replica = ?"
        values.append(replica)
    with connected(place) as connection:
        rows = by_column(
            connection.execute(
                f"SELECT * FROM calls WHERE {where} ORDER BY id DESC LIMIT ?", (*values, max_calls)
            )
        )
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
