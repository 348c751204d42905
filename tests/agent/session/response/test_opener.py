"""A whole session on fake stages: words kept at hand that are said in front of a late reply."""

import asyncio
from collections.abc import Callable

import pytest

from agent.config.schema import AgentProfile
from agent.errors import StageError
from agent.session.api import server_events as say
from agent.session.api.settings import ServerVad
from agent.session.ports.stage_ports import APOLOGY
from agent.turn_taking import reopening
from tests.support.fakes.remembering import RememberingChat
from tests.support.session.guess_call import (
    change,
    end,
    ended,
    known,
    last_voiced,
    let_work,
    pause,
    remembering,
    said,
)
from tests.support.session.session_call import Call, call_with
from tests.support.session.virtual_time import clock_of_loop

pytestmark = pytest.mark.virtual_time

OPENERS = ("One moment,", "Let me see,")
OPENED = "Let me see,"
"""What turn 1 takes of them."""
LONG = "One two three four five six seven eight nine ten eleven twelve."


async def ask_late(call: Call, text: str) -> None:
    """A whole turn of a caller who fell silent long ago."""
    await pause(call, text)
    last_voiced(call, clock_of_loop().now_ns() - 5_000_000_000)
    await end(call)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.005)


def shown(call: Call) -> str:
    return "".join(each.delta for each in call.of(say.ReplyText) if isinstance(each, say.ReplyText))


def held(chat: RememberingChat) -> asyncio.Event:
    """The model says nothing before this is set."""
    chat.hold = asyncio.Event()
    return chat.hold


async def test_a_late_reply_begins_with_words_kept_at_hand() -> None:
    async with remembering("Fine, thanks.", "Bye.", openers=OPENERS) as (call, chat):
        await change(call, turn_detection=ServerVad(interrupt_response=False))
        model = held(chat)
        await ask_late(call, "How are you?")
        await call.until(say.ReplyAudio)
        assert shown(call) == f"{OPENED} "
        model.set()
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", f"{OPENED} Fine, thanks.")]
        assert shown(call) == f"{OPENED} Fine, thanks."
        turn = call.records()[0]
        assert (turn.record.opener, turn.agent_text) == (True, f"{OPENED} Fine, thanks.")
        assert turn.record.incomplete == ("no speech_paused", "no asr_start", "no asr_final")
        await pause(call, "Good bye.")
        await end(call)
        await call.until(say.ReplyEnded, 2)
        assert [each.text for each in chat.asked[-1]] == [
            "How are you?",
            f"{OPENED} Fine, thanks.",
            "Good bye.",
        ]
        assert known(chat) == said(call)
        assert not call.records()[1].record.opener


async def test_opener_is_added_to_the_history_while_the_reply_plays() -> None:
    async with remembering("Fine, thanks.", openers=OPENERS) as (call, chat):
        model = held(chat)
        await ask_late(call, "How are you?")
        await call.until(say.ReplyAudio)
        model.set()
        await call.until(say.ReplyEnded)
        await until(lambda: known(chat) == said(call))


async def test_a_reply_that_is_ready_has_no_opener() -> None:
    async with remembering("Fine, thanks.", openers=OPENERS) as (call, chat):
        await ask_late(call, "How are you?")
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", "Fine, thanks.")]
        assert not call.records()[0].record.opener
        assert [name for name, _ in chat.calls].count("reset") == 0


async def test_truncation_within_the_opener_keeps_its_played_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reopening, "REOPEN_NS", 0)
    opener = "One moment please, I am having a look."
    async with remembering("Never heard.", "Yes.", openers=(opener,)) as (call, chat):
        model = held(chat)
        await ask_late(call, "How are you?")
        await call.until(say.ReplyAudio)
        await asyncio.sleep(0.3)
        call.ears.say("Stop.")
        await let_work()
        (status, heard), *_ = ended(call)
        assert status == "cancelled"
        assert heard
        assert opener.startswith(heard)
        assert heard != opener
        model.set()
        await call.until(say.ReplyEnded, 2)
        assert chat.asked[-1][1].text == heard
        assert known(chat) == said(call)


async def test_truncation_after_the_opener_keeps_played_words_of_both() -> None:
    async with remembering(LONG, "Yes.", openers=("Oh,",)) as (call, chat):
        model = held(chat)
        await ask_late(call, "How are you?")
        await call.until(say.ReplyAudio)
        model.set()
        await until(lambda: len(call.of(say.ReplyAudio)) > 9)
        call.ears.say("Stop.")
        await call.until(say.ReplyEnded, 2)
        heard = ended(call)[0][1]
        assert f"Oh, {LONG}".startswith(heard)
        assert heard.startswith("Oh, One")
        assert chat.asked[-1][1].text == heard
        assert known(chat) == said(call)


async def test_an_apology_may_follow_an_opener() -> None:
    fault = StageError("llm", "The language model took too long.")
    async with remembering(fault, openers=OPENERS) as (call, chat):
        model = held(chat)
        await ask_late(call, "How are you?")
        await call.until(say.ReplyAudio)
        model.set()
        await call.until(say.ReplyEnded)
        assert ended(call) == [("failed", f"{OPENED} {APOLOGY}")]


async def test_greetings_and_text_replies_have_no_opener() -> None:
    profile = AgentProfile(greeting="Good morning.")
    async with call_with("Fine.", profile=profile, openers=OPENERS) as call:
        await call.until(say.ReplyEnded)
        await change(call, output_modality="text")
        call.chat.hold = asyncio.Event()
        await ask_late(call, "How are you?")
        await asyncio.sleep(0.2)
        assert shown(call) == "Good morning."
        call.chat.hold.set()
        await call.until(say.ReplyEnded, 2)
        assert not any(turn.record.opener for turn in call.records())


async def test_a_pace_holds_an_opener_back_as_well() -> None:
    async with remembering("Fine.", openers=OPENERS, pace_ms=300) as (call, chat):
        model = held(chat)
        await pause(call, "How are you?")
        last_voiced(call, clock_of_loop().now_ns())
        await end(call)
        await call.until(say.ReplyAudio)
        model.set()
        await call.until(say.ReplyEnded)
        record = call.records()[0].record
        assert record.opener
        assert (record.e2e_ns or 0) >= 300_000_000
