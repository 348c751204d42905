"""A store in PostgreSQL that servers share: what only a database on another machine can suffer."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from agent.cli.doctor import Finding, examine
from agent.config.layers import load_config
from latency_budget.__main__ import main as report
from latency_budget.account.clock import ManualClock
from latency_budget.storage import postgres_database
from latency_budget.storage.database import StoreError, StoreRows
from latency_budget.storage.open_database import database_at
from latency_budget.storage.postgres_url import PostgresUrl
from latency_budget.storage.store import SLOW_S, TurnStore
from latency_budget.storage.store_query import TurnFilter, read_turns
from latency_budget.storage.store_schema import newest_version
from latency_budget.storage.store_summary import summarize_store
from tests.latency_budget.test_store import NOW_NS, rows, stored
from tests.support.postgres import PASSWORD, PostgresServer

pytestmark = pytest.mark.slow


@pytest.fixture
def url(postgres: PostgresServer) -> PostgresUrl:
    return postgres.new_store()


@contextlib.contextmanager
def running(url: PostgresUrl, replica: str = "a:1") -> Iterator[TurnStore]:
    store = TurnStore(url, replica=replica, wall_ns=lambda: NOW_NS)
    store.start()
    try:
        yield store
    finally:
        store.close()


def turns(url: PostgresUrl, wanted: TurnFilter | None = None) -> list[int]:
    return [each.entry.record.turn for each in read_turns(url, wanted)]


def doctors_finding(url: PostgresUrl) -> Finding:
    config = load_config({"latency_budget.store": url.reveal()})
    (found,) = (section for section in examine(config) if section.title == "Turn store")
    return found.findings[0]


@pytest.fixture
def _few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is soon full."""
    monkeypatch.setattr("latency_budget.storage.store.MAX_WAITING", 20)


@pytest.mark.usefixtures("_few_wait")
def test_the_connection_comes_back_after_a_restart(
    url: PostgresUrl, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    with running(url) as store:
        store.add(stored(1))
        assert store.flush(30)
        with postgres.stopped():
            for number in range(2, 25):  # three more than may wait
                store.add(stored(number))
            store.flush(30)  # the connection breaks with the first try, and can't be made again
            assert not store.flush(30)
            gone = f"{url} can't be written: nothing listens at its address;"
            assert gone in (store.problem or "")
            assert (store.waiting, store.lost) == (20, 3)
            with pytest.raises(StoreError, match="nothing listens at its address"):
                read_turns(url)
        assert store.flush(30)
        assert (store.problem, store.lost) == (None, 3)
        store.add(stored(25))
    assert turns(url) == [*range(1, 22), 25]
    assert "is written again" in caplog.text
    assert PASSWORD not in caplog.text


def test_a_commit_whose_answer_is_lost_is_not_repeated(
    url: PostgresUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = postgres_database.PostgresConnection.execute
    lost: list[str] = []

    def losing(
        self: postgres_database.PostgresConnection, statement: str, values: Sequence[Any] = (), /
    ) -> StoreRows:
        if statement == "COMMIT" and len(lost) < 2 and self_writes(self):
            lost.append(statement)
            if len(lost) == 1:  # the first one arrives, the second one does not
                execute(self, statement)
            self.close()
        return execute(self, statement, values)

    def self_writes(connection: postgres_database.PostgresConnection) -> bool:
        (found,) = execute(connection, "SELECT count(*) FROM turns").fetchone()
        return bool(found)

    monkeypatch.setattr(postgres_database.PostgresConnection, "execute", losing)
    with running(url) as store:
        store.add(stored(1))
        store.flush(30)
        assert store.flush(30)
        store.add(stored(2))
        store.flush(30)
        assert store.flush(30)
        assert store.lost == 0
    assert len(lost) == 2
    assert turns(url) == [1, 2]


def test_servers_that_start_together_migrate_once(url: PostgresUrl) -> None:
    ready = threading.Barrier(6)
    failures: list[BaseException] = []

    def connect() -> None:
        ready.wait(30)
        try:
            database_at(url).connect().close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=connect) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert rows(url, "SELECT version FROM store_version") == [(newest_version(),)]


def test_a_newer_program_has_migrated(url: PostgresUrl) -> None:
    with running(url) as store:
        assert store.flush(30)
    rows(url, "UPDATE store_version SET version = 99")
    with running(url) as store:
        store.add(stored())
        assert store.flush(30)
        assert "newer version (99; this one knows" in (store.problem or "")
        assert store.lost == 1
    with pytest.raises(StoreError, match="are of version 99, and this program reads"):
        read_turns(url)


def test_a_locked_table_is_waited_for(url: PostgresUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        postgres_database.PostgresDatabase, "begin", "BEGIN; SET LOCAL lock_timeout = '20ms'"
    )
    with running(url) as store:
        assert store.flush(30)
        with contextlib.closing(database_at(url).connect()) as other:
            other.execute("BEGIN")
            other.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
            store.add(stored())
            assert not store.flush(30)
            assert "lock timeout" in (store.problem or "")
        assert store.flush(30)
        assert store.problem is None
    assert turns(url) == [1]


@pytest.mark.usefixtures("_few_wait")
def test_a_server_that_does_not_answer_is_slow_and_holds_up_nothing() -> None:
    clock = ManualClock()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = TurnStore(PostgresUrl(f"postgresql://127.0.0.1:{port}/turns"), clock=clock)
        store.start()
        peer, _ = silent.accept()  # from now on it waits for an answer
        with peer:
            assert store.problem is None
            clock.advance_ms(SLOW_S * 1000)
            assert store.problem is not None
            assert "is slow: a write has not ended for 5 s" in store.problem
            for number in range(22):
                store.add(stored(number))
            assert store.lost == 2
    store.close(30)
    assert "can't be written" in (store.problem or "")


def test_replicas_share_one_store(url: PostgresUrl, capsys: pytest.CaptureFixture[str]) -> None:
    with running(url, "a:1") as first, running(url, "b:1") as second:
        for number in range(1, 4):
            first.add(stored(number, "s1", NOW_NS + number))
            assert first.flush(30)
            second.add(stored(number, "s2", NOW_NS + number))
            assert second.flush(30)
    assert turns(url) == [1, 1, 2, 2, 3, 3]
    assert {each.replica for each in read_turns(url, TurnFilter(session="s2"))} == {"b:1"}
    assert turns(url, TurnFilter(replica="a:1")) == [1, 2, 3]
    answer = summarize_store(url, TurnFilter(replica="b:1"))
    assert (answer["summary"]["turns"], answer["replicas"]) == (3, {"a:1": 3, "b:1": 3})
    assert report([url.reveal(), "--gate", "turns>=6"]) == 0
    assert report([url.reveal(), "--replica", "a:1", "--gate", "turns>=6"]) == 1
    printed = capsys.readouterr()
    assert str(url) in printed.out
    assert PASSWORD not in printed.out + printed.err


def test_old_turns_of_all_replicas_are_forgotten_by_number(url: PostgresUrl) -> None:
    """Row numbers have gaps where transactions failed."""
    with running(url, "a:1") as store:
        store.add(stored(1))
        assert store.flush(30)
        rows(url, "SELECT setval(pg_get_serial_sequence('turns', 'id'), 1000)")
    limited = TurnStore(url, replica="b:1", max_turns=3, wall_ns=lambda: NOW_NS)
    limited.start()
    limited.add(stored(2))
    limited.close()
    assert turns(url) == [1, 2]


CHECKS: list[tuple[Callable[[PostgresServer], PostgresUrl], str]] = [
    (lambda server: server.url(password="wrong"), "the user or the password is wrong"),
    (lambda server: server.url("nothing"), "there is no database of this name"),
    (lambda server: server.url(port=1), "nothing listens at its address"),
    (
        lambda server: PostgresUrl(f"postgresql://ana:s3cret@{'a' * 64}/turns"),
        "its host's name is not known",
    ),
]


@pytest.mark.parametrize(("address", "reason"), CHECKS)
def test_doctor_says_what_is_wrong(
    postgres: PostgresServer, address: Callable[[PostgresServer], PostgresUrl], reason: str
) -> None:
    url = address(postgres)
    finding = doctors_finding(url)
    assert finding.verdict == "note"
    assert finding.value.startswith(f"{url}: {reason}")
    assert len(finding.value.splitlines()) == 1
    assert not any(each in finding.value for each in (PASSWORD, "s3cret", "wrong:"))


def test_doctor_says_what_is_there(url: PostgresUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    before = doctors_finding(url)
    assert before.verdict == "ok"
    assert before.value.startswith(f"in {url}: PostgreSQL ")
    assert before.value.endswith("the server makes its tables")
    with running(url) as store:
        assert store.flush(30)
    assert doctors_finding(url).value.endswith("tables are there")
    monkeypatch.setattr(postgres_database, "MIN_SERVER_VERSION", 990_000)
    assert "is too old: 99 or newer is needed" in doctors_finding(url).value
