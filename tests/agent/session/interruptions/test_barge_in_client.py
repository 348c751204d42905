"""Effects of clients, recognizers and endless noise on a reply that is held."""

import asyncio

import pytest

from agent.config.schema import AgentProfile
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message
from agent.session.api.settings import ResponseOptions
from agent.turn_taking import events as ev
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.clock import ManualClock
from tests.support.fakes.remembering import RememberingChat
from tests.support.session import virtual_time
from tests.support.session.overlap_call import (
    REPLY,
    agent_of,
    begin,
    ended,
    items,
    listen,
    over,
    play,
    understand,
    wire_is_in_order,
)
from tests.support.session.session_call import Call, call_with


@pytest.mark.parametrize("what", ["cancel", "delete", "create", "commit"])
def test_what_a_client_does_meanwhile_counts_as_meant(what: str) -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        begin(call, "Well")
        await call.until(say.ReplyEnded)
        match what:
            case "cancel":
                await call.session.handle(ask.CancelResponse())
            case "delete":
                await call.session.handle(ask.DeleteItem(items(call)[-1].id))
            case "create":
                await call.session.handle(ask.CreateResponse(ResponseOptions()))
            case "commit":
                await call.session.handle(ask.CommitAudio())
        assert agent_of(call) is (Agent.PREPARING if what == "create" else Agent.IDLE)
        await asyncio.sleep(8)

    call = play(story)
    assert not call.of(say.Problem)
    texts = [item.text for item in items(call)]
    assert not any("window" in (text or "") for text in texts)


@pytest.mark.parametrize("then", ["cancels", "is too late"])
def test_a_client_that_truncates_a_response_before_it_cancels_is_heard(then: str) -> None:
    """As the OpenAI Agents SDK does; a cancellation may come when all was sent."""

    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        await call.session.handle(ask.TruncateItem(items(call)[-1].id, 500))
        assert not ended(call)
        if then == "cancels":
            await asyncio.sleep(0.1)
            await call.session.handle(ask.CancelResponse())
        await call.until(say.ReplyEnded)
        await asyncio.sleep(1)
        begin(call, "Well")
        call.ears.hear(ev.SpeechPaused(call.ears.utterance, 16_000))
        await asyncio.sleep(0.1)
        call.ears.hear(ev.SilenceGrew(call.ears.utterance, 900))
        await call.until(say.ReplyEnded, 2)

    call = play(story, "Your table is booked for nine at the window.")
    (truncated,) = call.of(say.ItemTruncated)
    assert isinstance(truncated, say.ItemTruncated)
    assert truncated.audio_end_ms == 500
    assert items(call)[1].text == "Your table"
    assert items(call)[1].status == "incomplete"
    assert isinstance(call.chat, RememberingChat)
    assert [each.text for each in call.chat.asked[-1]][-2:] == ["Your table", "Well"]


def test_a_truncation_that_claims_more_than_was_played_changes_nothing() -> None:
    reply = "Your table is booked for nine at the window."

    async def story(call: Call) -> None:
        await call.session.handle(ask.TruncateItem(items(call)[-1].id, 99_999))
        await call.until(say.ReplyEnded)

    call = play(story, reply)
    assert items(call)[1].text == reply


@pytest.mark.parametrize("from_position_ms", [-400, -1, 0, 1, 150, "all"])
def test_a_truncation_alone_does_not_end_the_response_and_cuts_the_history(
    from_position_ms: int | str,
) -> None:
    """The client need not cancel: what it gets behind the cut it does not play. Its own position
    may be ahead of the server's by a fast sound card, or be the very same."""
    reply = "Your table is booked for nine at the window."

    async def story(call: Call) -> None:
        await asyncio.sleep(1.1)
        run = call.session._responses.current
        assert run is not None
        playback = run.reply.playback
        at_ms = playback.sent // 24
        if isinstance(from_position_ms, int):
            at_ms = playback.position(call.session._clock.now_ns()) // 24 + from_position_ms
        await call.session.handle(ask.TruncateItem(items(call)[-1].id, at_ms))
        num_sent = len(call.of(say.ReplyAudio))
        await call.until(say.ReplyEnded)
        assert len(call.of(say.ReplyAudio)) > num_sent
        check(call)
        await asyncio.sleep(2)
        call.ears.say("And the bill?")
        await call.until(say.ReplyEnded, 2)
        check(call)

    def check(call: Call) -> None:
        (truncated,) = call.of(say.ItemTruncated)
        assert isinstance(truncated, say.ItemTruncated)
        num_chars = truncated.audio_end_ms // 50
        ends = [at for at in range(num_chars + 1) if reply[at : at + 1] == " "]
        assert items(call)[1].text == reply[: ends[-1]]
        assert items(call)[1].status == "incomplete"

    call = play(story, reply)
    assert (ended(call)[0].status, ended(call)[0].text) == ("completed", reply)
    assert isinstance(call.chat, RememberingChat)
    assert [each.text for each in call.chat.asked[-1]][1] == items(call)[1].text
    wire_is_in_order(call)


def test_a_response_behind_one_that_was_truncated_at_its_position_is_heard_at_once() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1.1)
        run = call.session._responses.current
        assert run is not None
        at_ms = run.reply.playback.position(call.session._clock.now_ns()) // 24
        await call.session.handle(ask.TruncateItem(items(call)[-1].id, at_ms))
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyAudio, len(call.of(say.ReplyAudio)) + 1)
        await asyncio.sleep(0.26)
        await call.session.handle(ask.CancelResponse())

    call = play(story, "Your table is booked for nine at the window.", "Seven eight nine.")
    assert ended(call)[1].text == "Seven"


def test_a_second_truncation_of_a_response_in_progress_brings_no_words_back() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1.1)
        for at_ms in (500, 900):
            await call.session.handle(ask.TruncateItem(items(call)[-1].id, at_ms))
        await call.until(say.ReplyEnded)

    call = play(story, "Your table is booked for nine at the window.")
    assert items(call)[1].text == "Your table"


def test_audio_that_the_client_throws_away_was_nothing() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        begin(call, "Well")
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.ClearAudio())
        await call.until(say.ReplyEnded, 2)

    assert "".join(each.text for each in ended(play(story))) == REPLY


def test_an_item_made_meanwhile_stands_between_the_parts_and_behind_the_reply() -> None:
    """On the wire it is where the client put it; the model has heard one reply, and then it."""

    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        number = begin(call, "Okay.")
        await call.until(say.ReplyEnded)
        note = Message(ItemId("mine"), "user", "text", "Note.")
        await call.session.handle(ask.CreateItem(note))
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        call.ears.hear(ev.SilenceGrew(number, 320))
        await call.until(say.ReplyEnded, 2)
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyEnded, 3)

    call = play(story)
    assert [item.id for item in items(call)][2] == "mine"
    assert isinstance(call.chat, RememberingChat)
    assert [each.text for each in call.chat.history][1:3] == [REPLY, "Note."]
    wire_is_in_order(call)


def test_a_greeting_that_was_taken_up_is_remembered_once() -> None:
    async def test(clock: ManualClock) -> None:
        profile = AgentProfile(greeting="Welcome to the harbour restaurant in Bergen.")
        chat = RememberingChat(["Sure."])
        async with call_with(chat=chat, clock=clock, profile=profile) as call:
            listen(call)
            await call.until(say.ReplyAudio)
            await asyncio.sleep(1)
            await over(call, "Mm-hmm.")
            await call.until(say.ReplyEnded, 2)
            await asyncio.sleep(1)
            call.ears.say("A table for two.")
            await call.until(say.ReplyEnded, 3)
            assert chat.history[0].text == profile.greeting
            assert len(chat.history) == 3

    virtual_time.run(test)


@pytest.mark.parametrize("greets", [False, True], ids=["answer", "greeting"])
def test_what_the_client_cut_before_is_where_the_reply_goes_on(greets: bool) -> None:
    """All was sent, and the model has been told of the cut, when the caller murmurs."""

    async def test(clock: ManualClock) -> None:
        profile = AgentProfile(greeting=REPLY if greets else "")
        chat = RememberingChat(["Sure."] if greets else [REPLY, "Sure."])
        async with call_with(chat=chat, clock=clock, profile=profile) as call:
            listen(call)
            if not greets:
                call.ears.say("Is it booked?")
            await call.until(say.ReplyEnded)
            await call.session.handle(ask.TruncateItem(items(call)[-1].id, 500))
            await asyncio.sleep(0.1)
            assert [each.text for each in chat.history if each.role == "assistant"] != [REPLY]
            await over(call, "Mm-hmm.")
            await call.until(say.ReplyEnded, 2)
            before, after = items(call)[-2:]
            assert (before.text, before.status) == ("Your table", "incomplete")
            assert (after.text, after.status) == (REPLY.removeprefix("Your table"), "completed")
            await asyncio.sleep(1)
            call.ears.say("And the bill?")
            await call.until(say.ReplyEnded, 3)
            assert [each.text for each in chat.history][-3:] == [REPLY, "And the bill?", "Sure."]

    virtual_time.run(test)


def test_what_the_client_cut_of_one_part_is_no_word_on_the_next() -> None:
    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.TruncateItem(items(call)[-1].id, 500))
        await over(call, "Mm-hmm.")
        await call.until(say.ReplyStarted, 2)
        await asyncio.sleep(1)
        await over(call, "Stop it please.", silence_ms=5000)
        await call.until(say.ReplyEnded, 3)

    call = play(story)
    _, before, after, _, _ = items(call)
    assert before.text == "Your table"
    assert after.text
    assert isinstance(call.chat, RememberingChat)
    assert call.chat.history[1].text == before.text + after.text


def test_a_cut_of_the_clients_outlasts_an_interruption() -> None:
    """It stopped playing before the caller's first word."""

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.TruncateItem(items(call)[-1].id, 500))
        await over(call, "Stop it please.", silence_ms=5000)
        await call.until(say.ReplyEnded, 2)

    call = play(story)
    assert [item.text for item in items(call)][1] == "Your table"
    assert isinstance(call.chat, RememberingChat)
    assert call.chat.history[1].text.rstrip() == "Your table"


@pytest.mark.parametrize("words", ["", "Mm-hmm."])
def test_what_the_client_stopped_is_not_said_again_after_a_noise(words: str) -> None:
    """It has truncated the response in progress, and over a second after that the caller coughs."""

    async def story(call: Call) -> None:
        await asyncio.sleep(0.5)
        await call.session.handle(ask.TruncateItem(items(call)[1].id, 500))
        await asyncio.sleep(1.1)
        assert agent_of(call) is Agent.SPEAKING
        await over(call, words)
        await asyncio.sleep(8)
        assert agent_of(call) is Agent.IDLE
        assert len(call.of(say.ReplyStarted)) == 1
        call.ears.say("And the bill?")
        await call.until(say.ReplyEnded, 2)

    call = play(story, REPLY)
    assert [item.text for item in items(call)] == [
        "Is it booked?",
        "Your table",
        "And the bill?",
        "Next.",
    ]
    assert isinstance(call.chat, RememberingChat)
    assert [each.text.rstrip() for each in call.chat.history] == [each.text for each in items(call)]
    wire_is_in_order(call)


def test_a_client_that_stops_a_moment_before_the_server_hears_the_caller_gets_the_rest() -> None:
    """It detects speech by itself; the words are a backchannel."""

    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        await call.session.handle(ask.TruncateItem(items(call)[1].id, 500))
        await asyncio.sleep(0.3)
        await over(call, "Mm-hmm.")
        await call.until(say.ReplyEnded, 2)

    call = play(story)
    assert [item.text for item in items(call)][1:] == [
        "Your table",
        REPLY.removeprefix("Your table"),
    ]


def test_endless_speech_counts_as_an_interruption() -> None:
    """More than a minute, and a recognizer that says nothing."""

    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        begin(call, "never known", transcribes=False)
        await call.until(say.ReplyEnded)
        await asyncio.sleep(5.1)
        assert agent_of(call) is Agent.IDLE
        await asyncio.sleep(100)
        assert call.session._machine.caller is Caller.SPEAKING

    call = play(story)
    assert len(ended(call)) == 1


def test_music_without_words_does_not_keep_the_agent_silent() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        begin(call, "")
        await call.until(say.ReplyEnded)
        for _ in range(10):
            understand(call, "")
            await asyncio.sleep(0.6)
        assert agent_of(call) is Agent.SPEAKING
        await call.until(say.ReplyEnded, 2)

    call = play(story)
    assert "".join(each.text for each in ended(call)) == REPLY


def test_a_recognizer_that_hangs_ends_in_an_apology() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        number = begin(call, "", transcribes=False)
        await asyncio.sleep(0.3)
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(1)
        assert agent_of(call) is Agent.IDLE
        assert call.session._machine.caller is Caller.QUIET

    first, second = ended(play(story))
    assert first.status == "cancelled"
    assert second.status == "failed"


BOOKED = "Your table is booked for nine at the window."
BOOKED_HEARD = "Your table is booked for nine at"
"""When all was sent: the last half second was sent ahead."""


@pytest.mark.parametrize("at_ms", [0, 99_999])
def test_a_client_that_has_played_nothing_of_a_response_has_stopped_in_the_one_before(
    at_ms: int,
) -> None:
    """One that claims more than it was sent has not said where it stopped."""

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.session.handle(ask.TruncateItem(items(call)[-1].id, at_ms))
        await call.until(say.ReplyEnded, 2)

    call = play(story, BOOKED)
    assert items(call)[1].text == (BOOKED if at_ms else BOOKED_HEARD)
    assert items(call)[2].text == ("Next." if at_ms else "")


@pytest.mark.parametrize("ducks", [False, True])
@pytest.mark.parametrize("is_outside", [False, True])
def test_speech_in_front_of_a_written_response_is_interrupted(
    *, is_outside: bool, ducks: bool
) -> None:
    written = ResponseOptions(output_modality="text", out_of_band=is_outside)

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.CreateResponse(written))
        await call.until(say.ReplyEnded, 2)
        begin(call, "No, for ten, please.")
        understand(call, "No, for ten, please.")
        await asyncio.sleep(1)

    call = play(story, BOOKED, ducks=ducks)
    assert items(call)[1].text == BOOKED_HEARD
    assert [item.text for item in items(call)[2:]] == ([] if is_outside else ["Next."])


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_response_behind_a_written_one_is_heard_behind_the_speech_before(
    *, is_outside: bool
) -> None:
    written = ResponseOptions(output_modality="text", out_of_band=is_outside)

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.CreateResponse(written))
        await call.until(say.ReplyEnded, 2)
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await asyncio.sleep(0.5 + 0.52)
        begin(call, "No, for ten, please.")
        understand(call, "No, for ten, please.")
        await asyncio.sleep(1)

    call = play(story, BOOKED, "Written.", "Ten words or so follow.")
    assert items(call)[-1].text == "Ten words"
    assert items(call)[1].text == BOOKED
