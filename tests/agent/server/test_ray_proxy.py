"""Refusals of WebSockets by Ray's proxies, with the messages that Ray sends."""

from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from agent.server.ray_proxy import (
    CLOSE_TRY_AGAIN,
    RESUME_PAUSE_S,
    RESUME_TRIES,
    SocketRefusals,
    middlewares,
)

START = {"type": "http.response.start", "status": 503, "headers": [[b"retry-after", b"10"]]}
BODY = {"type": "http.response.body", "body": b"full"}


async def sent_to(scope: dict[str, Any], messages: Sequence[Message]) -> list[Message]:
    """What a client is sent of an application's messages."""
    found: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        found.append(message)

    (middleware,) = middlewares()
    await middleware.cls(app, *middleware.args, **middleware.kwargs)(scope, receive, send)
    return found


async def test_a_refused_handshake_gets_the_response() -> None:
    scope = {"type": "websocket", "extensions": {"websocket.http.response": {}}}
    assert await sent_to(scope, [START, BODY]) == [
        {**START, "type": "websocket.http.response.start"},
        {**BODY, "type": "websocket.http.response.body"},
    ]


@pytest.mark.parametrize("extensions", [{}, {"extensions": {}}])
async def test_without_the_extension_the_handshake_is_closed(extensions: dict[str, Any]) -> None:
    found = await sent_to({"type": "websocket", **extensions}, [START, BODY])
    assert found == [{"type": "websocket.close", "code": CLOSE_TRY_AGAIN}]


async def test_calls_and_http_pass_as_they_are() -> None:
    scope = {"type": "websocket", "extensions": {"websocket.http.response": {}}}
    call = [{"type": "websocket.accept"}, {"type": "websocket.send", "text": "x"}]
    assert await sent_to(scope, call) == call
    assert await sent_to({"type": "http"}, [START, BODY]) == [START, BODY]


class FullCluster:
    """Refuses so many handshakes with Ray's messages, and then lets one in."""

    def __init__(self, refusals: int, status: int = 503) -> None:
        self.num_tries = 0
        self.pauses: list[float] = []
        self.received: list[list[Message]] = []
        """What each try has read."""
        self._refusals = refusals
        self._start = {**START, "status": status}

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_tries += 1
        scope["headers"] = [(b"x-request-id", b"%d" % self.num_tries)]
        read = [await receive()]
        self.received.append(read)
        if self.num_tries <= self._refusals:
            await send(self._start)
            await send(BODY)
            return
        await send({"type": "websocket.accept"})
        read.append(await receive())

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def dial(self, query: bytes) -> list[Message]:
        """Messages that a client with this query is sent."""
        arriving = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "x"}]
        found: list[Message] = []
        scope: Scope = {
            **{"type": "websocket", "query_string": query, "headers": []},
            "extensions": {"websocket.http.response": {}},
        }

        async def receive() -> Message:
            return arriving.pop(0)

        async def send(message: Message) -> None:
            found.append(message)

        await SocketRefusals(self.app, self.pause)(scope, receive, send)
        return found


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("refusals", [0, 3])
async def test_a_client_that_resumes_waits_for_its_turn(refusals: int, status: int) -> None:
    cluster = FullCluster(refusals, status)
    assert await cluster.dial(b"model=m&resume=rt_1") == [{"type": "websocket.accept"}]
    assert cluster.pauses == [RESUME_PAUSE_S] * refusals
    *refused, let_in = cluster.received
    assert refused == [[{"type": "websocket.connect"}]] * refusals
    assert [each["type"] for each in let_in] == ["websocket.connect", "websocket.receive"]


async def test_a_client_that_resumes_is_refused_after_some_time() -> None:
    cluster = FullCluster(RESUME_TRIES)
    start, body = await cluster.dial(b"resume=rt_1")
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 503)
    assert body["body"] == BODY["body"]
    assert cluster.num_tries == RESUME_TRIES
    assert len(cluster.pauses) == RESUME_TRIES - 1


async def test_other_refusals_of_a_client_that_resumes_are_sent() -> None:
    cluster = FullCluster(1, status=404)
    start, _ = await cluster.dial(b"resume=rt_1")
    assert start["status"] == 404
    assert cluster.num_tries == 1


@pytest.mark.parametrize("query", [b"", b"model=resume"])
async def test_a_new_call_is_refused_at_once(query: bytes) -> None:
    cluster = FullCluster(1)
    start, _ = await cluster.dial(query)
    assert start["status"] == 503
    assert (cluster.num_tries, cluster.pauses) == (1, [])


async def test_a_resumed_call_that_loses_its_replica_is_not_tried_again() -> None:
    num_tries = 0
    found: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_tries
        num_tries += 1
        await send({"type": "websocket.accept"})
        await send(START)

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        found.append(message)

    scope: Scope = {"type": "websocket", "query_string": b"resume=rt_1"}
    await SocketRefusals(app)(scope, receive, send)
    assert num_tries == 1
    assert found == [
        {"type": "websocket.accept"},
        {"type": "websocket.close", "code": CLOSE_TRY_AGAIN},
    ]
