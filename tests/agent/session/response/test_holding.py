"""A whole session on fake stages, in virtual time: what a caller has while a model hangs."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from agent.errors import StageError
from agent.session.api import server_events as say
from agent.session.api.conversation import ModelCall
from agent.session.api.settings import SessionSettings
from agent.session.ports.stage_ports import APOLOGY
from agent.session.wait_notices import WAIT_S
from languages import PROFILES
from latency_budget.account.clock import ManualClock
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.guess_call import ended, known, said
from tests.support.session.session_call import WAIT, Call, call_with

REPLY = "It is noon."


def hold_call(
    story: Callable[[Call, RememberingChat, asyncio.Event], Awaitable[None]],
    *replies: str | Exception,
    is_troubled: bool = True,
) -> Call:
    """A question whose answer the model owes until the story sets the event."""
    calls: list[Call] = []

    async def test(clock: ManualClock) -> None:
        chat = RememberingChat(replies)
        chat.hold = asyncio.Event()
        async with call_with(chat=chat, clock=clock, is_troubled=lambda: is_troubled) as call:
            calls.append(call)
            call.ears.last_audio_ns = 1 << 62
            call.ears.say("What time is it?")
            await story(call, chat, chat.hold)

    virtual_time.run(test)
    return calls[0]


def waits(call: Call) -> list[object]:
    """Stages that the client was told of."""
    return [
        each.fields["stage"]
        for each in call.of(say.Extension)
        if isinstance(each, say.Extension) and each.type == "halfsec.waiting"
    ]


def test_a_phrase_is_heard_while_a_model_is_in_trouble_and_the_reply_follows() -> None:
    async def story(call: Call, chat: RememberingChat, model: asyncio.Event) -> None:
        await call.until(say.ReplyAudio)
        assert not ended(call)
        await asyncio.sleep(30)  # it is said once, however long it takes
        model.set()
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", f"{WAIT} {REPLY}")]
        await asyncio.sleep(1)
        assert said(call) == [("user", "What time is it?"), ("assistant", f"{WAIT} {REPLY}")]
        assert known(chat) == said(call)
        call.ears.say("Thanks.")
        await call.until(say.ReplyEnded, 2)
        assert [each.text for each in chat.asked[-1]] == [
            *("What time is it?", f"{WAIT} {REPLY}", "Thanks."),
        ]
        assert ended(call)[1] == ("completed", "You are welcome.")

    hold_call(story, REPLY, "You are welcome.")


def test_an_apology_follows_the_phrase_where_the_model_is_given_up() -> None:
    async def story(call: Call, chat: RememberingChat, model: asyncio.Event) -> None:
        await call.until(say.ReplyAudio)
        model.set()
        await call.until(say.ReplyEnded)
        assert ended(call) == [("failed", f"{WAIT} {APOLOGY}")]
        await asyncio.sleep(5)
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded, 2)
        assert ended(call)[1] == ("completed", REPLY)
        assert [text for role, text in said(call) if role == "assistant"] == [
            *(f"{WAIT} {APOLOGY}", REPLY),
        ]

    hold_call(story, StageError("llm", "The language model took too long."), REPLY)


def test_a_caller_who_goes_on_during_the_phrase_is_answered_without_it() -> None:
    async def story(call: Call, chat: RememberingChat, model: asyncio.Event) -> None:
        await call.until(say.ReplyAudio)
        call.ears.say("In Paris.")
        model.set()
        await call.until(say.ReplyEnded, 2)
        assert ended(call) == [("cancelled", ""), ("completed", REPLY)]
        assert chat.asked[-1][-1].text == "What time is it? In Paris."

    hold_call(story, REPLY, REPLY)


def test_the_phrase_is_of_the_calls_language() -> None:
    wait = PROFILES["de"].sentences.tool_wait

    async def test(clock: ManualClock) -> None:
        chat = RememberingChat(["Es ist Mittag."])
        chat.hold = asyncio.Event()
        settings = SessionSettings(agent_language="de")
        async with call_with(
            chat=chat, clock=clock, settings=settings, is_troubled=lambda: True
        ) as call:
            options = call.session._responses._options
            call.session._responses._options = replace(
                options, sentences=lambda language: PROFILES[language].sentences
            )
            call.ears.last_audio_ns = 1 << 62
            call.ears.say("Wie spät ist es?")
            await call.until(say.ReplyAudio)
            chat.hold.set()
            await call.until(say.ReplyEnded)
            assert ended(call) == [("completed", f"{wait} Es ist Mittag.")]

    virtual_time.run(test)


def test_a_reply_that_is_only_late_has_no_phrase_but_the_client_is_told() -> None:
    async def story(call: Call, chat: RememberingChat, model: asyncio.Event) -> None:
        await asyncio.sleep(10.5 * WAIT_S)
        assert not call.of(say.ReplyAudio)
        model.set()
        await call.until(say.ReplyEnded)
        await asyncio.sleep(10 * WAIT_S)

    call = hold_call(story, REPLY, is_troubled=False)
    assert ended(call) == [("completed", REPLY)]
    assert waits(call) == ["llm_prefill"] * 10


@pytest.mark.parametrize("reply", [Calling("", (ModelCall("show_map", "{}"),)), ""])
def test_nothing_waits_behind_a_reply_that_has_ended_without_a_sound(reply: str | Calling) -> None:
    """The trouble that comes later is none of its own."""
    troubled: list[bool] = []

    async def test(clock: ManualClock) -> None:
        async with call_with(reply, clock=clock, is_troubled=lambda: bool(troubled)) as call:
            call.ears.last_audio_ns = 1 << 62
            call.ears.say("Where is it?")
            await call.until(say.ReplyEnded)
            run = call.session._responses.current
            assert run is not None
            before = run.reply.text, run.reply.opener_chars
            assert call.session._responses._first_audio._holding_task is None
            troubled.append(True)
            await asyncio.sleep(20)
            assert (run.reply.text, run.reply.opener_chars) == before
            assert not call.of(say.ReplyAudio)
            assert len(call.of(say.ReplyEnded)) == 1

    virtual_time.run(test)


def test_a_reply_in_time_has_neither_phrase_nor_event() -> None:
    async def story(call: Call, chat: RememberingChat, model: asyncio.Event) -> None:
        model.set()
        await call.until(say.ReplyEnded)
        await asyncio.sleep(10 * WAIT_S)

    call = hold_call(story, REPLY)
    assert ended(call) == [("completed", REPLY)]
    assert not waits(call)


def test_a_client_is_told_of_a_transcript_that_does_not_come() -> None:
    async def test(clock: ManualClock) -> None:
        async with call_with(REPLY, clock=clock) as call:
            call.ears.last_audio_ns = 1 << 62
            call.ears.pause("")
            del call.ears.words[1]
            await asyncio.sleep(3.5 * WAIT_S)
            assert waits(call) == ["asr"] * 3

    virtual_time.run(test)
