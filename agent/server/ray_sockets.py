"""Requests of Ray Serve that end with their connection, while their call goes on.

Theory of operation. To Ray Serve a WebSocket is one request until its handler returns, and each
request takes one of the replica's places (`max_ongoing_requests`). The handler of a call's first
connection outlasts that: the call waits for its client, or goes on over another connection
(`agent/realtime/transport.py`). Ray would keep its place all that time, so that with all lines
taken no client could resume: the place that it needs would be its own call's. Here a handler that
outlasts its connection goes on as a task of the replica, and Ray's request ends. What it still
sends is dropped: nobody reads it.
"""

import asyncio
import logging
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

END_S: Final = 1.0
"""Time that a handler has for its end before the request ends without it. Shorter: Ray sends the
next call to a replica that still ends the last one, and has no line yet. Longer: a client that
resumes waits for its own place, where all others are taken."""

UNKNOWN: Final = 1005
"""Code that Ray makes up for a connection of which its proxy knows nothing any more. It broke: who
hangs up on purpose gives a code, the page and the SDK 1000."""

BROKEN: Final = 1006

LAST_S: Final = 3.0
"""Time that handlers have for their end when the replica ends: some report a call to its carrier.
Longer: Ray kills the process before the rest has ended (`STOP_MARGIN_S` of `ray_options.py`)."""

_log = logging.getLogger(__name__)


class LeftHandlers:
    """Handlers that have outlasted their connection. Belongs to the event loop."""

    def __init__(self) -> None:
        self._handlers: set[asyncio.Task[None]] = set()

    def add(self, handler: asyncio.Task[None]) -> None:
        """Let a handler go on. Its errors are logged."""
        self._handlers.add(handler)
        handler.add_done_callback(self._ended)

    async def close(self, last_s: float = LAST_S) -> None:
        """Wait for those that are left, and end the others. The calls are over by now."""
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=last_s)
        await _cancel(set(self._handlers))

    def _ended(self, handler: asyncio.Task[None]) -> None:
        self._handlers.discard(handler)
        if not handler.cancelled() and (error := handler.exception()) is not None:
            _log.error("the handler of a connection failed", exc_info=error)


class ConnectionRequests:
    """Middleware that ends requests with their connection."""

    def __init__(self, app: ASGIApp, left: LeftHandlers, end_s: float = END_S) -> None:
        self._app = app
        self._left = left
        self._end_s = end_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            return await self._app(scope, receive, send)
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] != "websocket.disconnect":
                return message
            if not gone.done():
                gone.set_result(None)
            return {**message, "code": BROKEN} if message.get("code") == UNKNOWN else message

        async def send_while_there(message: Message) -> None:
            if gone.done():
                return
            await send(message)
            if message["type"] == "websocket.close" and not gone.done():
                gone.set_result(None)

        async def handle() -> None:
            await self._app(scope, watched_receive, send_while_there)

        handler = loop.create_task(handle())
        try:
            await asyncio.wait({handler, gone}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({handler}, timeout=self._end_s)
        except asyncio.CancelledError:
            await _cancel({handler})
            raise
        if handler.done():
            return handler.result()
        self._left.add(handler)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
