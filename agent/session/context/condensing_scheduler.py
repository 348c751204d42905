"""Idle condensing: carries out the decisions of `condensing.py` in one session.

The work is cancelled, without waiting for its end, when the time of idling is over: a step of the
engine that has begun is the only thing that a turn may wait for. What was prepared is kept by the
chat and continued next time.
"""

import asyncio
import logging
from collections.abc import Callable

from agent.errors import StageError
from agent.session.ports.stage_ports import Condensed, CondensingGoal
from latency_budget.account.clock import Clock

from .chat_context import ChatContext
from .condensing import CondensingAttempts, CondensingCounts, goal_of

_log = logging.getLogger(__name__)


class IdleCondensing:
    """Condenses the context of one session. Does nothing unless `run` is running."""

    def __init__(
        self,
        context: ChatContext,
        clock: Clock,
        is_idle: Callable[[], bool],
        condensed: Callable[[Condensed], None],
        counts: CondensingCounts,
    ) -> None:
        """`is_idle`: nobody waits for the model, now or soon. `condensed` receives what was done,
        after the context knows of it."""
        self._context = context
        self._clock = clock
        self._is_idle = is_idle
        self._condensed = condensed
        self._counts = counts
        self._attempts = CondensingAttempts()
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Check anew whether a reply waits for the model. Cheap."""
        if not self._is_idle():
            self._attempts.busy()
            if self._work is not None:
                self._work.cancel()
        else:
            self._attempts.idle(self._clock.now_ns())
            self._changed.set()

    async def run(self) -> None:
        """Condense when it is due until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._work = group.create_task(self._when_due())
                await asyncio.wait([self._work])
                self._work = None

    async def _when_due(self) -> None:
        while (due_ns := self._attempts.due_ns()) is not None:
            wait_ns = due_ns - self._clock.now_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
                continue
            use = self._context.use()
            goal = None if use is None else goal_of(use)
            if goal is None or not await self._attempt(goal):
                return

    async def _attempt(self, goal: CondensingGoal) -> bool:
        """Condense once. True where another attempt may follow."""
        self._counts.begun += 1
        try:
            done = await self._context.condense(goal)
        except StageError as error:
            self._counts.failed += 1
            _log.info("the oldest turns were not condensed: %s", error.message)
            self._attempts.failed(self._clock.now_ns())
            return True
        except asyncio.CancelledError:
            self._counts.abandoned += 1
            raise
        if done is not None:
            self._counts.done += 1
            self._condensed(done)
        return False
