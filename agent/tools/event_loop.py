"""Event loop for tools, on a thread of its own.

Tools are foreign code: an `async` function that blocks, or an MCP server that sends half a gigabyte
in one line, may block this loop, and tool calls on it are given up at their time limit. The loop
that sends audio never waits for it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from agent.stages.model_thread import THREAD_PREFIX

from .api import ToolError

Answer = TypeVar("Answer")

MAX_RUNNING: Final = 128
"""Most coroutines at once: four calls of eight parallel tools, and four in the background, are 48.
More are refused: only many calls, or tools that ignore their cancellation, get there."""

END_S: Final = 10.0
"""Time for the loop to end: a command that does not end by itself gets 2 s, then SIGTERM, 2 s more,
and SIGKILL."""


class ToolLoop:
    """An event loop on its own thread. `start`, `run` and `close` are called from one other
    loop."""

    def __init__(
        self, name: str, main: Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        """`main` runs on the loop from `start` until its event, which `close` sets."""
        self._main = main or _wait
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name=f"{THREAD_PREFIX}{name}", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event
        self._begun = threading.Event()
        self._num_running = 0
        """Coroutines that run. Read by the other loop, changed by this one."""

    async def start(self) -> None:
        """Start the thread, and return when its loop runs."""
        self._thread.start()
        await asyncio.to_thread(self._begun.wait)

    async def run(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Run a coroutine on the loop. Raises its error, or ToolError where it can't be started.
        When cancelled, this returns at once and cancels the coroutine."""
        if self._loop is None or not self._thread.is_alive():
            raise ToolError("tools do not run now")
        if self._num_running >= MAX_RUNNING:
            raise ToolError("too many tools are running; try again later")
        is_wanted = True

        async def begun() -> Answer:
            if not is_wanted:  # cancelled before the blocked loop could start it
                raise asyncio.CancelledError
            return await self._counted(work)

        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begun(), self._loop))
        finally:
            is_wanted = False

    async def close(self) -> None:
        """End `main` and the thread. A thread that hangs is left after END_S."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(self._thread.join, END_S)

    async def _counted(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        self._num_running += 1
        try:
            return await work()
        finally:
            self._num_running -= 1

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        await self._main(self._stop)


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()
