"""Results of functions, failed transcripts and backchannels that meet a reply that is spoken."""

import asyncio

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import (
    FunctionOutput,
    ItemId,
    ModelCall,
)
from agent.session.api.settings import ResponseOptions
from agent.session.context.chat_messages import messages_of
from agent.stages.remote.text_history import TextHistory
from agent.turn_taking import events as ev
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session.overlap_call import begin, items, listen
from tests.support.session.session_call import call_with
from tests.support.session.tool_call import CALL, NOON, equip

pytestmark = pytest.mark.virtual_time

OTHER = ModelCall("clock", '{"zone": "CET"}')
BOOKED = "Your table is booked for nine at the window."


@pytest.mark.parametrize("num_calls", [2, 1])
async def test_a_result_that_comes_while_a_reply_is_spoken_is_read(num_calls: int) -> None:
    calls = Calling("", (CALL, OTHER)[:num_calls])
    chat = RememberingChat([calls, "One moment please, I am still looking.", NOON])
    async with call_with(chat=chat) as call:
        listen(call)
        await equip(call)
        call.ears.say("What time is it?")
        await call.until(say.ReplyEnded)
        made = [each.call for each in call.notices if isinstance(each, say.ReplyCalled)]
        if num_calls == 2:
            first = FunctionOutput(ItemId("o1"), made[0].call_id, "12:00")
            await call.session.handle(ask.CreateItem(first))
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyAudio)
        late = FunctionOutput(ItemId("o2"), made[-1].call_id, "13:00")
        await call.session.handle(ask.CreateItem(late))
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(5)
        written = ResponseOptions(output_modality="text")
        await call.session.handle(ask.CreateResponse(written))
        await call.until(say.ReplyEnded, 3)
        told = messages_of(call.session.conversation)[:-1]
    assert list(chat.asked[-1]) == told
    history = TextHistory("", (), 10_000)
    for message in chat.asked[-1]:
        history.append(message)
    assert any(message["content"] == "13:00" for message in history.prompt())


async def test_an_apology_has_no_options_of_a_request_that_was_cut() -> None:
    options = ResponseOptions(output_modality="text", metadata={"kind": "x"}, out_of_band=True)
    chat = RememberingChat(["Nowhere.", "Fine.", "Fine."])
    async with call_with(chat=chat) as call:
        listen(call)
        chat.hold = asyncio.Event()
        await call.session.handle(ask.CreateResponse(options))
        await chat.generating.wait()
        number = begin(call, "Wait.", transcribes=False)
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        await asyncio.sleep(0.1)
        call.ears.hear(ev.TranscriptFailed(number, 1))
        chat.hold.set()
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(3)
    assert call.of(say.ReplyAudio)
    begun = [each for each in call.notices if isinstance(each, say.ReplyStarted)]
    assert [bool(each.metadata) for each in begun] == [True, False]


async def test_an_apology_leaves_a_response_that_waits_its_options() -> None:
    """The response to a function's output was asked for while the one that called was spoken."""
    options = ResponseOptions(output_modality="text", metadata={"kind": "x"})
    chat = RememberingChat([Calling("Let me look at the clock for you.", (CALL,)), NOON])
    async with call_with(chat=chat) as call:
        listen(call)
        await equip(call)
        call.ears.say("What time is it?")
        (called,) = await call.until(say.ReplyCalled)
        assert isinstance(called, say.ReplyCalled)
        output = FunctionOutput(ItemId("o1"), called.call.call_id, "12:00")
        await call.session.handle(ask.CreateItem(output))
        await call.session.handle(ask.CreateResponse(options))
        await call.until(say.ReplyAudio)
        number = begin(call, "Wait.", transcribes=False)
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        await asyncio.sleep(0.1)
        call.ears.hear(ev.TranscriptFailed(number, 1))
        await call.until(say.ReplyEnded, 3)
    begun = [each for each in call.notices if isinstance(each, say.ReplyStarted)]
    assert [bool(each.metadata) for each in begun] == [False, False, True]
    ended = [each.text for each in call.notices if isinstance(each, say.ReplyEnded)]
    assert ended[2] == NOON


@pytest.mark.parametrize("ducks", [False, True])
async def test_a_backchannel_over_speech_in_front_of_a_written_response(ducks: bool) -> None:
    chat = RememberingChat([BOOKED, "{}", "Next."])
    async with call_with(chat=chat, ducks=ducks) as call:
        listen(call)
        call.ears.say("Is it booked?")
        await call.until(say.ReplyEnded)
        written = ResponseOptions(output_modality="text", out_of_band=True)
        await call.session.handle(ask.CreateResponse(written))
        await call.until(say.ReplyEnded, 2)
        number = begin(call, "Mm-hmm.")
        await asyncio.sleep(0.2)
        ducked = [
            each.fields
            for each in call.notices
            if isinstance(each, say.Extension) and each.type == "halfsec.duck"
        ]
        call.ears.hear(ev.SpeechPaused(number, 16_000))
        await asyncio.sleep(0.1)
        call.ears.hear(ev.SilenceGrew(number, 320))
        await asyncio.sleep(5)
        said = [each for each in items(call) if each.role == "assistant"]
    assert "".join(each.text or "" for each in said) == BOOKED
    assert ducked == ([{"item_id": said[0].id}] if ducks else [])
