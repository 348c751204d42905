"""Calls in which the caller speaks while the agent does, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

from agent.session.api import server_events as say
from agent.session.api.conversation import Message
from agent.session.ports.stage_ports import SpeechResult
from agent.turn_taking import events as ev
from agent.turn_taking.tables import Agent
from latency_budget.account.clock import ManualClock
from tests.support.fakes.remembering import RememberingChat
from tests.support.session import virtual_time
from tests.support.session.session_call import Call, call_with

REPLY = "Your table for two is booked for nine. You will sit by the window tonight."
CHAR_S = 0.05
"""Time in s of a character in the fake voice."""

Story = Callable[[Call], Awaitable[None]]


def play(story: Story, *replies: str, ducks: bool = False) -> Call:
    """Ask a question, let the reply begin, and let the story go on from there."""
    calls: list[Call] = []

    async def test(clock: ManualClock) -> None:
        chat = RememberingChat([*(replies or (REPLY,)), "Next.", "And next."])
        async with call_with(chat=chat, ducks=ducks, clock=clock) as call:
            calls.append(call)
            listen(call)
            call.ears.say("Is it booked?")
            await call.until(say.ReplyAudio)
            await story(call)

    virtual_time.run(test)
    return calls[0]


def listen(call: Call) -> None:
    """Audio never stalls."""
    call.ears.last_audio_ns = 1 << 62


def begin(call: Call, text: str, *, transcribes: bool = True) -> int:
    """The caller speaks, and goes on speaking. Returns the utterance's number."""
    ears = call.ears
    ears._pauses = ears.utterance = ears.utterance + 1
    if transcribes:
        ears.words[ears.utterance] = text
    ears.hear(ev.SpeechStarted(ears.utterance, 1600 * ears.utterance))
    return ears.utterance


def understand(call: Call, text: str) -> None:
    """Set the transcript so far of an utterance that goes on."""
    call.ears.hear(SpeechResult(call.ears.utterance, partial=(text, 0)))


async def over(call: Call, text: str, *, silence_ms: int = 320) -> None:
    """The caller says something for a third of a second, and is silent."""
    number = begin(call, text)
    await asyncio.sleep(0.3)
    call.ears.hear(ev.SpeechPaused(number, 16_000))
    await asyncio.sleep(0.2)
    call.ears.hear(ev.SilenceGrew(number, silence_ms))
    await asyncio.sleep(0.01)


def ended(call: Call) -> list[say.ReplyEnded]:
    return [notice for notice in call.of(say.ReplyEnded) if isinstance(notice, say.ReplyEnded)]


def items(call: Call) -> list[Message]:
    return [item for item in call.session.conversation if isinstance(item, Message)]


def agent_of(call: Call) -> Agent:
    return call.session._machine.agent


def wire_is_in_order(call: Call) -> None:
    """One end for each reply, nothing after it, one reply at a time, the chain of items right."""
    running: str | None = None
    last: str | None = None
    for notice in call.notices:
        match notice:
            case say.ReplyStarted(response_id, item_id, previous):
                assert running is None
                assert previous == last
                running, last = response_id, item_id
            case say.ReplyText(response_id) | say.ReplyAudio(response_id):
                assert response_id == running
            case say.ReplyEnded(response_id):
                assert response_id == running
                running = None
            case say.ItemAdded(item, previous):
                assert previous == last
                last = item.id
    assert running is None
