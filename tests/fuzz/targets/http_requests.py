"""Bytes of an HTTP/1.1 connection, as the server reads them before any endpoint does.

The first byte decides how the rest is cut. Whatever comes, nothing is raised, and what is answered
is HTTP: a client's parser (h11) reads every response.
"""

import random
from typing import Any, Final

import h11

from tests.fuzz.connections import Connections, FuzzLoop, send
from tests.fuzz.target import Target
from tests.support.service.server_connections import HANDSHAKE, end

HEADERS: Final = (
    b"Host: localhost", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Connection: close",
    b"Expect: 100-continue", b"Upgrade: websocket", b"Connection: Upgrade", b"Origin: null",
    b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Sec-WebSocket-Protocol: realtime", b"Authorization: Bearer x", b" folded", b"x:" + b"y" * 300,
)  # fmt: skip
STARTS: Final = (
    b"GET / HTTP/1.1", b"POST /v1/chat/completions HTTP/1.1", b"GET //x?%00#f HTTP/1.0",
    b"GET http://localhost/ HTTP/1.1", b"OPTIONS * HTTP/1.1", b"HEAD / HTTP/1.1", b"get / HTTP/1.1",
    b"GET / HTTP/2.0", b"CONNECT x:1 HTTP/1.1", b"GET /v1/realtime HTTP/1.1",
)  # fmt: skip


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and answers with its length, or takes the WebSocket and closes it."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})
        return
    num_bytes, is_more = 0, True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        num_bytes += len(message.get("body", b""))
        is_more = message.get("more_body", False)
    answer = str(num_bytes).encode()
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


LOOP: Final = FuzzLoop()
CONNECTIONS: Final = Connections(application)


def examine(data: bytes) -> None:
    """One connection."""
    size = (1, 7, 64, 1 << 20)[data[0] % 4] if data else 1
    LOOP.run(_connect(data[1:], size))


async def _connect(data: bytes, size: int) -> None:
    wire = CONNECTIONS.server.connect()
    await send(wire, data, size)
    _check_responses(wire.sent)
    if not wire.aborted.is_set():
        await end(wire)


def _check_responses(sent: bytes) -> None:
    """The first response is one, as far as it has come."""
    if not sent:
        return
    client = h11.Connection(h11.CLIENT)
    offer = [("host", "x"), ("upgrade", "websocket"), ("connection", "upgrade")]
    client.send(h11.Request(method="GET", target="/", headers=offer))
    client.send(h11.EndOfMessage())
    client.receive_data(sent)
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return
        if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            return
        if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return


def change(data: bytes, chance: random.Random) -> bytes | None:
    """A line of the head more or less, or another one; or as bytes."""
    if chance.random() < 0.4:
        return None
    head, end_of_head, body = data[1:].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    at = chance.randrange(len(lines))
    what = chance.random()
    if what < 0.2:
        lines[0] = chance.choice(STARTS)
    elif what < 0.7:
        lines.insert(at + 1, chance.choice(HEADERS))
    elif what < 0.8:
        del lines[at]
    else:
        body += chance.choice(
            (b"5\r\nhello\r\n", b"0\r\n\r\n", b"hello", data[1:], b"ffffffff\r\n")
        )
    return data[:1] + b"\r\n".join(lines) + (end_of_head or b"\r\n\r\n") + body


def seeds() -> list[bytes]:
    start = b"\r\nHost: localhost\r\n"
    return [
        b"\x03" + STARTS[0] + start + b"\r\n",
        b"\x01" + STARTS[1] + start + b"Content-Length: 5\r\n\r\nhello",
        b"\x02" + STARTS[1] + start + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"\x03" + (STARTS[0] + start + b"\r\n") * 2,
        b"\x03" + STARTS[1] + start + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
        b"\x03" + HANDSHAKE,
        b"\x00" + HANDSHAKE + b"\x88\x80" + bytes(4),
    ]


TARGET: Final = Target(examine, seeds, change, words=[*HEADERS[:12], b"\r\n", b": "])
