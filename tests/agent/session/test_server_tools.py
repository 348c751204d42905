"""A whole session on fake stages, whose model calls tools of the server."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from agent.errors import StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message, ModelCall, ToolRound
from agent.session.api.settings import ResponseOptions, SemanticVad
from agent.session.context.chat_messages import messages_of
from agent.session.ports.stage_ports import ChatMessage, ReplyToken
from agent.session.response.task import INTERRUPTED, MAX_ROUNDS, TOO_LONG
from agent.turn_taking import events as ev
from agent.turn_taking.tables import Agent
from latency_budget.account.clock import ManualClock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import Stage
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.overlap_call import begin, listen
from tests.support.session.session_call import WAIT, Call, call_with
from tests.support.session.tool_call import CALL, NOON, Toolbox, answer, equip, problems, until

pytestmark = pytest.mark.virtual_time


async def test_a_tool_of_the_server_is_part_of_one_reply() -> None:
    tools = Toolbox()
    chat = RememberingChat([Calling("Let me look.", (CALL,)), NOON, "Bye."])
    async with call_with(chat=chat, tools=tools) as call:
        call.ears.say("What time is it?")
        (ended,) = await call.until(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert (ended.status, ended.text) == ("completed", f"Let me look. {NOON}")
        assert tools.called == [CALL]
        assert not call.of(say.ReplyCalled)
        assert len(call.of(say.ReplyStarted)) == len(call.of(say.MessageBegun)) == 1
        assert (ended.usage.output_tokens, ended.usage.input_tokens) == (3 + 3, 20)
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        call.ears.say("Bye.")
        await call.until(say.ReplyEnded, 2)
        told = messages_of(tuple(call.session.conversation)[:2])
    expected = (
        ChatMessage("user", "What time is it?"),
        ChatMessage("assistant", "Let me look.", (CALL,)),
        ChatMessage("tool", "12:00"),
        ChatMessage("assistant", NOON),
    )
    assert chat.asked[-1] == (*expected, ChatMessage("user", "Bye."))
    assert [(m.role, m.text.strip(), m.calls) for m in told] == [
        (m.role, m.text, m.calls) for m in expected
    ]
    assert not any(kind == "reset" for kind, _ in chat.calls), "all of it was known already"


def test_a_tool_that_takes_long_does_not_leave_the_caller_in_silence() -> None:
    async def story(clock: ManualClock) -> None:
        tools = Toolbox(gate=asyncio.Event())
        replies = (Calling("", (CALL,)), NOON)
        async with call_with(*replies, tools=tools, clock=clock, ahead=False) as call:
            began_ns = clock.now_ns()
            call.ears.say("What time is it?")
            await call.until(say.ReplyAudio)
            assert 400 <= (clock.now_ns() - began_ns) / 1e6 <= 700
            assert tools.gate is not None
            assert not tools.cancelled
            await asyncio.sleep(3)
            tools.gate.set()
            (ended,) = await call.until(say.ReplyEnded)
            assert isinstance(ended, say.ReplyEnded)
            assert ended.text == f"{WAIT} {NOON}"
            await until(lambda: call.turns)
            record = call.turns[0].record
            assert record.stages[Stage.TOOL].exposed_ns == record.e2e_server_ns == 500_000_000
            assert (record.incomplete, record.opener) == ((), True)
            told = messages_of(call.session.conversation)
        # The model is not taught to say it.
        assert [(m.role, m.text) for m in told[1:]] == [
            ("assistant", ""),
            ("tool", "12:00"),
            ("assistant", NOON),
        ]

    virtual_time.run(story)


def test_the_filler_of_a_tool_that_was_interrupted_is_no_reply() -> None:
    """The caller heard it, and the model is not taught to say it in place of an answer."""

    async def story(clock: ManualClock) -> None:
        chat = RememberingChat([Calling("", (CALL,)), "Fine."])
        tools = Toolbox(gate=asyncio.Event())
        async with call_with(chat=chat, tools=tools, clock=clock, ahead=False) as call:
            listen(call)
            call.ears.say("What time is it?")
            await call.until(say.ReplyAudio)
            await asyncio.sleep(5)
            call.ears.say("Never mind.")
            await call.until(say.ReplyEnded, 2)
        (first, _) = call.of(say.ReplyEnded)
        assert isinstance(first, say.ReplyEnded)
        assert first.text == WAIT
        assert chat.asked[-1] == (
            ChatMessage("user", "What time is it?"),
            ChatMessage("assistant", "", (CALL,)),
            ChatMessage("tool", INTERRUPTED),
            ChatMessage("user", "Never mind."),
        )

    virtual_time.run(story)


def test_a_quick_tool_is_not_talked_over() -> None:
    async def story(clock: ManualClock) -> None:
        replies = (Calling("", (CALL,)), NOON)
        async with call_with(*replies, tools=Toolbox(), clock=clock, ahead=False) as call:
            call.ears.say("What time is it?")
            (ended,) = await call.until(say.ReplyEnded)
            assert isinstance(ended, say.ReplyEnded)
            assert ended.text == NOON

    virtual_time.run(story)


async def test_barge_in_cancels_a_running_tool() -> None:
    tools = Toolbox(gate=asyncio.Event())
    chat = RememberingChat([Calling("Let me look that up for you now.", (CALL,)), "Fine."])
    async with call_with(chat=chat, tools=tools) as call:
        call.ears.say("What time is it?")
        await until(lambda: tools.called)
        await call.until(say.ReplyAudio, 8)
        call.ears.say("Never mind.")
        await call.until(say.ReplyEnded, 2)
        first = call.of(say.ReplyEnded)[0]
        assert isinstance(first, say.ReplyEnded)
        assert tools.cancelled == [CALL]
    assert chat.asked[-1] == (
        ChatMessage("user", "What time is it?"),
        ChatMessage("assistant", first.text, (CALL,)),
        ChatMessage("tool", INTERRUPTED),
        ChatMessage("user", "Never mind."),
    )


async def test_a_tool_that_ran_unheard_is_not_forgotten() -> None:
    tools = Toolbox(gate=asyncio.Event())
    chat = RememberingChat([Calling("", (CALL,)), "Fine."])
    async with call_with(chat=chat, tools=tools, ahead=False) as call:
        call.ears.say("What time is it?")
        await until(lambda: tools.called)
        await call.session.handle(ask.CancelResponse())
        await until(lambda: tools.cancelled)
        call.ears.say("Well?")
        await call.until(say.ReplyEnded, 2)
    assert [message.role for message in chat.asked[-1]] == ["user", "assistant", "tool", "user"]
    first = call.of(say.ReplyEnded)[0]
    assert isinstance(first, say.ReplyEnded)
    assert (first.status, first.text) == ("cancelled", "")


async def test_a_tool_that_is_done_was_not_cancelled_by_barge_in() -> None:
    """The model reads the results that are there: told otherwise, it would book again."""
    other = ModelCall(CALL.name, '{"zone": "CET"}')

    class OneWaits(Toolbox):
        async def run(self, call: ModelCall, item_id: ItemId) -> str:
            if call == CALL:
                await asyncio.Event().wait()
            return await super().run(call, item_id)

    tools = OneWaits()
    chat = RememberingChat([Calling("Let me look that up for you now.", (CALL, other)), "Fine."])
    async with call_with(chat=chat, tools=tools) as call:
        call.ears.say("What time is it?")
        await until(lambda: tools.called)
        await call.until(say.ReplyAudio, 8)
        call.ears.say("Never mind.")
        await call.until(say.ReplyEnded, 2)
    assert tools.called == [other]
    assert [(message.role, message.text) for message in chat.asked[-1]][2:] == [
        ("tool", INTERRUPTED),
        ("tool", "12:00"),
        ("user", "Never mind."),
    ]


async def test_several_tools_run_at_once() -> None:
    tools = Toolbox(gate=asyncio.Event(), results=["1", "2"])
    other = ModelCall(CALL.name, '{"zone": "CET"}')
    async with call_with(Calling("", (CALL, other)), NOON, tools=tools) as call:
        call.ears.say("What time is it?")
        await until(lambda: len(tools.called) == 2)
        assert tools.gate is not None
        tools.gate.set()
        await call.until(say.ReplyEnded)
        assert [what for kind, what in call.chat.calls if kind == "tool"] == ["1", "2"]


async def test_a_model_that_only_calls_has_to_answer_in_the_end() -> None:
    tools = Toolbox()
    calling = [
        Calling("", (ModelCall(CALL.name, f'{{"zone": {number}}}'),))
        for number in range(MAX_ROUNDS)
    ]
    async with call_with(*calling, NOON, tools=tools) as call:
        await equip(call, {"type": "function", "name": "other"}, choice="required")
        call.ears.say("What time is it?")
        (ended,) = await call.until(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert ended.text == NOON
        choices = [None if each is None else each.choice for each in call.chat.may_call]
    assert choices == ["required", *["auto"] * (MAX_ROUNDS - 1), "none"]
    assert len(tools.called) == MAX_ROUNDS


def test_a_repeated_call_is_not_run_again_and_ends_the_calls() -> None:
    """A repeated call must not book a table twice."""

    async def story(clock: ManualClock) -> None:
        tools = Toolbox(results=["booked"])
        calling = [Calling("", (CALL,)), Calling("", (CALL, CALL))]
        async with call_with(*calling, NOON, tools=tools, clock=clock, ahead=False) as call:
            call.ears.say("What time is it?")
            (ended,) = await call.until(say.ReplyEnded)
            assert isinstance(ended, say.ReplyEnded)
            assert ended.text == NOON
            choices = [None if each is None else each.choice for each in call.chat.may_call]
            shown = [what for kind, what in call.chat.calls if kind == "tool"]
        assert len(tools.called) == 1
        assert shown == ["booked"] * 3
        assert choices == ["auto", "auto", "none"]

    virtual_time.run(story)


async def test_a_result_too_long_for_the_model_is_said_to_be() -> None:
    tools = Toolbox()
    async with call_with(Calling("", (CALL,)), NOON, tools=tools, ahead=False) as call:
        tools.gate = asyncio.Event()
        call.ears.say("What time is it?")
        await until(lambda: tools.called)
        call.chat.refusals.append(StageError("llm", "too long", refused=True))
        tools.gate.set()
        (ended,) = await call.until(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert ended.text == NOON
        assert ("tool", TOO_LONG) in call.chat.calls


async def test_a_client_can_not_take_the_name_of_a_tool_of_the_server() -> None:
    async with call_with(tools=Toolbox()) as call:
        await equip(call)
        assert problems(call) == [("invalid_value", "session.tools[0].name")]


async def test_server_and_client_tools_in_one_reply() -> None:
    theirs = ModelCall("lamp", "{}")
    tools = Toolbox()
    chat = RememberingChat([Calling("", (CALL, theirs)), NOON])
    async with call_with(chat=chat, tools=tools) as call:
        await equip(call, {"type": "function", "name": "lamp"})
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded)
        assert tools.called == [CALL]
        (made,) = call.of(say.ReplyCalled)
        assert isinstance(made, say.ReplyCalled)
        assert made.call.name == "lamp"
        await answer(call, "on")
        await call.until(say.ReplyEnded, 2)
    assert chat.asked[-1][1:] == (
        ChatMessage("assistant", "", (theirs,)),
        ChatMessage("tool", "on"),
        ChatMessage("assistant", "", (CALL,)),
        ChatMessage("tool", "12:00"),
    )


@pytest.mark.parametrize("heard", [0, 3, 12, 40])
def test_history_of_a_truncated_reply_with_tools(heard: int) -> None:
    """Whatever was heard, what ran has run."""
    text = "Let me look. One moment. It is noon."
    rounds = (ToolRound(12, 25, (CALL,), ("12:00",)),)
    message = Message(ItemId("a"), "assistant", "audio", text[:heard], "incomplete", None, rounds)
    told = messages_of([message])
    assert told[0] == ChatMessage("assistant", text[:12][:heard], (CALL,))
    assert told[1] == ChatMessage("tool", "12:00")
    assert [each.text for each in told[2:]] == ([NOON] if heard == 40 else [])


async def test_speech_detection_off_still_calls() -> None:
    async with call_with(Calling("", (CALL,)), NOON, tools=Toolbox()) as call:
        settings = call.session.settings.changed(
            turn_detection=SemanticVad(create_response=False), output_modality="text"
        )
        await call.session.handle(ask.UpdateSession(settings))
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        (ended,) = await call.until(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert ended.text == NOON
        assert MarkName.TOOL_DONE in {
            MarkName(str(record["type"])) for record in _records(call) if record["kind"] == "mark"
        }


def _records(call: Call) -> list[dict[str, object]]:
    return [json.loads(line) for line in call.trace.lines()][1:]


class ThinksBeforeItCalls(RememberingChat):
    """Writes its call when the test lets it."""

    def __init__(self, replies: list[str | Calling]) -> None:
        super().__init__(replies)
        self.may_call_now = asyncio.Event()

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[ReplyToken, None]:
        async with aclosing(super().generate(*args, **options)) as tokens:
            async for token in tokens:
                if token.calls:
                    await self.may_call_now.wait()
                yield token


@pytest.mark.parametrize("text", ["Mm-hmm.", "No, make it ten please."])
async def test_no_tool_runs_while_it_is_not_known_whether_the_caller_interrupts(text: str) -> None:
    """What ran meanwhile would be lost with a response that has no words yet, and be run again."""
    tools = Toolbox()
    words = "Let me look at the clock in the hall for you. It will only take a moment or two."
    chat = ThinksBeforeItCalls([Calling(words, (CALL,)), NOON, "Fine."])
    async with call_with(chat=chat, tools=tools, ahead=False) as call:
        listen(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyAudio)
        await asyncio.sleep(2.5)  # later, it is not re-opened
        number = begin(call, text)
        await call.until(say.ReplyEnded)
        chat.may_call_now.set()
        await asyncio.sleep(0.5)
        assert not tools.called
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        call.ears.hear(ev.SilenceGrew(number, 5000))
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(5)
        goes_on = text == "Mm-hmm."
        assert tools.called == ([CALL] if goes_on else [])
        reply = " ".join(n.text for n in call.of(say.ReplyEnded) if isinstance(n, say.ReplyEnded))
        assert (NOON in reply) or not goes_on
    assert goes_on or not any(message.calls for message in chat.asked[-1])


async def test_a_round_with_calls_of_the_client_and_of_the_server_is_read_as_it_stands() -> None:
    """The server's result is there at once, and is none of the client's call."""
    where = ModelCall("where", "{}")
    chat = RememberingChat([Calling("", (where, CALL)), "One moment.", NOON])
    async with call_with(chat=chat, tools=Toolbox(), ahead=False) as call:
        await equip(call, {"type": "function", "name": "where", "parameters": {"type": "object"}})
        call.ears.say("What time is it here?")
        await call.until(say.ReplyEnded)
        for output in (None, "Bonn"):
            if output is not None:
                await answer(call, output)
                await call.until(say.ReplyEnded, 3)
            else:
                call.ears.say("Hello?")
                await call.until(say.ReplyEnded, 2)
                await asyncio.sleep(3)
            told = messages_of(call.session.conversation)[:-1]
            assert list(chat.asked[-1]) == told
    assert [(each.text, each.calls) for each in told][1:5] == [
        ("", (where,)),
        ("Bonn", ()),
        ("", (CALL,)),
        ("12:00", ()),
    ]


class FailsWhenCancelled(RememberingChat):
    """Its connection breaks just as its reply is not wanted any more."""

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[ReplyToken, None]:
        async with aclosing(super().generate(*args, **options)) as tokens:
            try:
                async for token in tokens:
                    yield token
            except asyncio.CancelledError:
                raise StageError("llm", "it broke") from None


async def test_a_model_that_fails_as_the_call_ends_is_no_error_of_the_call() -> None:
    chat = FailsWhenCancelled(["Hello."])
    async with call_with(chat=chat, ahead=False) as call:
        chat.hold = asyncio.Event()
        call.ears.say("Hello?")
        await chat.generating.wait()
    assert chat.closed
