"""Turns in SQLite and PostgreSQL: what goes in comes out, and nothing that is wrong is felt.

Tests with a `place` are those of both; what only a file can suffer stands here too, and what only a
server can in `test_postgres.py`.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from latency_budget.__main__ import main as report
from latency_budget.account.budget import EMBEDDED, budget_profile
from latency_budget.account.clock import ManualClock
from latency_budget.account.ledger import records_of
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, TurnId
from latency_budget.account.turn_record import TurnRecord
from latency_budget.storage import call_documents, sqlite_database, store_schema
from latency_budget.storage.call_documents import MAX_QUEUED_DAYS, EndedCall, WebhookMessage
from latency_budget.storage.database import Place, StoreConnection, StoreError
from latency_budget.storage.history import TurnEntry
from latency_budget.storage.open_database import database_at
from latency_budget.storage.postgres_url import PostgresUrl
from latency_budget.storage.retention import NS_PER_DAY
from latency_budget.storage.sqlite_database import SET_ASIDE_EVERY_S
from latency_budget.storage.store import MAX_WAITING, TurnStore
from latency_budget.storage.store_query import TurnFilter, read_turns
from latency_budget.storage.store_schema import MIGRATIONS, StoredTurn, budget_of
from latency_budget.storage.store_summary import summarize_store

NOW_NS = 1_800_000_000_000_000_000


def record(turn: int = 1) -> TurnRecord:
    """Of a spoken turn with everything in it."""
    steps = [
        (MarkName.CALLER_LAST_VOICED, 0),
        (MarkName.AUDIO_RECEIVED, 8),
        (MarkName.SPEECH_PAUSED, 90),
        (MarkName.ASR_START, 91),
        (MarkName.ASR_FINAL, 170),
        (MarkName.REPLY_REQUESTED, 171),
        (MarkName.DISCARDED, 180),
        (MarkName.REPLY_REQUESTED, 190),
        (MarkName.LLM_FIRST_TOKEN, 220),
        (MarkName.FIRST_PIECE, 290),
        (MarkName.TTS_START, 291),
        (MarkName.FIRST_AUDIBLE_READY, 330),
        (MarkName.ENDPOINT, 420),
        (MarkName.PACE_START, 421),
        (MarkName.PACE_END, 430),
        (MarkName.RELEASED, 431),
        (MarkName.HEARD, 450),
    ]
    marks = [Mark(TurnId(turn), name, 10_000_000 + at * 1_000_000) for name, at in steps]
    marks.append(Mark(TurnId(turn), MarkName.LLM_WASTED, 0, 12, 3))
    (found,) = records_of(marks)
    return found


def stored(turn: int = 1, session: str = "s1", at_unix_ns: int = NOW_NS) -> StoredTurn:
    entry = TurnEntry(
        SessionId(session),
        record(turn),
        EMBEDDED,
        caller_text="Hi.",
        agent_text="Yes?",
        reply_s=1.5,
        agent="default",
    )
    return StoredTurn(entry, at_unix_ns, "f00")


def rows(place: Place, statement: str, *values: Any) -> list[Any]:
    """Execute a statement in a store, and return its rows."""
    with contextlib.closing(database_at(place).connect()) as connection:
        found = connection.execute(statement, values)
        return [] if found.description is None else found.fetchall()


def address(place: Place) -> str:
    """The place as an operator writes it."""
    return place.reveal() if isinstance(place, PostgresUrl) else str(place)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "turns.sqlite"


@pytest.fixture
def store(place: Place) -> Iterator[TurnStore]:
    with_limits = TurnStore(place, replica="here:8080", wall_ns=lambda: NOW_NS)
    with_limits.start()
    yield with_limits
    with_limits.close()


def test_a_turn_comes_out_as_it_went_in(store: TurnStore, place: Place) -> None:
    store.add(stored(1))
    store.add(stored(2))
    assert store.flush()
    first, second = read_turns(place)
    assert first.entry == stored(1).entry
    assert second.entry == stored(2).entry
    assert (first.entry.agent, first.fingerprint) == ("default", "f00")
    assert first.at_unix_ns == NOW_NS
    assert first.row < second.row
    assert first.replica == "here:8080"
    assert store.problem is None


def test_the_file_is_private(path: Path) -> None:
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_second_connection_keeps_the_locks_of_the_first(path: Path) -> None:
    # Each webhook endpoint has a connection beside the store's, and makes it anew every minute.
    # Another server on the same file that ends removes the write-ahead log unless it is locked.
    first, second = database_at(path).connect(), database_at(path).connect()
    first.execute("INSERT INTO sessions VALUES ('sess_1', '', '', 1)")
    ends = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('SELECT * FROM turns')"
    subprocess.run([sys.executable, "-c", f"{ends}; c.close()"], check=True)
    assert Path(f"{path}-wal").exists()
    second.close()
    first.close()


def test_a_budget_that_was_changed_comes_out_as_it_was(store: TurnStore, place: Place) -> None:
    budget = budget_profile("gpu-8b").with_total(700).widened(300)
    turn = TurnEntry(SessionId("s1"), record(), budget)
    store.add(StoredTurn(turn, NOW_NS))
    assert store.flush()
    (found,) = read_turns(place)
    assert found.entry.budget == budget
    assert budget_of("a profile of later days", 400, 0).name == "a profile of later days"


def test_what_is_asked_for_is_found(store: TurnStore, place: Place) -> None:
    for number in range(1, 7):
        store.add(stored(number, f"s{number % 2}", NOW_NS + number))
    assert store.flush()

    def turns(wanted: TurnFilter) -> list[int]:
        return [each.entry.record.turn for each in read_turns(place, wanted)]

    assert turns(TurnFilter(session="s1")) == [1, 3, 5]
    assert turns(TurnFilter(profile="embedded", max_turns=2)) == [5, 6]
    assert turns(TurnFilter(profile="cpu")) == []
    assert turns(TurnFilter(since_unix_ns=NOW_NS + 3, until_unix_ns=NOW_NS + 5)) == [3, 4]
    newest = read_turns(place, TurnFilter(max_turns=2))
    assert turns(TurnFilter(before_row=newest[0].row, max_turns=2)) == [3, 4]


def test_old_turns_are_forgotten(place: Place) -> None:
    store = TurnStore(place, max_turns=3, max_days=2, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored(1, "old", NOW_NS - 3 * NS_PER_DAY))
    for number in range(2, 7):
        store.add(stored(number))
    store.close()
    assert [each.entry.record.turn for each in read_turns(place)] == [4, 5, 6]
    assert rows(place, "SELECT id FROM sessions") == [("s1",)]
    assert rows(place, "SELECT count(DISTINCT turn_id) FROM stages") == [(3,)]
    with pytest.raises(ValueError, match="at least one"):
        TurnStore(place, max_turns=0)


def test_old_turns_are_forgotten_where_nobody_calls(place: Place) -> None:
    clock, now_ns = ManualClock(), NOW_NS
    store = TurnStore(place, max_days=1, wall_ns=lambda: now_ns, clock=clock)
    store.start()
    store.add(stored())
    assert store.flush()
    for _ in range(3 * 24):
        clock.advance_ms(3_600_000)
        now_ns += 3600 * 10**9
        assert store.flush()
    store.close()
    assert not read_turns(place)


@pytest.mark.parametrize("step_days", [-30, 30])
def test_messages_are_deleted_by_their_age_where_the_clock_is_put_right(
    tmp_path: Path, step_days: int
) -> None:
    path, clock, now_ns = tmp_path / "turns.sqlite", ManualClock(), NOW_NS
    store = TurnStore(path, wall_ns=lambda: now_ns, clock=clock)
    store.start()
    messages = (WebhookMessage("crm", "msg_1", "{}"),)
    store.add(EndedCall("s1", now_ns, "{}", messages))
    assert store.flush()
    now_ns += step_days * NS_PER_DAY
    for _ in range(MAX_QUEUED_DAYS * 24 - 1):
        clock.advance_ms(3_600_000)
        now_ns += 3600 * 10**9
        assert store.flush()
    assert rows(path, "SELECT message_id FROM webhook_messages") == [("msg_1",)]
    if step_days > 0:  # else it stays until its endpoint gives it up
        for _ in range(2):
            clock.advance_ms(3_600_000)
            now_ns += 3600 * 10**9
            assert store.flush()
        assert rows(path, "SELECT message_id FROM webhook_messages") == []
    store.close()


def test_a_killed_process_loses_only_the_newest(place: Place) -> None:
    code = (
        "import sys; from latency_budget.storage.open_database import place_of\n"
        "from latency_budget.storage.store import TurnStore\n"
        "from tests.latency_budget.test_store import stored\n"
        "store = TurnStore(place_of(sys.argv[1])); store.start()\n"
        "for number in range(1, 501): store.add(stored(number))\n"
        "assert store.flush(60); store.add(stored(501)); print('written', flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, address(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    numbers = [each.entry.record.turn for each in read_turns(place)]
    assert numbers[:500] == list(range(1, 501))
    again = TurnStore(place, wall_ns=lambda: NOW_NS)
    again.start()
    again.add(stored(502))
    again.close()
    assert read_turns(place)[-1].entry.record.turn == 502


@pytest.mark.parametrize("content", [b"this is no database " * 100, b"SQLite format 3\0" * 300])
def test_a_damaged_file_is_set_aside(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored())
    assert store.flush()
    assert store.problem is None
    store.close()
    assert len(read_turns(path)) == 1
    (aside,) = path.parent.glob("turns.sqlite.damaged-*")
    assert aside.read_bytes() == content


def test_a_file_that_was_deleted_is_begun_anew(path: Path) -> None:
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored(1))
    assert store.flush()
    for each in path.parent.iterdir():
        each.unlink()
    store.add(stored(2))
    assert store.flush()
    assert [each.entry.record.turn for each in read_turns(path)] == [2]
    store.close()


def test_a_file_that_another_server_has_set_aside_is_kept(path: Path) -> None:
    """Both see the damage in the same second; the second must not move the first's new file."""
    database = sqlite_database.SqliteDatabase(path)
    database.connect().close()
    damaged = path.read_bytes()
    aside = path.with_name(f"{path.name}.damaged-{NOW_NS // 10**9}")
    path.rename(aside)  # by the other server, which makes a new one
    path.write_bytes(b"new")
    error = sqlite3.DatabaseError("database disk image is malformed")
    assert database.set_aside(error, NOW_NS) is None
    assert (path.read_bytes(), aside.read_bytes()) == (b"new", damaged)
    path.unlink()
    database.connect().close()
    assert database.set_aside(error, NOW_NS) is None
    assert aside.read_bytes() == damaged
    assert len(list(path.parent.glob("*.damaged-*"))) == 2


def test_a_file_that_was_replaced_is_opened_anew(path: Path) -> None:
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored(1))
    assert store.flush()
    backup = path.with_name("backup")
    backup.write_bytes(path.read_bytes())
    os.replace(backup, path)
    store.add(stored(2))
    assert store.flush()
    store.close()
    assert read_turns(path)[-1].entry.record.turn == 2


def test_a_locked_file_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latency_budget.storage.sqlite_database.BUSY_MS", 1)
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    assert store.flush()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.add(stored())
    assert not store.flush()
    assert "locked" in (store.problem or "")
    assert store.waiting == 1
    other.execute("ROLLBACK")
    other.close()
    assert store.flush()
    assert store.problem is None
    store.close()
    assert len(read_turns(path)) == 1


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = TurnStore(blocked / "turns.sqlite", wall_ns=lambda: NOW_NS)
    store.start()
    for _ in range(MAX_WAITING + 5):
        store.add(stored())
    assert not store.flush()
    assert "can't be written" in (store.problem or "")
    assert store.lost == 5
    assert store.peak_waiting == MAX_WAITING
    store.close()


def test_a_full_disk_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    connect = sqlite3.connect
    is_full = True

    def on_a_small_disk(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        if is_full:
            connection.execute("PRAGMA max_page_count = 9")
        return connection

    monkeypatch.setattr(sqlite3, "connect", on_a_small_disk)
    store.start()
    for number in range(1, 101):
        store.add(stored(number))
    assert not store.flush()
    assert "full" in (store.problem or "")
    is_full = False
    assert store.flush()
    store.close()
    assert [each.entry.record.turn for each in read_turns(path)] == list(range(1, 101))


def test_a_message_that_is_dropped_counts_once_where_the_write_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(call_documents, "MAX_QUEUED", 0)
    fault = sqlite3.OperationalError("database or disk is full")
    fault.sqlite_errorcode = sqlite3.SQLITE_FULL
    faults = [fault]

    def insert(connection: StoreConnection, turn: StoredTurn) -> None:
        if faults:
            raise faults.pop()
        store_schema.insert(connection, turn)

    monkeypatch.setattr("latency_budget.storage.store.insert", insert)
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    message = WebhookMessage("crm", "msg_sess_a", "{}")
    store.add(EndedCall("sess_a", NOW_NS, "{}", (message,)))  # in one transaction with the turn
    store.add(stored())
    store.start()
    assert store.flush()
    store.close()
    assert not faults
    assert store.num_messages_dropped == 1
    assert sum("msg_sess_a was dropped" in line for line in caplog.messages) == 1


def test_older_files_are_brought_up_to_date(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TurnStore(place, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored())
    store.close()
    more = (*MIGRATIONS, ("CREATE TABLE later (id INTEGER)", "INSERT INTO later VALUES (7)"))
    monkeypatch.setattr(store_schema, "MIGRATIONS", more)
    with pytest.raises(
        StoreError, match=f"version {len(MIGRATIONS)}, and this program reads version {len(more)}"
    ):
        read_turns(place)
    again = TurnStore(place, wall_ns=lambda: NOW_NS)
    again.start()
    again.add(stored(2))
    again.close()
    assert [each.entry.record.turn for each in read_turns(place)] == [1, 2]
    assert rows(place, "SELECT id FROM later") == [(7,)]


def test_turns_of_older_tables_keep_the_agent_of_their_session(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 8 had agent and settings by session, those of its first turn."""
    monkeypatch.setattr(store_schema, "MIGRATIONS", MIGRATIONS[:8])
    rows(place, "INSERT INTO sessions VALUES ('s1', 'sales', 'f01', 1)")
    rows(place, "INSERT INTO sessions VALUES ('s2', 'billing', 'f02', 1)")
    values: dict[str, Any] = {
        **{"at_unix_ns": NOW_NS, "profile": "embedded", "total_ms": 500, "widened_ms": 0},
        **{"origin": "reply_requested", "paced_ns": 0, "answered": 0, "cut_in": 0},
        **{"interrupted": 0, "reopened": 0, "opener": 0, "wasted_ns": 0},
        **{"wasted_prompt_tokens": 0, "wasted_output_tokens": 0, "caller_text": ""},
        **{"agent_text": "", "detail": '{"incomplete":[],"spans":[],"path":[]}'},
    }
    for session, turn in (("s1", 1), ("s2", 1), ("s1", 2)):
        row = {**values, "session": session, "turn": turn}
        holes = ", ".join("?" * len(row))
        rows(place, f"INSERT INTO turns ({', '.join(row)}) VALUES ({holes})", *row.values())
    monkeypatch.undo()
    with pytest.raises(StoreError, match="version 8"):
        read_turns(place)
    store = TurnStore(place, wall_ns=lambda: NOW_NS)
    store.start()
    handed = stored(3)
    store.add(replace(handed, entry=replace(handed.entry, agent="support"), fingerprint="f03"))
    store.close()
    assert [
        (each.entry.session, each.entry.agent, each.fingerprint) for each in read_turns(place)
    ] == [
        ("s1", "sales", "f01"),
        ("s2", "billing", "f02"),
        ("s1", "sales", "f01"),
        ("s1", "support", "f03"),
    ]


def test_turns_of_one_session_have_agents_of_their_own(store: TurnStore, place: Place) -> None:
    """A handoff in mid-call, and a call that another server took over with its own settings."""
    had = [("desk", "f1"), ("sales", "f1"), ("desk", "f2")]
    for number, (agent, fingerprint) in enumerate(had, start=1):
        turn = stored(number)
        store.add(replace(turn, entry=replace(turn.entry, agent=agent), fingerprint=fingerprint))
    assert store.flush()
    found = read_turns(place)
    assert [(each.entry.agent, each.fingerprint) for each in found] == had
    of_desk = read_turns(place, TurnFilter(agent="desk"))
    assert [each.entry.record.turn for each in of_desk] == [1, 3]
    assert summarize_store(place, TurnFilter(agent="sales"))["summary"]["turns"] == 1
    command = [address(place), "--agent", "desk", "--gate"]
    assert report([*command, "turns>=2"]) == 0
    assert report([*command, "turns>=3"]) == 1


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TurnStore(place, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored())
    store.close()
    more = (*MIGRATIONS, ("CREATE TABLE later (id INTEGER)", "no SQL"))
    monkeypatch.setattr(store_schema, "MIGRATIONS", more)
    again = TurnStore(place, wall_ns=lambda: NOW_NS)
    again.start()
    again.add(stored(2))
    assert not again.flush()
    assert "syntax error" in (again.problem or "")
    again.close()
    monkeypatch.undo()
    assert [each.entry.record.turn for each in read_turns(place)] == [1]


def test_a_disk_that_fails_during_a_migration_leaves_the_file_in_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an error makes SQLite roll the transaction back by itself."""
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored(1))
    store.close()
    more = (*MIGRATIONS, ("CREATE TABLE later (id INTEGER)",))
    monkeypatch.setattr(store_schema, "MIGRATIONS", more)
    connect, fails = sqlite3.connect, True

    class Failing(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement.startswith("CREATE TABLE later") and fails:
                self.set_progress_handler(lambda: 1, 1)
            try:
                return super().execute(statement, *values)
            finally:
                self.set_progress_handler(None, 0)

    def failing(*args: Any, **options: Any) -> sqlite3.Connection:
        return connect(*args, factory=Failing, **options)

    monkeypatch.setattr(sqlite3, "connect", failing)
    again = TurnStore(path, wall_ns=lambda: NOW_NS)
    again.start()
    again.add(stored(2))
    assert not again.flush()
    assert "interrupted" in (again.problem or "")
    assert again.num_set_aside == 0
    fails = False
    assert again.flush()
    again.close()
    assert [each.entry.record.turn for each in read_turns(path)] == [1, 2]


def test_a_file_of_a_newer_program_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored())
    assert store.flush()
    assert "newer version" in (store.problem or "")
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    assert before[:16] == path.read_bytes()[:16]


def test_a_file_that_another_process_brings_up_to_date_is_not_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read the old version; one waits for the other's migration, and must look again."""
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored())
    store.close()
    more = (*MIGRATIONS, ("CREATE TABLE later (id INTEGER)",))
    monkeypatch.setattr(store_schema, "MIGRATIONS", more)

    def migrate_other() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            sqlite_database._migrate(other)

    class Late(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "BEGIN IMMEDIATE":
                migrate_other()
            return super().execute(statement, *values)

    connection = sqlite3.connect(path, isolation_level=None, factory=Late)
    with contextlib.closing(connection) as late:
        sqlite_database._migrate(late)
        assert late.execute("PRAGMA user_version").fetchone() == (len(more),)
        assert late.execute("SELECT count(*) FROM turns").fetchone() == (1,)


def test_words_that_no_text_can_hold(store: TurnStore, place: Place) -> None:
    entry = TurnEntry(SessionId("s1"), record(), caller_text="half \ud800 a pair\0")
    store.add(StoredTurn(entry, NOW_NS))
    assert store.flush()
    (found,) = read_turns(place)
    assert found.entry.caller_text == "half ? a pair?"


def test_a_turn_that_no_table_can_hold_does_not_stop_the_others(
    store: TurnStore, place: Place
) -> None:
    nothing: Any = None
    odd: Any = object()
    store.add(stored(1))
    store.add(stored(2, at_unix_ns=2**70))
    store.add(stored(3))
    store.add(StoredTurn(replace(stored(4).entry, reply_s=odd), NOW_NS))
    store.add(StoredTurn(stored(5).entry, nothing))
    store.add(stored(6))
    assert store.flush()
    assert [each.entry.record.turn for each in read_turns(place)] == [1, 3, 6]
    assert store.lost == 3
    assert store.problem is None


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        read_turns(tmp_path / "none.sqlite")
    text = tmp_path / "text.sqlite"
    text.write_text("not a database, and long enough for one " * 100)
    with pytest.raises(StoreError, match="not readable as a store"):
        read_turns(text)
    empty = tmp_path / "empty.sqlite"
    empty.write_bytes(b"")
    with pytest.raises(StoreError, match="version 0"):
        read_turns(empty)


def test_adding_never_waits_for_the_file(path: Path) -> None:
    """Ten thousand turns a second are more than a service has in an hour."""
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    for number in range(1, MAX_WAITING + 1):  # nobody writes yet
        store.add(stored(number))
    assert store.waiting == MAX_WAITING
    assert not path.exists()
    store.start()
    store.close(60)
    assert len(read_turns(path, TurnFilter(max_turns=20_000))) == MAX_WAITING


def damage(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize("page", [1, 2, 3, 5])
def test_a_file_with_a_damaged_page_is_set_aside_once(
    path: Path, page: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = TurnStore(path, wall_ns=lambda: NOW_NS)
    first.start()
    for number in range(1, 61):
        first.add(stored(number, f"s{number % 9}"))
    first.close()
    damage(path, page)
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    for number in range(61, 66):
        store.add(stored(number, "s61"))
        assert store.flush()
    assert (store.problem, store.lost, store.num_set_aside) == (None, 0, 1)
    assert len([each for each in caplog.records if "damaged" in each.message]) == 1
    store.close()
    assert [each.entry.record.turn for each in read_turns(path)] == [61, 62, 63, 64, 65]
    assert len(list(path.parent.glob("turns.sqlite.damaged-*"))) == 1


@pytest.mark.parametrize("page", [1, 2, 3, 5])
def test_a_page_that_is_damaged_while_the_store_is_open(
    path: Path, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite notices when it reads the page again, which may be at the next start."""
    monkeypatch.setattr("latency_budget.storage.sqlite_database.SET_ASIDE_EVERY_S", 0)
    for start in range(2):
        store = TurnStore(path, wall_ns=lambda: NOW_NS)
        store.start()
        for number in range(1, 31):
            store.add(stored(1000 * start + number, f"s{number % 9}"))
        assert store.flush()
        if start == 0:
            damage(path, page)
        for number in range(31, 36):
            store.add(stored(1000 * start + number))
            assert store.flush()
        assert (store.problem, store.lost) == (None, 0)
        store.close()
    assert read_turns(path)[-1].entry.record.turn == 1035


class DamagedIndex(sqlite3.OperationalError):
    """SQLite's complaint of an index that lacks a row: an extended result code."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT_INDEX


def test_a_file_that_is_damaged_again_at_once_is_not_copied_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that spoils every write must not be filled with copies."""
    now_ns = NOW_NS
    insert = store_schema.insert

    def spoiled(connection: StoreConnection, stored: StoredTurn) -> None:
        raise DamagedIndex("database disk image is malformed")

    monkeypatch.setattr("latency_budget.storage.store.insert", spoiled)
    store = TurnStore(path, wall_ns=lambda: now_ns)
    store.start()
    store.add(stored())
    assert not store.flush()
    assert not store.flush()
    assert "damaged again" in (store.problem or "")
    assert store.num_set_aside == 1
    assert len([each for each in caplog.records if "damaged" in each.message]) == 2
    now_ns += SET_ASIDE_EVERY_S * 10**9
    assert not store.flush()
    assert store.num_set_aside == 2
    monkeypatch.setattr("latency_budget.storage.store.insert", insert)
    assert store.flush()
    assert store.problem is None
    store.close()
    assert len(read_turns(path)) == 1


def damage_schema(path: Path, statement: bytes, damaged: bytes) -> None:
    content = path.read_bytes()
    assert len(statement) == len(damaged)
    assert statement in content
    path.write_bytes(content.replace(statement, damaged, 1))


@pytest.mark.parametrize(
    ("statement", "damaged"),
    [
        (b"CREATE TABLE turns (", b"CREATE TAB\xc1\xe5 turns ("),  # SQLite's message is no text
        (b"CREATE TABLE sessions", b"CREATE TABLE sess7ons"),
        (b"detail TEXT NOT NULL", b"detai1 TEXT NOT NULL"),
    ],
)
def test_a_file_with_a_damaged_schema_is_set_aside(
    path: Path, statement: bytes, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    first = TurnStore(path, wall_ns=lambda: NOW_NS)
    first.start()
    first.add(stored())
    first.close()
    damage_schema(path, statement, damaged)
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored(2))
    assert store.flush()
    assert (store.problem, store.lost, store.num_set_aside) == (None, 0, 1)
    assert len([each for each in caplog.records if "damaged" in each.message]) == 1
    (aside,) = path.parent.glob("turns.sqlite.damaged-*")
    assert aside.name in (store.notice or "")
    aside.unlink()
    assert store.notice is None
    store.close()
    assert [each.entry.record.turn for each in read_turns(path)] == [2]


@pytest.mark.parametrize("seed", range(12))
def test_random_bytes_in_the_file_never_stop_the_store(path: Path, seed: int) -> None:
    first = TurnStore(path, wall_ns=lambda: NOW_NS)
    first.start()
    for number in range(1, 61):
        first.add(stored(number, f"s{number % 9}"))
    first.close()
    random = Random(seed)
    content = bytearray(path.read_bytes())
    offset = 100 if seed == 0 else random.randrange(100, 4096)
    content[offset : offset + 200] = random.randbytes(200)
    path.write_bytes(content)
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored(61))
    assert store.flush()
    store.add(stored(62))
    assert store.flush()
    assert (store.problem, store.lost) == (None, 0)
    store.close()
    with sqlite3.connect(path) as connection:
        newest = connection.execute("SELECT turn FROM turns ORDER BY id DESC LIMIT 2").fetchall()
    assert newest == [(62,), (61,)]


def test_a_file_whose_version_was_damaged_is_set_aside(path: Path) -> None:
    first = TurnStore(path, wall_ns=lambda: NOW_NS)
    first.start()
    first.add(stored())
    first.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    store = TurnStore(path, wall_ns=lambda: NOW_NS)
    store.start()
    store.add(stored(2))
    assert store.flush()
    assert store.num_set_aside == 1
    store.close()


def test_a_damaged_row_is_an_error_of_the_store(store: TurnStore, place: Place) -> None:
    store.add(stored())
    assert store.flush()
    for damaged in ("{", "{}", '{"incomplete": 7}'):
        rows(place, "UPDATE turns SET detail = ?", damaged)
        with pytest.raises(StoreError, match="damaged"):
            read_turns(place)


@pytest.mark.parametrize("ahead_days", [40, 400])
def test_a_clock_that_steps_ahead_deletes_a_week_at_most(place: Place, ahead_days: int) -> None:
    first = TurnStore(place, max_days=30, wall_ns=lambda: NOW_NS)
    first.start()
    for age in range(29, -1, -1):
        first.add(stored(30 - age, at_unix_ns=NOW_NS - age * NS_PER_DAY))
    first.close()
    ahead_ns = NOW_NS + ahead_days * NS_PER_DAY
    for turn in (31, 32):  # after a restart too, when there are rows of the wrong time
        again = TurnStore(place, max_days=30, wall_ns=lambda: ahead_ns, clock=ManualClock())
        again.start()
        again.add(stored(turn, at_unix_ns=ahead_ns))
        again.close()
    turns = [each.entry.record.turn for each in read_turns(place)]
    assert turns == [*range(7, 33)]
