"""A session while its client is away, in virtual time on fake stages."""

import asyncio

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import FunctionOutput, ItemId
from agent.session.api.settings import ResponseOptions
from agent.turn_taking import events as ev
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.clock import ManualClock
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.overlap_call import (
    CHAR_S,
    REPLY,
    agent_of,
    begin,
    ended,
    items,
    listen,
    play,
    wire_is_in_order,
)
from tests.support.session.session_call import Call, call_with
from tests.support.session.tool_call import CALL, NOON, equip


def texts(call: Call) -> list[str | None]:
    return [item.text for item in items(call)]


def history(call: Call) -> list[str]:
    assert isinstance(call.chat, RememberingChat)
    return [message.text for message in call.chat.history]


async def type_and_answer(call: Call) -> None:
    """Another turn, without speech."""
    count = len(ended(call))
    options = ResponseOptions(output_modality="text")
    await call.session.handle(ask.CreateResponse(options))
    await call.until(say.ReplyEnded, count + 1)


def test_disconnect_keeps_only_the_played_part_of_a_reply() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(30.5 * CHAR_S)
        call.session.client_lost()
        num_told = len(call.of(say.ReplyAudio))
        await asyncio.sleep(40)
        assert len(call.of(say.ReplyAudio)) == num_told
        assert not call.session.will_answer
        call.session.client_back()
        await asyncio.sleep(40)
        assert agent_of(call) is Agent.IDLE
        assert len(call.of(say.ReplyStarted)) == 1
        await type_and_answer(call)

    call = play(story)
    heard = "Your table for two is booked"
    assert texts(call) == ["Is it booked?", heard, "Next."]
    assert history(call) == ["Is it booked?", heard, "Next."]
    assert ended(call)[0].status == "cancelled"
    wire_is_in_order(call)


def test_a_lost_client_is_no_interruption() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(30.5 * CHAR_S)
        call.session.client_lost()
        await asyncio.sleep(1)
        call.session.client_back()
        await type_and_answer(call)

    call = play(story)
    lost = call.turns[0].record
    assert (lost.answered, lost.outcome) == (True, None)


def test_truncation_after_reconnect_sets_what_was_played() -> None:
    """It has stopped, and says so by the next connection."""

    async def story(call: Call) -> None:
        await asyncio.sleep(30.5 * CHAR_S)
        call.session.client_lost()
        await asyncio.sleep(2)
        call.session.client_back()
        item = items(call)[-1]
        await call.session.handle(ask.TruncateItem(item.id, round(12.5 * CHAR_S * 1000)))
        await type_and_answer(call)

    call = play(story)
    assert texts(call) == history(call) == ["Is it booked?", "Your table", "Next."]


def test_playback_position_stops_when_regular_reports_stop() -> None:
    """The network took what was sent for two seconds without a word."""

    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        item = items(call)[-1]
        await call.session.handle(ask.PlaybackReport(item.id, 1000))
        await asyncio.sleep(40 * CHAR_S)
        call.session.client_lost()
        call.session.client_back()
        await type_and_answer(call)

    call = play(story)
    # 1 s was played, and 400 ms more had been sent: 28 characters.
    assert texts(call)[1] == "Your table for two is booked"


def test_unheard_answer_is_given_after_reconnect() -> None:
    async def story(call: Call) -> None:
        call.session.client_lost()
        await asyncio.sleep(20)
        assert len(call.of(say.ReplyStarted)) == 1
        assert call.session.will_answer
        call.session.client_back()
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(5)

    call = play(story, REPLY, "Yes, for nine.")
    assert texts(call) == ["Is it booked?", "", "Yes, for nine."]
    assert isinstance(call.chat, RememberingChat)
    assert [message.text for message in call.chat.asked[-1]] == ["Is it booked?"]
    late = call.turns[-1].record
    assert late.asked
    assert late.e2e_server_ns is not None
    assert late.e2e_server_ns < 1e9, "the time without a network is nobody's wait for an answer"
    wire_is_in_order(call)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_response_that_has_called_the_client_is_not_begun_anew(*, is_answered: bool) -> None:
    """Nothing of it was heard when the connection broke. The client asks for the next response."""

    async def test(clock: ManualClock) -> None:
        chat = RememberingChat([Calling("Let me look at the clock.", (CALL,)), NOON])
        async with call_with(chat=chat, clock=clock) as call:
            listen(call)
            await equip(call)
            call.ears.say("What time is it?")
            (made,) = await call.until(say.ReplyCalled)
            assert isinstance(made, say.ReplyCalled)
            output = FunctionOutput(ItemId("o"), made.call.call_id, "12:00")
            if is_answered:
                await call.session.handle(ask.CreateItem(output))
            assert not ended(call)
            call.session.client_lost()
            await asyncio.sleep(1)
            assert not call.session.will_answer
            call.session.client_back()
            await asyncio.sleep(5)
            assert len(call.of(say.ReplyStarted)) == 1
            if not is_answered:
                await call.session.handle(ask.CreateItem(output))
            await type_and_answer(call)
            assert history(call) == ["What time is it?", "", "12:00", NOON]
            assert not call.of(say.Problem)

    virtual_time.run(test)


def test_interrupted_utterance_becomes_a_message() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(len(REPLY) * CHAR_S + 1)
        begin(call, "And make it")
        await asyncio.sleep(0.5)
        call.session.client_lost()
        await asyncio.sleep(20)
        machine = call.session._machine
        assert (machine.caller, machine.agent) == (Caller.QUIET, Agent.IDLE)
        assert texts(call)[-1] == "And make it"
        call.session.client_back()
        await call.until(say.ReplyEnded, 2)

    call = play(story)
    assert texts(call) == ["Is it booked?", REPLY, "And make it", "Next."]
    wire_is_in_order(call)


def test_the_account_of_a_turn_does_not_wait_for_a_client_that_is_away() -> None:
    async def story(call: Call) -> None:
        item = items(call)[-1]
        await asyncio.sleep(0.4)
        await call.session.handle(ask.PlaybackReport(item.id, 300))
        await asyncio.sleep(0.2)
        call.session.client_lost()
        assert len(call.turns) == 1
        await asyncio.sleep(3)
        call.session.client_back()
        await call.session.handle(ask.PlaybackReport(item.id, 600))

    call = play(story)
    (entry,) = call.turns
    assert entry.record.e2e_ear_ns is not None
    assert entry.record.e2e_ear_ns < 1e9
    assert not entry.record.interrupted


def test_reports_after_reconnect_set_no_ear_latency() -> None:
    """The first report of a reply comes by the next connection."""

    async def story(call: Call) -> None:
        await asyncio.sleep(0.5)
        call.session.client_lost()
        await asyncio.sleep(3)
        call.session.client_back()
        await call.session.handle(ask.PlaybackReport(items(call)[-1].id, 400))
        await asyncio.sleep(1)

    call = play(story)
    assert call.turns[0].record.e2e_ear_ns is None


@pytest.mark.parametrize("ahead", [True, False])
def test_nothing_of_a_guess_is_left(ahead: bool) -> None:
    async def test(clock: ManualClock) -> None:
        chat = RememberingChat(["One.", "Two."])
        async with call_with(chat=chat, clock=clock, ahead=ahead) as call:
            call.ears.last_audio_ns = 1 << 62
            call.ears.pause("Is it booked?")
            await asyncio.sleep(0.1)
            call.session.client_lost()
            await asyncio.sleep(30)
            assert not call.of(say.ReplyStarted)
            call.session.client_back()
            await call.until(say.ReplyEnded)
            (reply,) = ended(call)
            assert reply.status == "completed"
            assert [item.text for item in items(call)] == ["Is it booked?", reply.text]
            assert [message.text for message in chat.history] == ["Is it booked?", reply.text]

    virtual_time.run(test)


def test_a_silent_caller_is_not_asked_while_the_client_is_away() -> None:
    from agent.turn_taking.end_of_turn import IdleRules

    async def test(clock: ManualClock) -> None:
        idle = IdleRules(idle_after_ms=5000, idle_hangup_ms=8000)
        async with call_with("Hello.", clock=clock, idle=idle) as call:
            call.ears.last_audio_ns = 1 << 62
            call.ears.say("Hi.")
            await call.until(say.ReplyEnded)
            await asyncio.sleep(3)
            call.session.client_lost()
            await asyncio.sleep(50)
            assert len(call.of(say.ReplyStarted)) == 1
            call.session.client_back()
            await asyncio.sleep(4)
            assert len(call.of(say.ReplyStarted)) == 1
            await asyncio.sleep(2)
            assert len(call.of(say.ReplyStarted)) == 2

    virtual_time.run(test)


def test_recognizer_failure_while_away_gives_no_apology() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(len(REPLY) * CHAR_S + 1)
        number = begin(call, "", transcribes=False)
        call.session.client_lost()
        call.ears.hear(ev.TranscriptFailed(number, 1))
        await asyncio.sleep(5)
        call.session.client_back()
        await asyncio.sleep(5)

    call = play(story)
    assert len(call.of(say.ReplyStarted)) == 1
    assert texts(call) == ["Is it booked?", REPLY]


@pytest.mark.parametrize("text", ["For two.", ""], ids=["words", "noise"])
def test_an_answer_that_is_due_waits_for_a_caller_who_speaks_when_the_client_is_back(
    text: str,
) -> None:
    """Speech that was on its way when the connection broke is heard behind that."""

    async def story(call: Call) -> None:
        call.session.client_lost()
        number = begin(call, text)
        await asyncio.sleep(0.5)
        assert call.session._machine.caller is Caller.SPEAKING
        call.session.client_back()
        await asyncio.sleep(2)
        assert len(call.of(say.ReplyStarted)) == 1
        assert call.session.will_answer
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        call.ears.hear(ev.SilenceGrew(number, 5000))
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(10)

    call = play(story, REPLY, "Yes, for two.")
    said = [text] if text else []
    assert texts(call) == ["Is it booked?", "", *said, "Yes, for two."]
    assert history(call) == ["Is it booked?", *said, "Yes, for two."]
    assert len(call.of(say.ReplyStarted)) == 2
    late = call.turns[-1].record
    assert late.e2e_server_ns is not None
    assert late.e2e_server_ns < 1e9
    wire_is_in_order(call)


def test_an_answer_that_is_due_waits_for_words_that_are_not_known_when_the_client_is_back() -> None:
    async def story(call: Call) -> None:
        number = begin(call, "For two.", transcribes=False)
        await asyncio.sleep(0.5)
        call.session.client_lost()
        call.session.client_back()
        await asyncio.sleep(0.5)
        assert len(call.of(say.ReplyStarted)) == 1
        call.ears.hear(ev.TranscriptReady(number, 1, "For two."))
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(10)

    call = play(story, REPLY, "Yes, for two.")
    assert texts(call) == ["Is it booked?", "", "For two.", "Yes, for two."]
    assert history(call) == ["Is it booked? For two.", "Yes, for two."]
    assert len(call.of(say.ReplyStarted)) == 2
    wire_is_in_order(call)
