"""Schema of the turn store: tables, migrations, and conversion between turns and rows.

A store's version is the number of `MIGRATIONS` that were applied to it. The writer applies the
others in one transaction when it opens an older one; the tables of a newer program are left as they
are. Never change a migration that was released: add one. The statements are SQLite's;
`postgres_database.py` says how PostgreSQL has them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from latency_budget.account.actions import ActionTaken
from latency_budget.account.budget import EMBEDDED, Budget, BudgetError, budget_profile
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import SessionId, Span, Stage, TurnId
from latency_budget.account.turn_record import Origin, StageTime, TurnRecord

from .database import Place, StoreConnection, StoreError
from .history import TurnEntry

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """
        CREATE TABLE sessions (
            id TEXT PRIMARY KEY,
            agent TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            first_turn_unix_ns INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE turns (
            id INTEGER PRIMARY KEY,
            session TEXT NOT NULL REFERENCES sessions (id),
            turn INTEGER NOT NULL,
            at_unix_ns INTEGER NOT NULL,
            profile TEXT NOT NULL,
            total_ms INTEGER NOT NULL,
            widened_ms INTEGER NOT NULL,
            origin TEXT NOT NULL,
            e2e_server_ns INTEGER,
            e2e_ear_ns INTEGER,
            paced_ns INTEGER NOT NULL,
            answered INTEGER NOT NULL,
            cut_in INTEGER NOT NULL,
            interrupted INTEGER NOT NULL,
            reopened INTEGER NOT NULL,
            opener INTEGER NOT NULL,
            wasted_ns INTEGER NOT NULL,
            wasted_prompt_tokens INTEGER NOT NULL,
            wasted_output_tokens INTEGER NOT NULL,
            reply_s REAL,
            caller_text TEXT NOT NULL,
            agent_text TEXT NOT NULL,
            detail TEXT NOT NULL
        )
        """,
        "CREATE INDEX turns_at ON turns (at_unix_ns)",
        "CREATE INDEX turns_session ON turns (session, turn)",
        """
        CREATE TABLE stages (
            turn_id INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
            stage TEXT NOT NULL,
            spent_ns INTEGER NOT NULL,
            exposed_ns INTEGER NOT NULL,
            PRIMARY KEY (turn_id, stage)
        ) WITHOUT ROWID
        """,
    ),
    (
        """
        CREATE TABLE actions (
            turn_id INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
            action TEXT NOT NULL,
            predicted_ms REAL NOT NULL,
            saved_ms REAL,
            PRIMARY KEY (turn_id, action)
        ) WITHOUT ROWID
        """,
    ),
    (
        """
        CREATE TABLE calls (
            id INTEGER PRIMARY KEY,
            session TEXT NOT NULL,
            began_unix_ns INTEGER NOT NULL,
            ended_unix_ns INTEGER NOT NULL,
            agent TEXT NOT NULL,
            carrier TEXT NOT NULL,
            caller TEXT NOT NULL,
            called TEXT NOT NULL,
            cause TEXT NOT NULL,
            reason TEXT NOT NULL,
            turns INTEGER NOT NULL,
            p50_ms REAL,
            p95_ms REAL,
            keys INTEGER NOT NULL,
            recording TEXT
        )
        """,
        "CREATE INDEX calls_ended ON calls (ended_unix_ns)",
    ),
    (
        "ALTER TABLE calls ADD COLUMN lost_frames INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE calls ADD COLUMN late_frames INTEGER NOT NULL DEFAULT 0",
    ),
    ("ALTER TABLE calls ADD COLUMN answered_by TEXT NOT NULL DEFAULT ''",),
    ("ALTER TABLE turns ADD COLUMN withdrawn INTEGER NOT NULL DEFAULT 0",),
    (
        "ALTER TABLE turns ADD COLUMN replica TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE calls ADD COLUMN replica TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX turns_replica ON turns (replica, at_unix_ns)",
    ),
    (
        """
        CREATE TABLE call_documents (
            id INTEGER PRIMARY KEY,
            session TEXT NOT NULL,
            ended_unix_ns INTEGER NOT NULL,
            document TEXT NOT NULL,
            replica TEXT NOT NULL
        )
        """,
        "CREATE INDEX call_documents_session ON call_documents (session)",
        "CREATE INDEX call_documents_ended ON call_documents (ended_unix_ns)",
        """
        CREATE TABLE webhook_messages (
            id INTEGER PRIMARY KEY,
            endpoint TEXT NOT NULL,
            message_id TEXT NOT NULL,
            body TEXT NOT NULL,
            created_unix_ns INTEGER NOT NULL,
            due_unix_ns INTEGER NOT NULL,
            num_attempts INTEGER NOT NULL
        )
        """,
        "CREATE INDEX webhook_messages_due ON webhook_messages (endpoint, due_unix_ns)",
    ),
    (
        # They were the session's, those of its first turn, though a handoff changes the agent. Its
        # columns stay, empty: servers of the version before write them until they have drained,
        # and SQLite drops columns from 3.35 on only.
        "ALTER TABLE turns ADD COLUMN agent TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE turns ADD COLUMN fingerprint TEXT NOT NULL DEFAULT ''",
        """
        UPDATE turns SET (agent, fingerprint) =
            (SELECT agent, fingerprint FROM sessions WHERE sessions.id = turns.session)
            WHERE session IN (SELECT id FROM sessions)
        """,
    ),
)

_PLAIN: Final = (
    *("e2e_server_ns", "e2e_ear_ns", "paced_ns", "answered", "cut_in", "interrupted", "reopened"),
    *("withdrawn", "opener", "wasted_ns", "wasted_prompt_tokens", "wasted_output_tokens"),
)
"""Columns that are fields of a `TurnRecord`."""

_FLAGS: Final = frozenset({"answered", "cut_in", "interrupted", "reopened", "withdrawn", "opener"})


_MARKS: Final = {name.value: name for name in MarkName}
"""A later version may have others; its turns can be read all the same."""


class NewerStoreError(Exception):
    """The tables are those of a newer version of the program."""

    def __init__(self, version: int) -> None:
        super().__init__(f"it is of a newer version ({version}; this one knows {newest_version()})")


class MigrationError(Exception):
    """The migrations are wrong, and not the database: they fail on an empty one too."""


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn with its row's time and configuration."""

    entry: TurnEntry
    at_unix_ns: int
    """Time of the turn's end, in ns since 1970."""
    fingerprint: str = ""
    """Fingerprint of the settings that held for the turn."""
    row: int = 0
    """Grows with every turn that is stored; 0 before it is."""
    replica: str = ""
    """Name of the server that had the turn; empty in rows of versions that kept none."""


def newest_version() -> int:
    """Version of the tables that this program writes and reads."""
    return len(MIGRATIONS)


def require_readable(place: Place, version: int) -> None:
    """Raise StoreError unless this program reads tables of this version."""
    known = newest_version()
    if version == known:
        return
    remedy = (
        "update this program"
        if version > known
        else "a server of this version brings older ones up to date"
    )
    raise StoreError(
        f"{place}: its tables are of version {version}, and this program reads version {known};"
        f" {remedy}"
    )


def statements_from(version: int) -> list[str]:
    """Statements that bring tables of this version up to date; 0: none are there."""
    return [statement for statements in MIGRATIONS[version:] for statement in statements]


def insert(connection: StoreConnection, stored: StoredTurn) -> None:
    """Add a turn. The caller commits."""
    entry, record = stored.entry, stored.entry.record
    connection.execute(
        "INSERT INTO sessions VALUES (?, '', '', ?) ON CONFLICT DO NOTHING",
        (entry.session, stored.at_unix_ns),
    )
    values: dict[str, Any] = {
        "session": entry.session,
        "turn": record.turn,
        "at_unix_ns": stored.at_unix_ns,
        "profile": entry.budget.name,
        "total_ms": entry.budget.total_ms,
        "widened_ms": entry.budget.widened_ms,
        "origin": record.origin.value,
        **{name: _number(name, getattr(record, name)) for name in _PLAIN},
        "reply_s": entry.reply_s,
        "caller_text": storable_text(entry.caller_text),
        "agent_text": storable_text(entry.agent_text),
        "detail": _detail(entry),
        "replica": stored.replica,
        "agent": entry.agent,
        "fingerprint": stored.fingerprint,
    }
    columns, holes = ", ".join(values), ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO turns ({columns}) VALUES ({holes})", tuple(values.values()))
    _insert_parts(
        connection,
        "stages",
        [(stage.value, time.spent_ns, time.exposed_ns) for stage, time in record.stages.items()],
    )
    _insert_parts(
        connection,
        "actions",
        [(taken.action.value, taken.predicted_ms, taken.saved_ms) for taken in record.actions],
    )


def _insert_parts(
    connection: StoreConnection, table: str, rows: Sequence[tuple[str, float, float | None]]
) -> None:
    """Add rows that belong to the turn that was added last, in one statement: each is a round trip
    where the database is on another machine."""
    if rows:
        holes = ", ".join(["(last_insert_rowid(), ?, ?, ?)"] * len(rows))
        values = [value for row in rows for value in row]
        connection.execute(f"INSERT INTO {table} VALUES {holes}", values)


def _number(name: str, value: Any) -> Any:
    """A flag as the number that its column holds; another value as it is."""
    return int(value) if name in _FLAGS else value


def stored_turns(
    rows: Iterable[Mapping[str, Any]],
    stages: Mapping[int, Mapping[Stage, StageTime]],
    actions: Mapping[int, Sequence[ActionTaken]],
) -> list[StoredTurn]:
    """Turns of rows of `turns`, by column, with their stages and actions by row."""
    return [
        _stored_turn(row, stages.get(row["id"], {}), actions.get(row["id"], ())) for row in rows
    ]


def _stored_turn(
    row: Mapping[str, Any], stages: Mapping[Stage, StageTime], actions: Sequence[ActionTaken]
) -> StoredTurn:
    detail = json.loads(row["detail"])
    plain: dict[str, Any] = {
        name: bool(row[name]) if name in _FLAGS else row[name] for name in _PLAIN
    }
    record = TurnRecord(
        turn=TurnId(row["turn"]),
        origin=Origin(row["origin"]),
        stages={stage: stages.get(stage, StageTime()) for stage in Stage},
        incomplete=tuple(detail["incomplete"]),
        spans=_spans(detail["spans"]),
        path=_spans(detail["path"]),
        speech_ns=detail.get("speech_ns"),
        asked=detail.get("asked", False),
        actions=tuple(actions),
        marks=tuple(
            (_MARKS[name], at_ns)
            for name, at_ns in detail.get("marks", {}).items()
            if name in _MARKS
        ),
        **plain,
    )
    recording = detail.get("recording")
    entry = TurnEntry(
        SessionId(row["session"]),
        record,
        budget_of(row["profile"], row["total_ms"], row["widened_ms"]),
        caller_text=row["caller_text"],
        agent_text=row["agent_text"],
        reply_s=row["reply_s"],
        recording=None if recording is None else (recording[0], recording[1]),
        agent=row["agent"],
    )
    return StoredTurn(entry, row["at_unix_ns"], row["fingerprint"], row["id"], row["replica"])


def budget_of(profile: str, total_ms: int, widened_ms: int) -> Budget:
    """The budget that a turn was held to. A profile that this version does not know keeps its name
    and is divided as the embedded one."""
    try:
        known = budget_profile(profile)
    except BudgetError:
        known = EMBEDDED
    budget = known.with_total(total_ms - widened_ms).widened(widened_ms)
    return budget if known.name == profile else replace(budget, name=profile)


def storable_text(text: str) -> str:
    """Text without what JSON of a client may hold and databases refuse: half a surrogate pair, and
    in PostgreSQL the character NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def _detail(entry: TurnEntry) -> str:
    record = entry.record
    detail = {
        "incomplete": record.incomplete,
        "speech_ns": record.speech_ns,
        "asked": record.asked,
        "spans": [(span.stage.value, span.start_ns, span.end_ns) for span in record.spans],
        "path": [(span.stage.value, span.start_ns, span.end_ns) for span in record.path],
        "marks": dict(record.marks),
        "recording": entry.recording,
    }
    return json.dumps(detail, separators=(",", ":"))


def _spans(found: Iterable[tuple[str, int, int]]) -> tuple[Span, ...]:
    return tuple(Span(Stage(stage), start_ns, end_ns) for stage, start_ns, end_ns in found)
