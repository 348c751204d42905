"""Signs of life for a client whose caller waits: an event wherever nothing else came for a while.

A turn is answered within a second. Where it is not, a part of the service is slow or hangs, and
supervision takes its time to tell these apart (`agent/stages/`). A client learns meanwhile that the
call is alive, and what it waits for: a page can show it, and nobody takes the line for dead.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import Agent
from latency_budget.account.clock import Clock
from latency_budget.account.turn import Stage

from .api.server_events import Extension, Notice

WAIT_S: Final = 1.5
"""Wait before an event, and between two. Lower tells of turns that are only a little late; higher
leaves a client 2 s without any."""


class WaitNotices:
    """Sends `halfsec.waiting` while the caller of one session waits for a transcript or for the
    first audio of a response. One event loop."""

    def __init__(
        self,
        machine: TurnTaking,
        clock: Clock,
        stage: Callable[[], Stage | None],
        notify: Callable[[Notice], None],
    ) -> None:
        """`stage` returns what is waited for, as far as that is known."""
        self._machine = machine
        self._clock = clock
        self._stage = stage
        self._notify = notify
        self._since_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def look(self) -> None:
        """Follow the state of the call, which may have changed."""
        machine = self._machine
        is_made = machine.agent in (Agent.PREPARING, Agent.OPENING)
        waits = machine.awaits_words or is_made
        if not waits:
            self._stop()
        elif self._timer is None and not self._is_over:
            self._since_ns = self._clock.now_ns()
            self._arm()

    def close(self) -> None:
        """The call is over: nothing more is sent."""
        self._is_over = True
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WAIT_S, self._tell)

    def _tell(self) -> None:
        self._arm()
        stage = self._stage()
        waited_ms = (self._clock.now_ns() - self._since_ns) // 1_000_000
        fields = {"stage": None if stage is None else stage.value, "waited_ms": waited_ms}
        self._notify(Extension("halfsec.waiting", fields))
