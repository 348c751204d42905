"""Twilio's streams on one side, an agent of the agents SDK on the other: a server between the two.

What its makers show for telephones (https://github.com/openai/openai-agents-python, in
`examples/realtime/twilio`), in words of our own: mu-law both ways, the caller's sound in pieces of
50 ms, every piece of a reply followed by a mark, and a mark that comes back told to the SDK as
playback. When the SDK says that somebody interrupts, Twilio's queue is cleared, and the marks that
are still out are forgotten: Twilio returns them at once, as if they had been played.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import websockets.asyncio.server as websockets_server
from agents.realtime import RealtimeAgent, RealtimePlaybackTracker, RealtimeRunner, RealtimeSession

from tests.clients.scene import Event

PIECE: Final = 400
"""Bytes of the caller that are sent on at once: 50 ms of mu-law at 8 kHz."""
BYTES_PER_MS: Final = 8

PHONE: Final[dict[str, Any]] = {
    "input_audio_format": "g711_ulaw",
    "output_audio_format": "g711_ulaw",
    "turn_detection": {
        "type": "semantic_vad", "interrupt_response": True, "create_response": True,
    },
}  # fmt: skip


@dataclass
class Bridge:
    """One call. `errors` are what the SDK has found wrong."""

    raw: list[Event] = field(default_factory=list)
    """Of the server, in order."""
    played_ms: dict[str, list[float]] = field(default_factory=dict)
    """Of each item, how much of it was played with each mark that came back."""
    interrupted: list[tuple[str, float]] = field(default_factory=list)
    """Which item had been played how far when the SDK told of an interruption."""
    errors: list[Any] = field(default_factory=list)
    _tracker: RealtimePlaybackTracker = field(default_factory=RealtimePlaybackTracker)
    _marks: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    """That are out: item, part of it, and ms."""
    _num_marks: int = 0

    async def hold(self, phone: websockets_server.ServerConnection, url: str) -> None:
        """From the stream's first message to its end."""
        stream_id = ""
        while not stream_id:
            message = json.loads(await phone.recv())
            if message["event"] == "start":
                stream_id = message["start"]["streamSid"]
        agent = RealtimeAgent(name="assistant", instructions="Answer in few words.")
        config: Any = {
            "url": url,
            "api_key": "x",
            "initial_model_settings": PHONE,
            "playback_tracker": self._tracker,
        }
        session = await RealtimeRunner(agent).run(model_config=config)
        async with session, asyncio.TaskGroup() as group:
            speaking = group.create_task(self._to_phone(session, phone, stream_id))
            await self._from_phone(session, phone)
            speaking.cancel()

    async def _from_phone(
        self, session: RealtimeSession, phone: websockets_server.ServerConnection
    ) -> None:
        said = bytearray()
        async for text in phone:
            message = json.loads(text)
            if message["event"] == "media":
                said += base64.b64decode(message["media"]["payload"])
                if len(said) >= PIECE:
                    await session.send_audio(bytes(said))
                    said.clear()
            elif message["event"] == "mark":
                self._reached(message["mark"]["name"])

    def _reached(self, name: str) -> None:
        if name in self._marks:
            item_id, part, ms = self._marks.pop(name)
            self._tracker.on_play_ms(item_id, part, ms)
            played_ms = self.played_ms.setdefault(item_id, [0.0])
            played_ms.append(played_ms[-1] + ms)

    async def _to_phone(
        self,
        session: RealtimeSession,
        phone: websockets_server.ServerConnection,
        stream_id: str,
    ) -> None:
        async def tell(event: str, **fields: Any) -> None:
            await phone.send(json.dumps({"event": event, "streamSid": stream_id, **fields}))

        async for event in session:
            if event.type == "audio":
                audio = event.audio
                self._num_marks += 1
                name = f"piece {self._num_marks}"
                ms = len(audio.data) / BYTES_PER_MS
                self._marks[name] = (audio.item_id, audio.content_index, ms)
                await tell("media", media={"payload": base64.b64encode(audio.data).decode()})
                await tell("mark", mark={"name": name})
            elif event.type == "audio_interrupted":
                self._marks.clear()
                played_ms = self.played_ms.get(event.item_id, [0.0])
                self.interrupted.append((event.item_id, played_ms[-1]))
                await tell("clear")
            elif event.type == "error":
                self.errors.append(event.error)
            elif event.type == "raw_model_event":
                if event.data.type == "raw_server_event":
                    self.raw.append(event.data.data)
                elif event.data.type == "exception":
                    self.errors.append(event.data.exception)


@asynccontextmanager
async def bridge(url: str) -> AsyncIterator[tuple[Bridge, str]]:
    """A server for one call of Twilio's, and its address. `url`: the agent's, of the Realtime
    protocol."""
    made = Bridge()

    async def serve(phone: websockets_server.ServerConnection) -> None:
        await made.hold(phone, url)

    async with websockets_server.serve(serve, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield made, f"ws://127.0.0.1:{port}"
