"""An event loop of its own, on a thread of its own, for tools.

What tools do is not ours: an `async` function that blocks, or a server of tools that sends half a
gigabyte in one line, may hold up this loop, and calls of tools that run on it are given up when
their time is over. The loop that sends audio never waits for any of that.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from agent.stages.model_thread import THREAD_PREFIX

from .api import ToolError

Answer = TypeVar("Answer")

MAX_RUNNING: Final = 128
"""Pieces of work at once: four calls of eight parallel tools are 32. More are refused: these are
tools that swallow their cancelling."""

END_S: Final = 10.0
"""For what lives on the loop to end: a command that does not end by itself is given 2 s, told to,
given 2 s more, and killed."""


class ToolLoop:
    """`start`, `run` and `close` belong to one other loop."""

    def __init__(
        self, name: str, main: Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        """`main` lives on the loop from the start until the event, which is set by `close`."""
        self._main = main or _wait
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name=f"{THREAD_PREFIX}{name}", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event
        self._begun = threading.Event()
        self._num_running = 0
        """Read by the other loop, changed by this one."""

    async def start(self) -> None:
        """Returns when the loop runs."""
        self._thread.start()
        await asyncio.to_thread(self._begun.wait)

    async def run(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Do it there. Raises what it raises, or ToolError where it can't begin. Cancelled, this
        returns at once, and the work is cancelled."""
        if self._loop is None or not self._thread.is_alive():
            raise ToolError("tools do not run now")
        if self._num_running >= MAX_RUNNING:
            raise ToolError("too many tools are running; try again later")
        is_wanted = True

        async def begun() -> Answer:
            if not is_wanted:  # the loop was held up for so long; nothing is done for nobody
                raise asyncio.CancelledError
            return await self._counted(work)

        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begun(), self._loop))
        finally:
            is_wanted = False

    async def close(self) -> None:
        """End what lives there, and the thread, unless it hangs."""
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
