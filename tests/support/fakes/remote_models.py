"""Model servers on a loopback port, and chats with them.

`ModelPort` answers with bytes that a test gives, as no well-behaved server would; its default is an
echo in the form of OpenAI's chunks.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent.config.remote_model import RemoteAddress
from agent.stages.llm_chat import ChatFactory
from agent.stages.remote.model_server import ModelServer
from agent.stages.remote_chat import RemoteSampling, remote_chat_factory
from latency_budget.account.clock import SystemClock

MODEL = "tiny"
PATIENCE_S = 30.0


@dataclass
class Asked:
    """One request that a server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    """Number of the connection that it came by."""


class Answer:
    """The response to one request, written by a test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def head(self, status: int = 200, kind: str = "text/event-stream", **more: str) -> None:
        headers = {"content-type": kind, "transfer-encoding": "chunked"}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.writer.write(f"HTTP/1.1 {status} Status\r\n{lines}\r\n".encode())
        await self.writer.drain()

    async def send(self, data: bytes) -> None:
        """Some bytes of the body, as a piece of their own."""
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def whole(self, body: bytes, **head: Any) -> None:
        await self.head(**head)
        if body:
            await self.send(body)
        await self.end()

    async def gone(self) -> None:
        """Wait until the client has closed its connection."""
        with contextlib.suppress(ConnectionError):
            await self._reader.read()


Script = Callable[[Asked, Answer], Awaitable[None]]


def chunk(delta: dict[str, Any] | None = None, reason: str | None = None, **more: Any) -> bytes:
    """An event with one chunk of a reply; without a delta, one without choices."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    return event(json.dumps({**body, "choices": choices, **more}))


def event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


DONE = event("[DONE]")


async def echo(asked: Asked, answer: Answer) -> None:
    """Says the messages again, a word a token."""
    if asked.path.endswith("/models"):
        await answer.whole(
            json.dumps({"object": "list", "data": [{"id": MODEL}]}).encode(),
            kind="application/json",
        )
        return
    said = " ".join(each["content"] or "" for each in asked.body["messages"]).split()
    limit = asked.body["max_tokens"]
    words, is_cut = said[:limit], len(said) > limit
    usage = {
        "prompt_tokens": len(said),
        "completion_tokens": len(words),
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": f"{word} "}) for word in words]
    events += [chunk({}, "length" if is_cut else "stop"), chunk(usage=usage), DONE]
    await answer.whole(b"".join(events))


@dataclass
class ModelPort:
    """A server that answers each request as `script` says."""

    script: Script = echo
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    num_connections: int = 0
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def replies(self) -> list[Asked]:
        """Requests for replies."""
        return [each for each in self.asked if each.method == "POST"]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ModelPort"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        connection = self.num_connections
        self._writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.transport.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                pairs = (line.split(": ", 1) for line in head[1:] if line)
                headers = {name.lower(): value for name, value in pairs}
                length = int(headers.get("content-length", "0"))
                body = await reader.readexactly(length)
                asked = Asked(method, path, headers, json.loads(body or "null"), connection)
                self.asked.append(asked)
                await self.script(asked, Answer(reader, writer))
        writer.close()


@asynccontextmanager
async def remote_chats(
    script: Script = echo,
    *,
    timeout_s: float = PATIENCE_S,
    api_key: str = "",
    sampling: RemoteSampling | None = None,
) -> AsyncIterator[tuple[ChatFactory, ModelPort]]:
    """Chats with a server that answers as `script` says."""
    clock = SystemClock()
    async with ModelPort(script).serving() as port:
        address = RemoteAddress(port.base_url, MODEL)
        server = ModelServer(address, clock, api_key=api_key, timeout_s=timeout_s)
        sampling = sampling or RemoteSampling(max_tokens=8, context=4096)
        try:
            yield remote_chat_factory(server, clock, sampling), port
        finally:
            await server.close()
