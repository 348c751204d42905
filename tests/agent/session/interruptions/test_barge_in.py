"""A stock client whose caller speaks while the agent does: held, taken up again, or cut."""

import asyncio

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.settings import ResponseOptions
from agent.turn_taking import events as ev
from agent.turn_taking import reopening
from agent.turn_taking.tables import Agent
from agent.turn_taking.thresholds import FLOOR_AFTER_MS
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


@pytest.mark.parametrize("words", ["Mm-hmm.", "Yeah.", "", "Okay, right.", "booked for nine."])
def test_reply_resumes_after_a_backchannel(words: str) -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(30.5 * CHAR_S)  # in "booked"
        await over(call, words)
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(1)
        assert agent_of(call) is Agent.IDLE

    call = play(story)
    first, second = ended(call)
    assert (first.status, first.reason) == ("cancelled", "turn_detected")
    assert second.status == "completed"
    assert first.text == "Your table for two is booked"
    assert first.text + second.text == REPLY
    assert first.response_id != second.response_id
    question, before, after = items(call)
    assert (before.text, before.status) == (first.text, "incomplete")
    assert (after.text, after.status) == (second.text, "completed")
    assert question.text == "Is it booked?"
    wire_is_in_order(call)
    assert len(call.of(say.SpeechStarted)) == len(call.of(say.SpeechStopped)) == 2
    assert len(call.of(say.AudioCommitted)) == 1
    assert isinstance(call.chat, RememberingChat)
    assert [each.text for each in call.chat.history] == ["Is it booked?", REPLY]
    assert (call.counts.kept["stock"], call.counts.barged_in["stock"]) == (1, 0)
    assert len(call.turns) == 1
    assert call.turns[0].agent_text == REPLY


def test_nothing_is_sent_while_a_reply_is_held() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        number = begin(call, "Right.")
        await call.until(say.ReplyEnded)
        num_notices = len(call.notices)
        await asyncio.sleep(2)
        assert len(call.notices) == num_notices
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        call.ears.hear(ev.SilenceGrew(number, 288))
        await asyncio.sleep(0.01)
        assert len(call.notices) == num_notices
        call.ears.hear(ev.SilenceGrew(number, 320))
        await call.until(say.ReplyEnded, 2)

    wire_is_in_order(play(story))


def test_the_words_that_were_being_spoken_are_said_again_from_their_beginning() -> None:
    """Neither lost nor said twice: audio and text of both responses, word for word."""

    async def story(call: Call) -> None:
        await asyncio.sleep(25 * CHAR_S)
        await over(call, "Uh-huh.")
        await call.until(say.ReplyEnded, 2)

    call = play(story)
    first, second = ended(call)
    sent = sum(
        len(notice.pcm)
        for notice in call.notices
        if isinstance(notice, say.ReplyAudio) and notice.response_id == second.response_id
    )
    assert sent == len(second.text) * 1200
    assert (first.text + second.text) == REPLY
    assert second.text.startswith(" booked")


def test_real_words_cut_for_good() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(31 * CHAR_S)
        await over(call, "No, make it ten.", silence_ms=5000)
        await call.until(say.ReplyEnded, 2)

    call = play(story)
    first, second = ended(call)
    assert (first.text, first.status) == ("Your table for two is booked", "cancelled")
    assert second.text == "Next."
    assert isinstance(call.chat, RememberingChat)
    assert [each.text for each in call.chat.history] == [
        "Is it booked?", "Your table for two is booked", "No, make it ten.", "Next.",
    ]  # fmt: skip
    assert call.counts.barged_in["stock"] == 1
    wire_is_in_order(call)


def test_a_question_is_answered_by_what_would_be_a_backchannel() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(22 * CHAR_S)
        await over(call, "Yeah.", silence_ms=5000)
        await call.until(say.ReplyEnded, 2)

    call = play(story, "Shall I book it for nine?")
    assert [item.text for item in items(call)][2:] == ["Yeah.", "Next."]


def test_partials_with_words_give_the_rest_up_before_the_caller_is_done() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        begin(call, "never")
        await call.until(say.ReplyEnded)
        await asyncio.sleep(FLOOR_AFTER_MS / 1000)
        understand(call, "Could")
        await asyncio.sleep(0.1)
        assert agent_of(call) is Agent.HELD
        understand(call, "Could you")
        await asyncio.sleep(0.1)
        assert agent_of(call) is Agent.IDLE

    play(story)


@pytest.mark.parametrize("words", ["Could you", None])
def test_an_announcement_is_made_while_a_reply_is_held(words: str | None) -> None:
    """With its own words, and the model has no further turn."""

    async def story(call: Call) -> None:
        await asyncio.sleep(30.5 * CHAR_S)
        number = begin(call, words or "")
        await call.until(say.ReplyEnded)
        assert agent_of(call) is Agent.HELD
        call.session.say("One minute is left.")
        await call.until(say.ReplyEnded, 2)
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        await asyncio.sleep(0.2)
        call.ears.hear(ev.SilenceGrew(number, 5000))
        await asyncio.sleep(10)

    call = play(story)
    first, second, *answers = ended(call)
    assert (first.status, first.text) == ("cancelled", "Your table for two is booked")
    assert second.text == "One minute is left."
    assert [each.text for each in answers] == (["Next."] if words else [])
    wire_is_in_order(call)


def test_a_reply_that_was_sent_is_taken_up_as_well() -> None:
    """The client has all of it and stops in the last 400 ms."""

    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)
        await asyncio.sleep(0.1)
        assert agent_of(call) is Agent.TRAILING
        await over(call, "Okay.")
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(1)
        assert agent_of(call) is Agent.IDLE

    call = play(story)
    first, second = ended(call)
    assert (first.status, first.text) == ("completed", REPLY)
    assert second.text == " tonight."
    _, before, after = items(call)
    assert (before.text, before.status) == (REPLY.removesuffix(" tonight."), "incomplete")
    assert (after.text, after.status) == (" tonight.", "completed")
    assert len(call.turns) == 1


def test_a_reply_of_which_nothing_is_left_is_over() -> None:
    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)
        item_id = items(call)[-1].id
        begin(call, "Okay.")
        await asyncio.sleep(0.01)
        await call.session.handle(ask.TruncateItem(item_id, 999_999))
        call.ears.hear(ev.SpeechPaused(2, 16_000))
        call.ears.hear(ev.SilenceGrew(2, 320))
        await asyncio.sleep(0.1)
        assert agent_of(call) is Agent.IDLE

    call = play(story)
    assert [(item.text, item.status) for item in items(call)][1:] == [(REPLY, "completed")]
    assert len(ended(call)) == 1


@pytest.mark.parametrize(("claimed_ms", "heard"), [
    (0, ""), (500, "Your table"), (10**12, "Your table for two is"),
])  # fmt: skip
def test_reply_resumes_at_the_position_reported_by_the_client(claimed_ms: int, heard: str) -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(20 * CHAR_S)
        number = begin(call, "Right.")
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.TruncateItem(items(call)[-1].id, claimed_ms))
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        call.ears.hear(ev.SilenceGrew(number, 320))
        await call.until(say.ReplyEnded, 2)

    call = play(story)
    _, before, after = items(call)
    assert before.text is not None
    assert after.text is not None
    assert before.text.startswith(heard)
    assert before.text + after.text == REPLY
    assert isinstance(call.chat, RememberingChat)
    assert call.chat.history[-1].text == REPLY


def test_a_second_backchannel_makes_a_third_part() -> None:
    async def story(call: Call) -> None:
        for number in (1, 2):
            await asyncio.sleep(1)
            await over(call, "Mm-hmm.")
            await call.until(say.ReplyStarted, number + 1)
        await call.until(say.ReplyEnded, 3)
        await asyncio.sleep(1)
        call.ears.say("And the bill?")
        await call.until(say.ReplyEnded, 4)

    call = play(story)
    parts = [item.text or "" for item in items(call)][1:4]
    assert "".join(parts) == REPLY
    assert all(parts)
    assert isinstance(call.chat, RememberingChat)
    assert [each.text for each in call.chat.history][:2] == ["Is it booked?", REPLY]
    wire_is_in_order(call)


def test_resumed_reply_is_truncated_over_all_its_parts() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        await over(call, "Mm-hmm.")
        await call.until(say.ReplyStarted, 2)
        await asyncio.sleep(1)
        await over(call, "Stop it please.", silence_ms=5000)
        await call.until(say.ReplyEnded, 3)

    call = play(story)
    _, before, after, question, _ = items(call)
    assert question.text == "Stop it please."
    heard = (before.text or "") + (after.text or "")
    assert REPLY.startswith(heard)
    assert after.text
    assert isinstance(call.chat, RememberingChat)
    assert [each.text for each in call.chat.history][1] == heard


def test_a_response_that_was_sent_behind_another_is_not_heard_before_that_ends() -> None:
    async def story(call: Call) -> None:
        await call.until(say.ReplyEnded)
        first = call.session._responses.current
        assert first is not None
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyStarted, 2)
        end_ns = first.reply.playback.end_ns()
        left_s = (end_ns - call.session._clock.now_ns()) / 1e9
        assert left_s > 0.2, "the client plays the first still"
        await asyncio.sleep(left_s + 12.5 * CHAR_S)
        await over(call, "Stop it please.", silence_ms=600)
        await call.until(say.ReplyEnded, 3)

    reply = "Seven eight nine ten eleven twelve."
    call = play(story, "One two three four five six.", reply, "Fine.")
    assert ended(call)[1].text == "Seven eight"
    assert isinstance(call.chat, RememberingChat)
    assert [each.text for each in call.chat.asked[-1]][-2:] == ["Seven eight", "Stop it please."]


@pytest.mark.parametrize("truncates", [False, True])
def test_a_response_behind_one_that_the_client_stopped_is_heard_at_once(truncates: bool) -> None:
    async def story(call: Call) -> None:
        if truncates:
            await call.until(say.ReplyEnded)
            await call.session.handle(ask.TruncateItem(items(call)[-1].id, 1000))
        else:
            await call.session.handle(ask.CancelResponse())
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyAudio, len(call.of(say.ReplyAudio)) + 1)
        second = call.session._responses.current
        assert second is not None
        await asyncio.sleep(0.2)
        assert second.reply.playback.heard_samples(call.session._clock.now_ns()) >= 0.2 * 24_000

    play(story, "One two three four five six.", "Seven eight nine ten eleven twelve.")


def test_resumed_reply_is_never_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late speech still goes on with the message before it."""

    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        await over(call, "Mm-hmm.")
        await call.until(say.ReplyStarted, 2)
        monkeypatch.setattr(reopening, "REOPEN_NS", 1 << 60)
        await asyncio.sleep(1)
        await over(call, "Stop it please.", silence_ms=5000)
        await call.until(say.ReplyEnded, 3)

    call = play(story)
    _, before, after, question, _ = items(call)
    assert before.text
    assert after.text
    assert question.continues is None
    assert isinstance(call.chat, RememberingChat)
    heard = before.text + after.text
    assert [each.text for each in call.chat.history][1:3] == [heard, "Stop it please."]


@pytest.mark.parametrize("begins", [False, True], ids=["prepared", "spoken"])
def test_the_end_of_a_reply_is_cut_with_the_response_behind_it(begins: bool) -> None:
    """All of the first was sent, and its last words still play when the caller speaks."""

    async def story(call: Call) -> None:
        await asyncio.sleep((len(REPLY) - 5.5) * CHAR_S)
        assert agent_of(call) is Agent.TRAILING
        call.chat.hold = None if begins else asyncio.Event()
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await asyncio.sleep(0.5 * CHAR_S)
        assert agent_of(call) is (Agent.TRAILING if begins else Agent.PREPARING)
        number = begin(call, "No, wait.")
        await asyncio.sleep(0.3)
        call.chat.hold = None
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        await asyncio.sleep(0.2)
        call.ears.hear(ev.SilenceGrew(number, 5000))
        await call.until(say.ReplyEnded, 3)

    call = play(story)
    heard = REPLY.removesuffix(" tonight.")
    assert [item.text for item in items(call)][:3] == ["Is it booked?", heard, ""]
    assert isinstance(call.chat, RememberingChat)
    assert [each.text for each in call.chat.asked[-1]][:2] == ["Is it booked?", heard]
