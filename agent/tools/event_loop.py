"""Event loop for tools, on a thread of its own.

Tools are foreign code: an `async` function that blocks, or an MCP server that sends half a gigabyte
in one line, may block this loop, and tool calls on it are given up at their time limit. The loop
that sends audio never waits for it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from agent.stages.model_thread import THREAD_PREFIX

from .api import ToolError

Answer = TypeVar("Answer")

MAX_RUNNING: Final = 128
"""Most coroutines at once, those included that the loop has not begun yet or not dropped yet: four
calls of eight parallel tools, and four in the background, are 48. More are refused: only many
calls, tools that ignore their cancellation, or one that blocks the loop get there."""

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
        self._num_made = 0
        """Coroutines given to the loop. The other loop's."""
        self._num_over = 0
        """Of these, those that have ended or were dropped. Read by the other loop, changed by this
        one."""

    @property
    def num_running(self) -> int:
        """Coroutines that run, or wait for the loop. For the other loop."""
        return self._num_made - self._num_over

    async def start(self) -> None:
        """Start the thread, and return when its loop runs."""
        self._thread.start()
        await asyncio.to_thread(self._begun.wait)

    async def run(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Run a coroutine on the loop. Raises its error, or ToolError where it can't be started.
        When cancelled, this returns at once and cancels the coroutine."""
        loop = self._loop
        if loop is None or not self._thread.is_alive():
            raise ToolError("tools do not run now")
        if self.num_running >= MAX_RUNNING:
            raise ToolError("too many tools are running; try again later")
        self._num_made += 1
        is_wanted = is_counted = True
        is_begun = False

        async def begin() -> Answer:
            nonlocal is_begun
            is_begun = True
            try:
                if not is_wanted:  # cancelled before the blocked loop could start it
                    raise asyncio.CancelledError
                return await work()
            finally:
                end()

        def end() -> None:
            nonlocal is_counted
            if is_counted:
                is_counted = False
                self._num_over += 1

        def drop() -> None:
            if not is_begun:  # asyncio throws the cancellation in front of its first line
                end()

        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begin(), loop))
        finally:
            is_wanted = False
            if not is_begun:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(drop)

    async def close(self) -> None:
        """End `main` and the thread. A thread that hangs is left after END_S."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(self._thread.join, END_S)

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        await self._main(self._stop)


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()
