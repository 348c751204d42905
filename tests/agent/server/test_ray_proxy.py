"""Refusals of WebSockets by Ray's proxies, with the messages that Ray sends."""

from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from agent.server.ray_proxy import CLOSE_TRY_AGAIN, middlewares

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
