"""A whole session on fake stages, whose model calls tools of the client."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from agent.errors import StageError
from agent.session import item_operations
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import (
    FunctionCall,
    FunctionOutput,
    ItemId,
    Message,
    ModelCall,
)
from agent.session.api.settings import ResponseOptions
from agent.session.context.chat_messages import messages_of
from agent.session.ports.stage_ports import (
    NO_RESULT,
    ChatMessage,
    ReplyToken,
    Speech,
    Tools,
)
from agent.turn_taking.tables import Agent
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling, FakeVoice
from tests.support.session.overlap_call import agent_of, listen, over
from tests.support.session.session_call import Call, call_with
from tests.support.session.tool_call import CALL, CLOCK, NOON, answer, equip, items, problems, until
from tts.text_chunker import SpeakablePiece

pytestmark = pytest.mark.virtual_time


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


async def test_barge_in_keeps_the_tool_call_unchanged() -> None:
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


class CallsForEver(RememberingChat):
    """Has written a call, and goes on with its reply."""

    has_called = False

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[ReplyToken, None]:
        async with aclosing(super().generate(*args, **options)) as tokens:
            async for token in tokens:
                yield token
                if token.calls:
                    self.has_called = True
                    await asyncio.Event().wait()


@pytest.mark.parametrize("text", ["", "Let me look."])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_call_that_was_cut_in_the_middle_is_forgotten(text: str, is_lost: bool) -> None:
    """A model server refuses a history in which a call has no result."""
    chat = CallsForEver([Calling(text, (CALL,)), "Fine."])
    async with call_with(chat=chat, ahead=False) as call:
        await equip(call)
        call.ears.say("What time is it?")
        await until(lambda: chat.has_called)
        if is_lost:
            call.session.client_lost()
            call.session.client_back()
        else:
            await call.session.handle(ask.CancelResponse())
        await call.until(say.ReplyEnded)
        call.ears.say("Never mind.")
        await until(lambda: len(chat.asked) > 1)
    assert not any(message.calls for asked in chat.asked for message in asked)


class SlowVoice(FakeVoice):
    """Takes five seconds for a piece."""

    async def speak(self, piece: SpeakablePiece) -> AsyncIterator[Speech]:
        await asyncio.sleep(5)
        async for speech in super().speak(piece):
            yield speech


@pytest.mark.parametrize("is_asked", [False, True])
async def test_noise_begins_no_reply_anew_that_has_called_the_client(*, is_asked: bool) -> None:
    """Nothing of it was heard, but the client runs the tool and asks for the next reply. Begun
    anew, the model would call a second time."""
    chat = RememberingChat([Calling("Let me look.", (CALL,)), NOON])
    async with call_with(chat=chat, voice=SlowVoice()) as call:
        listen(call)
        await equip(call)
        if is_asked:
            typed = Message(ItemId("typed"), "user", "text", "What time is it?")
            await call.session.handle(ask.CreateItem(typed))
            await call.session.handle(ask.CreateResponse(ResponseOptions()))
        else:
            call.ears.say("What time is it?")
        await call.until(say.ReplyCalled)
        assert agent_of(call) is Agent.PREPARING
        await over(call, "", silence_ms=2000)
        await asyncio.sleep(10)
        assert len(call.of(say.ReplyStarted)) == 1
        await answer(call)
        await call.until(say.ReplyEnded, 2)
        last = call.of(say.ReplyEnded)[-1]
        assert isinstance(last, say.ReplyEnded)
        assert last.text == NOON
        assert ("assistant", (CALL,)) in [(each.role, each.calls) for each in chat.asked[-1]]
        assert not problems(call)


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


async def test_tools_that_take_too_long_to_check_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def for_ever(tools: Tools) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(item_operations, "CHECK_TIMEOUT_S", 0.0)
    async with call_with("One.") as call:
        monkeypatch.setattr(call.chat, "check_tools", for_ever)
        await equip(call)
        assert call.session.settings.tools == ()
        options = ResponseOptions(tools=(CLOCK,))
        await call.session.handle(ask.CreateResponse(options))
        assert problems(call) == [
            ("invalid_value", "session.tools"),
            ("invalid_value", "response.tools"),
        ]
        assert "Make them simpler" in str(call.of(say.Problem)[0])
        assert not call.of(say.ReplyStarted)


async def test_a_function_can_not_be_chosen_where_there_is_none() -> None:
    chosen = {"type": "function", "name": "clock"}
    async with call_with("One.") as call:
        settings = call.session.settings.changed(tool_choice=chosen)
        await call.session.handle(ask.UpdateSession(settings))
        await call.session.handle(ask.CreateResponse(ResponseOptions(tool_choice=chosen)))
        assert problems(call) == [
            ("invalid_value", "session.tool_choice"),
            ("invalid_value", "response.tool_choice"),
        ]
        assert call.session.settings.tool_choice == "auto"
        await equip(call, choice=chosen)
        await call.session.handle(ask.CreateResponse(ResponseOptions(tools=())))
        await call.until(say.ReplyEnded)
    assert len(problems(call)) == 2


async def test_an_unknown_voice_is_named_where_it_was_asked_for() -> None:
    async with call_with("One.") as call:
        await call.session.handle(ask.CreateResponse(ResponseOptions(voice="nobody")))
    assert problems(call) == [("invalid_value", "response.audio.output.voice")]


@pytest.mark.parametrize("reply", ["Fine.", Calling("", (CALL,)), Calling("Let me look.", (CALL,))])
async def test_an_item_that_is_created_before_the_reply_s_first_word(
    reply: str | Calling,
) -> None:
    """The message of a reply that may call tools stands behind it, and so it does for the model,
    which has generated the reply without it."""
    chat = RememberingChat([reply, NOON])
    async with call_with(chat=chat, ahead=False) as call:
        await equip(call)
        chat.hold = asyncio.Event()
        call.ears.say("What time is it?")
        await chat.generating.wait()
        typed = Message(ItemId("typed"), "system", "text", "It is winter.")
        await call.session.handle(ask.CreateItem(typed))
        chat.hold.set()
        await call.until(say.ReplyEnded)
        options = ResponseOptions(output_modality="text")
        await call.session.handle(ask.CreateResponse(options))
        await call.until(say.ReplyEnded, 2)
        told = messages_of(call.session.conversation)[: len(chat.asked[-1])]
    assert [each.role for each in told] == ["user", "system", "assistant"]
    assert [(each.role, each.text, each.calls) for each in chat.asked[-1]] == [
        (each.role, each.text, each.calls) for each in told
    ]


async def test_an_item_that_is_created_while_the_context_is_settled() -> None:
    """The model has read it before it answers; the conversation has the reply's message first."""
    chat = SlowToCommit(["Fine.", "And fine."])
    async with call_with(chat=chat, ahead=False) as call:
        call.ears.say("What time is it?")
        await chat.committing.wait()
        typed = Message(ItemId("typed"), "system", "text", "It is winter.")
        await call.session.handle(ask.CreateItem(typed))
        chat.may_commit.set()
        await call.until(say.ReplyEnded)
        options = ResponseOptions(output_modality="text")
        await call.session.handle(ask.CreateResponse(options))
        await call.until(say.ReplyEnded, 2)
        told = messages_of(call.session.conversation)[:3]
    assert [each.role for each in told] == ["user", "assistant", "system"]
    assert [each.role for each in chat.asked[0]] == ["user", "system"]
    assert [(each.role, each.text) for each in chat.asked[1]] == [
        (each.role, each.text) for each in told
    ]


OTHER = ModelCall("clock", '{"zone": "CET"}')


def made_calls(call: Call) -> list[FunctionCall]:
    return [n.call for n in call.of(say.ReplyCalled) if isinstance(n, say.ReplyCalled)]


async def give_result(call: Call, made: FunctionCall, output: str) -> None:
    item = FunctionOutput(ItemId(f"out_{output}"), made.call_id, output)
    await call.session.handle(ask.CreateItem(item))


async def ask_in_text(call: Call) -> None:
    count = len(call.of(say.ReplyEnded))
    await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
    await call.until(say.ReplyEnded, count + 1)


@pytest.mark.parametrize("words", ["", "Let me look."])
async def test_results_that_come_in_another_order_belong_to_their_calls(words: str) -> None:
    """The model reads from the order alone which call a result is of."""
    chat = RememberingChat([Calling(words, (CALL, OTHER)), NOON, NOON])
    async with call_with(chat=chat) as call:
        await equip(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded)
        first, second = made_calls(call)
        await give_result(call, second, "13:00")
        await ask_in_text(call)
        assert chat.asked[-1][1:] == (
            ChatMessage("assistant", words, (CALL, OTHER)),
            ChatMessage("tool", NO_RESULT),
            ChatMessage("tool", "13:00"),
        )
        await give_result(call, first, "12:00")
        await ask_in_text(call)
        assert chat.asked[-1][1:] == (
            ChatMessage("assistant", words, (CALL, OTHER)),
            ChatMessage("tool", "12:00"),
            ChatMessage("tool", "13:00"),
            ChatMessage("assistant", NOON),
        )


async def test_a_result_that_comes_after_the_caller_s_next_words_stands_behind_its_call() -> None:
    """A slow tool, and a caller who does not wait for it."""
    chat = RememberingChat([Calling("Let me look.", (CALL,)), "One moment.", NOON])
    async with call_with(chat=chat) as call:
        await equip(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded)
        await asyncio.sleep(3)
        call.ears.say("Hello?")
        await call.until(say.ReplyEnded, 2)
        (made,) = made_calls(call)
        await give_result(call, made, "12:00")
        await ask_in_text(call)
    assert chat.asked[-1] == (
        ChatMessage("user", "What time is it?"),
        ChatMessage("assistant", "Let me look.", (CALL,)),
        ChatMessage("tool", "12:00"),
        ChatMessage("user", "Hello?"),
        ChatMessage("assistant", "One moment."),
    )


async def test_calls_and_results_that_the_client_creates_are_read_as_they_stand() -> None:
    chat = RememberingChat([NOON])
    async with call_with(chat=chat) as call:
        for number, each in enumerate((CALL, OTHER)):
            item = FunctionCall(ItemId(f"made_{number}"), f"c{number}", each.name, each.arguments)
            await call.session.handle(ask.CreateItem(item))
            await asyncio.sleep(1)  # the model has it
        for number in (0, 1):
            output = FunctionOutput(ItemId(f"given_{number}"), f"c{number}", f"1{number}:00")
            await call.session.handle(ask.CreateItem(output))
        await ask_in_text(call)
    assert chat.asked[-1] == (
        ChatMessage("assistant", "", (CALL, OTHER)),
        ChatMessage("tool", "10:00"),
        ChatMessage("tool", "11:00"),
    )


async def test_results_in_the_order_of_their_calls_cost_no_history_taken_anew() -> None:
    chat = RememberingChat([Calling("Let me look.", (CALL, OTHER)), NOON])
    async with call_with(chat=chat) as call:
        await equip(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded)
        for number, made in enumerate(made_calls(call)):
            await give_result(call, made, f"1{number}:00")
        await ask_in_text(call)
        told = messages_of(call.session.conversation)[:-1]
    assert list(chat.asked[-1]) == told
    assert not any(name == "reset" for name, _ in chat.calls)


def test_a_result_that_was_sent_twice_is_the_last_one() -> None:
    made = FunctionCall(ItemId("i1"), "c1", CALL.name, CALL.arguments)
    outputs = [FunctionOutput(ItemId(f"o{n}"), "c1", f"{n}:00") for n in (1, 2)]
    assert messages_of([made, *outputs]) == [
        ChatMessage("assistant", "", (CALL,)),
        ChatMessage("tool", "2:00"),
    ]


class SlowToCommit(RememberingChat):
    """Takes a message when the test lets it."""

    def __init__(self, replies: list[str]) -> None:
        super().__init__(replies)
        self.committing = asyncio.Event()
        self.may_commit = asyncio.Event()

    async def commit(self, message: ChatMessage) -> None:
        self.committing.set()
        await self.may_commit.wait()
        await super().commit(message)
