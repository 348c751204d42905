"""Which peers count as alive, and how the others are got rid of: uvicorn on a transport of ours."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
import uvicorn
from uvicorn.server import ServerState

from agent import connections
from agent.connections import HttpConnection, VoiceConnection

HANDSHAKE: Final = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)
PIECE_OF_A_FRAME: Final = b"\x81\xfe\x10\x00" + bytes(100)
WHOLE_FRAME: Final = b"\x81\x81" + bytes(4) + b"x"

App = Callable[[Any, Any, Any], Awaitable[None]]


class Wire(asyncio.Transport):
    """A peer that never reads: what is closed stays open until it is aborted."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.sent = b""
        self.closing = False
        self.aborted = asyncio.Event()
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True
        self.aborted.set()
        self.protocol.connection_lost(None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class House:
    """A server's shared state, and connections to it."""

    def __init__(self, app: App, **settings: Any) -> None:
        self._config = uvicorn.Config(
            app, ws=VoiceConnection, log_config=None, lifespan="off", **settings
        )
        self._config.load()
        self._state = ServerState()

    def connect(self) -> Wire:
        wire = Wire()
        wire.protocol = HttpConnection(self._config, self._state, {})
        wire.protocol.connection_made(wire)
        return wire

    async def call(self) -> Wire:
        """Connected and accepted."""
        wire = self.connect()
        wire.protocol.data_received(HANDSHAKE)
        assert isinstance(wire.protocol, VoiceConnection)
        for _ in range(5):
            await asyncio.sleep(0)
        assert b" 101 " in wire.sent
        return wire


async def busy(scope: Any, receive: Any, send: Any) -> None:
    """Accepts, and reads nothing."""
    await receive()
    await send({"type": "websocket.accept"})
    await asyncio.Event().wait()


async def brief(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": 1008})


async def end(wire: Wire) -> None:
    for task in list(wire.protocol.tasks):
        task.cancel()
    await asyncio.gather(*wire.protocol.tasks, return_exceptions=True)
    if not wire.aborted.is_set():
        wire.abort()


@pytest.mark.parametrize("sent", [PIECE_OF_A_FRAME, WHOLE_FRAME])
async def test_who_sends_is_alive_though_the_pong_is_late(sent: bytes) -> None:
    wire = await House(busy).call()
    wire.protocol.send_keepalive_ping()
    wire.protocol.data_received(sent)
    wire.protocol.keepalive_timeout()
    assert not wire.closing
    assert wire.protocol.ping_timer is not None  # it is asked again
    await end(wire)


async def test_who_is_not_read_from_cannot_answer() -> None:
    wire = await House(busy).call()
    wire.protocol.data_received(WHOLE_FRAME)
    wire.protocol.send_keepalive_ping()
    wire.protocol.keepalive_timeout()
    assert wire.protocol.read_paused
    assert not wire.closing
    await end(wire)


async def test_who_is_silent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CLOSE_TIMEOUT_S", 0.0)
    wire = await House(busy).call()
    wire.protocol.data_received(PIECE_OF_A_FRAME)
    wire.protocol.send_keepalive_ping()
    wire.protocol.keepalive_timeout()
    assert b"keepalive ping timeout" in wire.sent
    async with asyncio.timeout(30):
        await wire.aborted.wait()
    await end(wire)


async def test_who_does_not_read_is_got_rid_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CLOSE_TIMEOUT_S", 0.0)
    wire = await House(brief).call()
    async with asyncio.timeout(30):
        await wire.aborted.wait()
    assert wire.protocol not in wire.protocol.connections


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
async def test_who_asks_nothing_is_got_rid_of(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.0)
    wire = House(busy).connect()
    if sent:
        wire.protocol.data_received(sent)
    async with asyncio.timeout(30):
        await wire.aborted.wait()


async def test_a_call_is_not_a_request_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.0)
    wire = await House(busy).call()
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert not wire.closing
    await end(wire)


async def test_at_the_limit_who_has_asked_nothing_for_longest_makes_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(HttpConnection, "turned_away", 0)
    house = House(busy, limit_concurrency=4)
    call = await house.call()
    with caplog.at_level(logging.WARNING):
        silent = [house.connect() for _ in range(7)]
    assert [wire.aborted.is_set() for wire in silent] == [True] * 5 + [False] * 2
    assert len(caplog.records) == 3  # the first, the second, the fourth
    newcomer = await house.call()
    assert b" 101 " in newcomer.sent
    assert not call.closing
    for wire in (call, newcomer):
        await end(wire)


async def test_where_all_are_calls_the_newcomer_is_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HttpConnection, "turned_away", 0)
    house = House(busy, limit_concurrency=3)
    inside = [await house.call() for _ in range(2)]
    assert house.connect().aborted.is_set()
    assert not any(wire.closing for wire in inside)
    for wire in inside:
        await end(wire)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """A response that goes on for as long as it is taken."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(0)


async def test_who_does_not_read_on_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL_TIMEOUT_S", 0.01)
    wire = House(endless).connect()
    wire.protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.sleep(0)
    for _ in range(3):  # slow, but alive
        wire.protocol.pause_writing()
        wire.protocol.resume_writing()
    await asyncio.sleep(0.05)
    assert not wire.aborted.is_set()
    wire.protocol.pause_writing()
    await asyncio.wait_for(wire.aborted.wait(), 5)
    await end(wire)


async def test_the_rest_of_a_response_is_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "CLOSE_TIMEOUT_S", 0.01)

    async def short(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x"})

    wire = House(short, timeout_keep_alive=0).connect()
    wire.protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.wait_for(wire.aborted.wait(), 5)
    assert b"200 OK" in wire.sent
