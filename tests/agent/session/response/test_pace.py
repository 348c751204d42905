"""A whole session on fake stages: answers that are held back to a pace, and what is never held."""

import asyncio

import pytest

from agent.cli.replay import replay
from agent.config.schema import AgentProfile
from agent.errors import StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message
from agent.session.api.settings import MAX_PACE_MS, ResponseOptions, ServerVad
from agent.session.ports.stage_ports import APOLOGY
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import Stage
from latency_budget.reporting.trace import read_trace
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

PACE_MS = 250


def marks(call: Call, turn: int = 1) -> dict[MarkName, int]:
    """The first of each name, in ns."""
    found: dict[MarkName, int] = {}
    for mark in read_trace(call.trace.lines()).marks():
        if mark.turn == turn:
            found.setdefault(mark.name, mark.at_ns)
    return found


def was_held_back(call: Call, turn: int = 1) -> bool:
    return MarkName.PACE_START in marks(call, turn)


async def ask_aloud(call: Call, text: str) -> None:
    """A whole turn of the caller, who fell silent just now."""
    await pause(call, text)
    last_voiced(call, clock_of_loop().now_ns())
    await end(call)


@pytest.mark.parametrize("ahead", [True, False])
async def test_an_answer_keeps_the_pace(ahead: bool) -> None:
    async with call_with("Hi there.", ahead=ahead, pace_ms=PACE_MS) as call:
        await ask_aloud(call, "Hello?")
        assert call.names()[-1] == "ReplyStarted"
        await call.until(say.ReplyEnded)
        at = marks(call)
        voiced_ns = at[MarkName.CALLER_LAST_VOICED]
        assert at[MarkName.FIRST_AUDIBLE_READY] <= at[MarkName.PACE_START]
        assert at[MarkName.PACE_START] < at[MarkName.PACE_END] <= at[MarkName.RELEASED]
        assert at[MarkName.RELEASED] >= voiced_ns + PACE_MS * 1_000_000
        record = call.records()[0].record
        assert record.e2e_ns == sum(time.exposed_ns for time in record.stages.values())
        assert 0 < record.paced_ns <= record.stages[Stage.PACING].exposed_ns
        assert record.e2e_raw_ns == (record.e2e_ns or 0) - record.paced_ns
    assert replay(read_trace(call.trace.lines())).difference is None


async def test_without_a_pace_nothing_is_held_back() -> None:
    async with call_with("Hi there.") as call:
        await ask_aloud(call, "Hello?")
        assert call.of(say.ReplyAudio)
        await call.until(say.ReplyEnded)
        record = call.records()[0].record
        assert (record.paced_ns, record.e2e_raw_ns) == (0, record.e2e_ns)
        assert not was_held_back(call)


async def test_an_answer_that_is_slower_than_the_pace_does_not_wait() -> None:
    async with call_with("Hi there.", pace_ms=PACE_MS) as call:
        await pause(call, "Hello?")
        last_voiced(call, clock_of_loop().now_ns() - PACE_MS * 1_000_000)
        await end(call)
        assert call.of(say.ReplyAudio)
        assert not was_held_back(call)


async def test_answer_held_for_pacing_is_withdrawn_when_the_caller_continues() -> None:
    async with remembering("Too soon.", "Fine.", pace_ms=MAX_PACE_MS) as (call, chat):
        await ask_aloud(call, "Tell me")
        assert was_held_back(call)
        await change(call, pace_ms=0)
        await ask_aloud(call, "about tea.")
        await call.until(say.ReplyEnded, 2)
        assert ended(call) == [("cancelled", ""), ("completed", "Fine.")]
        assert MarkName.RELEASED not in marks(call)
        started = call.names().index("ReplyAudio")
        assert call.names()[:started].count("ReplyStarted") == 2
        assert not any("Too soon" in each.text for each in chat.asked[-1])
        assert ("assistant", "Too soon.") not in said(call)
        assert known(chat) == said(call)


# --- what comes without delay ---


async def test_a_greeting_is_not_held_back() -> None:
    profile = AgentProfile(greeting="Good morning.")
    async with call_with(profile=profile, pace_ms=MAX_PACE_MS) as call:
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", "Good morning.")]
        assert not was_held_back(call)


async def test_what_a_client_asks_for_is_not_held_back() -> None:
    async with call_with("Typed.", "Spoken.", "By itself.", pace_ms=MAX_PACE_MS) as call:
        hello = Message(ItemId("item_x"), "user", "text", "Hello")
        await call.session.handle(ask.CreateItem(hello))
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyEnded)
        await change(call, turn_detection=ServerVad(create_response=False))
        await ask_aloud(call, "Hello?")
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyEnded, 2)
        assert not was_held_back(call, 1)
        assert not was_held_back(call, 2)
        await change(call, turn_detection=ServerVad(), pace_ms=PACE_MS)
        await ask_aloud(call, "And now?")
        await call.until(say.ReplyEnded, 3)
        assert was_held_back(call, 3)


async def test_an_apology_is_not_held_back() -> None:
    fault = StageError("llm", "The language model took too long.")
    async with call_with(fault, pace_ms=MAX_PACE_MS, ahead=False) as call:
        await ask_aloud(call, "Hello?")
        await call.until(say.ReplyEnded)
        assert ended(call) == [("failed", APOLOGY)]
        assert not was_held_back(call)


async def test_what_is_read_is_not_held_back() -> None:
    async with call_with("Good morning.", pace_ms=MAX_PACE_MS) as call:
        await change(call, output_modality="text")
        await ask_aloud(call, "Hello?")
        await call.until(say.ReplyEnded)
        assert not was_held_back(call)


async def test_a_call_may_end_while_an_answer_waits() -> None:
    async with call_with("Hi.", pace_ms=MAX_PACE_MS) as call:
        await ask_aloud(call, "Hello?")
        await let_work()
        assert was_held_back(call)
    assert MarkName.RELEASED not in marks(call)
    assert len(asyncio.all_tasks()) == 1
