"""Refusals of WebSockets by Ray's proxies: `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`.

Where all lines are taken and the queue is full, a proxy of Ray Serve 2.60 answers with the messages
of an HTTP response. On a WebSocket these are not allowed, so that uvicorn answers 500 instead, and
the client learns neither that it may come again nor when. With this middleware in the proxies it
gets Ray's own 503 with `Retry-After`. Set the variable, on all nodes before `ray start`, to
`agent.server.ray_proxy:middlewares`.
"""

from typing import Final

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSE_TRY_AGAIN: Final = 1013
"""Close code of a refusal where the server has no response to a handshake; its client sees 403."""


def middlewares() -> list[Middleware]:
    """Middleware of the proxies; Ray calls this when it starts one."""
    return [Middleware(SocketRefusals)]


class SocketRefusals:
    """Middleware that sends HTTP responses to a WebSocket's handshake as ASGI wants them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

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

        await self._app(scope, receive, translated)
