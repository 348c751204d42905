"""A client that turns the reply down while the words of who speaks over it are checked."""

import asyncio

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.settings import ResponseOptions
from agent.turn_taking import events as ev
from agent.turn_taking.tables import Agent
from tests.support.fakes.remembering import RememberingChat
from tests.support.session.overlap_call import (
    CHAR_S,
    REPLY,
    agent_of,
    begin,
    ended,
    items,
    over,
    play,
    understand,
    wire_is_in_order,
)
from tests.support.session.session_call import Call


def told(call: Call) -> list[tuple[str, str]]:
    """The extension events about overlaps, with the items that they name."""
    return [
        (notice.type, notice.fields["item_id"])
        for notice in call.of(say.Extension)
        if isinstance(notice, say.Extension) and "duck" in notice.type
    ]


@pytest.mark.parametrize("words", ["Mm-hmm.", "", "is booked for nine."])
def test_nothing_has_happened_but_a_lower_volume(words: str) -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        await over(call, words)
        await call.until(say.ReplyEnded)

    call = play(story, ducks=True)
    reply = items(call)[-1]
    assert told(call) == [("halfsec.duck", reply.id), ("halfsec.unduck", reply.id)]
    assert (reply.text, reply.status) == (REPLY, "completed")
    assert len(call.of(say.SpeechStarted)) == len(call.of(say.SpeechStopped)) == 1
    assert [each.status for each in ended(call)] == ["completed"]
    assert (call.counts.kept["ducks"], call.counts.barged_in["ducks"]) == (1, 0)


def test_the_reply_is_sent_on_meanwhile() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        number = begin(call, "Okay.")
        await asyncio.sleep(0.01)
        before = len(call.of(say.ReplyAudio))
        await asyncio.sleep(0.5)
        assert len(call.of(say.ReplyAudio)) >= before + 4
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        call.ears.hear(ev.SilenceGrew(number, 320))
        await call.until(say.ReplyEnded)

    play(story, ducks=True)


def test_words_stop_it_as_soon_as_they_are_understood() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        begin(call, "No, at ten.")
        await asyncio.sleep(0.35)
        understand(call, "No, at")
        await call.until(say.ReplyEnded)
        assert agent_of(call) is Agent.IDLE
        call.ears.hear(ev.SpeechPaused(2, 16_000))
        call.ears.hear(ev.SilenceGrew(2, 5000))
        await call.until(say.ReplyEnded, 2)

    call = play(story, ducks=True)
    first = ended(call)[0]
    assert (first.status, first.reason) == ("cancelled", "turn_detected")
    assert first.text == "Your table for two is"
    assert [kind for kind, _ in told(call)] == ["halfsec.duck"]
    names = call.names()
    assert names.index("SpeechStarted", 3) < names.index("ReplyEnded")
    assert isinstance(call.chat, RememberingChat)
    assert call.chat.history[1].text == first.text
    assert call.counts.barged_in["ducks"] == 1
    wire_is_in_order(call)


def test_a_voice_without_words_stops_it_after_a_while() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        begin(call, "", transcribes=False)
        await asyncio.sleep(0.5)
        assert agent_of(call) is Agent.SPEAKING
        await asyncio.sleep(0.1)
        assert agent_of(call) is Agent.IDLE

    play(story, ducks=True)


def test_an_interruption_also_ends_a_response_that_began_over_it() -> None:
    """The client stops playing everything at `speech_started`."""

    async def story(call: Call) -> None:
        await asyncio.sleep((len(REPLY) - 4) * CHAR_S)
        assert agent_of(call) is Agent.TRAILING
        begin(call, "Make it ten please, not nine.")
        await asyncio.sleep(0.1)
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await asyncio.sleep(0.2)
        assert agent_of(call) is Agent.SPEAKING, "the second response"
        understand(call, "Make it ten please, not nine")
        await asyncio.sleep(10)

    call = play(story, REPLY, f"Another one. {REPLY}", ducks=True)
    assert [each.reason for each in ended(call)] == [None, "turn_detected"]
    assert [item.text for item in items(call)] == ["Is it booked?", REPLY, ""]
    wire_is_in_order(call)
