"""A whole session on fake stages: openers that are spoken before the answer is certain."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from agent.cli.replay import replay
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import Message
from agent.session.api.session_state import SessionState
from agent.session.api.settings import ResponseOptions, SemanticVad
from agent.session.ports.stage_ports import ChatMessage, Speech, ToolsPort
from agent.tools.offered import NO_TOOLS
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules, opener_silence_ms, required_silence_ms
from agent.turn_taking.end_of_turn_model import Evidence
from agent.turn_taking.tables import Agent
from agent.turn_taking.thresholds import OPENER_LEAD_MS, REOPEN_MS
from latency_budget.account.clock import ManualClock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn_record import Outcome
from latency_budget.reporting.trace import read_trace
from tests.agent.session.test_taken_over import go_on as take_over
from tests.agent.session.test_taken_over import recorded
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling, FakeVoice
from tests.support.session import virtual_time
from tests.support.session.guess_call import (
    change,
    ended,
    known,
    last_voiced,
    let_work,
    pause,
    said,
    told,
)
from tests.support.session.reopen_call import answered, go_on, last_asked, messages, say_rest
from tests.support.session.session_call import Call, call_with
from tests.support.session.tool_call import CALL, NOON, Toolbox
from tests.support.wire.wire_frames import make
from tests.support.wire.wire_frames import say as told_by
from tests.support.wire.wire_order import WireOrder
from tts.text_chunker import SpeakablePiece

OPENER = "Well,"
ANSWER = "Ten past nine."
FIRST, SECOND, WHOLE = "Book a table.", "For two.", "Book a table. For two."
PATIENT = TurnRules(eagerness="low", opens_early=True)
"""There is most time between an opener and the answer."""


def silences_ms(text: str) -> tuple[int, int]:
    """Silences that are enough for an opener and for the answer."""
    opens_ms = opener_silence_ms(PATIENT, Evidence(text))
    assert opens_ms is not None
    return opens_ms, required_silence_ms(PATIENT, Evidence(text))


OPENS_MS, ENDS_MS = silences_ms(FIRST)
LEFT_MS = ENDS_MS - OPENS_MS
"""From the opener to the answer's certainty."""


@asynccontextmanager
async def patient(
    clock: ManualClock,
    *replies: str | Calling,
    chat: RememberingChat | None = None,
    voice: FakeVoice | None = None,
    early_openers: bool = True,
    pace_ms: int = 0,
    tools: ToolsPort = NO_TOOLS,
) -> AsyncIterator[tuple[Call, RememberingChat]]:
    """A call with a patient agent that has an opener."""
    chat = chat or RememberingChat(replies)
    async with call_with(
        chat=chat,
        voice=voice,
        clock=clock,
        openers=(OPENER,),
        early_openers=early_openers,
        pace_ms=pace_ms,
        tools=tools,
    ) as call:
        call.ears.last_audio_ns = 1 << 62  # it does not stall
        await change(call, turn_detection=SemanticVad(eagerness="low"))
        yield call, chat
    assert replay(read_trace(call.trace.lines())).difference is None


async def fall_silent(call: Call, silence_ms: int = OPENS_MS) -> None:
    """So much of the pause has passed."""
    call.ears.hear(ev.SilenceGrew(call.ears.utterance, silence_ms))
    await let_work()


async def open_turn(call: Call) -> None:
    """The first half, and a silence that is enough for an opener."""
    await pause(call, FIRST)
    await fall_silent(call, OPENS_MS - 1)
    assert not call.of(say.AudioCommitted)
    await fall_silent(call)
    call.ears._pauses = 0  # what is said next is another utterance


def shown(call: Call) -> str:
    return "".join(each.delta for each in call.of(say.ReplyText) if isinstance(each, say.ReplyText))


def marks(call: Call, turn: int = 1) -> dict[MarkName, int]:
    """The first of each name, in ns."""
    found: dict[MarkName, int] = {}
    for mark in read_trace(call.trace.lines()).marks():
        if mark.turn == turn:
            found.setdefault(mark.name, mark.at_ns)
    return found


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)  # of the manual clock


def played(story: Callable[[ManualClock], Awaitable[None]]) -> Callable[[], None]:
    """A test on the manual clock."""

    def test() -> None:
        virtual_time.run(story)

    test.__doc__ = story.__doc__
    return test


@played
async def test_opener_and_prepared_answer_are_one_reply(clock: ManualClock) -> None:
    async with patient(clock, ANSWER) as (call, chat):
        await open_turn(call)
        assert shown(call) == f"{OPENER} "
        assert call.states[-1][0] == "speaking"
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", f"{OPENER} {ANSWER}")]
        assert shown(call) == f"{OPENER} {ANSWER}"
        assert [name for name, _ in told(call)].count("generate") == 1, "the guess was adopted"
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        await until(lambda: known(chat) == said(call))
        assert said(call) == [("user", FIRST), ("assistant", f"{OPENER} {ANSWER}")]
        record = call.records()[0].record
        assert (record.opener, record.answered, record.outcome) == (True, True, None)
        at = marks(call)
        certain_ns = at[MarkName.ENDPOINT] + LEFT_MS * 1_000_000
        assert at[MarkName.RELEASED] < certain_ns <= at[MarkName.ANSWER_AUDIBLE]


@played
async def test_a_late_answer_follows_the_opener_and_gets_no_second_one(clock: ManualClock) -> None:
    async with patient(clock, ANSWER) as (call, chat):
        chat.hold = asyncio.Event()
        await open_turn(call)
        await asyncio.sleep(3)
        assert shown(call) == f"{OPENER} "
        chat.hold.set()
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", f"{OPENER} {ANSWER}")]
        assert call.names().count("ReplyStarted") == 1


@played
async def test_speech_over_the_opener_goes_on_with_one_message(clock: ManualClock) -> None:
    async with patient(clock, ANSWER, "For two, at ten.") as (call, chat):
        await open_turn(call)
        await asyncio.sleep((REOPEN_MS + 100) / 1000)
        num_frames = len(call.of(say.ReplyAudio))
        await go_on(call)
        assert ended(call) == [("cancelled", "")]
        assert len(call.of(say.ReplyAudio)) == num_frames
        assert shown(call) == f"{OPENER} ", "nothing of the answer was sent"
        names = call.names()
        assert names[names.index("ReplyEnded") - 1] == "SpeechStarted"
        await say_rest(call, SECOND)
        await answered(call, "For two, at ten.", 2)
        assert last_asked(chat) == [("user", WHOLE)]
        assert known(chat) == said(call) == [("user", WHOLE), ("assistant", "For two, at ten.")]
        assert messages(call) == [
            ("user", FIRST, "completed"),
            ("assistant", "", "incomplete"),
            ("user", SECOND, "completed"),
            ("assistant", "For two, at ten.", "completed"),
        ]
        first, second = (turn.record for turn in call.records())
        assert (first.outcome, first.opener) == (Outcome.REOPENED, True)
        assert (first.answered, first.cut_in, first.interrupted) == (False, False, False)
        assert (second.reopened, second.opener, second.outcome) == (True, False, None)
        assert {MarkName.RELEASED, MarkName.WITHDRAWN} <= marks(call).keys()
        assert not {MarkName.CUT_IN, MarkName.ANSWER_AUDIBLE} & marks(call).keys()


@played
async def test_speech_over_the_answer_behind_it_is_a_cut_in_as_ever(clock: ManualClock) -> None:
    async with patient(clock, f"{ANSWER} {ANSWER}", "Fine.") as (call, _):
        await open_turn(call)
        await until(lambda: MarkName.ANSWER_AUDIBLE in marks(call))
        await asyncio.sleep(0.1)
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Fine.", 2)
        first = call.records()[0].record
        assert (first.outcome, first.answered) == (Outcome.CUT_IN, True)


@played
async def test_the_second_pause_of_a_message_waits_for_the_answer(clock: ManualClock) -> None:
    async with patient(clock, ANSWER, "For two, at ten.") as (call, _):
        await open_turn(call)
        await go_on(call)
        number = call.ears.utterance
        call.ears.words[number] = SECOND
        call.ears.hear(ev.SpeechPaused(number, 0))
        opens_ms, ends_ms = silences_ms(SECOND)
        await fall_silent(call, opens_ms)
        assert len(call.of(say.AudioCommitted)) == 1
        await fall_silent(call, ends_ms)
        await answered(call, "For two, at ten.", 2)


@played
async def test_no_tool_runs_before_the_answer_is_certain(clock: ManualClock) -> None:
    tools = Toolbox()
    async with patient(clock, Calling("", (CALL,)), NOON, tools=tools) as (call, _):
        await open_turn(call)
        await asyncio.sleep((LEFT_MS - 50) / 1000)
        assert tools.called == []
        await call.until(say.ReplyEnded)
        assert tools.called == [CALL]
        assert ended(call) == [("completed", f"{OPENER} {NOON}")]


@played
async def test_a_caller_who_goes_on_has_started_no_tool(clock: ManualClock) -> None:
    tools = Toolbox()
    async with patient(clock, Calling("", (CALL,)), "Fine.", tools=tools) as (call, _):
        await open_turn(call)
        await asyncio.sleep((LEFT_MS - 50) / 1000)
        await go_on(call)
        await say_rest(call, SECOND)
        await answered(call, "Fine.", 2)
        assert tools.called == []


@played
async def test_off_by_default(clock: ManualClock) -> None:
    async with patient(clock, ANSWER, early_openers=False) as (call, _):
        await pause(call, FIRST)
        await fall_silent(call)
        assert not call.of(say.AudioCommitted)
        await fall_silent(call, ENDS_MS)
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", ANSWER)]
        assert not call.records()[0].record.opener


@played
async def test_text_has_no_opener(clock: ManualClock) -> None:
    async with patient(clock, ANSWER) as (call, _):
        await change(call, output_modality="text")
        await pause(call, FIRST)
        await fall_silent(call)
        assert not call.of(say.AudioCommitted)


@pytest.mark.parametrize(
    ("pace_ms", "has_opener"),
    [
        (200, True),
        (LEFT_MS - OPENER_LEAD_MS, True),
        (LEFT_MS - OPENER_LEAD_MS + 1, False),
        (LEFT_MS + 100, False),
    ],
)
def test_the_pace_holds_an_opener_back_as_well(pace_ms: int, has_opener: bool) -> None:
    """Where the answer may sound soon after the opener, there is no opener."""

    async def story(clock: ManualClock) -> None:
        async with patient(clock, ANSWER, pace_ms=pace_ms) as (call, _):
            await pause(call, FIRST)
            last_voiced(call, clock.now_ns())
            await fall_silent(call)
            await call.until(say.ReplyEnded)
            record, at = call.records()[0].record, marks(call)
            assert (record.opener, MarkName.OPENER in at) == (has_opener, has_opener)
            assert (record.e2e_ns or 0) >= pace_ms * 1_000_000
            if has_opener:
                names = MarkName.PACE_START, MarkName.PACE_END, MarkName.EARLY_OPENER
                start_ns, end_ns, opener_ns = (at[name] for name in names)
                assert start_ns < end_ns <= opener_ns
                assert record.paced_ns == end_ns - start_ns

    virtual_time.run(story)


@played
async def test_a_late_answer_without_an_early_opener_gets_the_other_kind(
    clock: ManualClock,
) -> None:
    async with patient(clock, ANSWER, pace_ms=LEFT_MS) as (call, chat):
        chat.hold = asyncio.Event()
        await pause(call, FIRST)
        last_voiced(call, clock.now_ns())
        await fall_silent(call)
        await asyncio.sleep(LEFT_MS / 1000)
        assert shown(call) == ""
        await asyncio.sleep(3)
        assert shown(call) == f"{OPENER} "
        assert MarkName.OPENER in marks(call)
        assert MarkName.EARLY_OPENER not in marks(call)
        chat.hold.set()
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", f"{OPENER} {ANSWER}")]


class InaudibleVoice(FakeVoice):
    """Speaks silence, of a given number of samples."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self._num_samples = num_samples

    async def speak(self, piece: SpeakablePiece) -> AsyncIterator[Speech]:
        yield Speech(np.zeros(self._num_samples, np.int16), piece.span, ())


@pytest.mark.parametrize("pace_ms", [0, 200])
@pytest.mark.parametrize("num_samples", [0, 4800])
def test_an_inaudible_answer_ends_behind_the_opener(num_samples: int, pace_ms: int) -> None:
    async def story(clock: ManualClock) -> None:
        voice = InaudibleVoice(num_samples)
        async with patient(clock, ANSWER, "Fine.", voice=voice, pace_ms=pace_ms) as (call, _):
            await pause(call, FIRST)
            last_voiced(call, clock.now_ns())
            await fall_silent(call)
            await asyncio.sleep((LEFT_MS - 50) / 1000)
            assert shown(call) == f"{OPENER} ", "the answer is not certain yet"
            await asyncio.sleep(2)
            assert ended(call) == [("completed", f"{OPENER} {ANSWER}")]
            assert call.session._machine.agent is Agent.IDLE
            record = call.records()[0].record
            assert (record.opener, record.answered, record.e2e_ns) == (True, False, None)

    virtual_time.run(story)


class BusyChat(RememberingChat):
    """Takes no message before the test lets it."""

    def __init__(self, *replies: str) -> None:
        super().__init__(replies)
        self.free = asyncio.Event()

    async def commit(self, message: ChatMessage) -> None:
        await self.free.wait()
        await super().commit(message)


@played
async def test_no_opener_before_the_model_was_asked(clock: ManualClock) -> None:
    busy = BusyChat(ANSWER)
    async with patient(clock, chat=busy) as (call, _):
        await pause(call, FIRST)
        await fall_silent(call)
        assert call.of(say.AudioCommitted)
        assert not call.of(say.ReplyAudio)
        busy.free.set()
        await call.until(say.ReplyEnded)
        assert ended(call) == [("completed", ANSWER)]
        at = marks(call)
        assert at[MarkName.RELEASED] >= at[MarkName.ENDPOINT] + LEFT_MS * 1_000_000
        record = call.records()[0].record
        assert (record.opener, record.answered) == (False, True)


async def lose(call: Call) -> None:
    call.session.client_lost()
    await asyncio.sleep(1)
    call.session.client_back()


async def cancel(call: Call) -> None:
    await call.session.handle(ask.CancelResponse())
    reply = call.of(say.ReplyStarted)[-1]
    assert isinstance(reply, say.ReplyStarted)
    await call.session.handle(ask.TruncateItem(reply.item_id, 10_000))
    await call.session.handle(ask.CreateResponse(ResponseOptions()))


@pytest.mark.parametrize("stop", [lose, cancel])
def test_an_opener_that_is_stopped_is_neither_heard_nor_an_answer(
    stop: Callable[[Call], Awaitable[None]],
) -> None:
    async def story(clock: ManualClock) -> None:
        async with patient(clock, ANSWER, "Fine.") as (call, chat):
            await open_turn(call)
            await asyncio.sleep(0.5)
            assert shown(call) == f"{OPENER} "
            await stop(call)
            await call.until(say.ReplyEnded, 2)
            assert ended(call) == [("cancelled", ""), ("completed", "Fine.")]
            assert last_asked(chat) == [("user", FIRST)]
            assert messages(call) == [
                ("user", FIRST, "completed"),
                ("assistant", "", "incomplete"),
                ("assistant", "Fine.", "completed"),
            ]
            record = call.records()[0].record
            assert (record.opener, record.answered, record.e2e_ns) == (True, False, None)

    virtual_time.run(story)


def test_a_caller_who_heard_an_opener_is_answered_by_another_server() -> None:
    states: list[SessionState] = []

    async def first(clock: ManualClock) -> None:
        async with patient(clock, ANSWER) as (call, _):
            await open_turn(call)
            await asyncio.sleep(0.5)
            assert shown(call) == f"{OPENER} "
            items = call.session.heard_items()
            assert [each.text for each in items if isinstance(each, Message)] == [FIRST, ""]
            states.append(recorded(call.session.state()))

    async def second(call: Call) -> None:
        await call.until(say.ReplyEnded)

    virtual_time.run(first)
    call = take_over(states[0], second, ANSWER)
    assert ended(call) == [("completed", ANSWER)]
    assert isinstance(call.chat, RememberingChat)
    assert last_asked(call.chat) == [("user", FIRST)]


@played
async def test_a_late_opener_is_heard_as_ever(clock: ManualClock) -> None:
    async with patient(clock, ANSWER, early_openers=False) as (call, chat):
        chat.hold = asyncio.Event()
        await pause(call, FIRST)
        last_voiced(call, clock.now_ns())
        await fall_silent(call, ENDS_MS)
        await asyncio.sleep(3)
        assert shown(call) == f"{OPENER} "
        assert not call.session._is_unheard
        await call.session.handle(ask.CancelResponse())
        assert ended(call) == [("cancelled", f"{OPENER} ")]


@played
async def test_a_call_that_never_ran_is_not_in_the_models_history(clock: ManualClock) -> None:
    tools = Toolbox()
    calling = Calling("", (CALL,))
    async with patient(clock, calling, "Fine.", tools=tools, pace_ms=LEFT_MS) as (call, chat):
        await pause(call, FIRST)
        last_voiced(call, clock.now_ns())
        await fall_silent(call)
        assert [each.calls for each in chat.history] == [(), (CALL,)]
        await call.session.handle(ask.CancelResponse())
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyEnded, 2)
        assert tools.called == []
        assert chat.asked[-1] == (ChatMessage("user", FIRST),)


@pytest.mark.parametrize("goes_on", [False, True], ids=["answered", "goes on"])
def test_the_wire_has_a_committed_message_before_the_opener(goes_on: bool) -> None:
    async def story(clock: ManualClock) -> None:
        async with patient(clock, ANSWER, "Fine.") as (call, _):
            await open_turn(call)
            if goes_on:
                await asyncio.sleep(0.5)
                await go_on(call)
                await say_rest(call, SECOND)
            await call.until(say.ReplyEnded, 2 if goes_on else 1)
            await let_work()
            items = [str(item.id) for item in call.session.conversation]
        order = WireOrder()
        for event in told_by(make(), call.notices):
            order.see(json.dumps(event))
        order.finish(items)
        kinds = [event["type"] for event in order.events]
        first = [kinds.index(kind) for kind in (
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "response.created",
            "response.output_audio.delta",
        )]  # fmt: skip
        assert first == sorted(first)
        done = [event["response"] for event in order.events if event["type"] == "response.done"]
        statuses = [response["status"] for response in done]
        assert statuses == (["cancelled", "completed"] if goes_on else ["completed"])
        if goes_on:
            again = kinds.index("input_audio_buffer.speech_started", first[0])
            stopped = kinds.index("response.done")
            assert again < stopped
            assert "response.output_audio.delta" not in kinds[again:stopped]

    virtual_time.run(story)
