"""Requests that end with their connection, with an application that outlasts it."""

import asyncio
import logging

import pytest
from starlette.types import Message, Receive, Scope, Send

from agent.server.ray_sockets import ConnectionRequests, LeftHandlers

CONNECT: Message = {"type": "websocket.connect"}
LOST: Message = {"type": "websocket.disconnect", "code": 1006}
ACCEPT: Message = {"type": "websocket.accept"}
SEND: Message = {"type": "websocket.send", "text": "x"}
CLOSE: Message = {"type": "websocket.close", "code": 1000}


class Connection:
    """A client's end of a request."""

    def __init__(self, *messages: Message) -> None:
        self.sent: list[Message] = []
        self._messages = list(messages)

    async def receive(self) -> Message:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message)


class Call:
    """An application that reads its connection to the end, and goes on until it may end."""

    def __init__(self, *, fails: bool = False) -> None:
        self.may_end = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.received: list[str] = []
        self.is_cancelled = False
        self._fails = fails

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(ACCEPT)
            while not self.received or self.received[-1] != LOST["type"]:
                self.received.append((await receive())["type"])
            await send(SEND)
            await self.may_end.wait()
            if self._fails:
                raise RuntimeError("a fault of ours")
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        finally:
            self.has_ended.set()


@pytest.mark.parametrize(("told", "seen"), [(1005, 1006), (1006, 1006), (1000, 1000)])
async def test_a_connection_of_which_ray_knows_no_more_is_broken(told: int, seen: int) -> None:
    codes: list[int] = []

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        codes.append((await receive())["code"])

    connection = Connection({**LOST, "code": told})
    requests = ConnectionRequests(call, LeftHandlers())
    await requests({"type": "websocket"}, connection.receive, connection.send)
    assert codes == [seen]


async def test_a_request_ends_where_the_server_closes_and_the_call_goes_on() -> None:
    """Nobody reads that connection any more: its end would never be noticed."""
    may_end, has_ended = asyncio.Event(), asyncio.Event()

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        for message in (ACCEPT, CLOSE, SEND):
            await send(message)
        await may_end.wait()
        has_ended.set()

    connection = Connection(CONNECT)
    requests = ConnectionRequests(call, LeftHandlers(), end_s=0)
    await requests({"type": "websocket"}, connection.receive, connection.send)
    assert not has_ended.is_set()
    assert connection.sent == [ACCEPT, CLOSE]
    may_end.set()
    await has_ended.wait()


async def test_a_request_ends_with_its_connection_and_the_call_goes_on() -> None:
    call, connection = Call(), Connection(CONNECT, LOST)
    requests = ConnectionRequests(call, LeftHandlers(), end_s=0)
    await requests({"type": "websocket"}, connection.receive, connection.send)
    assert not call.has_ended.is_set()
    assert call.received == [CONNECT["type"], LOST["type"]]
    assert connection.sent == [ACCEPT], "nobody reads what comes later"
    call.may_end.set()
    await call.has_ended.wait()
    assert not call.is_cancelled


async def test_a_call_that_ends_in_time_ends_within_its_request() -> None:
    call, connection = Call(), Connection(CONNECT, LOST)
    call.may_end.set()
    requests = ConnectionRequests(call, LeftHandlers())
    await requests({"type": "websocket"}, connection.receive, connection.send)
    assert call.has_ended.is_set()
    assert not call.is_cancelled


async def test_a_call_that_the_server_ends_ends_its_request() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(ACCEPT)
        await send(CLOSE)

    requests, connection = ConnectionRequests(app, LeftHandlers()), Connection()
    await requests({"type": "websocket"}, connection.receive, connection.send)
    assert connection.sent == [ACCEPT, CLOSE]


async def test_a_request_that_ray_cancels_ends_the_handler() -> None:
    call, connection = Call(), Connection(CONNECT)
    requests = ConnectionRequests(call, LeftHandlers())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await requests({"type": "websocket"}, connection.receive, connection.send)
    assert call.is_cancelled


@pytest.mark.parametrize("may_end", [True, False])
async def test_what_is_left_ends_with_the_replica(may_end: bool) -> None:
    call, connection, left = Call(), Connection(CONNECT, LOST), LeftHandlers()
    requests = ConnectionRequests(call, left, end_s=0)
    await requests({"type": "websocket"}, connection.receive, connection.send)
    if may_end:
        call.may_end.set()
        await left.close()
    else:
        await left.close(last_s=0)
    assert call.has_ended.is_set()
    assert call.is_cancelled == (not may_end)
    await left.close()  # there is none any more


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_fault_is_raised_or_logged(is_late: bool, caplog: pytest.LogCaptureFixture) -> None:
    call, connection = Call(fails=True), Connection(CONNECT, LOST)
    requests = ConnectionRequests(call, LeftHandlers(), end_s=0 if is_late else 1)
    serving = requests({"type": "websocket"}, connection.receive, connection.send)
    if is_late:
        await serving
        with caplog.at_level(logging.ERROR):
            call.may_end.set()
            await call.has_ended.wait()
            await asyncio.sleep(0)
        assert "a fault of ours" in caplog.text
    else:
        call.may_end.set()
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await serving


async def test_http_passes_as_it_is() -> None:
    seen: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend((scope, receive, send))

    connection = Connection()
    scope, receive, send = {"type": "http"}, connection.receive, connection.send
    await ConnectionRequests(app, LeftHandlers())(scope, receive, send)
    assert seen == [scope, receive, send]
