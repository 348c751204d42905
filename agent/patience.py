"""Waiting for a stage, but not for ever, and not by the clock alone.

A deadline on the clock also passes while nothing runs: the process was stopped, the machine slept,
or the event loop was held up by something of its own. The stage then looks hung, and would be given
up and built anew for all calls. So time is counted in ticks of the loop, and a tick counts the same
however late it comes: only while the loop turns does patience run out.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

NUM_TICKS: Final = 10
"""Per deadline. Fewer, and one stall takes a larger part of it; more cost wake-ups."""

Result = TypeVar("Result")


@asynccontextmanager
async def patience(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`: cancels what is inside and raises TimeoutError, after so many seconds
    in which the loop was turning. One stall, of whatever length, counts as a tenth."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def tick(ticks: int) -> None:
        nonlocal timer
        if ticks == NUM_TICKS:
            limit.reschedule(loop.time())
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
    """What the first of these to end returns or raises. The others are cancelled and awaited."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_settled(work)) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    outcome = next(task for task in tasks if not task.cancelled()).result()
    return outcome()


async def _settled(work: Awaitable[Result]) -> Callable[[], Result]:
    """Its outcome as a function: a task group would take an error for everybody's."""
    try:
        result = await work
    except Exception as error:
        failure = error

        def fail() -> Result:
            raise failure

        return fail
    return lambda: result


async def finished_on_thread(work: Callable[[], Result]) -> Result:
    """As `asyncio.to_thread`, but when cancelled it ends only after the work: what that uses may
    then be closed."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
