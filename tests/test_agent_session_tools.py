"""A whole session on fake stages, whose model calls tools: the client's, and the server's own."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from agent import notices as say
from agent import requests as ask
from agent.conversation import (
    FunctionCall,
    FunctionOutput,
    ItemId,
    Message,
    ModelCall,
    ToolRound,
)
from agent.errors import StageError
from agent.model_messages import messages_of
from agent.ports import ChatMessage, Tools
from agent.settings import ResponseOptions, SemanticVad
from agent.turn_tables import Agent
from agent.wording import INTERRUPTED, MAX_ROUNDS, TOO_LONG
from latency_budget.clock import ManualClock
from latency_budget.marks import MarkName
from latency_budget.turn import Stage

from . import virtual_time
from .fakes.remembering import RememberingChat
from .fakes.stages import Calling
from .session_call import WAIT, Call, call_with

CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object"}}
CALL = ModelCall("clock", '{"zone": "UTC"}')
NOON = "It is noon."


@dataclass
class Toolbox:
    """Tools of the server that answer when the test lets them."""

    results: list[str] = field(default_factory=lambda: ["12:00"] * 100)
    gate: asyncio.Event | None = None
    called: list[ModelCall] = field(default_factory=list)
    cancelled: list[ModelCall] = field(default_factory=list)
    definitions: tuple[str, ...] = ('{"name": "clock"}',)

    def has(self, name: str) -> bool:
        return name == "clock"

    async def run(self, call: ModelCall) -> str:
        self.called.append(call)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(call)
            raise
        return self.results.pop(0)


async def equip(call: Call, *tools: dict[str, object], choice: str = "auto") -> None:
    settings = call.session.settings.changed(tools=tools or (CLOCK,), tool_choice=choice)
    await call.session.handle(ask.UpdateSession(settings))


async def answer(call: Call, output: str = "12:00") -> None:
    """The client has run the tool that was called last, and asks for a reply."""
    made = call.of(say.ReplyCalled)[-1]
    assert isinstance(made, say.ReplyCalled)
    item = FunctionOutput(ItemId(f"out_{made.call.id}"), made.call.call_id, output)
    await call.session.handle(ask.CreateItem(item))
    await call.session.handle(ask.CreateResponse(ResponseOptions()))


def problems(call: Call) -> list[tuple[str, str | None]]:
    return [(n.code, n.param) for n in call.notices if isinstance(n, say.Problem)]


def items(call: Call) -> list[str]:
    return [type(item).__name__ for item in call.session.conversation]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.005)


# --- the client's ---


async def test_a_call_is_a_response_of_its_own() -> None:
    async with call_with(Calling("", (CALL,)), NOON) as call:
        await equip(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded)
        names = call.names()
        assert names[names.index("ReplyStarted") :] == ["ReplyStarted", "ReplyCalled", "ReplyEnded"]
        (made,) = call.of(say.ReplyCalled)
        assert isinstance(made, say.ReplyCalled)
        assert (made.call.name, made.call.arguments) == ("clock", CALL.arguments)
        (ended,) = call.of(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert (ended.status, ended.text) == ("completed", "")
        await answer(call)
        await call.until(say.ReplyEnded, 2)
        assert ("tool", "12:00") in call.chat.calls
        assert items(call) == ["Message", "FunctionCall", "FunctionOutput", "Message"]
        assert not problems(call)
        told = messages_of(call.session.conversation)
    assert told == [
        ChatMessage("user", "What time is it?"),
        ChatMessage("assistant", "", (CALL,)),
        ChatMessage("tool", "12:00"),
        ChatMessage("assistant", NOON),
    ]


async def test_what_the_model_may_call() -> None:
    async with call_with("One.", "Two.", "Three.", "Four.") as call:
        await equip(call)
        definition = json.dumps({"name": "clock", "parameters": {"type": "object"}})
        assert ("check tools", Tools((definition,))) in call.chat.calls
        options = [
            ResponseOptions(),
            ResponseOptions(tool_choice="none"),
            ResponseOptions(tool_choice={"type": "function", "name": "clock"}),
            ResponseOptions(tools=(), input=()),
        ]
        for number, each in enumerate(options, 1):
            await call.session.handle(ask.CreateResponse(each))
            await call.until(say.ReplyEnded, number)
            await until(lambda: call.session._machine.takes_requests)
        assert call.chat.may_call == [
            Tools((definition,)),
            None,
            Tools((definition,), "clock"),
            None,
        ]
        told = [what for kind, what in call.chat.calls if kind == "tools"]
        assert told[:3] == [(definition,), (), (definition,)]
    assert not problems(call)


async def test_words_before_a_call_are_a_message_before_it() -> None:
    async with call_with(Calling("Let me look.", (CALL, CALL)), NOON) as call:
        await equip(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded)
        names = call.names()
        assert names.index("MessageBegun") < names.index("ReplyText")
        assert names.index("MessageBegun") < names.index("ReplyCalled") < names.index("ReplyEnded")
        chain: list[tuple[ItemId, ItemId | None]] = []
        for notice in call.notices:
            if isinstance(notice, say.ReplyStarted):
                item_id = notice.item_id
            elif isinstance(notice, say.MessageBegun):
                chain.append((item_id, notice.previous_item_id))
            elif isinstance(notice, say.ReplyCalled):
                chain.append((notice.call.id, notice.previous_item_id))
        order = [item.id for item in call.session.conversation]
        assert chain == list(zip(order[1:], order, strict=False))
        told = messages_of(call.session.conversation)
    assert told[1:] == [ChatMessage("assistant", "Let me look.", (CALL, CALL))]


async def test_the_answer_may_come_while_the_words_are_still_spoken() -> None:
    async with call_with(Calling("One two three four five six seven.", (CALL,)), NOON) as call:
        await equip(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyCalled)
        await answer(call)
        assert not call.of(say.ReplyEnded)
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        assert problems(call) == [("conversation_already_has_active_response", None)]
        await call.until(say.ReplyEnded, 2)
        texts = [n.text for n in call.of(say.ReplyEnded) if isinstance(n, say.ReplyEnded)]
        assert texts == ["One two three four five six seven.", NOON]
        assert len(call.of(say.ReplyStarted)) == 2


async def test_a_caller_who_interrupts_leaves_the_call_as_it_was_made() -> None:
    words = "One two three four five six seven eight nine ten eleven twelve."
    chat = RememberingChat([Calling(words, (CALL,)), "Yes."])
    async with call_with(chat=chat) as call:
        await equip(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyAudio, 12)
        call.ears.say("Stop.")
        await call.until(say.ReplyEnded, 2)
        first = call.of(say.ReplyEnded)[0]
        assert isinstance(first, say.ReplyEnded)
        assert 0 < len(first.text) < len(words)
    assert chat.asked[-1] == (
        ChatMessage("user", "What time is it?"),
        ChatMessage("assistant", first.text, (CALL,)),
        ChatMessage("user", "Stop."),
    )


async def test_a_guess_calls_nothing_before_it_is_a_reply() -> None:
    async with call_with(Calling("", (CALL,)), "Fine.") as call:
        await equip(call)
        call.ears.pause("What time is it")
        await call.chat.generating.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert not call.of(say.ReplyCalled)
        call.ears.pause("What time is it over there?")
        await until(lambda: len(call.chat.may_call) == 2)
        call.ears.fall_silent()
        (ended,) = await call.until(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert ended.text == "Fine."
        assert not call.of(say.ReplyCalled)


async def test_tools_that_can_not_be_called_are_refused() -> None:
    async with call_with("Fine.") as call:
        call.chat.refused_tools = StageError(
            "llm", "tools[0].parameters: can't be met", refused=True
        )
        await equip(call)
        assert problems(call) == [("invalid_value", "session.tools")]
        assert call.session.settings.tools == ()
        options = ResponseOptions(tools=(CLOCK,))
        await call.session.handle(ask.CreateResponse(options))
        assert problems(call)[1:] == [("invalid_value", "response.tools")]
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyEnded)
        assert call.chat.may_call == [None]


async def test_a_result_of_no_call_is_refused() -> None:
    async with call_with() as call:
        item = FunctionOutput(ItemId("x"), "call_9", "12:00")
        await call.session.handle(ask.CreateItem(item))
        assert problems(call) == [("invalid_tool_call_id", "item.call_id")]
        made = FunctionCall(ItemId("y"), "call_9", "clock", "{}")
        await call.session.handle(ask.CreateItem(made))
        await call.session.handle(ask.CreateItem(item))
        assert items(call) == ["FunctionCall", "FunctionOutput"]
        await until(lambda: ("tool", "12:00") in call.chat.calls)
        assert ("assistant", (ModelCall("clock", "{}"),)) in call.chat.calls


# --- the server's ---


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


async def test_a_quick_tool_is_not_talked_over() -> None:
    async with call_with(Calling("", (CALL,)), NOON, tools=Toolbox()) as call:
        call.ears.say("What time is it?")
        (ended,) = await call.until(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert ended.text == NOON


async def test_a_caller_who_interrupts_a_tool_stops_it() -> None:
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


async def test_several_tools_run_at_once() -> None:
    tools = Toolbox(gate=asyncio.Event(), results=["1", "2"])
    async with call_with(Calling("", (CALL, CALL)), NOON, tools=tools) as call:
        call.ears.say("What time is it?")
        await until(lambda: len(tools.called) == 2)
        assert tools.gate is not None
        tools.gate.set()
        await call.until(say.ReplyEnded)
        assert [what for kind, what in call.chat.calls if kind == "tool"] == ["1", "2"]


async def test_a_model_that_only_calls_has_to_answer_in_the_end() -> None:
    tools = Toolbox()
    calling = [Calling("", (CALL,))] * MAX_ROUNDS
    async with call_with(*calling, NOON, tools=tools) as call:
        await equip(call, {"type": "function", "name": "other"}, choice="required")
        call.ears.say("What time is it?")
        (ended,) = await call.until(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert ended.text == NOON
        choices = [None if each is None else each.choice for each in call.chat.may_call]
    assert choices == ["required", *["auto"] * (MAX_ROUNDS - 1), None]
    assert len(tools.called) == MAX_ROUNDS


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
        assert problems(call) == [("invalid_value", "tools[0].name")]


async def test_both_kinds_at_once() -> None:
    theirs = ModelCall("lamp", "{}")
    tools = Toolbox()
    async with call_with(Calling("", (CALL, theirs)), NOON, tools=tools) as call:
        await equip(call, {"type": "function", "name": "lamp"})
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded)
        assert tools.called == [CALL]
        (made,) = call.of(say.ReplyCalled)
        assert isinstance(made, say.ReplyCalled)
        assert made.call.name == "lamp"
        await answer(call, "on")
        await call.until(say.ReplyEnded, 2)
        told = [each for each in call.chat.calls if each[0] == "tool"]
    assert told == [("tool", "12:00"), ("tool", "on")]


@pytest.mark.parametrize("heard", [0, 3, 12, 40])
def test_what_was_heard_of_a_reply_with_tools(heard: int) -> None:
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
