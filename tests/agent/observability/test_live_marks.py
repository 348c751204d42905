"""Marks published during a turn: their order, void ones, and subscribers without access."""

import json
from typing import Any

from agent.observability.live_marks import MAX_TOLD, LiveMarks
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message
from agent.session.api.server_events import Extension, Notice
from agent.session.api.settings import ResponseOptions, SessionSettings
from latency_budget.account.clock import ManualClock
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import TurnId
from tests.support.session.guess_call import change, end, last_voiced, let_work, pause, said
from tests.support.session.session_call import Call, call_with

PREPARED = [
    ("reply_requested", True),
    ("first_piece", True),
    ("tts_start", True),
    ("first_audible_ready", True),
]
"""Of a reply that is ready before it is due, by stages that are fakes."""


def marks(notices: list[Notice]) -> list[dict[str, Any]]:
    extensions = [each for each in notices if isinstance(each, Extension)]
    assert {each.type for each in extensions} <= {"halfsec.mark"}
    return [each.fields for each in extensions]


def named(call: Call) -> list[tuple[int | None, str, bool]]:
    return [(each["turn"], each["name"], each["guess"]) for each in marks(call.notices)]


async def test_live_marks_follow_the_turn() -> None:
    async with call_with("Hi there.", told_marks=True) as call:
        await pause(call, "Hello?")
        last_voiced(call, 0)
        await let_work()
        to_come = named(call)
        assert not call.of(say.ReplyStarted)
        assert all(turn is None for turn, _, _ in to_come)
        told = [(name, guess) for _, name, guess in to_come]
        assert told[:1] == [("speech_started", False)]
        assert [each for each in told if each[1]] == PREPARED
        assert told[-2:] == [("caller_last_voiced", False), ("audio_received", False)]

        await end(call)
        await call.until(say.ReplyEnded)
        rest = named(call)[len(to_come) :]
        assert rest[0] == (None, "endpoint", False)
        assert rest[1] == (1, "released", False)
        assert rest[-1] == (1, "reply_done", False)
        # Nothing of the turn to come is told again when it has a number.
        assert not {name for turn, name, _ in rest if turn} & {name for name, _ in told}


async def test_times_are_those_of_the_trace() -> None:
    async with call_with("Hi.", told_marks=True) as call:
        await pause(call, "Hello?")
        await end(call)
        await call.until(say.ReplyEnded)
        records = [json.loads(line) for line in call.trace.lines()]
        traced = {
            record["type"]: record["at_ns"] / 1e6
            for record in records
            if record.get("kind") == "mark"
        }
        told = {each["name"]: each["at_ms"] for each in marks(call.notices)}
        assert told.keys() == traced.keys()
        assert all(abs(told[name] - traced[name]) < 0.1 for name in told)
        assert all(each["now_ms"] >= each["at_ms"] for each in marks(call.notices))


async def test_continued_speech_voids_the_marks() -> None:
    async with call_with("Soup.", "Table for two.", told_marks=True) as call:
        await pause(call, "A table")
        before = len(named(call))
        await pause(call, "A table for two.")
        news = named(call)[before:]
        assert news[0] == (None, "void", False)
        assert (None, "discarded", True) in news
        assert [(name, guess) for _, name, guess in news if guess][1:] == PREPARED
        await end(call)
        await call.until(say.ReplyEnded)
        assert said(call) == [("user", "A table for two."), ("assistant", "Table for two.")]


async def test_what_was_no_speech_makes_them_void() -> None:
    async with call_with(told_marks=True) as call:
        await pause(call, "")
        await end(call)
        assert named(call)[0] == (None, "speech_started", False)
        assert named(call)[-1] == (None, "void", False)


async def test_a_written_turn_has_its_number_at_once() -> None:
    async with call_with("Paris.", told_marks=True) as call:
        item = Message(ItemId("item_mine"), "user", "text", "The capital of France?")
        await call.session.handle(ask.CreateItem(item, None))
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyEnded)
        turns = {turn for turn, _, _ in named(call)}
        assert turns == {1}
        assert [name for _, name, _ in named(call)][:2] == ["asked", "reply_requested"]
        assert not any(guess for _, _, guess in named(call))


async def test_clients_without_live_marks_receive_none() -> None:
    async with call_with("Hi there.", "And more.") as call:
        for number in (1, 2):
            await change(call, output_modality="text")
            await pause(call, "Hello?")
            await end(call)
            await call.until(say.ReplyEnded, number)
        assert not call.of(Extension)


def test_no_frame_is_made_for_a_client_without_extensions() -> None:
    notices: list[Notice] = []
    told = LiveMarks(notices.append, ManualClock(), 0)
    told.marked(Mark(TurnId(0), MarkName.SPEECH_PAUSED, 1_000_000))
    told.void()
    for extensions in (False, True):
        protocol = RealtimeProtocol(SessionSettings(), model="m", extensions=extensions)
        frames = [frame for notice in notices for frame in protocol.send(notice)]
        assert len(frames) == (2 if extensions else 0)


def test_flood_of_marks_is_cut_off_until_the_next_turn() -> None:
    notices: list[Notice] = []
    clock = ManualClock(5_000_000)
    told = LiveMarks(notices.append, clock, 2_000_000)
    for _ in range(3 * MAX_TOLD):
        told.marked(Mark(TurnId(7), MarkName.HEARD, 4_500_000))
        told.marked(Mark(TurnId(7), MarkName.LLM_WASTED, 4_500_000, 12, 3))
    assert len(notices) == MAX_TOLD
    assert marks(notices)[0] == {
        "turn": 7, "name": "heard", "at_ms": 2.5, "now_ms": 3.0, "guess": False
    }  # fmt: skip
    told.marked(Mark(TurnId(0), MarkName.SPEECH_PAUSED, 4_600_000))
    assert len(notices) == MAX_TOLD
    told.void()
    told.marked(Mark(TurnId(0), MarkName.TTS_START, 4_600_000))
    told.marked(Mark(TurnId(8), MarkName.RELEASED, 4_700_000))
    news = [(each["turn"], each["name"], each["guess"]) for each in marks(notices)[MAX_TOLD:]]
    assert news == [(None, "void", False), (None, "tts_start", True), (8, "released", False)]
