"""Timeouts that count only time in which the event loop turned.

A deadline on the clock also passes while nothing runs: the process was stopped, the machine slept,
or the event loop was blocked. The stage then looks hung, and would be abandoned and rebuilt for all
calls. So time is counted in ticks of the loop, and a tick counts the same however late it comes:
only while the loop turns does the deadline come nearer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import anyio

NUM_TICKS: Final = 10
"""Ticks per deadline. With fewer, one stall takes a larger part of it; more cost wake-ups."""

Result = TypeVar("Result")


@asynccontextmanager
async def stall_timeout(
    seconds: float, goes_on: Callable[[], bool] = lambda: False
) -> AsyncIterator[None]:
    """Cancel the body and raise TimeoutError, as `asyncio.timeout` does, after so many seconds in
    which the loop turned. One stall, of whatever length, counts as a tenth. `goes_on` is asked
    then: True gives the body as many seconds again."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def tick(ticks: int) -> None:
        nonlocal timer
        if ticks == NUM_TICKS and not goes_on():
            limit.reschedule(loop.time())
        elif ticks == NUM_TICKS:
            tick(0)
        else:
            timer = loop.call_later(seconds / NUM_TICKS, tick, ticks + 1)

    async with asyncio.timeout(None) as limit:
        tick(0)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()


async def first_of(*works: Awaitable[Result]) -> Result:
    """Return or raise what the first of these to end does. The others are cancelled and awaited.
    Raises CancelledError where it was cancelled itself."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_settled(work)) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    ended = next((task for task in tasks if not task.cancelled()), None)
    if ended is None:
        raise asyncio.CancelledError
    outcome = ended.result()
    return outcome()


async def _settled(work: Awaitable[Result]) -> Callable[[], Result]:
    """The outcome as a function: a raised error would cancel the whole task group."""
    try:
        result = await work
    except Exception as error:
        failure = error

        def fail() -> Result:
            raise failure

        return fail
    return lambda: result


async def finished_on_thread(work: Callable[[], Result]) -> Result:
    """Run blocking `work` on a worker thread; when cancelled, return only after it has ended.

    What `work` uses may then be closed. A cancelled anyio task group cancels its tasks again on
    every pass of the loop until they end, so one cancellation that is waited out is not enough:
    libsndfile's encoder was freed while the thread still encoded. Within anyio's scope the shield
    keeps further cancellations away (no busy loop); `task.cancel()` may still come any number of
    times. Raises what `work` raised, or CancelledError.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        future.exception()  # retrieved: its caller was cancelled
        raise cancelled
    return future.result()
