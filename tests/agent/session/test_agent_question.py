"""What the agent asked reaches the end-of-turn decision of a session, and traces of it replay."""

import asyncio
import json
from typing import Any, Literal

import pytest

from agent.cli.replay import replay
from agent.observability.event_codec import event_from_record, to_record
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message
from agent.session.api.session_state import SessionState
from agent.session.api.settings import ResponseOptions
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.tables import Agent
from agent.turn_taking.thresholds import MAX_QUESTION_CHARS, PARTIAL_ANSWER_MS
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import TurnId
from latency_budget.reporting.trace import read_trace
from tests.scenarios.calls import RECORDED
from tests.scenarios.traces import path_of
from tests.support.session.guess_call import let_work
from tests.support.session.session_call import Call, call_with
from tests.support.session.virtual_time import run

STEP_MS = 32
MAX_STEPS = 100
STATEMENT = "Your table is booked for seven."
LATER_FIELDS = {
    "RulesChanged": ("uses_questions", "opens_early", "weighs_length"),
    "ReplyPlayed": ("text",),
    "ReplyRequested": ("caller_has_spoken",),
    "CallTakenOver": ("caller_has_spoken",),
    "StartReply": ("answer_after_ms",),
}


async def hear_reply(call: Call) -> None:
    """The caller says something, and hears all of the reply."""
    call.ears.say("Hello there.")
    await call.until(say.ReplyEnded, len(call.of(say.ReplyEnded)) + 1)
    while call.session._machine.agent is not Agent.IDLE:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.05)  # of the manual clock: it is played meanwhile


async def committed_after_ms(call: Call, text: str) -> int:
    """Silence after which these words of the caller are a turn."""
    commits = len(call.of(say.AudioCommitted))
    call.ears.pause(text)
    for number in range(1, MAX_STEPS):
        call.ears.hear(ev.SilenceGrew(call.ears.utterance, number * STEP_MS))
        await let_work()
        if len(call.of(say.AudioCommitted)) > commits:
            return number * STEP_MS
    raise AssertionError("the turn does not end")


def records(call: Call, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in call.trace.lines()]
    return [line for line in lines if line.get("type") == kind]


def silence_after(reply: str, text: str) -> int:
    """Silence that ends the turn of these words after this reply, in a session of its own."""
    found: list[int] = []

    async def test(clock: ManualClock) -> None:
        async with call_with(reply, "Good.", clock=clock, ahead=False) as call:
            await hear_reply(call)
            assert records(call, "ReplyPlayed")[-1]["text"] == reply
            found.append(await committed_after_ms(call, text))
            assert replay(read_trace(call.trace.lines())).difference is None

    run(test)
    return found[0]


def test_yes_after_a_yes_no_question_is_a_turn_sooner() -> None:
    assert silence_after("Shall I book it?", "Yes.") < silence_after(STATEMENT, "Yes.")


def test_digits_of_a_number_that_was_asked_for_wait_for_the_rest() -> None:
    asked = "What's your phone number?"
    assert silence_after(asked, "5 5 5.") >= PARTIAL_ANSWER_MS > silence_after(STATEMENT, "5 5 5.")
    assert silence_after(asked, "5 5 5 1 2 3 4.") == silence_after(STATEMENT, "5 5 5 1 2 3 4.")


def test_the_last_digit_that_was_asked_for_is_the_end() -> None:
    asked = "What is your four digit PIN?"
    assert silence_after(asked, "1 2 3 4") < silence_after(STATEMENT, "1 2 3 4")


def test_the_question_counts_once_it_is_asked_and_until_the_agent_goes_on() -> None:
    async def test(clock: ManualClock) -> None:
        replies = ("What's your phone number?", "Thanks, I have noted that.", "Good.")
        async with call_with(*replies, clock=clock, ahead=False) as call:
            await hear_reply(call)
            assert call.session._machine._state.question.least_digits == 7
            await hear_reply(call)
            assert call.session._machine._state.question.kind == "none"

    run(test)


def test_a_long_reply_is_recorded_by_its_end() -> None:
    ways = ("long", "steep", "stony", "narrow", "lonely", "winding")
    told = (f"It is a {way} way, and there are many more words to it than that. " for way in ways)
    reply = "".join(told) + "Is it far?"

    async def test(clock: ManualClock) -> None:
        async with call_with(reply, clock=clock, ahead=False) as call:
            await hear_reply(call)
            (played,) = records(call, "ReplyPlayed")
            assert played["text"] == reply[-MAX_QUESTION_CHARS:]
            assert call.session._machine._state.question.kind == "yes_no"

    run(test)


def without_later_fields(line: str) -> str:
    """Line of a trace as it was written before there were these fields."""
    record = json.loads(line)
    later = LATER_FIELDS.get(record.get("type"), ())
    return json.dumps({name: value for name, value in record.items() if name not in later})


@pytest.mark.parametrize("name", RECORDED)
def test_an_older_trace_replays(name: str) -> None:
    lines = path_of(name).read_text(encoding="utf-8").splitlines()
    older = [without_later_fields(line) for line in lines]
    assert any("uses_questions" in line for line in lines)
    assert not any("uses_questions" in line or "answer_after_ms" in line for line in older)
    assert replay(read_trace(older)).difference is None


def test_in_an_older_trace_nothing_was_asked() -> None:
    rules = to_record(ev.RulesChanged(TurnRules()))
    del rules["uses_questions"]
    assert event_from_record(rules) == ev.RulesChanged(TurnRules(uses_questions=False))


def test_in_an_older_trace_the_length_of_the_voice_was_not_weighed() -> None:
    rules = to_record(ev.RulesChanged(TurnRules()))
    del rules["weighs_length"]
    assert event_from_record(rules) == ev.RulesChanged(TurnRules(weighs_length=False))
    played = {"type": "ReplyPlayed", "turn": 3}
    assert event_from_record(played) == ev.ReplyPlayed(TurnId(3), "")


async def question_after_reply(call: Call) -> str:
    """Kind of the question of a response that the client asks for."""
    await call.session.handle(ask.CreateResponse(ResponseOptions()))
    await call.until(say.ReplyEnded)
    while call.session._machine.agent is not Agent.IDLE:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.05)
    return call.session._machine._state.question.kind


@pytest.mark.parametrize(("role", "kind"), [("user", "yes_no"), ("system", "none")])
def test_a_reply_to_what_was_typed_is_no_greeting(
    role: Literal["user", "system"], kind: str
) -> None:
    async def test(clock: ManualClock) -> None:
        async with call_with("Shall I book it?", clock=clock, ahead=False) as call:
            item = Message(ItemId("i1"), role, "text", "A table for two.")
            await call.session.handle(ask.CreateItem(item))
            assert await question_after_reply(call) == kind
            assert replay(read_trace(call.trace.lines())).difference is None

    run(test)


def test_a_call_that_goes_on_here_has_had_its_greeting() -> None:
    states: list[SessionState] = []

    async def begin(clock: ManualClock) -> None:
        async with call_with("Good.", clock=clock, ahead=False) as call:
            await hear_reply(call)
            states.append(call.session.state())

    async def go_on(clock: ManualClock) -> None:
        async with call_with("Shall I?", clock=clock, ahead=False, restored=states[0]) as call:
            await asyncio.sleep(0.5)
            call.session.client_back()
            assert await question_after_reply(call) == "yes_no"

    run(begin)
    run(go_on)


def test_a_reply_out_of_band_leaves_the_question() -> None:
    async def test(clock: ManualClock) -> None:
        replies = ("What's your phone number?", "It was polite.")
        async with call_with(*replies, clock=clock, ahead=False) as call:
            await hear_reply(call)
            options = ResponseOptions(out_of_band=True)
            await call.session.handle(ask.CreateResponse(options))
            await call.until(say.ReplyEnded, 2)
            while call.session._machine.agent is not Agent.IDLE:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)
            assert call.session._machine._state.question.least_digits == 7

    run(test)
