"""A whole session on fake stages: the caller goes on just as the agent begins.

The model reads both halves as one message, and knows nothing of the reply in between. Clients see
two items of the caller's, and an empty reply between them.
"""

import pytest

from agent.config.schema import AgentProfile
from agent.errors import StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.settings import ResponseOptions, ServerVad
from agent.session.ports.stage_ports import ChatMessage, SpeechResult
from agent.turn_taking import events as ev
from agent.turn_taking import reopening
from latency_budget.account.marks import MarkName
from latency_budget.account.turn_record import Outcome
from latency_budget.reporting.trace import read_trace
from tests.support.session.guess_call import (
    change,
    end,
    ended,
    known,
    pause,
    remembering,
    said,
    told,
)
from tests.support.session.reopen_call import (
    FIRST,
    LONG,
    SECOND,
    WHOLE,
    answered,
    ask_first,
    go_on,
    last_asked,
    messages,
    say_rest,
    type_after,
)
from tests.support.session.session_call import call_with

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def a_slow_machine_is_no_caller_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is said before the reply has been played goes on with the message before it."""
    monkeypatch.setattr(reopening, "REOPEN_NS", 1 << 60)


@pytest.mark.parametrize("audible", [False, True], ids=["prepared", "heard"])
async def test_both_halves_are_one_message(audible: bool) -> None:
    async with remembering(LONG, "Ten.") as (call, chat):
        await ask_first(call, chat, audible=audible)
        await go_on(call)
        assert ended(call) == [("cancelled", "")]
        if not audible:
            chat.replies = ["Ten."]
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 2)
        assert last_asked(chat) == [("user", WHOLE)]
        assert known(chat) == said(call) == [("user", WHOLE), ("assistant", "Ten.")]
        assert messages(call) == [
            ("user", FIRST, "completed"),
            ("assistant", "", "incomplete"),
            ("user", SECOND, "completed"),
            ("assistant", "Ten.", "completed"),
        ]
        cut = call.of(say.ReplyEnded)[0]
        assert isinstance(cut, say.ReplyEnded)
        assert (cut.status, cut.reason, cut.text) == ("cancelled", "turn_detected", "")
        names = call.names()
        second = names.index("SpeechStarted", names.index("ReplyStarted"))
        assert names[second + 1] == "ReplyEnded"
        assert "ReplyAudio" not in names[second : names.index("ReplyStarted", second)]


async def test_an_adopted_guess_is_taken_back_as_well() -> None:
    async with remembering(LONG, "Ten.") as (call, chat):
        await pause(call, FIRST)
        await end(call)
        await call.until(say.ReplyAudio)
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 2)
        assert last_asked(chat) == [("user", WHOLE)]
        assert known(chat) == said(call)


async def test_a_short_reply_that_still_plays_is_taken_back() -> None:
    async with remembering("Ten past nine.", "Ten past three.") as (call, chat):
        call.ears.say(FIRST)
        await call.until(say.ReplyEnded)
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Ten past three.", 2)
        assert ended(call)[0] == ("completed", "Ten past nine.")  # was told already
        assert last_asked(chat) == [("user", WHOLE)]
        assert known(chat) == said(call) == [("user", WHOLE), ("assistant", "Ten past three.")]


async def test_third_and_fourth_halves_go_on_as_well() -> None:
    async with remembering("Ten.", LONG, LONG, LONG, "Three.") as (call, chat):
        await change(call, output_modality="text")
        call.ears.say("Hello?")
        await call.until(say.ReplyEnded)
        await change(call, output_modality="audio")
        for number, text in enumerate(["one", "two", "three", "four"]):
            await go_on(call)
            await say_rest(call, text)
            if number < 3:
                await call.until(say.ReplyStarted, number + 2)
        await answered(call, "Three.", 5)
        assert last_asked(chat)[2:] == [("user", "one two three four")]
        assert known(chat) == said(call)
        assert [turn.caller_text for turn in call.records()] == [
            "Hello?", "one", "one two", "one two three", "one two three four"
        ]  # fmt: skip


@pytest.mark.parametrize("audible", [False, True], ids=["prepared", "heard"])
async def test_noise_begins_the_reply_anew(audible: bool) -> None:
    async with remembering(LONG, "Ten.") as (call, chat):
        await ask_first(call, chat, audible=audible)
        await go_on(call)
        if not audible:
            chat.replies = ["Ten."]
        await say_rest(call, " ")
        await answered(call, "Ten.", 2)
        assert last_asked(chat) == [("user", FIRST)]
        assert known(chat) == said(call) == [("user", FIRST), ("assistant", "Ten.")]
        assert [turn.caller_text for turn in call.records()] == [FIRST, FIRST]
        assert not call.records()[1].record.reopened


async def test_after_noise_the_caller_may_still_go_on() -> None:
    async with remembering(LONG, LONG, "Ten.") as (call, chat):
        await ask_first(call, chat)
        await go_on(call)
        await say_rest(call, "")
        await call.until(say.ReplyStarted, 2)
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 3)
        assert known(chat) == said(call) == [("user", WHOLE), ("assistant", "Ten.")]


async def test_a_guess_in_the_re_opened_turn_answers_the_whole() -> None:
    async with remembering(LONG, "Guessed.", "Ten.") as (call, chat):
        await ask_first(call, chat)
        await pause(call, "In")
        assert last_asked(chat) == [("user", "What time is it? In")]
        await pause(call, SECOND)
        assert last_asked(chat) == [("user", WHOLE)]
        num_told = len(told(call))
        await end(call)
        await answered(call, "Ten.", 2)
        assert len(told(call)) == num_told, "what was guessed is not begun again"
        assert known(chat) == said(call) == [("user", WHOLE), ("assistant", "Ten.")]


async def test_a_guess_of_a_half_that_turns_out_to_be_noise_leaves_the_first() -> None:
    async with remembering(LONG, "Guessed.", "Ten.") as (call, chat):
        await ask_first(call, chat)
        await pause(call, "In")
        await pause(call, "")
        await end(call)
        await answered(call, "Ten.", 2)
        assert known(chat) == said(call) == [("user", FIRST), ("assistant", "Ten.")]


async def test_what_is_computed_ahead_is_the_whole_message() -> None:
    async with remembering(LONG, "Ten.") as (call, chat):
        await chat.warmed.wait()
        await ask_first(call, chat)
        await go_on(call)
        chat.warmed.clear()
        call.ears.hear(SpeechResult(2, partial=("In", 0)))
        await chat.warmed.wait()
        assert chat.calls[-1] == ("preview", "What time is it? In")
        assert known(chat) == []


# --- what is none ---


async def test_a_reply_that_was_asked_for_is_interrupted_and_its_message_stays() -> None:
    async with remembering(LONG, "Fine.") as (call, chat):
        await type_after(call)
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyAudio)
        call.ears.say("Stop.")
        await answered(call, "Fine.", 2)
        assert last_asked(chat) == [("user", "By the way"), ("user", "Stop.")]
        assert not any(turn.record.reopened for turn in call.records())


async def test_a_greeting_is_interrupted() -> None:
    profile = AgentProfile(greeting="Welcome to halfsec, the voice of half a second.")
    async with call_with("Fine.", profile=profile) as call:
        await call.until(say.ReplyAudio)
        call.ears.say("Hello?")
        await call.until(say.ReplyEnded, 2)
        assert not any(turn.record.reopened for turn in call.records())


async def test_speech_that_does_not_interrupt_re_opens_nothing() -> None:
    async with remembering("One two three.", "Ten.") as (call, chat):
        await change(call, turn_detection=ServerVad(interrupt_response=False))
        await ask_first(call, chat)
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 2)
        assert ended(call)[0] == ("completed", "One two three.")
        assert last_asked(chat) == [
            ("user", FIRST), ("assistant", "One two three."), ("user", SECOND)
        ]  # fmt: skip


# --- what fails ---


async def test_a_recognizer_that_fails_leaves_the_first_half() -> None:
    async with remembering(LONG, "Ten.") as (call, chat):
        await ask_first(call, chat)
        await go_on(call)
        call.ears.hear(ev.SpeechPaused(2, 4000))
        call.ears.hear(ev.TranscriptFailed(2, 1))
        failed = (await call.until(say.ReplyEnded, 2))[1]
        assert isinstance(failed, say.ReplyEnded)
        assert failed.status == "failed"
        call.ears.say("Sorry?")
        await answered(call, "Ten.", 3)
        assert known(chat) == said(call)


async def test_a_half_that_the_model_refused_takes_no_other_message_along() -> None:
    refused = StageError("llm", "too long", refused=True)
    async with remembering("Hi.", "Yes.", "Ten.") as (call, chat):
        await change(call, output_modality="text")
        call.ears.say("Hello?")
        await call.until(say.ReplyEnded)
        await change(call, output_modality="audio")
        chat.refusals = [refused]
        await type_after(call)
        await call.until(say.Problem)  # the model does without it
        await ask_first(call, chat)
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 3)
        assert known(chat) == said(call)
        assert last_asked(chat)[:2] == [("user", "Hello?"), ("assistant", "Hi.")]


# --- the account of its time ---


async def test_the_turn_is_timed_from_the_end_of_the_second_half() -> None:
    async with remembering(LONG, "Ten.") as (call, chat):
        await ask_first(call, chat)
        await go_on(call)
        call.ears.hear(SpeechResult(2, last_voiced_ns=(123, 456)))
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 2)
        first, second = call.records()
        assert (first.record.outcome, first.record.reopened) == (Outcome.CUT_IN, False)
        assert not first.record.interrupted
        assert (second.record.interrupted, second.record.reopened) == (False, True)
        assert (first.caller_text, second.caller_text) == (FIRST, WHOLE)
        assert first.agent_text == ""
    voiced = [mark for mark in read_trace(call.trace.lines()).of_kind("mark")
              if mark.type == MarkName.CALLER_LAST_VOICED.value]  # fmt: skip
    assert [mark.turn for mark in voiced] == [2]


async def test_continued_speech_withdraws_an_unanswered_message_once() -> None:
    """Told, and not yet answered, when the caller goes on: the message is taken back once."""
    async with remembering("Ten.") as (call, chat):
        await ask_first(call, chat, audible=False)
        assert known(chat) == [("user", FIRST)]
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 2)
        assert ("truncate", 0) not in chat.calls, "there was no reply to cut"
        assert [text for name, text in told(call) if name == "user"] == [FIRST, WHOLE]
        assert chat.asked[-1] == (ChatMessage("user", WHOLE),)


async def test_a_turn_re_opened_before_a_sound_was_withdrawn() -> None:
    async with remembering("Ten.") as (call, chat):
        await ask_first(call, chat, audible=False)
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Ten.", 2)
        first, second = call.records()
        assert (first.record.outcome, first.record.answered) == (Outcome.REOPENED, False)
        assert (second.record.outcome, second.record.reopened) == (None, True)


async def test_a_record_waits_for_the_words_over_its_reply() -> None:
    """Whether the reply cut in is not known before, and the first report is the last."""
    async with remembering(LONG, "Ten.") as (call, chat):
        await ask_first(call, chat)
        await go_on(call)
        assert call.of(say.ReplyEnded)
        assert call.turns == []
        await say_rest(call, SECOND)
        (first,) = call.turns
        assert first.record.outcome is Outcome.CUT_IN
        marks = read_trace(call.trace.lines()).marks()
        (cut_in,) = [mark for mark in marks if mark.name is MarkName.CUT_IN]
        assert cut_in.turn == 1
