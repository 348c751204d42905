"""Webhooks about ended calls: a real store, real HTTP, and signatures judged by the package."""

import asyncio
import contextlib
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.calls import call_webhooks
from agent.calls.call_webhooks import CallWebhooks, pause_before
from agent.config.schema import Config
from agent.config.webhooks import WebhookSettings, is_public, secret_of
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.server.app import create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from latency_budget.account.clock import SystemClock, unix_ns
from latency_budget.storage import call_documents
from latency_budget.storage.call_documents import (
    EndedCall,
    WebhookMessage,
    claim,
    num_queued,
    read_document,
)
from latency_budget.storage.database import Place
from latency_budget.storage.open_database import database_at
from latency_budget.storage.store import TurnStore
from tests.support.full_disk import files_limited_to
from tests.support.service.webhook_receiver import (
    PATIENCE_S,
    SECRET,
    WebhookReceiver,
    answers,
    receiving,
)

ENVIRONMENT = {"WEBHOOK_SECRET": SECRET}
HOUR_NS = 3600 * 10**9


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with receiving() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_EVERY_S", "FIRST_PAUSE_S", "FAILED_PAUSE_S"):
        monkeypatch.setattr(call_webhooks, name, 0.01)


def ended(name: str, *endpoints: str, at_ns: int = 0) -> EndedCall:
    body = f'{{"type":"call.ended","data":{{"id":"{name}"}}}}'
    messages = tuple(WebhookMessage(each, f"msg_{name}", body) for each in endpoints)
    return EndedCall(name, at_ns or unix_ns(), f'{{"id":"{name}"}}', messages)


@contextlib.contextmanager
def stored(place: Place, *calls: EndedCall) -> Iterator[TurnStore]:
    store = TurnStore(place, replica="here:1")
    store.start()
    for call in calls:
        store.add(call)
    assert store.flush(PATIENCE_S)
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def sending(
    place: Place, *, private: bool = True, max_age_h: int = 24, **urls: str
) -> Iterator[CallWebhooks]:
    settings = {
        name: WebhookSettings(url, allow_private=private, max_age_h=max_age_h)
        for name, url in urls.items()
    }
    webhooks = CallWebhooks(settings, place, SystemClock(), environment=ENVIRONMENT)
    webhooks.start()
    try:
        yield webhooks
    finally:
        webhooks.close(PATIENCE_S)


def until(is_so: Callable[[], object]) -> None:
    """Look until it is so. Blocks."""
    for _ in range(int(PATIENCE_S / 0.01)):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never was")


def waiting(place: Place, endpoint: str = "crm") -> int:
    with contextlib.closing(database_at(place).connect()) as connection:
        return num_queued(connection, endpoint)


def ids(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["id"] for event in events]


def test_events_arrive_in_order_and_signed(place: Place, receiver: WebhookReceiver) -> None:
    with stored(place, *(ended(f"sess_{n}", "crm") for n in range(3))):
        with sending(place, crm=receiver.url) as webhooks:
            assert ids(receiver.wait(3)) == ["sess_0", "sess_1", "sess_2"]
            crm = webhooks.endpoints["crm"]
            until(lambda: crm.num_delivered == 3)
            assert (crm.num_failures, crm.num_given_up) == (0, 0)
        assert receiver.ids == ["msg_sess_0", "msg_sess_1", "msg_sess_2"]
        assert waiting(place) == 0
        assert read_document(place, "sess_1") == '{"id":"sess_1"}'
        assert read_document(place, "sess_9") is None


@pytest.mark.parametrize("status", [500, 429, 404, 302])
def test_a_failed_attempt_is_repeated_with_the_same_id(
    tmp_path: Path, receiver: WebhookReceiver, status: int
) -> None:
    place = tmp_path / "turns.sqlite"
    receiver.answers = [answers(status, Location="/elsewhere"), answers(200)]
    with stored(place, ended("sess_a", "crm")), sending(place, crm=receiver.url) as webhooks:
        receiver.wait(2)
        until(lambda: webhooks.endpoints["crm"].num_delivered)
        assert webhooks.endpoints["crm"].num_failures == 1
        assert webhooks.problem == {}
    assert receiver.ids == ["msg_sess_a", "msg_sess_a"]
    assert receiver.paths == ["/hook", "/hook"]


def test_an_endpoint_that_is_gone_gets_nothing_again(
    tmp_path: Path, receiver: WebhookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "turns.sqlite"
    receiver.answers = [answers(410)]
    with stored(place, ended("sess_a", "crm")), sending(place, crm=receiver.url) as webhooks:
        until(lambda: webhooks.endpoints["crm"].num_given_up)
        until(lambda: not webhooks.problem)
    assert (len(receiver.events), waiting(place)) == (1, 0)
    assert "webhooks.crm: msg_sess_a was given up after 1 attempts" in caplog.text
    assert receiver.url not in caplog.text


def test_a_message_that_is_too_old_is_given_up(tmp_path: Path, receiver: WebhookReceiver) -> None:
    place = tmp_path / "turns.sqlite"
    receiver.answers = [answers(500)]
    old = ended("sess_old", "crm", at_ns=unix_ns() - 2 * HOUR_NS)
    with (
        stored(place, old, ended("sess_new", "crm")),
        sending(place, max_age_h=1, crm=receiver.url) as webhooks,
    ):
        receiver.wait(4)
        assert webhooks.endpoints["crm"].num_given_up == 1
        assert webhooks.problem == {"crm": "webhooks.crm: the endpoint answered 500"}
    assert ids(receiver.events).count("sess_old") == 1
    assert waiting(place) == 1


@contextlib.contextmanager
def failing(
    place: Place, clock: SystemClock, wall_ns: Callable[[], int]
) -> Iterator[tuple[Any, Callable[[], None]]]:
    """An endpoint that nobody knows, of messages of a day at most, and what waits for two more
    attempts: the second began after the call."""

    def resolve(host: str, port: int) -> list[str]:
        raise OSError

    settings = {"crm": WebhookSettings("https://hooks.example/hook", max_age_h=24)}
    webhooks = CallWebhooks(
        settings, place, clock, wall_ns=wall_ns, resolve=resolve, environment=ENVIRONMENT
    )
    crm = webhooks.endpoints["crm"]

    def two_more() -> None:
        num_before = crm.num_failures
        until(lambda: crm.num_failures >= num_before + 2 or crm.num_given_up)

    webhooks.start()
    try:
        yield crm, two_more
    finally:
        webhooks.close(PATIENCE_S)


@pytest.mark.parametrize("step_h", [-72, 72])
def test_a_message_is_as_old_as_before_where_the_clock_is_put_right(
    tmp_path: Path, step_h: int
) -> None:
    place, ahead_ns, passed_ns = tmp_path / "turns.sqlite", 0, 0

    class Clock(SystemClock):
        def now_ns(self) -> int:
            return super().now_ns() + passed_ns

    def wall_ns() -> int:
        return unix_ns() + ahead_ns + passed_ns

    with (
        failing(place, Clock(), wall_ns) as (crm, two_more),
        stored(place, ended("sess_a", "crm")),
    ):
        two_more()
        ahead_ns = step_h * HOUR_NS
        two_more()
        passed_ns = 23 * HOUR_NS
        two_more()
        assert crm.num_given_up == 0
        passed_ns = 25 * HOUR_NS
        two_more()
        assert crm.num_given_up == 1


def test_a_message_from_ahead_of_the_clock_is_as_old_as_its_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was put back before this process began."""
    place = tmp_path / "turns.sqlite"
    with (
        stored(place, ended("sess_a", "crm", at_ns=unix_ns() + 72 * HOUR_NS)),
        failing(place, SystemClock(), unix_ns) as (crm, two_more),
    ):
        two_more()
        assert crm.num_given_up == 0
        monkeypatch.setattr(call_webhooks, "pause_before", lambda attempt: 24 * 3600.0)
        two_more()
        assert crm.num_given_up == 1


def test_one_endpoint_that_hangs_delays_no_other(
    tmp_path: Path, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(receiver: WebhookReceiver, request: BaseHTTPRequestHandler) -> None:
        for _ in range(100_000):  # a byte now and then: no read of it takes long
            if receiver.closing.wait(0.02):
                return
            try:
                request.wfile.write(b"H")
            except OSError:
                return

    monkeypatch.setattr(call_webhooks, "ATTEMPT_S", 0.5)
    place = tmp_path / "turns.sqlite"
    with receiving() as other:
        receiver.answers = [hang]
        calls = [ended(f"sess_{n}", "crm", "other") for n in range(2)]
        with (
            stored(place, *calls),
            sending(place, crm=receiver.url, other=other.url) as webhooks,
        ):
            until(lambda: webhooks.endpoints["other"].num_delivered == 2)
            until(lambda: webhooks.endpoints["crm"].num_failures)
            assert "crm" in webhooks.problem
            assert "other" not in webhooks.problem
        assert waiting(place, "crm") == 2
        assert waiting(place, "other") == 0
        assert set(ids(other.events)) == {"sess_0", "sess_1"}


def test_of_a_long_answer_the_head_is_read(tmp_path: Path, receiver: WebhookReceiver) -> None:
    num_sent = []

    def flood(receiver: WebhookReceiver, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("content-length", str(100 << 20))
        request.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(100):
                request.wfile.write(bytes(1 << 20))
                num_sent.append(1)

    receiver.answers = [flood, answers(200)]
    place = tmp_path / "turns.sqlite"
    with stored(place, ended("sess_a", "crm")), sending(place, crm=receiver.url) as webhooks:
        until(lambda: webhooks.endpoints["crm"].num_delivered)
    assert len(receiver.events) == 1
    assert len(num_sent) < 100


def test_a_head_that_cannot_be_read_is_not_quoted_whole(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    def nonsense(receiver: WebhookReceiver, request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"x" * 50_000 + b"\r\n\r\n")

    receiver.answers = [nonsense]
    place = tmp_path / "turns.sqlite"
    with stored(place, ended("sess_a", "crm")), sending(place, crm=receiver.url) as webhooks:
        until(lambda: webhooks.endpoints["crm"].num_failures)
        problem = webhooks.problem["crm"]
    assert problem.startswith("webhooks.crm: the endpoint can't be reached: illegal status line")
    assert len(problem) < 300


def test_what_waits_survives_the_process(place: Place, receiver: WebhookReceiver) -> None:
    """Another store and other senders on the same database stand for the next process."""
    receiver.answers = [answers(503)]
    with stored(place, ended("sess_a", "crm")), sending(place, crm=receiver.url):
        receiver.wait(1)
    num_before = len(receiver.events)
    receiver.answers = [answers(200)]
    with stored(place), sending(place, crm=receiver.url) as webhooks:
        receiver.wait(num_before + 1)
        until(lambda: webhooks.endpoints["crm"].num_delivered)
    assert waiting(place) == 0
    assert set(receiver.ids) == {"msg_sess_a"}


def test_a_message_is_claimed_by_one_server_for_some_time(place: Place) -> None:
    with stored(place, ended("sess_a", "crm")):
        pass
    database = database_at(place)
    now_ns = unix_ns()
    with contextlib.closing(database.connect()) as connection:
        first = claim(connection, "crm", now_ns, now_ns + 60)
        assert first is not None
        assert (first.message_id, first.num_attempts) == ("msg_sess_a", 1)
        assert claim(connection, "other", now_ns, now_ns + 60) is None
        assert claim(connection, "crm", now_ns, now_ns + 60) is None
        again = claim(connection, "crm", now_ns + 60, now_ns + 120)
        assert again is not None
        assert (again.row, again.num_attempts) == (first.row, 2)
        put_back = claim(connection, "crm", now_ns - 86_400 * 10**9, now_ns)
        assert put_back is not None, "the clock was a day ahead when it was queued"
        assert put_back.row == first.row


def test_a_full_queue_drops_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_documents, "MAX_QUEUED", 2)
    place = tmp_path / "turns.sqlite"
    with stored(place, *(ended(f"sess_{n}", "crm") for n in range(3))) as store:
        assert store.num_messages_dropped == 1
        assert waiting(place) == 2
        assert read_document(place, "sess_2") is not None  # the document is kept all the same


def test_a_full_disk_delays_events(tmp_path: Path, receiver: WebhookReceiver) -> None:
    place = tmp_path / "turns.sqlite"
    with stored(place) as store, sending(place, crm=receiver.url):
        with files_limited_to(4096):
            store.add(ended("sess_a", "crm"))
            assert not store.flush(PATIENCE_S)
            assert store.problem is not None
            assert receiver.events == []
        assert store.flush(PATIENCE_S)
        assert ids(receiver.wait(1)) == ["sess_a"]


def make_newer(place: Path) -> None:
    """Give the store the version of a later program."""
    with contextlib.closing(sqlite3.connect(place)) as connection:
        connection.execute("PRAGMA user_version = 99")


def unstored_event(place: Path, webhooks: CallWebhooks, call: EndedCall) -> None:
    """Add a call to a store of a newer version."""
    store = TurnStore(place, on_unstored=webhooks.send_unstored)
    store.start()
    store.add(call)
    assert store.flush(PATIENCE_S)
    assert "newer version" in (store.problem or "")
    assert (store.lost, store.num_messages_dropped) == (1, 0)
    store.close()


def test_events_that_a_newer_store_refuses_are_sent_from_memory(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    """As while a fleet is updated: a server that connects again finds newer tables."""
    place = tmp_path / "turns.sqlite"
    receiver.answers = [answers(500), answers(200)]
    with stored(place, ended("sess_before", "other")):
        pass
    make_newer(place)
    with sending(place, crm=receiver.url) as webhooks:
        unstored_event(place, webhooks, ended("sess_a", "crm"))
        assert ids(receiver.wait(2)) == ["sess_a", "sess_a"]
        crm = webhooks.endpoints["crm"]
        until(lambda: crm.num_delivered == 1 and crm.num_waiting == 0)
        assert "its queue can't be read: it is of a newer version" in webhooks.problem["crm"]
        assert crm.writer.failures == 0
    assert receiver.ids == ["msg_sess_a", "msg_sess_a"]


def test_unstored_events_are_bounded_and_what_is_left_is_logged(
    tmp_path: Path,
    receiver: WebhookReceiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(call_webhooks, "MAX_UNSTORED_TRIED", 1)
    call = ended("sess_a", "crm")
    monkeypatch.setattr(call_webhooks, "MAX_UNSTORED_CHARS", 2 * len(call.messages[0].body))
    receiver.answers = [answers(500)]
    place = tmp_path / "turns.sqlite"
    with sending(place, crm=receiver.url) as webhooks:
        crm = webhooks.endpoints["crm"]
        webhooks.send_unstored(call)
        until(lambda: crm.num_failures)
        for name in ("sess_b", "sess_c", "sess_d"):  # one too many behind the one that is tried
            webhooks.send_unstored(ended(name, "crm"))
        until(lambda: crm.num_waiting == 3)
    assert "webhooks.crm: msg_sess_d was dropped" in caplog.text
    assert "webhooks.crm: 3 messages that the store can't hold were not sent" in caplog.text


async def test_metrics_and_readiness_tell_of_endpoints(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    place, clock = tmp_path / "turns.sqlite", SystemClock()
    receiver.answers = [answers(500)]
    with stored(place, ended("sess_a", "crm")) as store, sending(place, crm=receiver.url) as made:
        await asyncio.to_thread(until, lambda: made.endpoints["crm"].num_waiting)
        stages = Stages(Config(), ModelStore(tmp_path, {}), clock)
        access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), clock)
        app = create_app(Config(), stages, clock, store, access=access, webhooks=made)
        transport = httpx.ASGITransport(app.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            ready = (await http.get("/readyz")).json()
            metrics = (await http.get("/metrics")).text
        await stages.close()
    assert ready["webhooks"] == {"crm": "webhooks.crm: the endpoint answered 500"}
    for line in (
        'halfsec_webhook_messages_waiting{endpoint="crm"} 1.0',
        'halfsec_webhook_messages_delivered_total{endpoint="crm"} 0.0',
        'halfsec_webhook_messages_given_up_total{endpoint="crm"} 0.0',
        "halfsec_webhook_messages_dropped_total 0.0",
    ):
        assert line in metrics.splitlines()
    assert 'halfsec_webhook_failures_total{endpoint="crm"}' in metrics


# --- addresses ---


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),  # metadata of clouds
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:7f00:1::", False),
        ("ff02::1", False),
        ("fec0::1", False),
        ("64:ff9b:1::a00:1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::5db8:d822", True),  # of 93.184.216.34
        ("64:ff9b::c000:8", False),  # of 192.0.0.8
        ("2002:5db8:d822::1", True),
        ("2002:c000:8::1", False),
        ("::10.0.0.1", False),
        ("::93.184.216.34", False),  # deprecated, and routed nowhere
        ("192.0.0.8", False),
        ("192.0.0.9", False),  # the nearest NAT
        ("192.0.1.1", True),
        ("191.255.255.255", True),
        ("3fff::1", False),
        ("3fff:fff:ffff::1", False),
        ("3fff:1000::1", True),
        ("5f00::1", False),
        ("100:0:0:1::1", False),
        ("4000::1", False),
        ("2a00:1450:4001::1", True),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_a_name_that_leads_inside_is_refused_at_each_connection(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    """As in DNS rebinding: what the name meant a moment ago does not count."""
    place = tmp_path / "turns.sqlite"
    looked_up = []

    def resolve(host: str, port: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254"]

    url = f"https://hooks.example:{receiver.port}/hook"
    webhooks = CallWebhooks(
        {"crm": WebhookSettings(url)},
        place,
        SystemClock(),
        resolve=resolve,
        environment=ENVIRONMENT,
    )
    with stored(place, ended("sess_a", "crm")):
        webhooks.start()
        until(lambda: webhooks.endpoints["crm"].num_failures >= 2)
        problem = webhooks.problem["crm"]
        webhooks.close(PATIENCE_S)
    assert problem == (
        "webhooks.crm: the endpoint has an address inside the network, which allow_private is off "
        "for"
    )
    assert set(looked_up) == {"hooks.example"}
    assert len(looked_up) >= 2  # looked up and checked anew for each attempt
    assert receiver.events == []


def test_the_connection_goes_to_the_address_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second look-up between the check and the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(PATIENCE_S)
    port = listener.getsockname()[1]
    connected = threading.Event()
    checked: list[str] = []

    def check(address: str) -> bool:
        checked.append(address)
        return True

    monkeypatch.setattr(call_webhooks, "is_public", check)
    webhooks = CallWebhooks(
        {"crm": WebhookSettings(f"http://nowhere.invalid:{port}/")},
        tmp_path / "turns.sqlite",
        SystemClock(),
        resolve=lambda host, port: ["127.0.0.1"],
        environment=ENVIRONMENT,
    )

    def accept() -> None:
        connection, _ = listener.accept()
        connected.set()
        connection.close()

    thread = threading.Thread(target=accept)
    thread.start()
    with stored(tmp_path / "turns.sqlite", ended("sess_a", "crm")):
        webhooks.start()
        assert connected.wait(PATIENCE_S)  # `nowhere.invalid` has no address of its own
        webhooks.close(PATIENCE_S)
    thread.join()
    listener.close()
    assert set(checked) == {"127.0.0.1"}


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", SECRET[6:], "whsec_%%%"])
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ValueError, match="needs") as caught:
        secret_of("WEBHOOK_SECRET", {"WEBHOOK_SECRET": secret})
    assert not secret or secret[6:] == "" or secret[6:] not in str(caught.value)


def test_pauses_grow_to_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_webhooks, "FIRST_PAUSE_S", 5.0)
    assert [pause_before(n) for n in range(2, 9)] == [5, 20, 80, 320, 1280, 3600, 3600]
    assert pause_before(10_000) == 3600
