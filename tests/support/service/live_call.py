"""A call to a real server, frame by frame, with every event checked by a foreign parser."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import soxr
import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from agent.codec.pcm import decode_audio, encode_audio
from asr.audio.files import read_file
from tests.support.wire.wire_frames import check_strictly

RECORDINGS: Final = Path(__file__).parents[2] / "recordings"
WIRE_HZ: Final = 24_000
PATIENCE_S: Final = 120.0
"""Timeout in s of any one event. Only a hang takes so long, on any machine."""

Int16 = npt.NDArray[np.int16]
Event = dict[str, Any]


@cache
def recording(name: str, rate_hz: int = WIRE_HZ) -> Int16:
    """int16 [n] of `tests/recordings/NAME.wav`."""
    sound = soxr.resample(read_file(RECORDINGS / f"{name}.wav"), 16_000, rate_hz)
    return to_int16(sound)


@cache
def transcript(name: str) -> str:
    texts: dict[str, str] = json.loads((RECORDINGS / "transcripts.json").read_text())
    return texts[f"{name}.wav"]


def to_int16(sound: npt.NDArray[np.floating[Any]]) -> Int16:
    pcm: Int16 = np.clip(np.rint(sound * 32768), -32768, 32767).astype(np.int16)
    return pcm


def silence(seconds: float, rate_hz: int = WIRE_HZ) -> Int16:
    return np.zeros(int(seconds * rate_hz), np.int16)


def overlap(said: str, heard: str) -> float:
    """Share of the words said that were heard."""
    words = [set("".join(c for c in text.lower() if c.isalnum() or c == " ").split())
             for text in (said, heard)]  # fmt: skip
    return len(words[0] & words[1]) / len(words[0])


class Hangup(AssertionError):
    """The server closed the call while a test waited for something else."""


class LiveSocket:
    """One connection. Events are taken in order: `until` goes on where the last one stopped."""

    def __init__(self, socket: websockets_client.ClientConnection) -> None:
        self.socket = socket
        self.events: list[Event] = []

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def update(self, **session: Any) -> Event:
        """Change the session. Returns it as it is then."""
        await self.send("session.update", session={"type": "realtime", **session})
        updated = await self.until("session.updated")
        session = updated["session"]
        return session

    async def until(self, kind: str, where: Callable[[Event], bool] | None = None) -> Event:
        """The next event of this type (that `where` takes)."""
        while True:
            event = await self.next()
            if event["type"] == kind and (where is None or where(event)):
                return event

    async def next(self) -> Event:
        """The next event, checked."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                frame = await self.socket.recv()
        except ConnectionClosed as closed:
            raise Hangup(f"{closed} after {self.types[-5:]}") from closed
        except TimeoutError:
            raise AssertionError(f"nothing came after {self.types[-5:]}") from None
        event: Event = json.loads(frame)
        check_strictly(event)
        self.events.append(event)
        return event

    async def closed(self) -> tuple[int, str]:
        """Wait for the server to hang up. Returns its code and reason."""
        async with asyncio.timeout(PATIENCE_S):
            await self.socket.wait_closed()
        return self.socket.close_code or 0, self.socket.close_reason or ""

    def hang_up_rudely(self) -> None:
        """Drop the connection without a word."""
        self.socket.transport.abort()


class LiveCall(LiveSocket):
    """A caller on a connection: its actions in the words of the tests."""

    async def append(self, pcm: Int16, *, piece_ms: int = 100, encoding: Any = "pcm16") -> None:
        """Audio in pieces, as fast as the server takes it."""
        rate_hz = WIRE_HZ if encoding == "pcm16" else 8_000
        size = rate_hz * piece_ms // 1000
        for first in range(0, len(pcm), size):
            data = encode_audio(pcm[first : first + size], encoding)
            await self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())

    async def say(self, name: str, *, silence_s: float = 2.0, piece_ms: int = 100) -> None:
        """A recording and then silence: a turn."""
        await self.append(recording(name), piece_ms=piece_ms)
        await self.append(silence(silence_s), piece_ms=piece_ms)

    async def say_in_real_time(self, name: str, *, silence_s: float = 2.0) -> None:
        """Send audio in real time, as a microphone does: for work that the server does only while a
        caller speaks."""
        pcm = np.concatenate([recording(name), silence(silence_s)])
        start_s = asyncio.get_running_loop().time()
        for index in range(0, len(pcm), WIRE_HZ // 20):
            due_s = start_s + index / WIRE_HZ
            await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
            await self.append(pcm[index : index + WIRE_HZ // 20])

    async def type(self, text: str) -> Event:
        """A message of the user's. Returns its item."""
        content = [{"type": "input_text", "text": text}]
        message = {"type": "message", "role": "user", "content": content}
        await self.send("conversation.item.create", item=message)
        done = await self.until("conversation.item.done")
        item: Event = done["item"]
        return item

    async def answer(self, **options: Any) -> Event:
        """Ask for a response and wait for its end. Returns it."""
        await self.send("response.create", response=options)
        return await self.response()

    async def response(self) -> Event:
        done = await self.until("response.done")
        response: Event = done["response"]
        return response

    async def ask(self, text: str, **options: Any) -> Event:
        await self.type(text)
        return await self.answer(**options)

    async def prove_alive(self) -> None:
        """The session still answers."""
        response = await self.ask("Say hello.", output_modalities=["text"], max_output_tokens=4)
        assert response["status"] in ("completed", "incomplete"), response
        assert words_of(response)

    async def problem(self, code: str | None = None) -> Event:
        """The next event, which is an error; the end of a response may come first."""
        event = await self.next()
        if event["type"] == "rate_limits.updated":
            event = await self.next()
        assert event["type"] == "error", event
        assert code is None or event["error"]["code"] == code, event
        assert event["error"]["message"]
        error: Event = event["error"]
        return error


@asynccontextmanager
async def call_to(
    url: str, *, model: str | None = None, protocols: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[LiveCall]:
    """A call whose `session.created` has come."""
    address = url if model is None else f"{url}?model={model}"
    offered = [Subprotocol(protocol) for protocol in protocols] or None
    async with websockets_client.connect(
        address,
        subprotocols=offered,
        compression=None,
        proxy=None,
        max_queue=None,  # or hanging up in mid-reply waits for what was not read
        open_timeout=PATIENCE_S,
        ping_timeout=PATIENCE_S,
        **options,
    ) as socket:
        call = LiveCall(socket)
        created = await call.next()
        assert created["type"] == "session.created", created
        yield call


def words_of(response: Event) -> str:
    """Text of a response, spoken or written."""
    content = response["output"][0]["content"] if response["output"] else []
    return " ".join(part.get("transcript") or part.get("text") or "" for part in content)


def audio_of(events: list[Event], response_id: str, encoding: Any = "pcm16") -> Int16:
    """Spoken text, in order of arrival."""
    deltas = [
        decode_audio(base64.b64decode(event["delta"], validate=True), encoding)
        for event in events
        if event["type"] == "response.output_audio.delta" and event["response_id"] == response_id
    ]
    return np.concatenate(deltas) if deltas else np.zeros(0, np.int16)
