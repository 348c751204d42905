"""Abusive clients: they take a server's time, memory or connections without holding a call.

For `bench abuse` and for tests. They come from an address of their own (Linux has all of
127.0.0.0/8), apart from the measured caller's. None of them reports why its connection ended: the
server's treatment of them is what is tested.
"""

import asyncio
import base64
import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import websockets.asyncio.client as websockets_client
from websockets.exceptions import WebSocketException

from agent.config.local_urls import VOICE_PATH

ATTACKER: Final = "127.0.0.66"
ANSWER_S: Final = 10.0
"""Timeout in s of each answer."""
STEP_S: Final = 0.05
LOST: Final = "closed"
"""Outcome of a connection that is closed without an answer."""

_ASKED: Final = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_SECOND_OF_SILENCE: Final = base64.b64encode(bytes(48_000)).decode()


@dataclass(frozen=True, slots=True)
class AttackTarget:
    """A server with a voice socket at `url`, and a key for the clients that log in."""

    url: str
    api_key: str | None = None
    source: str = ATTACKER

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "localhost"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80

    def handshake(self) -> bytes:
        """WebSocket handshake without a key."""
        return _ASKED.format(path=VOICE_PATH, host=f"{self.host}:{self.port}").encode()


async def flood(target: AttackTarget, number: int, *, per_s: float | None = None) -> Counter[str]:
    """Request `number` voice sockets, at once or `per_s` a second, and hang up. Returns counts by
    outcome: HTTP statuses, and `LOST`."""
    came: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        for count in range(number):
            group.create_task(_ask(target, came))
            if per_s is not None and (count + 1) % max(1, round(per_s * STEP_S)) == 0:
                await asyncio.sleep(STEP_S)
    return came


async def _ask(target: AttackTarget, came: Counter[str]) -> None:
    try:
        async with asyncio.timeout(ANSWER_S), _connection(target) as (reader, writer):
            writer.write(target.handshake())
            head = await reader.read(64)
    except (OSError, TimeoutError):
        head = b""
    came[head[9:12].decode("latin-1") or LOST] += 1


async def sit(target: AttackTarget, number: int, seconds: float, *, says: bytes = b"") -> int:
    """Open `number` connections, send `says`, and hold them. Returns how many the server closed."""
    async with contextlib.AsyncExitStack() as stack:
        readers: list[asyncio.StreamReader] = []
        for _ in range(number):
            with contextlib.suppress(OSError):
                reader, writer = await stack.enter_async_context(_connection(target))
                writer.write(says)
                readers.append(reader)
        await asyncio.sleep(seconds)
        closed = sum(reader.at_eof() or reader.exception() is not None for reader in readers)
        return number - len(readers) + closed


async def talk_too_fast(target: AttackTarget, seconds: float) -> int:
    """Send silence as fast as the server reads it. Returns the seconds of audio sent."""
    sent = 0
    append = json.dumps({"type": "input_audio_buffer.append", "audio": _SECOND_OF_SILENCE})
    with contextlib.suppress(WebSocketException, OSError, TimeoutError):
        async with _call(target) as socket, asyncio.timeout(seconds):
            while True:
                await socket.send(append)
                sent += 1
    return sent


async def read_nothing(target: AttackTarget, seconds: float) -> None:
    """Request a spoken answer, then further messages, and read none of them."""
    text = {"type": "input_text", "text": "Tell me a long story."}
    item = {"type": "message", "role": "user", "content": [text]}
    asked = [{"type": "conversation.item.create", "item": item}, {"type": "response.create"}]
    again = json.dumps({"type": "session.update", "session": {"type": "realtime"}})
    with contextlib.suppress(WebSocketException, OSError, TimeoutError):
        async with _call(target) as socket, asyncio.timeout(seconds):
            socket.transport.pause_reading()
            for event in asked:
                await socket.send(json.dumps(event))
            while True:
                await socket.send(again)


@contextlib.asynccontextmanager
async def _connection(target: AttackTarget) -> Any:
    reader, writer = await asyncio.open_connection(
        target.host, target.port, local_addr=(target.source, 0)
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def _call(target: AttackTarget) -> Any:
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    socket = await websockets_client.connect(
        target.url,
        additional_headers=headers,
        compression=None,
        proxy=None,
        ping_interval=None,
        local_addr=(target.source, 0),
    )
    try:
        yield socket
    finally:
        socket.transport.abort()
