"""Responses with an input of their own that belong to the conversation."""

import asyncio
from dataclasses import replace

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import (
    FunctionCall,
    FunctionOutput,
    ItemId,
    ItemReference,
    Message,
    ModelCall,
)
from agent.session.api.settings import ResponseOptions
from agent.session.context.chat_messages import messages_of, response_input
from agent.session.ports.stage_ports import ChatMessage
from agent.turn_taking import events as ev
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session.overlap_call import begin, listen
from tests.support.session.session_call import Call, call_with
from tests.support.session.tool_call import CALL, NOON, equip

pytestmark = pytest.mark.virtual_time

OTHER = ModelCall("clock", '{"zone": "CET"}')


def answer_input_with(call: Call, reply: str | Calling) -> RememberingChat:
    """Let this be the reply to an input of its own; returns the chat that it is asked of."""
    own = RememberingChat([reply])
    responses = call.session._responses
    responses._stages = replace(responses._stages, open_chat=lambda *_: own)
    return own


def typed(text: str) -> ResponseOptions:
    return ResponseOptions(input=(Message(ItemId("typed"), "user", "text", text),))


@pytest.mark.parametrize("words", ["", "Let me look."])
@pytest.mark.parametrize("calls", [(CALL,), (CALL, OTHER)], ids=["one call", "two calls"])
async def test_the_model_reads_the_calls_of_a_response_with_its_own_input(
    words: str, calls: tuple[ModelCall, ...]
) -> None:
    """A model server refuses a result without its call."""
    chat = RememberingChat(["Hello.", NOON])
    async with call_with(chat=chat) as call:
        await equip(call)
        own = answer_input_with(call, Calling(words, calls))
        call.ears.say("Good morning.")
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.CreateResponse(typed("What time is it?")))
        await call.until(say.ReplyEnded, 2)
        for number, made in enumerate(call.of(say.ReplyCalled)):
            assert isinstance(made, say.ReplyCalled)
            output = FunctionOutput(ItemId(f"out_{number}"), made.call.call_id, "12:00")
            await call.session.handle(ask.CreateItem(output))
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyEnded, 3)
        told = messages_of(call.session.conversation)
    assert [each.text for each in own.asked[0]] == ["What time is it?"]
    assert told[-1] == ChatMessage("assistant", NOON)
    assert [each.calls for each in told if each.calls] == [calls]
    assert list(chat.asked[-1]) == told[:-1]
    assert not call.of(say.Problem)


@pytest.mark.parametrize("is_referenced", [True, False])
async def test_a_result_in_an_input_brings_its_call_along(*, is_referenced: bool) -> None:
    """A model server refuses a result without its call."""
    async with call_with(chat=RememberingChat([Calling("", (CALL,))])) as call:
        await equip(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded)
        (made,) = call.of(say.ReplyCalled)
        assert isinstance(made, say.ReplyCalled)
        output = FunctionOutput(ItemId("out"), made.call.call_id, "12:00")
        if is_referenced:
            await call.session.handle(ask.CreateItem(output))
        own = answer_input_with(call, NOON)
        item = ItemReference(output.id) if is_referenced else output
        await call.session.handle(ask.CreateResponse(ResponseOptions(input=(item,))))
        await call.until(say.ReplyEnded, 2)
        both = (ItemReference(made.call.id), item)
        twice = response_input(ResponseOptions(input=both), call.session.conversation)
    assert own.asked[0] == (ChatMessage("assistant", "", (CALL,)), ChatMessage("tool", "12:00"))
    assert twice == [made.call, output]
    assert not call.of(say.Problem)


async def test_a_reference_to_a_result_whose_call_is_gone_is_refused() -> None:
    async with call_with(NOON) as call:
        made = FunctionCall(ItemId("made"), "id_1", "clock", "{}")
        output = FunctionOutput(ItemId("out"), "id_1", "12:00")
        await call.session.handle(ask.CreateItem(made))
        await call.session.handle(ask.CreateItem(output))
        await call.session.handle(ask.DeleteItem(made.id))
        item = ItemReference(output.id)
        await call.session.handle(ask.CreateResponse(ResponseOptions(input=(item,)), "r1"))
        (problem,) = call.of(say.Problem)
        assert isinstance(problem, say.Problem)
        assert (problem.code, problem.event_id) == ("invalid_tool_call_id", "r1")
        assert problem.param == "response.input"
        assert not call.of(say.ReplyStarted)


async def test_an_item_between_the_parts_of_a_resumed_response_stands_behind_it() -> None:
    """The model has one reply, and then the item, as the conversation is read."""
    chat = RememberingChat(["Hello.", "Fine."])
    async with call_with(chat=chat) as call:
        listen(call)
        answer_input_with(call, "Your table is booked for nine at the window.")
        await call.session.handle(ask.CreateResponse(typed("Is it booked?")))
        await call.until(say.ReplyAudio)
        await asyncio.sleep(1)
        number = begin(call, "Mm-hmm.")
        await call.until(say.ReplyEnded)
        note = Message(ItemId("note"), "user", "text", "By the way.")
        await call.session.handle(ask.CreateItem(note))
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        call.ears.hear(ev.SilenceGrew(number, 320))
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(3)
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded, 3)
        told = messages_of(call.session.conversation)[:-1]
    assert [each.text for each in told] == [
        "Your table is booked for nine at the window.",
        "By the way.",
    ]
    assert list(chat.asked[-1]) == told


@pytest.mark.parametrize("text", ["", "Wait."], ids=["noise", "words"])
@pytest.mark.parametrize("out_of_band", [False, True])
async def test_a_request_that_noise_cuts_is_carried_out_as_it_was_asked(
    text: str, out_of_band: bool
) -> None:
    """Nothing of it was heard, so it begins anew; where the caller said something, that is answered
    in its place."""
    options = ResponseOptions(
        output_modality="text",
        instructions="Say where the caller is.",
        metadata={"kind": "place"},
        out_of_band=out_of_band,
    )
    chat = RememberingChat(["Nowhere.", "Fine."])
    async with call_with(chat=chat) as call:
        chat.hold = asyncio.Event()
        await call.session.handle(ask.CreateResponse(options))
        await chat.generating.wait()
        call.ears.last_audio_ns = 1 << 62
        call.ears.pause(text)
        await call.until(say.ReplyEnded)
        chat.hold.set()
        call.ears.fall_silent()
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(10)
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded, 3)
    cut, anew, later = (n for n in call.of(say.ReplyStarted) if isinstance(n, say.ReplyStarted))
    assert (cut.metadata, cut.out_of_band) == ({"kind": "place"}, out_of_band)
    expected = ({"kind": "place"}, out_of_band) if not text else (None, False)
    assert (anew.metadata, anew.out_of_band) == expected
    assert anew.modality == ("audio" if text else "text")
    assert (later.metadata, later.out_of_band) == (None, False)


async def test_a_request_that_noise_cuts_and_the_client_cancels_is_forgotten() -> None:
    """It does not begin anew, as what it was or as a plain response, and leaves the next response
    no options."""
    options = ResponseOptions(output_modality="text", metadata={"kind": "place"}, out_of_band=True)
    chat = RememberingChat(["Nowhere.", "Fine."])
    async with call_with(chat=chat) as call:
        listen(call)
        chat.hold = asyncio.Event()
        await call.session.handle(ask.CreateResponse(options))
        await chat.generating.wait()
        call.ears.pause("")
        await call.until(say.ReplyEnded)
        assert call.session._again == (options, True)
        await call.session.handle(ask.CancelResponse())
        assert call.session._again is None
        chat.hold.set()
        call.ears.fall_silent()
        await asyncio.sleep(10)
        assert len(call.of(say.ReplyStarted)) == 1
        call.ears.say("Where am I?")
        await call.until(say.ReplyEnded, 2)
    later = call.of(say.ReplyStarted)[1]
    assert isinstance(later, say.ReplyStarted)
    assert (later.metadata, later.out_of_band, later.modality) == (None, False, "audio")
