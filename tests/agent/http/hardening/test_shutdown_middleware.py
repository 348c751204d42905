"""Requests that the server can't finish before it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agent.http.hardening.shutdown_middleware import LastAnswers
from tests.support.service.server_connections import ServerUnderTest, end


async def hanging(request: Request) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


async def streaming(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"the first piece"
        await asyncio.Event().wait()

    return StreamingResponse(pieces())


async def cut_off(path: str, seen: Callable[[bytes], bool]) -> bytes:
    """What a client has got when its request was cancelled after `seen`."""
    routes = [Route("/hanging", hanging), Route("/streaming", streaming)]
    server = ServerUnderTest(Starlette(routes=routes, middleware=[Middleware(LastAnswers)]))
    wire = server.connect()
    wire.protocol.data_received(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    for _ in range(50):
        await asyncio.sleep(0)
    assert seen(wire.sent)
    for task in wire.protocol.tasks:  # as uvicorn does when it has waited long enough
        task.cancel()
    for _ in range(50):
        await asyncio.sleep(0)
    await end(wire)
    return wire.sent


async def test_request_without_a_response_gets_503(caplog: pytest.LogCaptureFixture) -> None:
    sent = await cut_off("/hanging", lambda sent: sent == b"")
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 2" in head
    assert b"The server is stopping" in body
    assert caplog.records == []


async def test_started_response_is_aborted(caplog: pytest.LogCaptureFixture) -> None:
    sent = await cut_off("/streaming", lambda sent: b"the first piece" in sent)
    assert sent.count(b"HTTP/1.1") == 1
    assert not sent.endswith(b"0\r\n\r\n")  # nobody takes it for whole
    assert not any(each.exc_info for each in caplog.records)
