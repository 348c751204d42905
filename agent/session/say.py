"""Given words, said in the middle of a call, and what the caller has heard by now.

For whoever conducts a call from outside (a telephone's: announcements, the last half minute, a
farewell), who may neither wait for the model nor have its words come in between.
"""

import asyncio
from collections.abc import Callable

from agent.session.response.overlap import CurrentResponse
from agent.session.response.scripted import Script
from agent.turn_taking import events as ev
from agent.turn_taking.machine import TurnTaking
from latency_budget.account.clock import Clock


class Aloud:
    """Belongs to one session, whose `run` has begun."""

    def __init__(
        self,
        machine: TurnTaking,
        script: Script,
        feed: Callable[[ev.Event], None],
        present: Callable[[], CurrentResponse],
        clock: Clock,
    ) -> None:
        self._machine = machine
        self._script = script
        self._feed = feed
        self._present = present
        self._clock = clock

    def say(self, text: str) -> None:
        """These words are the next reply, and begin now: one in progress ends as it is."""
        if not self._machine.takes_requests:
            self._feed(ev.ReplyCancelled())
        self._script.next = text
        self._feed(ev.ReplyRequested())

    async def until_played(self) -> bool:
        """Wait until all that the newest reply has said so far will have been played, by what was
        sent when; what is still on its way to the caller, his carrier knows. False: it has said
        nothing. Returns at once, or never, for a reply that was cut."""
        run = self._present().run
        if run is None or not run.reply.text.strip():
            return False
        await run.mouth.spoken()
        while True:
            now_ns = self._clock.now_ns()
            left_ns = run.reply.playback.lasts_until_ns(now_ns) - now_ns
            if left_ns <= 0:
                return True
            await asyncio.sleep(left_ns / 1e9)
