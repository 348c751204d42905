"""An HTTP connection's bytes within limits: events a turn, chunks, lines, bodies nobody reads."""

import asyncio
from typing import Any

import h11
import pytest

from agent.config.access import AccessSettings
from agent.http.hardening import http_parser
from agent.http.hardening.header_limits import MAX_HEAD_BYTES
from agent.http.hardening.http_parser import (
    EVENTS_A_TURN,
    MAX_HEAD_LINES,
    MAX_SMALL_CHUNKS,
    MIN_CHUNK_BYTES,
    SLICE_BYTES,
    HttpParser,
)
from tests.support.service.server_connections import ServerUnderTest, Wire, end

CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMALLEST = b"1\r\na\r\n"
LENGTH = (b"content-length", b"1")
LAST = b"0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


class Site:
    """An application that reads whole bodies and answers with their length."""

    def __init__(self, *, reads: bool = True) -> None:
        self._reads = reads
        self.paths: list[str] = []
        self.bodies: list[bytes] = []
        self.body = b""
        """Of the request in progress."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        self.body = b""
        while self._reads:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            self.body += message["body"]
            if not message["more_body"]:
                break
        self.bodies.append(self.body)
        await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})
        await send({"type": "http.response.body", "body": b"x"})


async def turns(number: int = 30) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def connect(site: Site, access: AccessSettings | None = None) -> Wire:
    server = ServerUnderTest(site) if access is None else ServerUnderTest(site, access)
    return server.connect("192.0.2.1")


def noting_events(wire: Wire) -> list[int]:
    """Count the parser's events; the list has one number for each turn."""
    parser: HttpParser = wire.protocol._parser
    counts: list[int] = []
    begin_turn, next_event = parser.begin_turn, parser.next_event

    def begin() -> None:
        counts.append(0)
        begin_turn()

    def noting() -> Any:
        event = next_event()
        counts[-1] += isinstance(event, h11.Data)
        return event

    parser.begin_turn, parser.next_event = begin, noting  # type: ignore[method-assign]
    return counts


async def test_smallest_chunks_of_one_read_are_parsed_in_turns() -> None:
    site = Site()
    wire = connect(site)
    counts = noting_events(wire)
    wire.protocol.data_received(CHUNKED + SMALLEST * 2000)
    assert counts == [EVENTS_A_TURN - 1]  # and the head
    assert not wire.is_read
    await asyncio.sleep(0)
    assert counts == [EVENTS_A_TURN - 1, EVENTS_A_TURN]
    assert not wire.is_read  # although the application has asked for more of the body
    await turns()
    assert sum(counts) == 2000
    assert max(counts) == EVENTS_A_TURN
    assert wire.is_read
    wire.protocol.data_received(LAST + GET)
    await turns()
    assert site.bodies == [b"a" * 2000, b""]
    assert site.paths == ["/", "/next"]
    await end(wire)


async def test_too_many_small_chunks_are_refused() -> None:
    site = Site()
    wire = connect(site)
    counts = noting_events(wire)
    wire.protocol.data_received(CHUNKED + SMALLEST * 43_000)
    await turns(400)
    assert sum(counts) == MAX_SMALL_CHUNKS
    assert wire.sent.startswith(b"HTTP/1.1 400 ")
    assert b"64 bytes in each on average" in wire.sent
    assert wire.closing
    assert site.bodies == []
    await end(wire)


@pytest.mark.parametrize(
    ("size", "number"),
    [(1, MAX_SMALL_CHUNKS), (MIN_CHUNK_BYTES, 2 * MAX_SMALL_CHUNKS), (20_000, 50)],
)
async def test_bodies_in_reasonable_chunks_are_read(size: int, number: int) -> None:
    site = Site()
    wire = connect(site)
    sent = CHUNKED + chunk(b"x" * size) * number + LAST
    for first in range(0, len(sent), 256 << 10):
        wire.protocol.data_received(sent[first : first + (256 << 10)])
        await turns(40)
        assert wire.is_read
    await turns()
    assert len(site.bodies[0]) == size * number
    assert wire.sent.startswith(b"HTTP/1.1 200 ")
    await end(wire)


async def test_upload_in_large_chunks_waits_for_no_turn() -> None:
    """20 MB: each network read is parsed as it comes, and the socket read on at once."""
    site = Site()
    wire = connect(site)
    counts = noting_events(wire)
    sent = CHUNKED + chunk(bytes(64 << 10)) * 305 + LAST
    reads = [sent[first : first + (256 << 10)] for first in range(0, len(sent), 256 << 10)]
    for each in reads:
        wire.protocol.data_received(each)
        assert not wire.protocol._parser.has_more
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await turns()
    assert len(site.bodies[0]) == 305 * (64 << 10)
    assert len(counts) <= len(reads) + 1  # one more, for the next request
    await end(wire)


@pytest.mark.parametrize("size", [1, 7, 1000, SLICE_BYTES + 1, 1 << 20])
def test_events_do_not_depend_on_how_bytes_come(size: int) -> None:
    body = bytes(range(256)) * 80
    requests = [
        CHUNKED + b"".join(chunk(body[i : i + 3000]) for i in range(0, len(body), 3000)) + LAST,
        CHUNKED + chunk(b"\r\n0\r\n\r\n") + b"0\r\ntrailer: x\r\n\r\n",
        b"PUT /b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body),
        GET,
    ]
    parser = HttpParser(MAX_HEAD_BYTES)
    seen: list[tuple[bytes, bytes]] = []
    sent = b"".join(requests)

    def take() -> None:
        parser.begin_turn()
        while True:
            event = parser.next_event()
            if event is h11.PAUSED:
                parser.send(h11.Response(status_code=204, headers=[]))
                parser.send(h11.EndOfMessage())
                parser.start_next_cycle()
            elif event is h11.NEED_DATA and not parser.has_more:
                return
            elif event is h11.NEED_DATA:
                parser.begin_turn()
            elif isinstance(event, h11.Request):
                seen.append((event.target, b""))
            elif isinstance(event, h11.Data):
                target, before = seen[-1]
                seen[-1] = (target, before + bytes(event.data))

    for first in range(0, len(sent), size):
        parser.receive_data(sent[first : first + size])
        take()
    assert seen == [(b"/", body), (b"/", b"\r\n0\r\n\r\n"), (b"/b", body), (b"/next", b"")]


async def test_head_of_many_lines_is_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    parsed: list[int] = []
    request = h11.Request

    def noting(*args: Any, **kwargs: Any) -> Any:
        parsed.append(len(kwargs["headers"]))
        return request(*args, **kwargs)

    monkeypatch.setattr("h11._readers.Request", noting)
    for number in (MAX_HEAD_LINES, 3000, 60_000):
        wire = connect(site)
        wire.protocol.data_received(GET[:-2] + b"a:\r\n" * number + b"\r\n")
        assert wire.sent.startswith(b"HTTP/1.1 400 ")
        assert wire.closing
        await end(wire)
    assert parsed == []
    wire = connect(site)
    wire.protocol.data_received(GET[:-2] + b"a:\r\n" * (MAX_HEAD_LINES - 5) + b"\r\n" + b"\n" * 999)
    await turns()
    assert site.paths == ["/next"]
    assert len(parsed) == 1
    await end(wire)


@pytest.mark.parametrize(
    "ending", [b"0\r\n" + b"a:\r\n" * 20_000 + b"\r\n", b"1;" + b"x" * 9000 + b"\r\na\r\n" + LAST]
)
async def test_long_trailers_and_extensions_are_refused(ending: bytes) -> None:
    site = Site()
    wire = connect(site)
    wire.protocol.data_received(CHUNKED + SMALLEST + ending)
    await turns()
    assert wire.sent.startswith(b"HTTP/1.1 400 ")
    assert wire.closing
    assert site.bodies == []
    await end(wire)


async def test_rest_of_a_body_after_the_response_is_discarded() -> None:
    """The connection goes on with the next request once it is complete."""
    site = Site(reads=False)
    wire = connect(site)
    wire.protocol.data_received(CHUNKED)
    await turns()
    assert wire.sent.count(b"200 OK") == 1
    wire.protocol.data_received(chunk(bytes(300_000)) + LAST + GET)
    await turns()
    assert wire.sent.count(b"200 OK") == 2
    assert site.paths == ["/", "/next"]
    await end(wire)


@pytest.mark.parametrize("sent", [SMALLEST * (MAX_SMALL_CHUNKS + 9), chunk(bytes(9000)) * 2])
async def test_endless_body_after_the_response_ends_the_connection(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_parser, "MAX_DISCARDED_BYTES", 17_000)
    site = Site(reads=False)
    wire = connect(site)
    wire.protocol.data_received(CHUNKED)
    await turns()
    wire.protocol.data_received(sent)
    await turns(50)
    assert wire.closing
    assert wire.sent.count(b"HTTP/1.1") == 1
    await end(wire)


async def test_late_body_does_not_evade_the_request_rate() -> None:
    """The next request waits, although the body before it is complete only after the response."""
    site = Site(reads=False)
    wire = connect(site, AccessSettings(connections_per_s=0, requests_per_s=1))
    head, body = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n", b"x"
    wire.protocol.data_received(head)
    for _ in range(10):
        await turns()
        wire.protocol.data_received(body + head)
    await turns()
    assert len(site.paths) == 3  # two at once; the third was read before its wait began
    wire.protocol._next_timer.cancel()
    wire.protocol._take_next()
    await turns()
    assert len(site.paths) == 4
    await end(wire)


async def test_lost_connection_parses_nothing_more() -> None:
    site = Site()
    wire = connect(site)
    counts = noting_events(wire)
    wire.protocol.data_received(CHUNKED + SMALLEST * 3000)
    wire.abort()
    await turns()
    assert counts == [EVENTS_A_TURN - 1]
    assert site.bodies == []


async def test_reading_does_not_resume_while_bytes_wait_to_be_parsed() -> None:
    """Not when the application takes a large body, either: the backlog is one read at most."""
    was_read: list[bool] = []
    wire: Wire

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            if wire.protocol._parser.has_more:
                was_read.append(wire.is_read)

    wire = ServerUnderTest(application).connect()
    wire.protocol.data_received(CHUNKED + chunk(bytes(600)) * 400)  # 76 kB in each turn
    assert wire.protocol.flow.read_paused
    await turns()
    assert was_read == [False] * 3
    assert wire.is_read
    await end(wire)
