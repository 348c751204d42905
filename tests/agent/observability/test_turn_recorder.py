"""Recorder of a session's turns: what it keeps while no turn begins."""

import asyncio

from agent.observability.turn_recorder import MAX_PENDING, MAX_TEXT_CHARS
from agent.session.api import server_events as say
from agent.session.api.settings import SessionSettings
from latency_budget.account.clock import ManualClock
from tests.support.session import virtual_time
from tests.support.session.session_call import call_with


def test_a_caller_who_is_only_transcribed_leaves_a_bounded_number_of_marks() -> None:
    async def test(clock: ManualClock) -> None:
        settings = SessionSettings(transcribes_only=True)
        async with call_with(clock=clock, settings=settings) as call:
            for _ in range(400):
                call.ears.say("I am dictating a long letter to my aunt in the country.")
                await asyncio.sleep(6)
            await call.until(say.TranscriptCompleted, 400)
            log = call.session._log  # white box: it has no turn to tell of
            assert len(log._pending.marks) <= MAX_PENDING
            assert len(log._caller_text) <= MAX_TEXT_CHARS
            assert log._caller_text.endswith("to my aunt in the country.")

    virtual_time.run(test)
