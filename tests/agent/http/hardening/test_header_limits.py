"""Heads of requests: size, number, and two meanings at once, on connections of a server's own."""

import asyncio
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agent.http.hardening.header_limits import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    HeadCheck,
)
from tests.support.service.server_connections import HANDSHAKE, ServerUnderTest, end

START = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
SECOND = b"GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Site:
    """What was asked for, and answers with the body."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def app(self) -> Any:
        async def echo(request: Request) -> Response:
            self.asked.append(request.url.path)
            return PlainTextResponse(await request.body())

        routes = [Route("/{path:path}", echo, methods=["GET", "POST"])]
        return Starlette(routes=routes, middleware=[Middleware(HeadCheck)])


async def answers(site: Site, sent: bytes) -> bytes:
    """What comes back; the connection's own headers included."""
    server = ServerUnderTest(cast(Any, site.app()), h11_max_incomplete_event_size=MAX_HEAD_BYTES)
    wire = server.connect()
    for first in range(0, len(sent), 1000):
        wire.protocol.data_received(sent[first : first + 1000])
        if wire.closing:
            break
    for _ in range(50):
        await asyncio.sleep(0)
    await end(wire)
    return wire.sent


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_valid_request_passes() -> None:
    site = Site()
    answer = await answers(site, START + b"Content-Length: 3\r\n\r\nabc" + SECOND)
    assert status(answer) == 200
    assert site.asked == ["/echo", "/second"]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (START + b"x: y\r\n" * MAX_HEADERS + b"\r\n", 431),
        (b"GET /?" + b"x" * MAX_TARGET_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET /" + b"x" * (MAX_HEAD_BYTES + 2000) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (START + b"x: " + b"y" * (MAX_HEAD_BYTES + 2000) + b"\r\n\r\n", 400),
        (HANDSHAKE[:-2] + b"x: y\r\n" * (MAX_HEADERS - 4) + b"\r\n", 431),
    ],
    ids=["headers", "target", "request line", "head", "handshake"],
)
async def test_oversized_headers_are_refused(head: bytes, expected: int) -> None:
    site = Site()
    assert status(await answers(site, head)) == expected
    assert site.asked == []


SMUGGLED = {
    "two lengths": b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc" + SECOND,
    "a list of lengths": b"Content-Length: 3, 4\r\n\r\nabc" + SECOND,
    "a length and chunks": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + SECOND,
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"
    + SECOND,
    "another encoding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SECOND,
    "encoded twice": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "space before the colon": b"Transfer-Encoding : chunked\r\nContent-Length: 3\r\n\r\nabc"
    + SECOND,
    "a negative length": b"Content-Length: -3\r\n\r\nabc" + SECOND,
    "a length that is none": b"Content-Length: 0x3\r\n\r\nabc" + SECOND,
    "a length with a sign": b"Content-Length: +3\r\n\r\nabc" + SECOND,
    "a chunk of no size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n" + SECOND,
    "a second host": b"Host: elsewhere\r\nContent-Length: 0\r\n\r\n" + SECOND,
    "a carriage return": b"x: a\rTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + SECOND,
    "a null": b"x: a\x00b\r\nContent-Length: 0\r\n\r\n" + SECOND,
}


@pytest.mark.parametrize("way", SMUGGLED)
async def test_request_smuggling_is_refused(way: str) -> None:
    """The refusal ends the connection: what stands behind is no request."""
    site = Site()
    answer = await answers(site, START + SMUGGLED[way])
    assert status(answer) in (400, 501)
    assert "/second" not in site.asked
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize(
    "twice",
    [
        b"Authorization: Bearer one\r\nauthorization: Bearer two\r\n",
        b"Authorization: Bearer one\r\nx: y\r\nAUTHORIZATION: Basic b25l\r\n",
        b"Origin: http://a.example\r\nOrigin: http://localhost\r\n",
    ],
)
@pytest.mark.parametrize("head", [START, HANDSHAKE[:-2]], ids=["request", "handshake"])
async def test_two_credentials_are_refused(head: bytes, twice: bytes) -> None:
    site = Site()
    answer = await answers(site, head + twice + b"\r\n")
    assert status(answer) == 400
    assert b"ambiguous_header" in answer or b"Origin header: multiple values" in answer
    assert site.asked == []


@pytest.mark.parametrize(
    ("target", "host", "path"),
    [
        (b"http://localhost/second?x=1", "localhost", "/second"),
        (b"HTTPS://a.example:81/a%20b", "a.example:81", "/a b"),
        (b"http://a.example", "a.example", "/"),
        (b"http://a.example?x=/", "a.example", "/"),
        (b"http:///second", "", "/second"),
        (b"/http://b.example/", "header.example", "/http://b.example/"),
        (b"ftp://b.example/", "header.example", "ftp://b.example/"),
    ],
)
async def test_absolute_form_request_target(target: bytes, host: str, path: str) -> None:
    """Its host counts, not the header's."""
    seen: list[tuple[str, list[bytes]]] = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        seen.append((scope["path"], hosts))
        await PlainTextResponse("ok")(scope, receive, send)

    server = ServerUnderTest(HeadCheck(note))
    wire = server.connect()
    wire.protocol.data_received(b"GET " + target + b" HTTP/1.1\r\nHost: header.example\r\n\r\n")
    for _ in range(20):
        await asyncio.sleep(0)
    await end(wire)
    assert seen == [(path, [host.encode()])]
