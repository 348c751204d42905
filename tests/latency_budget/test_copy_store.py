"""A file's turns move to the store of a fleet: all of them, in their order, and once."""

import contextlib
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latency_budget.storage import call_documents, copy_store
from latency_budget.storage.call_documents import EndedCall, WebhookMessage, read_ended
from latency_budget.storage.call_records import read_calls
from latency_budget.storage.copy_store import StoreCopy, main
from latency_budget.storage.database import Place, StoreConnection, StoreError
from latency_budget.storage.open_database import database_at, place_of, postgres_url_of
from latency_budget.storage.postgres_url import PostgresUrl
from latency_budget.storage.store import TurnStore
from latency_budget.storage.store_query import NO_LIMIT, TurnFilter, read_turns
from latency_budget.storage.store_schema import StoredTurn, insert
from tests.agent.telephony.test_call_detail_record import RECORD
from tests.latency_budget.test_store import NOW_NS, address, rows, stored
from tests.support.postgres import PostgresServer


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_store, "CHUNK", 3)


@pytest.fixture(autouse=True)
def _files_as_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies to a SQLite file, too: the same commands without a server of PostgreSQL."""
    monkeypatch.setattr(copy_store, "postgres_url_of", place_of)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "old.sqlite"


def ended_call(number: int, replica: str = "") -> EndedCall:
    """The end of a call, with a message for each of two endpoints."""
    session = f"call_{number}"
    messages = tuple(
        WebhookMessage(each, f"msg_{session}", f'{{"data":{{"id":"{session}"}}}}')
        for each in ("crm", "log")
    )
    ended_ns = NOW_NS + number // 2  # two calls each end in the same nanosecond
    return EndedCall(session, ended_ns, f'{{"id":"{session}"}}', messages, replica)


def documents(place: Place) -> list[EndedCall]:
    return [ended for _, ended in read_ended(place, max_calls=99, before_row=NO_LIMIT)]


def add(place: Place, numbers: Iterable[int], replica: str = "") -> None:
    """Turns of two sessions, and a call for each."""
    store = TurnStore(place, replica=replica, max_days=36_500, wall_ns=lambda: NOW_NS)
    store.start()
    for number in numbers:
        store.add(stored(number, f"s{number % 2}", NOW_NS + number))
        store.add(replace(RECORD, session=f"call_{number}"))
        store.add(ended_call(number))
    store.close()
    assert (store.lost, store.problem) == (0, None)


def turns(place: Place) -> list[int]:
    return [each.entry.record.turn for each in read_turns(place)]


def error_line(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def test_everything_is_copied_once(
    source: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    add(source, range(1, 9))
    command = [str(source), address(place), "--replica", "old:8080"]
    assert main(command) == 0
    assert capsys.readouterr().out == "8 turns, 8 calls and 8 documents were copied\n"
    copied = read_turns(place)
    assert [each.entry for each in copied] == [each.entry for each in read_turns(source)]
    assert {each.replica for each in copied} == {"old:8080"}
    records = [record for _, record in read_calls(place, max_calls=99)]
    assert records == [
        replace(RECORD, session=f"call_{number}", replica="old:8080") for number in range(1, 9)
    ]
    assert documents(place) == [ended_call(number, "old:8080") for number in range(1, 9)]


def test_another_copy_adds_what_has_come_since(
    source: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the file's oldest turns are deleted, and the name of the server is another one."""
    add(source, range(1, 6))
    add(place, [100], "other:8080")
    command = [str(source), address(place), "--replica"]
    assert main([*command, "old:8080"]) == 0
    add(source, range(6, 9))
    rows(source, "DELETE FROM turns WHERE turn = 1")
    capsys.readouterr()
    assert main([*command, "new:8080"]) == 0
    assert capsys.readouterr().out == (
        "3 turns, 3 calls and 3 documents were copied\n"
        "4 turns, 5 calls and 5 documents were there already\n"
    )
    assert turns(place) == [100, *range(1, 9)]
    of_new = read_turns(place, TurnFilter(replica="new:8080"))
    assert [each.entry.record.turn for each in of_new] == [6, 7, 8]
    assert len(read_calls(place, max_calls=99)) == 9
    assert main([*command, "new:8080"]) == 0
    assert turns(place) == [100, *range(1, 9)]


def test_a_message_that_was_delivered_is_not_copied_again(source: Path, place: Place) -> None:
    add(source, [1, 2])
    rows(source, "DELETE FROM webhook_messages WHERE endpoint = 'log'")  # it has taken them
    assert main([str(source), address(place)]) == 0
    assert rows(place, "SELECT endpoint, message_id FROM webhook_messages ORDER BY id") == [
        ("crm", "msg_call_1"),
        ("crm", "msg_call_2"),
    ]
    rows(place, "DELETE FROM webhook_messages")  # the target's server has sent them
    assert main([str(source), address(place)]) == 0
    assert rows(place, "SELECT * FROM webhook_messages") == []
    assert len(documents(place)) == 2


def test_messages_for_a_full_queue_are_told_of(
    source: Path, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add(source, [1, 2, 3])
    monkeypatch.setattr(call_documents, "MAX_QUEUED", 2)
    assert main([str(source), address(place)]) == 2
    assert capsys.readouterr().err == "2 webhook messages were dropped: too many wait\n"
    assert len(documents(place)) == 3


def test_a_turn_that_a_file_has_twice_is_copied_once(source: Path, place: Place) -> None:
    add(source, [1, 2])
    add(source, [2])
    assert main([str(source), address(place)]) == 0
    assert turns(place) == [1, 2]
    assert len(read_calls(place, max_calls=99)) == 2


def test_a_copy_that_breaks_off_is_completed(
    source: Path, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add(source, range(1, 9))

    def failing(connection: StoreConnection, turn: StoredTurn) -> None:
        if turn.entry.record.turn == 5:
            raise OSError("the network is gone")
        insert(connection, turn)

    monkeypatch.setattr(copy_store, "insert", failing)
    line = error_line(capsys, str(source), address(place))
    assert line == f"{place}: the network is gone; copy again to add what is missing"
    assert turns(place) == [1, 2, 3]
    monkeypatch.setattr(copy_store, "insert", insert)
    assert main([str(source), address(place)]) == 0
    assert turns(place) == list(range(1, 9))


def test_copies_at_the_same_time_add_each_turn_once(source: Path, place: Place) -> None:
    """And a server writes there meanwhile."""
    add(source, range(1, 31))
    add(place, [100])
    ready = threading.Barrier(3)
    done: list[StoreCopy] = []

    def copy() -> None:
        ready.wait(30)
        done.append(copy_store.copy_store(source, place, "old:8080"))

    threads = [threading.Thread(target=copy) for _ in range(2)]
    for thread in threads:
        thread.start()
    ready.wait(30)
    add(place, range(101, 121))
    for thread in threads:
        thread.join(60)
    assert sum(each.turns.added for each in done) == 30
    assert sum(each.calls.added for each in done) == 30
    assert sum(each.documents.added for each in done) == 30
    assert sorted(turns(place)) == [*range(1, 31), *range(100, 121)]
    assert len(read_calls(place, max_calls=99)) == 51


@pytest.mark.slow
def test_a_server_writes_while_a_chunk_is_copied(postgres: PostgresServer, source: Path) -> None:
    place = postgres.new_store()
    add(place, [100])
    database = database_at(place)
    with contextlib.closing(database.connect()) as connection:
        database.begin_copy(connection)
        insert(connection, stored(1, "s9"))
        add(place, [101, 102])
        connection.execute("COMMIT")
    assert sorted(turns(place)) == [1, 100, 101, 102]


def test_a_newer_target_is_left_alone(
    source: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    add(source, [1])
    add(place, [2])
    newer = "UPDATE store_version SET version = 99"
    rows(place, newer if isinstance(place, PostgresUrl) else "PRAGMA user_version = 99")
    line = error_line(capsys, str(source), address(place))
    assert line.startswith(f"{place}: it is of a newer version (99; this one knows ")
    assert line.endswith("; update this program to copy there")


def test_a_newer_source_is_not_read(
    source: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    add(source, [1])
    rows(source, "PRAGMA user_version = 99")
    line = error_line(capsys, str(source), address(place))
    assert line.startswith(f"{source}: its tables are of version 99, and this program reads ")
    assert line.endswith("; update this program")
    with pytest.raises(StoreError, match="there is no store"):
        read_turns(place)


def test_a_missing_driver_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add(source, [1])
    missing: Any = None
    monkeypatch.setitem(sys.modules, "psycopg", missing)
    monkeypatch.delitem(sys.modules, "latency_budget.storage.postgres_database", raising=False)
    line = error_line(capsys, str(source), "postgresql://ana:s3cret@db/turns")
    assert line == (
        "postgresql://***@db/turns: this needs psycopg: pip install 'halfsec[postgres]'"
    )


@pytest.mark.slow
def test_a_refused_password_is_told_without_it(
    source: Path, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    add(source, [1])
    url = postgres.url(password="wrong")
    line = error_line(capsys, str(source), url.reveal())
    assert line == f"{url}: the user or the password is wrong"


@pytest.mark.parametrize("target", ["", "true", "turns", "postgre://ana:s3cret@db/turns"])
def test_a_target_is_the_address_of_a_database(
    target: str, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of that name would be made, and the copy be said to have worked."""
    monkeypatch.setattr(copy_store, "postgres_url_of", postgres_url_of)
    monkeypatch.chdir(source.parent)
    add(source, [1])
    line = error_line(capsys, str(source), target)
    assert line.startswith("the address of a PostgreSQL database must be like postgresql://")
    assert "s3cret" not in line
    assert list(source.parent.iterdir()) == [source]


def test_nothing_is_copied_where_something_is_wrong(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no store" in error_line(capsys, str(source), "postgresql://db/turns")
    line = error_line(capsys, str(source), "postgresql://ana:s3c/ret@db/turns")
    assert "s3c" not in line
