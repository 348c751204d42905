"""Refusals of WebSockets by Ray's proxies: `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`.

Where all lines are taken and the queue is full, a proxy of Ray Serve 2.60 answers with the messages
of an HTTP response. On a WebSocket these are not allowed, so that uvicorn answers 500 instead, and
the client learns neither that it may come again nor when. With this middleware in the proxies it
gets Ray's own 503 with `Retry-After`. Set the variable, on all nodes before `ray start`, to
`agent.server.ray_proxy:middlewares`.

A client that resumes a call is not refused at once. When a replica dies all its clients come at the
same moment, and a proxy refuses each for which the queue is full just then, though there are free
lines: those before it have not been assigned to a replica yet. `Retry-After` would keep them out of
their calls for ten seconds. So their handshakes are tried again here, unanswered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qs

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSE_TRY_AGAIN: Final = 1013
"""Close code of a refusal where the server has no response to a handshake; its client sees 403."""

RESUME_TRIES: Final = 30
RESUME_PAUSE_S: Final = 0.1
"""Tries of a client that resumes a call, and the pause between two: 3 s, for which a caller in
mid-call bears the silence. By then the client is refused like others, with `Retry-After`."""

Pause = Callable[[float], Awaitable[None]]


def middlewares() -> list[Middleware]:
    """Middleware of the proxies; Ray calls this when it starts one."""
    return [Middleware(SocketRefusals)]


class SocketRefusals:
    """Middleware that sends HTTP responses to a WebSocket's handshake as ASGI wants them, and tries
    the handshake of a client that resumes a call again."""

    def __init__(self, app: ASGIApp, pause: Pause = asyncio.sleep) -> None:
        self._app = app
        self._pause = pause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            return await self._app(scope, receive, send)
        can_respond = "websocket.http.response" in scope.get("extensions", {})

        async def translated(message: Message) -> None:
            kind = message["type"]
            if not kind.startswith("http.response."):
                await send(message)
            elif can_respond:
                await send({**message, "type": f"websocket.{kind}"})
            elif kind == "http.response.start":
                await send({"type": "websocket.close", "code": CLOSE_TRY_AGAIN})

        if not _resumes(scope):
            return await self._app(scope, receive, translated)
        handshake = _Handshake(receive)
        for _ in range(RESUME_TRIES - 1):
            if not await self._is_refused(scope, handshake.receive(), translated):
                return
            await self._pause(RESUME_PAUSE_S)
        await self._app(scope, handshake.receive(), translated)

    async def _is_refused(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Returns True, having sent nothing, where Ray has no replica for the handshake now. A
        replica's own refusals are sent: their messages are of another type."""
        is_refused: bool | None = None
        """None before the first message, which decides."""

        async def unless_refused(message: Message) -> None:
            nonlocal is_refused
            if is_refused is None:
                is_refused = message["type"] == "http.response.start" and message["status"] >= 500
            if not is_refused:
                await send(message)

        await self._app(dict(scope), receive, unless_refused)
        return bool(is_refused)


class _Handshake:
    """Messages of a connection, whose first one is there for each try."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._first: Message | None = None

    def receive(self) -> Receive:
        """The messages from the first on."""
        is_first = True

        async def received() -> Message:
            nonlocal is_first
            if not is_first:
                return await self._receive()
            is_first = False
            if self._first is None:
                self._first = await self._receive()
            return self._first

        return received


def _resumes(scope: Scope) -> bool:
    """True if the client resumes a call."""
    query: bytes = scope.get("query_string", b"")
    return "resume" in parse_qs(query.decode("latin-1"), keep_blank_values=True)
