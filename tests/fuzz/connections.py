"""A server on in-memory connections for fuzz targets: one event loop for all inputs."""

import asyncio
import atexit
from collections.abc import Coroutine
from typing import Any, Final

from tests.support.service.server_connections import App, ServerUnderTest, Wire

TURNS: Final = 20
"""Turns of the event loop within which a server has read what came."""


class FuzzLoop:
    """Event loop of one target. What a callback or a task raises is raised by `run`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._errors: list[BaseException] = []
        self._loop.set_exception_handler(self._note)
        atexit.register(self._loop.close)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or RuntimeError(context["message"]))

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self._errors.clear()
        self._loop.run_until_complete(work)
        if self._errors:
            raise self._errors[0]


class Connections:
    """Connections to one server, which forgets each of them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._server: ServerUnderTest | None = None

    @property
    def server(self) -> ServerUnderTest:
        """Made within the loop that serves it."""
        if self._server is None:
            self._server = ServerUnderTest(self._app)
        return self._server


async def send(wire: Wire, data: bytes, size: int) -> None:
    """Have the server read the data in pieces of this size, each in turns of its own."""
    for first in range(0, len(data), size):
        if wire.closing:
            break
        wire.protocol.data_received(data[first : first + size])
        await asyncio.sleep(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)
