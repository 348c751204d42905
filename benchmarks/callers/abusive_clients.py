"""Abusive clients: they take a server's time, memory or connections, some of them within a call.

For `bench abuse` and for tests. They come from an address of their own (Linux has all of
127.0.0.0/8), apart from the measured caller's. None of them reports why its connection ended: the
server's treatment of them is what is tested.
"""

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import numpy as np
import websockets.asyncio.client as websockets_client
from websockets.exceptions import WebSocketException
from websockets.protocol import State

from agent.config.local_urls import VOICE_PATH
from benchmarks.signals.recordings import wav_bytes

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
SPEED: Final = 15
"""Seconds of speech that a caller sends a second who speaks too fast."""
PIECE_S: Final = 0.1
_LONG_INPUT: Final = "Once more, from the beginning, about the weather in the north. " * 136
"""1500 words."""
_LONG_TEXT: Final = "We are open from nine to five, and the coffee is hot. " * 20
_RETRY_S: Final = 0.2
"""Wait after a refused request."""

_CONTINUATION: Final = 0
_TEXT: Final = 1
_PING: Final = 9
_PING_BYTES: Final = 125
"""Largest payload of a control frame."""
_FRAMES_AT_ONCE: Final = 64
_MAX_UNSENT: Final = 1 << 16
"""Bytes that may wait in this process for the server to read."""


@dataclass(frozen=True, slots=True)
class AttackTarget:
    """A server with a voice socket at `url`, and a key for the clients that log in."""

    url: str
    api_key: str | None = None
    source: str = ATTACKER
    speech: bytes = b""
    """PCM16 at 24 kHz of somebody who speaks, for the attacks that do."""

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
        closed = await asyncio.gather(*map(_is_closed, readers))
        return number - len(readers) + sum(closed)


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    """True if the server closed the connection, behind a refusal or without a word."""
    try:
        async with asyncio.timeout(0.01):  # what has come is read without waiting
            while await reader.read(1 << 16):
                pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


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


async def ping(target: AttackTarget, seconds: float) -> int:
    """Send pings of the largest size in a call, as fast as the server reads them. Returns how many
    were sent."""
    frame = _frame(_PING, bytes(_PING_BYTES))
    return await _send_frames(target, seconds, lambda number: frame)


async def send_fragments(target: AttackTarget, seconds: float) -> int:
    """Send a message that never ends in a call, in fragments of one byte, until the server ends
    the call. Returns how many were sent."""

    def frame(number: int) -> bytes:
        return _frame(_CONTINUATION if number else _TEXT, b" ", is_final=False)

    return await _send_frames(target, seconds, frame)


async def send_one_byte(target: AttackTarget, seconds: float) -> int:
    """Append audio one byte at a time, as fast as the server reads. Returns how many times."""
    event = {"type": "input_audio_buffer.append", "audio": base64.b64encode(b"\x00").decode()}
    frame = _frame(_TEXT, json.dumps(event).encode())
    return await _send_frames(target, seconds, lambda number: frame)


async def _send_frames(target: AttackTarget, seconds: float, frame: Callable[[int], bytes]) -> int:
    """Send frames in a call, `frame` of their number, as they are; the library would not make some
    of them. Returns how many were sent."""
    sent, is_behind = 0, False
    with contextlib.suppress(WebSocketException, OSError, TimeoutError):
        async with _call(target) as socket, asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            group.create_task(_read(socket))
            while socket.state is State.OPEN:
                if not is_behind:
                    data = b"".join(frame(sent + number) for number in range(_FRAMES_AT_ONCE))
                    socket.transport.write(data)
                    sent += _FRAMES_AT_ONCE
                is_behind = socket.transport.get_write_buffer_size() > _MAX_UNSENT
                await asyncio.sleep(STEP_S / 10 if is_behind else 0)
    return sent


def _frame(opcode: int, payload: bytes, *, is_final: bool = True) -> bytes:
    """A masked frame of at most 125 bytes; the mask is zero."""
    return bytes([0x80 * is_final | opcode, 0x80 | len(payload)]) + bytes(4) + payload


async def speak_too_fast(target: AttackTarget, seconds: float) -> float:
    """Speak `SPEED` times faster than real time in a call. Returns the seconds of speech sent."""
    piece = int(PIECE_S * SPEED * 24_000) * 2
    sent = 0
    with contextlib.suppress(WebSocketException, OSError, TimeoutError):
        async with _call(target) as socket, asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            group.create_task(_read(socket))
            while True:
                start = sent % max(1, len(target.speech) - piece)
                audio = base64.b64encode(target.speech[start : start + piece]).decode()
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
                sent += piece
                await asyncio.sleep(PIECE_S)
    return sent / 48_000


async def ask_long(target: AttackTarget, seconds: float) -> int:
    """Request one response after the other in a call, each to an input of 1500 words of its own.
    Returns how many were over."""
    num_over = 0
    with contextlib.suppress(WebSocketException, OSError, TimeoutError):
        async with _call(target) as socket, asyncio.timeout(seconds):
            while True:
                text = [{"type": "input_text", "text": f"{num_over}. {_LONG_INPUT}"}]
                item = {"type": "message", "role": "user", "content": text}
                response = {"conversation": "none", "input": [item], "output_modalities": ["text"]}
                await socket.send(json.dumps({"type": "response.create", "response": response}))
                async for message in socket:
                    if json.loads(message)["type"] in ("response.done", "error"):
                        break
                num_over += 1
    return num_over


async def chat(target: AttackTarget, seconds: float) -> Counter[str]:
    """Request one chat completion after the other. Returns counts by outcome, as `flood` does."""
    words = [{"role": "user", "content": "Tell me a long story about the sea."}]
    body = {"model": "default", "messages": words, "max_tokens": 200}
    return await _request(target, seconds, "/v1/chat/completions", json=body)


async def speak(target: AttackTarget, seconds: float) -> Counter[str]:
    """Request one text after the other to be spoken. Returns counts by outcome."""
    body = {"model": "tts-1", "voice": "alloy", "input": _LONG_TEXT, "response_format": "pcm"}
    return await _request(target, seconds, "/v1/audio/speech", json=body)


async def upload(target: AttackTarget, seconds: float) -> Counter[str]:
    """Upload one recording after the other to be transcribed. Returns counts by outcome."""
    pcm = np.frombuffer(target.speech, "<i2")
    files = {"file": ("speech.wav", wav_bytes(pcm, 24_000), "audio/wav")}
    return await _request(
        target, seconds, "/v1/audio/transcriptions", files=files, data={"model": "whisper-1"}
    )


async def _request(target: AttackTarget, seconds: float, path: str, **content: Any) -> Counter[str]:
    came: Counter[str] = Counter()
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    transport = httpx.AsyncHTTPTransport(local_address=target.source)
    base = f"http://{target.host}:{target.port}"
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(
                transport=transport, base_url=base, headers=headers, timeout=None
            ) as client,
        ):
            while True:
                try:
                    response = await client.post(path, **content)
                    came[str(response.status_code)] += 1
                    is_refused = response.is_error
                except httpx.HTTPError:
                    came[LOST] += 1
                    is_refused = True
                if is_refused:
                    await asyncio.sleep(_RETRY_S)
    return came


async def _read(socket: Any) -> None:
    async for _ in socket:
        pass


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
