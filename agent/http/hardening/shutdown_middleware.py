"""Shutdown middleware: ends requests that the server can't finish before it stops.

At its end uvicorn waits some seconds for them and then cancels them. Left to itself it takes that
for an error of ours: a traceback in the log, and a 500 for the client.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.http.refusal import HttpRefusal

ENDING: Final = HttpRefusal(
    503, "The server is stopping and could not finish this; try again shortly.",
    "server_stopping", "server_error", 2,
)  # fmt: skip


class LastAnswers:
    """Middleware around everything that works. A response that has begun is broken off, so that no
    client takes it for complete."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        has_begun = False

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            # Only the server, at its end, cancels what it has set to work; nothing waits for that.
            if not has_begun:
                await ENDING.response()(scope, receive, send)
