"""Announcements (`Session.say`) where another response waits to begin: none of the two is lost."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.settings import ResponseOptions, ServerVad
from agent.session.context.chat_messages import messages_of
from agent.session.ports.stage_ports import ChatMessage
from agent.turn_taking import events as ev
from agent.turn_taking.tables import Agent
from latency_budget.account.clock import ManualClock
from tests.agent.session.test_handoff import TO_BILLING, Agents, call_of, handoffs
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.overlap_call import REPLY, agent_of, begin, ended, listen, over, play
from tests.support.session.session_call import Call, call_with
from tests.support.session.tool_call import problems, until

NOTICE = "One minute is left."


def spoken(call: Call) -> list[tuple[str, str]]:
    return [(each.status, each.text) for each in ended(call)]


def test_an_announcement_comes_before_the_agent_of_a_handoff() -> None:
    """A handoff while the agent speaks: the other one speaks when this response is over."""

    async def story(clock: ManualClock) -> None:
        words = Calling("I will connect you with one who knows.", (TO_BILLING,))
        async with call_of(Agents(), words, "Billing here.", clock=clock) as call:
            listen(call)
            call.ears.say("My bill is wrong.")
            await until(lambda: handoffs(call) and call.of(say.ReplyAudio))
            assert agent_of(call) is Agent.SPEAKING
            assert call.session.state().response_waits, "where another server goes on"
            call.session.say(NOTICE)
            assert call.session.state().response_waits
            await call.until(say.ReplyEnded, 3)
            await asyncio.sleep(10)
            assert not call.session.state().response_waits
            assert spoken(call)[1:] == [("completed", NOTICE), ("completed", "Billing here.")]
            assert problems(call) == []

    virtual_time.run(story)


def test_an_announcement_comes_before_the_answer_to_a_caller_who_does_not_interrupt() -> None:
    async def story(call: Call) -> None:
        settings = call.session.settings.changed(turn_detection=ServerVad(interrupt_response=False))
        await call.session.handle(ask.UpdateSession(settings))
        await over(call, "And the window?", silence_ms=5000)
        assert agent_of(call) is Agent.SPEAKING
        assert call.session._machine.is_asked
        call.session.say(NOTICE)
        await asyncio.sleep(20)

    call = play(story)
    assert spoken(call)[1:] == [("completed", NOTICE), ("completed", "Next.")]
    assert problems(call) == []


@pytest.mark.parametrize("times", [1, 2])
def test_an_announcement_while_a_transcript_is_awaited(times: int) -> None:
    """The client has committed what the caller said, and asked for the response to it."""

    async def story(clock: ManualClock) -> None:
        async with call_with("At nine.", clock=clock) as call:
            listen(call)
            settings = call.session.settings.changed(turn_detection=None)
            await call.session.handle(ask.UpdateSession(settings))
            await call.session.handle(ask.CommitAudio())
            await call.session.handle(ask.CreateResponse(ResponseOptions(max_output_tokens=77)))
            assert call.session._machine.is_asked
            for _ in range(times):
                call.session.say(NOTICE)
            number = call.ears.utterance
            call.ears.hear(ev.TranscriptReady(number, 1, "When?"))
            await call.until(say.ReplyEnded, 2)
            await asyncio.sleep(10)
            notices = " ".join([NOTICE] * times)
            assert spoken(call) == [("completed", notices), ("completed", "At nine.")]
            assert call.chat.max_tokens == [77], "the client's options are those of its response"
            assert problems(call) == []

    virtual_time.run(story)


Before = Callable[[Call], Awaitable[None]]


async def nothing(call: Call) -> None:
    pass


async def say_more(call: Call) -> None:
    await over(call, "And the window?", silence_ms=2000)


@pytest.mark.parametrize(
    ("what", "expected"), [(nothing, []), (say_more, ["Next."])], ids=["silent", "speaks"]
)
def test_an_announcement_while_the_client_is_away(what: Before, expected: list[str]) -> None:
    """It is spoken when the client is back, and what the caller said meanwhile is answered."""

    async def story(call: Call) -> None:
        await asyncio.sleep(20)
        call.session.client_lost()
        call.session.say(NOTICE)
        await what(call)
        await asyncio.sleep(5)
        call.session.client_back()
        await asyncio.sleep(20)

    call = play(story)
    assert [text for _, text in spoken(call)] == [REPLY, NOTICE, *expected]
    assert problems(call) == []


def test_an_announcement_that_waits_is_cancelled_with_the_client_s_response() -> None:
    async def story(clock: ManualClock) -> None:
        async with call_with("At nine.", clock=clock) as call:
            listen(call)
            settings = call.session.settings.changed(turn_detection=None)
            await call.session.handle(ask.UpdateSession(settings))
            await call.session.handle(ask.CommitAudio())
            call.session.say(NOTICE)
            await call.session.handle(ask.CancelResponse())
            call.ears.hear(ev.TranscriptReady(call.ears.utterance, 1, "When?"))
            await asyncio.sleep(5)
            await call.session.handle(ask.CreateResponse(ResponseOptions()))
            await call.until(say.ReplyEnded)
            await asyncio.sleep(10)
            assert spoken(call) == [("completed", "At nine.")]

    virtual_time.run(story)


def test_an_announcement_over_a_held_response_with_a_waiting_one() -> None:
    async def story(call: Call) -> None:
        await asyncio.sleep(1)
        begin(call, "", transcribes=False)
        await asyncio.sleep(0.1)
        assert agent_of(call) is Agent.HELD
        call.session.say(NOTICE)
        await asyncio.sleep(10)

    call = play(story)
    assert spoken(call)[1] == ("completed", NOTICE)
    assert problems(call) == []


def test_an_announcement_stands_before_what_was_said_over_it() -> None:
    """The model has it where the conversation has it, and not behind the caller's words."""

    async def story(clock: ManualClock) -> None:
        chat = RememberingChat(["At nine."])
        async with call_with(chat=chat, clock=clock) as call:
            listen(call)
            settings = call.session.settings.changed(
                turn_detection=ServerVad(interrupt_response=False)
            )
            await call.session.handle(ask.UpdateSession(settings))
            call.session.say(NOTICE)
            await asyncio.sleep(0.3)
            await over(call, "When?", silence_ms=5000)
            await call.until(say.ReplyEnded, 2)
            expected = [ChatMessage("assistant", NOTICE), ChatMessage("user", "When?")]
            assert list(chat.asked[-1]) == expected
            assert messages_of(call.session.conversation)[:2] == expected

    virtual_time.run(story)
