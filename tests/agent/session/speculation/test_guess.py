"""A whole session on fake stages: replies that are prepared before it is known that they are due.

What a client may see of a guess that comes to nothing is nothing; what the model may keep of it is
nothing either; and one that comes true is there at once.
"""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from agent.errors import StageError
from agent.session.api import server_events as say
from agent.session.api.settings import ServerVad
from agent.session.context import prefill_scheduler
from agent.session.ports.stage_ports import APOLOGY, ChatMessage, Speech
from agent.turn_taking import events as ev
from agent.turn_taking.thresholds import MAX_PREEMPTIVE
from tests.support.fakes.stages import FakeVoice
from tests.support.session.guess_call import (
    change,
    end,
    ended,
    known,
    let_work,
    pause,
    remembering,
    said,
    told,
)
from tests.support.session.session_call import call_with
from tts.text_chunker import SpeakablePiece

pytestmark = pytest.mark.virtual_time

LONG = "One two three four five six seven eight nine ten eleven twelve."
FAULT = StageError("llm", "The language model took too long.")


async def test_a_guess_is_neither_seen_nor_counted() -> None:
    async def notices_of(*pauses: str) -> list[say.Notice]:
        async with call_with(*["Prepared."] * len(pauses), "Sure.") as call:
            for text in pauses:
                await pause(call, text)
            assert call.names() == ["SessionCreated", "SpeechStarted"][: 1 + len(pauses)]
            assert list(call.session.conversation) == []
            if pauses:
                call.ears.resume()
                call.ears.words[1] = "Hello there."
                call.ears.hear(ev.SpeechPaused(1, 2400))
                call.ears.hear(ev.SilenceGrew(1, 5000))
            else:
                call.ears.say("Hello there.")
            await call.until(say.ReplyEnded)
            return [each for each in call.notices if not isinstance(each, say.ReplyAudio)]

    plain = await notices_of()
    assert await notices_of("Hello") == plain
    assert await notices_of("Hello", "Hello th", "Hello there") == plain


async def test_a_guess_that_comes_true_is_there_at_once() -> None:
    async with call_with("Hi there.") as call:
        await pause(call, "Hello?")
        assert told(call) == [("user", "Hello?"), ("generate", 1)]
        assert not call.of(say.ReplyStarted)
        await end(call)
        assert len(call.of(say.ReplyAudio)) == 4  # 400 ms: the lead
        await call.until(say.ReplyEnded)
        assert told(call) == [("user", "Hello?"), ("generate", 1)]
        assert said(call) == [("user", "Hello?"), ("assistant", "Hi there.")]
        assert call.records()[0].record.wasted_ns == 0
    assert call.names() == [
        "SessionCreated",
        "SpeechStarted",
        "SpeechStopped",
        "AudioCommitted",
        "ItemAdded",
        "TranscriptDelta",
        "TranscriptCompleted",
        "ReplyStarted",
        "ReplyText",
        "ReplyAudio",
        "ReplyEnded",
    ]


async def test_the_next_turn_goes_on_from_an_adopted_guess() -> None:
    async with remembering("Hi.", "Good.") as (call, chat):
        await change(call, output_modality="text")  # read at once: nothing to cut
        for number, text in enumerate(["Hello?", "And you?"], start=1):
            await pause(call, text)
            await end(call)
            await call.until(say.ReplyEnded, number)
        assert told(call) == [("user", "Hello?"), ("generate", 1), ("user", "And you?"),
                              ("generate", 2)]  # fmt: skip
        assert known(chat) == said(call)


async def test_continued_speech_withdraws_the_guess() -> None:
    async with remembering("Soup.", "Two.", "Table for two.") as (call, chat):
        await pause(call, "A table")
        await asyncio.sleep(0.01)  # of the manual clock, in which the model works
        await pause(call, "A table for")
        await pause(call, "A table for two.")
        await end(call)
        await call.until(say.ReplyEnded)
        assert told(call) == [
            ("user", "A table"), ("generate", 1), ("take back", None),
            ("user", "A table for"), ("generate", 1), ("take back", None),
            ("user", "A table for two."), ("generate", 1),
        ]  # fmt: skip
        assert chat.asked[-1] == (ChatMessage("user", "A table for two."),)
        assert known(chat) == said(call)
        assert call.records()[0].record.wasted_ns > 0


async def test_after_many_guesses_in_vain_the_next_pause_is_waited_for() -> None:
    in_vain = ["a"] * MAX_PREEMPTIVE
    async with remembering(*in_vain, "Fine.") as (call, chat):
        for number in range(MAX_PREEMPTIVE + 1):
            await pause(call, "Well," + " I" * number)
        assert [name for name, _ in told(call)].count("generate") == MAX_PREEMPTIVE
        await end(call)
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", "Fine.")]
        assert known(chat) == said(call)


async def test_waste_is_counted_in_the_turn_that_wasted_it() -> None:
    async with remembering("Soup.", "Sure.", "Yes.") as (call, _):
        await pause(call, "A table")
        await asyncio.sleep(0.01)  # of the manual clock, in which the model works
        await pause(call, "A table for two.")
        await end(call)
        await call.until(say.ReplyEnded)
        await pause(call, "Really?")
        await asyncio.sleep(0.01)
        await change(call, max_output_tokens=50)  # nothing to adopt, and found out when it begins
        await end(call)
        await call.until(say.ReplyEnded, 2)
        call.ears.say("Bye.")
        await call.until(say.ReplyEnded, 3)
        first, second, third = (turn.record.wasted_ns for turn in call.records())
        assert first > 0
        assert second > 0
        assert third == 0
        # Five of the ten tokens of each prompt are cached; one word was answered.
        records = [turn.record for turn in call.records()]
        tokens = [(each.wasted_prompt_tokens, each.wasted_output_tokens) for each in records]
        assert tokens == [(5, 1), (5, 1), (0, 0)]


async def test_other_words_are_answered_anew() -> None:
    async with remembering("Soup.", "Fine.") as (call, chat):
        await pause(call, "Stop")
        call.ears.hear(ev.TranscriptReady(1, 1, "Stop it"))  # a recognizer that corrects itself
        await let_work()
        await end(call)
        await call.until(say.ReplyEnded)
        assert told(call)[2:] == [("take back", None), ("user", "Stop it"), ("generate", 1)]
        assert known(chat) == said(call) == [("user", "Stop it"), ("assistant", "Fine.")]


# --- replies of other kinds ---


async def test_a_guess_in_text_is_shown_when_it_is_due() -> None:
    async with call_with("Good morning.") as call:
        await change(call, output_modality="text")
        await pause(call, "Hello?")
        assert call.chat.generating.is_set()
        assert not call.of(say.ReplyText)
        await end(call)
        texts = [each.delta for each in call.of(say.ReplyText) if isinstance(each, say.ReplyText)]
        assert "".join(texts) == "Good morning."
        await call.until(say.ReplyEnded)
        assert not call.of(say.ReplyAudio)


class SilentVoice(FakeVoice):
    async def speak(self, piece: SpeakablePiece) -> AsyncIterator[Speech]:
        yield Speech(np.zeros(480, np.int16), piece.span, ())


@pytest.mark.parametrize("reply", ["", " ", "Unheard."])
async def test_a_reply_without_sound_stays_unseen_until_it_is_due(reply: str) -> None:
    async with call_with(reply, voice=SilentVoice()) as call:
        await pause(call, "Hello?")
        assert call.names() == ["SessionCreated", "SpeechStarted"]
        await end(call)
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", reply)]
        started = call.names().index("ReplyStarted")
        assert set(call.names()[started + 1 :]) <= {"ReplyText", "ReplyAudio", "ReplyEnded"}


# --- what fails ---


@pytest.mark.parametrize("broken", ["llm", "voice"])
async def test_a_guess_that_fails_is_tried_again_when_it_is_due(broken: str) -> None:
    replies = [FAULT, "Fine."] if broken == "llm" else ["Guessed.", "Fine."]
    async with remembering(*replies) as (call, chat):
        call.voice.fault = FAULT if broken == "voice" else None
        await pause(call, "Hello?")
        assert not call.of(say.Problem)
        call.voice.fault = None
        await end(call)
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", "Fine.")]
        assert known(chat) == said(call)


async def test_a_guess_that_fails_and_is_dropped_was_never_there() -> None:
    async with remembering(FAULT, "Fine.") as (call, chat):
        await pause(call, "Hello")
        await pause(call, "Hello you.")
        await end(call)
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", "Fine.")]
        assert known(chat) == said(call)


async def test_a_reply_that_fails_after_it_was_adopted_is_apologized_for() -> None:
    async with remembering(FAULT, "Fine.") as (call, chat):
        chat.hold = asyncio.Event()
        await pause(call, "Hello?")
        await end(call)
        assert call.names()[-1] == "ReplyStarted"
        chat.hold.set()
        await call.until(say.ReplyEnded)
        assert ended(call) == [("failed", APOLOGY)]
        await pause(call, "And now?")
        await end(call)
        await call.until(say.ReplyEnded, 2)
        assert ended(call)[1] == ("completed", "Fine.")


# --- interrupted, and over ---


async def test_barge_in_after_an_adoption_keeps_the_played_words() -> None:
    async with remembering(LONG, "Yes.") as (call, chat):
        await pause(call, "Count.")
        await end(call)
        await asyncio.sleep(0.6)
        await pause(call, "Stop.")
        await end(call)
        await call.until(say.ReplyEnded, 2)
        (status, heard), second = ended(call)
        assert status == "cancelled"
        assert heard
        assert LONG.startswith(heard)
        assert heard != LONG
        assert second == ("completed", "Yes.")
        assert known(chat)[1] == ("assistant", heard)
        assert known(chat) == said(call)


async def test_speech_at_the_adoption_goes_on_with_what_was_adopted() -> None:
    async with remembering(LONG, "Yes.") as (call, chat):
        await pause(call, "Count.")
        call.ears.fall_silent()
        await asyncio.sleep(0)
        await pause(call, "Stop.")
        await end(call)
        await call.until(say.ReplyEnded, 2)
        assert ended(call)[0] == ("cancelled", "")
        assert chat.asked[-1] == (ChatMessage("user", "Count. Stop."),)
        assert known(chat) == said(call)


async def test_a_guess_under_a_reply_that_still_plays() -> None:
    async with remembering("One two three.", "Four.") as (call, chat):
        await change(call, turn_detection=ServerVad(interrupt_response=False))
        await pause(call, "Count.")
        await end(call)
        await call.until(say.ReplyEnded)
        await pause(call, "Go on.")
        await end(call)
        await call.until(say.ReplyEnded, 2)
        assert [text for _, text in ended(call)] == ["One two three.", "Four."]
        assert known(chat) == said(call)


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_call_that_ends_with_a_guess_open_leaves_no_task(is_held: bool) -> None:
    async with call_with("Fine.") as call:
        call.chat.hold = asyncio.Event() if is_held else None
        await pause(call, "Hello?")
        assert call.chat.generating.is_set()
    assert call.chat.closed
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_warm_up_gives_way_to_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_scheduler, "QUIET_S", 0)
    async with call_with("Fine.") as call:
        call.chat.warming = asyncio.Event()
        await call.chat.warmed.wait()
        await pause(call, "Hello?")
        await end(call)
        await call.until(say.ReplyEnded)
    assert call.chat.calls == [
        ("preview", ""), ("preview cancelled", ""), ("user", "Hello?"), ("generate", 1)
    ]  # fmt: skip
