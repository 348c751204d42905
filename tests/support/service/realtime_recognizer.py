"""A server with Realtime transcription sessions and uploads that does as a test says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from websockets.asyncio.server import ServerConnection, serve

from tests.support.service.model_servers import Answer, ScriptedServer, http, scripted_server

Mode = Literal["words", "silent", "hangs up", "failed", "refuses", "10 MB", "nonsense"]


@dataclass
class RealtimeRecognizer:
    """The sessions' side. Appended audio brings a word each time, a commit the words "pass N"."""

    http: ScriptedServer
    mode: Mode = "words"
    events: list[dict[str, Any]] = field(default_factory=list)
    num_sessions: int = 0
    num_commits: int = 0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Commits are answered once it is set."""
    committed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def kinds(self) -> list[str]:
        """Types of the events that a client sent, in short, without repeated appends."""
        names = [event["type"].removeprefix("input_audio_buffer.") for event in self.events]
        return [
            name
            for before, name in zip(["", *names], names, strict=False)
            if (before, name) != ("append", "append")
        ]

    async def attend(self, socket: ServerConnection) -> None:
        self.num_sessions += 1
        await self._say(socket, "session.created", session={})
        num_words = 0
        async with asyncio.TaskGroup() as group:
            async for frame in socket:
                event = json.loads(frame)
                self.events.append(event)
                kind = event["type"].removeprefix("input_audio_buffer.")
                if kind == "session.update" and self.mode == "refuses":
                    await self._say(socket, "error", error={"message": "there is no such model"})
                elif kind == "session.update":
                    await self._say(socket, "session.updated", session={})
                elif kind == "append":
                    num_words += 1
                    await self._transcribed(socket, "delta", 0, delta=f"word{num_words} ")
                elif kind == "clear":
                    num_words = 0
                    await self._say(socket, "input_audio_buffer.cleared")
                else:
                    num_words = 0
                    self.num_commits += 1
                    group.create_task(self._commit(socket, self.num_commits))

    async def _commit(self, socket: ServerConnection, number: int) -> None:
        await self._say(socket, "input_audio_buffer.committed", item_id=f"item{number}")
        self.committed.set()
        await self.may_answer.wait()
        if self.mode == "words":
            await self._transcribed(socket, "completed", number, transcript=f"pass {number}")
        elif self.mode == "failed":
            await self._transcribed(socket, "failed", number, error={"message": "no memory"})
        elif self.mode == "hangs up":
            await socket.close(1011, "out of order")
        elif self.mode == "10 MB":
            await socket.send("x" * (10 << 20))
        elif self.mode == "nonsense":
            await socket.send("{nonsense")

    async def _transcribed(
        self, socket: ServerConnection, step: str, number: int, **fields: Any
    ) -> None:
        kind = f"conversation.item.input_audio_transcription.{step}"
        await self._say(socket, kind, item_id=f"item{number}", **fields)

    async def _say(self, socket: ServerConnection, kind: str, **fields: Any) -> None:
        await socket.send(json.dumps({"type": kind, **fields}))


@asynccontextmanager
async def realtime_recognizer(
    *uploads: Answer, mode: Mode = "words", has_sessions: bool = True
) -> AsyncIterator[RealtimeRecognizer]:
    """The server; `uploads` are its answers to uploads."""
    async with scripted_server(*uploads) as scripted:
        peer = RealtimeRecognizer(scripted, mode)
        peer.may_answer.set()
        async with serve(peer.attend, "127.0.0.1", 0, compression=None) as sockets:
            if has_sessions:
                scripted.sockets_at = next(iter(sockets.sockets)).getsockname()[1]
            yield peer
            peer.may_answer.set()


def uploaded(text: str) -> Answer:
    """Answer to an upload."""
    return Answer([http(200, "application/json", json.dumps({"text": text}).encode())], "keep")
