"""Bytes behind the handshake of a WebSocket (RFC 6455), as the server reads them.

The first byte decides how the rest is cut. However it is, the application gets the same messages
(of those that come together with an invalid frame, perhaps none), nothing is raised, and a
connection that is closed was closed by a close frame.
"""

import asyncio
import contextlib
import random
from typing import Any, Final

from tests.fuzz.connections import Connections, FuzzLoop, send
from tests.fuzz.target import Target
from tests.support.service.server_connections import end

MASK: Final = bytes(4)
OPCODES: Final = (0x81, 0x01, 0x82, 0x02, 0x80, 0x00, 0x88, 0x89, 0x8A, 0x83, 0xC1, 0x91)
SLICE_ENDS: Final = (1, 2, 7, 125, 126, 127, 4096)


def frame(first: int, payload: bytes, *, mask: bytes = MASK) -> bytes:
    """A masked frame of up to 64 kB."""
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    if len(payload) < 126:
        return bytes([first, 0x80 | len(payload)]) + mask + masked
    return bytes([first, 0xFE]) + len(payload).to_bytes(2, "big") + mask + masked


class _Application:
    """Keeps what it is sent, by connection."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        with contextlib.suppress(asyncio.CancelledError):  # uvicorn would log it
            while (message := await receive())["type"] != "websocket.disconnect":
                self.got.append(message)


LOOP: Final = FuzzLoop()
APPLICATION: Final = _Application()
CONNECTIONS: Final = Connections(APPLICATION)


def examine(data: bytes) -> None:
    """The bytes whole, and in pieces."""
    size = data[0] % 64 + 1 if data else 1
    LOOP.run(_compare(data[1:], size))


async def _compare(data: bytes, size: int) -> None:
    whole, has_failed = await _messages(data, max(1, len(data)))
    pieces, also_failed = await _messages(data, size)
    # A close behind invalid text may be answered before the text is looked at.
    is_cut = has_failed or also_failed
    assert whole == (pieces[: len(whole)] if is_cut else pieces), (whole, pieces)


async def _messages(data: bytes, size: int) -> tuple[list[Any], bool]:
    """What the application got, and whether the server failed the connection."""
    APPLICATION.got = []
    wire = await CONNECTIONS.server.call()
    await send(wire, data, size)
    if wire.closing:
        assert wire.protocol.close_sent or wire.protocol.conn.close_rcvd is not None
    got = list(APPLICATION.got)
    has_failed = wire.closing and wire.protocol.conn.close_rcvd is None
    connections = wire.protocol.connections
    await end(wire)
    await asyncio.sleep(0)
    assert not connections, connections
    return got, has_failed


def change(data: bytes, chance: random.Random) -> bytes | None:
    """With a frame more, or as bytes."""
    if chance.random() < 0.5:
        return None
    payload = chance.choice((b"", b"x", "é".encode(), b"\xff", b"\x03\xe8", chance.randbytes(126)))
    extra = frame(chance.choice(OPCODES), payload, mask=chance.choice((MASK, b"\x01\x02\x03\x04")))
    if chance.random() < 0.2:
        extra = bytes([extra[0], extra[1] & 0x7F]) + extra[2:]  # without its mask
    return extra.join((data[:1], data[1:])) if chance.random() < 0.5 else data + extra


def seeds() -> list[bytes]:
    close = frame(0x88, b"\x03\xe8")
    return [
        b"\x05" + frame(0x81, b"hello") + frame(0x82, b"\x00\x01") + close,
        b"\x01" + frame(0x01, b"be") + frame(0x89, b"ping") + frame(0x80, b"tween"),
        b"\x07" + frame(0x01, b"be") + close + frame(0x80, b"tween"),
        b"\x3f" + frame(0x81, "é".encode() * 100),
        b"\x02" + frame(0x01, "é".encode()[:1]) + frame(0x80, "é".encode()[1:]),
        b"\x02" + frame(0x81, b"\xff"),
        b"\x02" + frame(0x88, b"\x03\xe8reason") + frame(0x81, b"late"),
        b"\x02" + bytes([0x81, 0xFF]) + (1 << 40).to_bytes(8, "big") + MASK,
    ]


TARGET: Final = Target(
    examine, seeds, change, words=[bytes([code, 0x80]) + MASK for code in OPCODES], max_bytes=1024
)
