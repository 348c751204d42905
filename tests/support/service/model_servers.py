"""Model servers with OpenAI's HTTP API: this service's endpoint alone, and one that sends whatever
bytes a test gives it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from agent.codec.json_frame import read_frame
from agent.config.remote_models import RemoteModel
from agent.config.schema import Config
from agent.http.auth.principal import client_of
from agent.http.json_body import JsonBodies
from agent.http.openai.chat import ChatCompletions
from agent.http.openai.models import ModelList
from agent.server.server import listen
from agent.stages.model_thread import ModelThread
from agent.stages.registry import Stages
from agent.stages.remote.api_server import ServerOptions
from agent.stages.remote.model_server import ModelServer
from latency_budget.account.clock import SystemClock
from llm_engine.engine import Engine
from tests.support.service.tcp_proxy import Link

WAIT_S: Final = 60
"""Only a hang takes so long."""

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


@asynccontextmanager
async def chat_endpoint(stage: ModelThread[Engine]) -> AsyncIterator[str]:
    """The service's own chat endpoint on an engine; yields the API's address."""
    stages = cast(Stages, SimpleNamespace(status="ready", llm=stage, remote_llm=None))
    routes = [
        Route(
            "/v1/chat/completions",
            ChatCompletions(Config(), stages, JsonBodies(client_of)).serve,
            methods=["POST"],
        ),
        Route("/v1/models", ModelList(Config()).all),
    ]
    config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listener:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server._serve(sockets=[listener]))
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            server.should_exit = True
            await serving


@asynccontextmanager
async def model_server(url: str, **options: Any) -> AsyncIterator[ModelServer]:
    """The client's side of a server."""
    server = ModelServer(RemoteModel(url, "tiny"), ServerOptions(**options), SystemClock())
    try:
        yield server
    finally:
        await server.close()


@dataclass
class Answer:
    """What a server sends for one request, piece by piece."""

    pieces: Sequence[bytes]
    then: str = "close"
    """"close", "keep": the connection stays usable, "hang": nothing more comes, or "flow": the last
    piece comes again in each turn of the event loop, until the client closes the connection."""


@dataclass
class ScriptedServer:
    """A server that answers each POST request with the next answer; the last one repeats."""

    answers: list[Answer]
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the POST requests; of one that is no JSON, its bytes as "upload"."""
    heads: list[str] = field(default_factory=list)
    num_connections: int = 0
    is_down: bool = False
    """It closes every connection at once."""
    list_status: int = 200
    """Status of the answers to GET requests."""
    moved_to: str = ""
    """Address to which GET requests are redirected."""
    sockets_at: int | None = None
    """Port to which WebSockets are passed on; None: they are answered like any GET request."""
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client closed the connection while an answer hung or flowed."""
    num_flowed: int = 0
    """Pieces sent again by answers that flow."""
    _open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._open.append(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while not self.is_down and await self._answer(reader, writer):
                    pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self._open.remove(writer)

    async def close(self) -> None:
        """Close the connections, and wait until they are."""
        for writer in self._open:
            writer.transport.abort()
        async with asyncio.timeout(WAIT_S):
            while self._open:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if self.is_down:
            return False
        self.heads.append(head)
        if self.sockets_at is not None and "upgrade: websocket" in head.lower():
            await _passed_on(head, reader, writer, self.sockets_at)
            return False
        lengths = [line for line in head.lower().split("\r\n") if line.startswith("content-length")]
        body = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
        if head.startswith("GET") and self.moved_to:
            writer.write(http(307, "text/plain", b"", f"location: {self.moved_to}"))
            return False
        if head.startswith("GET"):
            writer.write(http(self.list_status, "application/json", b'{"data": []}'))
            return True
        is_json = "content-type: application/json" in head.lower()
        self.bodies.append(read_frame(body) if is_json else {"upload": body})
        answer = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        try:
            for piece in answer.pieces:
                writer.write(piece)
                await writer.drain()
            if answer.then == "hang":
                assert await reader.read() == b"", "the client closes, and sends nothing more"
            while answer.then == "flow" and not reader.at_eof():
                writer.write(answer.pieces[-1])
                await writer.drain()
                self.num_flowed += 1
                await asyncio.sleep(0)
        finally:  # a connection that is reset was given up as well
            if answer.then in ("hang", "flow"):
                self.given_up.set()
        return answer.then == "keep"


async def _passed_on(
    head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
) -> None:
    """Pass all bytes on, until either side closes."""
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    far_writer.write(head.encode())
    link = Link(writer, far_writer)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(link.pump(reader, far_writer))
            group.create_task(link.pump(far_reader, writer))
    finally:
        link.cut()
        with suppress(ConnectionError):
            await far_writer.wait_closed()


@asynccontextmanager
async def scripted_server(*answers: Answer) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(list(answers))
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield scripted
    finally:
        server.close()
        await scripted.close()


def http(status: int, kind: str, body: bytes, *headers: str) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def head(kind: str = EVENT_STREAM) -> bytes:
    """Head of an answer that lasts until the connection ends."""
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode()


def stream(*events: str, end: str = "data: [DONE]\n\n") -> Answer:
    """Events, each a JSON text, as a stream of its own length: the connection stays usable."""
    body = "".join(f"data: {event}\n\n" for event in events) + end
    return Answer([http(200, EVENT_STREAM, body.encode())], "keep")


def said(text: str, finish: str | None = None) -> str:
    """A chunk with words."""
    reason = "null" if finish is None else f'"{finish}"'
    return (
        '{"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": '
        f'{{"content": "{text}"}}, "finish_reason": {reason}}}]}}'
    )


def error(status: int, message: str, *headers: str) -> Answer:
    """A refusal in OpenAI's form."""
    body = f'{{"error": {{"message": "{message}", "type": "x"}}}}'.encode()
    return Answer([http(status, "application/json", body, *headers)], "keep")
