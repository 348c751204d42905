"""A WebSocket's bytes within limits: slices, fragments, pings, text that is none."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.codec.json_frame import MAX_FRAME_BYTES
from agent.http.hardening import websocket_protocol
from agent.http.hardening.websocket_protocol import (
    FRAMES_AT_ONCE,
    KEPT_MESSAGES,
    MAX_PHONE_FRAME_BYTES,
    SLICE_BYTES,
)
from tests.support.service.server_connections import HANDSHAKE, ServerUnderTest, Wire, end

MASK = bytes(4)
EMPTY_FRAGMENT = b"\x00\x80" + MASK
PING = b"\x89\x80" + MASK
CLOSE = b"\x88\x82" + MASK + b"\x03\xe8"
UNMASKED = b"\x81\x02{}"
LAST_FRAGMENT = b"\x80\x80" + MASK


def text(payload: bytes, *, first: int = 0x81) -> bytes:
    """A masked text frame of up to 64 kB."""
    return bytes([first, 0xFE]) + len(payload).to_bytes(2, "big") + MASK + payload


class Reader:
    """An application that keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self._came = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while True:
            await self.may_read.wait()
            message = await receive()
            self.got.append(message)
            self._came.set()
            if message["type"] == "websocket.disconnect":
                return

    async def heard(self, number: int) -> None:
        """Wait until it has got so many."""
        async with asyncio.timeout(30):
            while len(self.got) < number:
                self._came.clear()
                await self._came.wait()


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def call() -> tuple[Reader, Wire]:
    reader = Reader()
    wire = await ServerUnderTest(reader).call()
    wire.sent = b""
    return reader, wire


def long(payload: bytes, first: int) -> bytes:
    """A masked frame of any length."""
    return bytes([first, 0xFF]) + len(payload).to_bytes(8, "big") + MASK + payload


@pytest.mark.parametrize("path", ["/telephony/twilio/stream", "/telephony/x?y=z", "/v1/realtime"])
@pytest.mark.parametrize("first", [0x81, 0x82])
async def test_telephone_message_size_is_limited(path: str, first: int) -> None:
    """Of texts and bytes, whole and in pieces; those of clients may be longer."""
    most = b"x" * MAX_PHONE_FRAME_BYTES
    pieces = text(most[:40_000], first=first & 0x0F), text(most[:40_000], first=0x80)
    for too_long in (long(most + b"x", first), b"".join(pieces)):
        reader = Reader()
        wire = await ServerUnderTest(reader).call(path=path)
        wire.sent = b""
        wire.protocol.data_received(long(most, first))
        await reader.heard(1)
        wire.protocol.data_received(too_long)
        await reader.heard(2)
        taken, more = (len(each.get("text") or each.get("bytes") or b"") for each in reader.got)
        assert taken == MAX_PHONE_FRAME_BYTES
        if path == "/v1/realtime":
            assert (more > MAX_PHONE_FRAME_BYTES, wire.sent) == (True, b"")
        else:
            opcode, _, *close = wire.sent
            assert (more, opcode, int.from_bytes(bytes(close[:2]), "big")) == (0, 0x88, 1009)
            assert b"65536" in bytes(close)
        await end(wire)


@pytest.mark.parametrize("size", [8 << 20, 16 << 20], ids=["8 MiB", "16 MiB"])
@pytest.mark.parametrize("first", [0x81, 0x82], ids=["text", "bytes"])
@pytest.mark.parametrize("piece", [None, 64 << 10], ids=["whole", "in pieces"])
async def test_client_message_beyond_the_limit_is_closed_with_1009(
    size: int, first: int, piece: int | None
) -> None:
    """RFC 6455, 7.4.1; cases 9.1.5, 9.1.6, 9.2.5 and 9.2.6 of Autobahn's, whole and fragmented."""
    reader = Reader()
    wire = await ServerUnderTest(reader, ws_max_size=MAX_FRAME_BYTES).call()
    wire.protocol.data_received(long(b"x" * MAX_FRAME_BYTES, first))
    await reader.heard(1)
    wire.sent = b""
    if piece is None:  # the head of the frame says it
        wire.protocol.data_received(long(b"", first)[:2] + size.to_bytes(8, "big") + MASK)
    else:
        wire.protocol.data_received(long(b"x" * piece, first & 0x0F))
        for _ in range(size // piece):
            wire.protocol.data_received(long(b"x" * piece, 0x00))
            await turns(20)
    await reader.heard(2)
    taken, ended = reader.got
    assert len(taken.get("text") or taken["bytes"]) == MAX_FRAME_BYTES
    assert ended["type"] == "websocket.disconnect"
    opcode, _, *close = wire.sent
    assert (opcode, int.from_bytes(bytes(close[:2]), "big")) == (0x88, 1009)
    await end(wire)


@pytest.mark.parametrize("behind", [b"", text(b"rest", first=0x80), PING], ids=len)
async def test_close_amid_fragments_is_answered_like_any_other(behind: bytes) -> None:
    """RFC 6455, 5.4 and 5.5.1; case 7.1.5 of Autobahn's. The message is dropped."""
    reader, wire = await call()
    wire.protocol.data_received(text(b"begun", first=0x01) + PING)
    await turns()
    wire.sent = b""
    wire.protocol.data_received(CLOSE + behind)
    await reader.heard(1)
    alone, answer = await call()
    answer.protocol.data_received(CLOSE)
    await alone.heard(1)
    assert wire.sent == answer.sent
    assert reader.got == alone.got
    assert wire.closing
    await end(wire)
    await end(answer)


async def test_shutdown_in_the_middle_of_a_close() -> None:
    """A client whose close is on its way does not stop the shutdown of the others."""
    closing, open_ = await call(), await call()
    closing[1].protocol.data_received(CLOSE)
    await closing[0].heard(1)
    answered = closing[1].sent
    for _, wire in (closing, open_):
        wire.protocol.shutdown()
        assert wire.is_closing()
    assert closing[1].sent == answered  # no second close frame
    assert open_[1].sent.startswith(b"\x88\x02\x03\xf4")  # 1012
    await end(closing[1])
    await end(open_[1])


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
async def test_messages_do_not_depend_on_segmentation(size: int) -> None:
    reader, wire = await call()
    sent = b"".join(
        [
            text(b"whole"),
            text(b"be", first=0x01) + EMPTY_FRAGMENT + text(b"tween", first=0x80),
            PING,
            b"".join(text(b"%d" % number) for number in range(3000)),
            text(b"x" * 60_000),
        ]
    )
    for first in range(0, len(sent), size):
        wire.protocol.data_received(sent[first : first + size])
        if size > 7:
            await turns()
    await reader.heard(3003)
    texts = [message["text"] for message in reader.got]
    assert texts[:2] == ["whole", "between"]
    assert texts[2:-1] == [str(number) for number in range(3000)]
    assert texts[-1] == "x" * 60_000
    assert wire.sent.startswith(b"\x8a")  # one pong
    assert wire.is_read
    await end(wire)


async def test_flood_of_small_frames_yields_to_other_tasks() -> None:
    reader, wire = await call()
    wire.protocol.data_received(text(b"x" * 10, first=0x01))
    wire.protocol.data_received(EMPTY_FRAGMENT * 5000)
    assert len(wire.protocol._input._unread) == 5000 * 6 - SLICE_BYTES
    assert not wire.is_read
    await turns()
    assert not wire.protocol._input._unread
    assert wire.is_read
    assert reader.got == []
    await end(wire)


async def test_fragmented_message_memory_equals_its_payload() -> None:
    reader, wire = await call()
    wire.protocol.data_received(text(b"x", first=0x01))
    for _ in range(5):
        wire.protocol.data_received(EMPTY_FRAGMENT * 1000)
        await turns()
    assert wire.protocol.frames == []
    assert len(wire.protocol._message) == 1
    wire.protocol.data_received(LAST_FRAGMENT)
    await turns()
    assert [message["text"] for message in reader.got] == ["x"]
    await end(wire)


async def test_frame_rate_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "FRAMES_PER_S", 0.01)
    _, wire = await call()
    wire.protocol.data_received(text(b"", first=0x01) + EMPTY_FRAGMENT * (FRAMES_AT_ONCE + 3000))
    await turns(400)
    left = wire.protocol._input._unread
    assert 1000 * 6 < len(left) <= 3000 * 6
    assert wire.protocol._input.is_put_off
    assert not wire.is_read
    wire.protocol.keepalive_timeout()  # who is made to wait is not dead
    assert not wire.closing
    await end(wire)
    assert not wire.protocol._input._unread


async def test_rate_limited_client_gets_its_pongs() -> None:
    """As a client that sends a recording at once, and looks whether the server is there."""
    reader, wire = await call()
    reader.may_read.clear()
    wire.protocol.data_received(text(b"x" * 60_000) * 20 + PING)
    await turns(400)
    assert wire.sent == b"\x8a\x00"
    assert wire.is_read
    reader.may_read.set()
    await reader.heard(20)
    await end(wire)


async def test_parsing_stops_at_the_queue_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "MAX_WAITING_BYTES", 20_000)
    reader, wire = await call()
    reader.may_read.clear()
    wire.protocol.data_received(text(b"x" * 4000) * 40)
    await turns()
    assert wire.protocol.queue.qsize() <= 7
    assert len(wire.protocol._input._unread) > 120_000
    assert not wire.is_read
    wire.protocol.keepalive_timeout()  # who is not read from can't answer
    assert not wire.closing
    reader.may_read.set()
    await reader.heard(40)
    assert wire.is_read
    await end(wire)


async def test_queued_messages_are_dropped_on_disconnect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_protocol, "KEPT_BYTES", 20_000)
    reader, wire = await call()
    reader.may_read.clear()
    wire.protocol.data_received(b"".join(text(b"%d" % each + b" " * 4000) for each in range(40)))
    await turns(100)
    wire.protocol.data_received(CLOSE)
    await turns()
    reader.may_read.set()
    await turns()
    *kept, last = reader.got
    assert last == {"type": "websocket.disconnect", "code": 1000, "reason": ""}
    assert 3 <= len(kept) <= 5
    assert [each["text"].strip() for each in kept] == [str(each) for each in range(len(kept))]
    await end(wire)


async def test_few_of_many_short_messages_are_kept_on_disconnect() -> None:
    reader, wire = await call()
    reader.may_read.clear()
    wire.protocol.data_received(b"".join(text(b"%d" % each) for each in range(200)))
    await turns(100)
    wire.protocol.data_received(CLOSE)
    await turns()
    reader.may_read.set()
    await turns(200)
    *kept, last = reader.got
    assert last["type"] == "websocket.disconnect"
    # And the one that the session was about to take.
    assert KEPT_MESSAGES <= len(kept) <= KEPT_MESSAGES + 1
    assert [each["text"] for each in kept] == [str(each) for each in range(len(kept))]
    await end(wire)


async def test_client_that_stops_reading_gets_no_pong() -> None:
    _, wire = await call()
    wire.protocol.pause_writing()
    wire.protocol.data_received(PING * 1000)
    await turns()
    assert wire.sent == b""
    wire.protocol.resume_writing()
    wire.protocol.data_received(PING)
    assert wire.sent == b"\x8a\x00"
    await end(wire)


async def test_invalid_utf8_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    reader, wire = await call()
    wire.protocol.data_received(text(b"good") + text(b"\xff\xfe"))
    await turns()
    assert [message["type"] for message in reader.got][-1] == "websocket.disconnect"
    assert b"\x03\xef" in wire.sent  # 1007
    assert wire.closing
    assert caplog.text == ""
    await end(wire)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("frame", "code"), [(UNMASKED, 1002), (text(b"\xff\xfe"), 1007)], ids=["unmasked", "no UTF-8"]
)
async def test_bad_frame_directly_after_the_handshake(
    frame: bytes, code: int, together: bool
) -> None:
    wire = ServerUnderTest(Reader()).connect()
    if together:
        wire.protocol.data_received(HANDSHAKE + frame)
    else:
        wire.protocol.data_received(HANDSHAKE)
        wire.protocol.data_received(frame)
    await turns()
    head, _, frames = wire.sent.partition(b"\r\n\r\n")
    assert b" 101 " in head
    assert frames[2:4] == code.to_bytes(2, "big")
    assert wire.closing
    await end(wire)


BAD_HANDSHAKES = {
    "many headers": HANDSHAKE[:-2] + b"x: y\r\n" * 200 + b"\r\n",
    "a long header": HANDSHAKE[:-2] + b"x: " + b"y" * 9000 + b"\r\n\r\n",
    "another method": HANDSHAKE.replace(b"GET", b"POST"),
    "a body": HANDSHAKE[:-2] + b"Content-Length: 5\r\n\r\nhello",
    "chunks": HANDSHAKE[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("kind", BAD_HANDSHAKES)
async def test_invalid_handshake_gets_an_http_response(kind: str) -> None:
    wire = ServerUnderTest(Reader()).connect()
    wire.protocol.data_received(BAD_HANDSHAKES[kind])
    await turns()
    assert wire.sent.startswith(b"HTTP/1.1 400 ")
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert wire.closing
    await end(wire)


PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([EMPTY_FRAGMENT, LAST_FRAGMENT, PING, text(b"x"), text(b"", first=0x01)]),
    st.builds(
        lambda head, length, rest: bytes([head, length]) + rest,
        st.integers(0, 255),
        st.integers(0, 255),
        st.binary(max_size=20),
    ),
)


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(PIECES, max_size=12), size=st.integers(1, 64))
def test_arbitrary_bytes_raise_nothing(pieces: list[bytes], size: int) -> None:
    """After them it goes on, or is closed for a reason, and nothing stays behind."""

    async def attack() -> None:
        _, wire = await call()
        sent = b"".join(pieces)
        for first in range(0, len(sent), size):
            wire.protocol.data_received(sent[first : first + size])
            await asyncio.sleep(0)
        await turns()
        if wire.closing:
            assert wire.protocol.close_sent or wire.protocol.conn.close_rcvd is not None
        connections = wire.protocol.connections
        await end(wire)
        assert not connections

    asyncio.run(attack())
