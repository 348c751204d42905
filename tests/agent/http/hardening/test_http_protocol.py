"""Which peers count as alive, and how the others are got rid of: uvicorn on a transport of ours."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from agent.config.access import AccessSettings
from agent.http.hardening import http_protocol, websocket_protocol
from agent.http.hardening.http_protocol import HttpConnection
from tests.support.service.server_connections import (
    PIECE_OF_A_FRAME,
    WHOLE_FRAME,
    ServerUnderTest,
    brief,
    busy,
    end,
)


@pytest.mark.parametrize("sent", [PIECE_OF_A_FRAME, WHOLE_FRAME])
async def test_received_data_counts_as_alive_while_a_pong_is_late(sent: bytes) -> None:
    wire = await ServerUnderTest(busy).call()
    wire.protocol.send_keepalive_ping()
    wire.protocol.data_received(sent)
    wire.protocol.keepalive_timeout()
    assert not wire.closing
    assert wire.protocol.ping_timer is not None  # it is asked again
    await end(wire)


async def test_late_pong_of_a_paused_connection_is_tolerated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_protocol, "MAX_WAITING_BYTES", 0)
    wire = await ServerUnderTest(busy).call()
    wire.protocol.data_received(WHOLE_FRAME)
    wire.protocol.send_keepalive_ping()
    wire.protocol.keepalive_timeout()
    assert wire.protocol.read_paused
    assert not wire.closing
    await end(wire)


async def test_silent_connection_is_dropped_after_the_ping_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_protocol, "CLOSE_TIMEOUT_S", 0.0)
    wire = await ServerUnderTest(busy).call()
    wire.protocol.data_received(PIECE_OF_A_FRAME)
    wire.protocol.send_keepalive_ping()
    wire.protocol.keepalive_timeout()
    assert b"keepalive ping timeout" in wire.sent
    async with asyncio.timeout(30):
        await wire.aborted.wait()
    await end(wire)


async def test_client_that_ignores_the_close_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_protocol, "CLOSE_TIMEOUT_S", 0.0)
    wire = await ServerUnderTest(brief).call()
    async with asyncio.timeout(30):
        await wire.aborted.wait()
    assert wire.protocol not in wire.protocol.connections


MALFORMED_CHUNK = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n"


@pytest.mark.parametrize("method", [b"HEAD", b"POST"])
@pytest.mark.parametrize("reads", ["nothing", "the body"])
async def test_body_that_stops_being_http_is_refused_without_a_traceback(
    method: bytes, reads: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by fuzzing: h11's errors came out of uvicorn, one into the log and one as a task's."""
    asked = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if reads == "the body":
            assert (await receive())["type"] == "http.disconnect"
        else:
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})
        asked.set()

    wire = ServerUnderTest(application).connect()
    wire.protocol.data_received(method + b" / HTTP/1.1\r\n" + MALFORMED_CHUNK)
    assert wire.sent.startswith(b"HTTP/1.1 400 ")
    assert wire.closing
    async with asyncio.timeout(30):
        await asked.wait()
    assert wire.sent.count(b"HTTP/1.1") == 1
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    await end(wire)


async def test_body_that_stops_being_http_after_the_response_began() -> None:
    """The response stays as far as it has come: nothing of another one follows it."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        begun.set()
        await may_end.wait()

    wire = ServerUnderTest(application).connect()
    head, end_of_head, chunk = MALFORMED_CHUNK.partition(b"\r\n\r\n")
    wire.protocol.data_received(b"POST / HTTP/1.1\r\n" + head + end_of_head)
    async with asyncio.timeout(30):
        await begun.wait()
    wire.protocol.data_received(chunk)
    assert wire.closing
    assert wire.sent.endswith(b"\r\n\r\nx")
    assert wire.sent.count(b"HTTP/1.1") == 1
    may_end.set()
    await end(wire)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
async def test_connection_without_a_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "REQUEST_TIMEOUT_S", 0.0)
    wire = ServerUnderTest(busy).connect()
    if sent:
        wire.protocol.data_received(sent)
    async with asyncio.timeout(30):
        await wire.aborted.wait()


async def test_request_timeout_does_not_apply_to_websockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "REQUEST_TIMEOUT_S", 0.0)
    wire = await ServerUnderTest(busy).call()
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert not wire.closing
    await end(wire)


async def test_longest_idle_connection_is_evicted_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(HttpConnection, "num_refused", 0)
    server = ServerUnderTest(busy, limit_concurrency=4)
    call = await server.call()
    with caplog.at_level(logging.WARNING):
        silent = [server.connect() for _ in range(7)]
    assert [wire.aborted.is_set() for wire in silent] == [True] * 5 + [False] * 2
    told = [
        record for record in caplog.records if record.name == "agent.http.hardening.http_protocol"
    ]
    assert len(told) == 3  # the first, the second, the fourth
    newcomer = await server.call()
    assert b" 101 " in newcomer.sent
    assert not call.closing
    for wire in (call, newcomer):
        await end(wire)


async def test_new_connection_is_refused_when_all_others_are_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HttpConnection, "num_refused", 0)
    server = ServerUnderTest(busy, limit_concurrency=3)
    inside = [await server.call() for _ in range(2)]
    assert server.connect().aborted.is_set()
    assert not any(wire.closing for wire in inside)
    for wire in inside:
        await end(wire)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """A response that goes on for as long as it is taken."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(0)


async def test_client_that_stops_reading_a_response_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "STALL_TIMEOUT_S", 0.01)
    wire = ServerUnderTest(endless).connect()
    wire.protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.sleep(0)
    for _ in range(3):  # slow, but alive
        wire.protocol.pause_writing()
        wire.protocol.resume_writing()
    await asyncio.sleep(0.05)
    assert not wire.aborted.is_set()
    wire.protocol.pause_writing()
    await asyncio.wait_for(wire.aborted.wait(), 60)
    await end(wire)


async def test_unsent_response_is_not_kept_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "CLOSE_TIMEOUT_S", 0.01)

    wire = ServerUnderTest(short, timeout_keep_alive=0).connect()
    wire.protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.wait_for(wire.aborted.wait(), 60)
    assert b"200 OK" in wire.sent


LIMITED = AccessSettings(connections_per_address=3, connections_per_s=4, requests_per_s=5)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def short(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"1")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x"})


async def test_address_at_its_limit_evicts_its_own_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = ServerUnderTest(busy, LIMITED)
    with caplog.at_level(logging.WARNING):
        call = await server.call("192.0.2.1")
        first, second, third = (server.connect("192.0.2.1") for _ in range(3))
        other = server.connect("192.0.2.2")
    assert [wire.aborted.is_set() for wire in (first, second, third)] == [True, False, False]
    assert not other.closing
    assert not call.closing
    for wire in (second, third, other, call):
        await end(wire)


async def test_address_with_only_calls_gets_no_more_connections() -> None:
    server = ServerUnderTest(busy, LIMITED)
    calls = [await server.call("192.0.2.1") for _ in range(3)]
    assert server.connect("192.0.2.1").aborted.is_set()
    assert not any(call.closing for call in calls)
    await end(calls.pop())
    again = server.connect("192.0.2.1")  # what has ended counts no more
    assert not again.closing
    for wire in (*calls, again):
        await end(wire)


async def test_connection_above_the_rate_is_closed_unread() -> None:
    server = ServerUnderTest(busy, AccessSettings(connections_per_address=0, connections_per_s=4))
    wires = [server.connect(f"2001:db8::{number:x}") for number in range(12)]
    assert [wire.aborted.is_set() for wire in wires] == [False] * 8 + [True] * 4
    assert all(wire.protocol not in wire.protocol.connections for wire in wires[8:])
    other = server.connect("2001:db8:0:1::1")
    assert not other.closing
    for wire in (*wires[:8], other):
        await end(wire)


async def test_trusted_proxy_is_not_limited() -> None:
    proxied = replace(LIMITED, trusted_proxies=("192.0.2.0/28",))
    server = ServerUnderTest(busy, proxied)
    wires = [server.connect("192.0.2.7") for _ in range(20)]
    assert not any(wire.closing for wire in wires)
    for wire in wires:
        await end(wire)


async def test_pipelined_requests_are_rate_limited() -> None:
    """Pipelined in one packet; nothing of them is lost."""
    server = ServerUnderTest(short, AccessSettings(connections_per_s=0, requests_per_s=5))
    wire = server.connect("192.0.2.1")
    delays: list[float] = []
    call_later = wire.protocol.loop.call_later

    class Loop:
        """Notes what is put off, and lets it happen at once."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio.get_running_loop(), name)

        def call_later(self, delay_s: float, callback: Any, *args: Any) -> Any:
            if callback.__name__ == "_take_next":
                delays.append(delay_s)
                delay_s = 0
            return call_later(delay_s, callback, *args)

    wire.protocol.loop = Loop()
    wire.protocol.data_received(GET * 14)
    for _ in range(200):
        await asyncio.sleep(0)
    assert wire.sent.count(b"200 OK") == 14
    assert len(delays) == 4  # ten at once, then one every fifth of a second
    assert delays[0] == pytest.approx(0.2, abs=0.1)
    await end(wire)


async def test_a_flood_of_requests_is_held_in_one_read() -> None:
    """While one is answered nothing more is read."""
    wire = ServerUnderTest(endless).connect()
    wire.protocol.data_received(GET * 1000)
    await asyncio.sleep(0)
    assert not wire.is_read
    assert len(wire.protocol.tasks) == 1
    await end(wire)
