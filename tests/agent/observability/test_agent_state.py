"""Agent state of a call, from its machine and marks, guesses included; sent on change."""

import asyncio

import pytest

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.settings import ResponseOptions
from agent.turn_taking import events as ev
from latency_budget.account.ledger import TurnLedger
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import Stage, TurnId
from tests.support.session.guess_call import end, let_work, pause, remembering
from tests.support.session.overlap_call import begin, listen, over, play
from tests.support.session.session_call import Call, call_with

Told = tuple[str, Stage | None]


def changes(call: Call) -> list[Told]:
    """Each is another one than the one before."""
    assert all(one != other for one, other in zip(call.states, call.states[1:], strict=False))
    return call.states


async def test_a_guess_is_seen_while_it_is_made_and_before_anybody_hears_it() -> None:
    async with remembering("It is sunny.") as (call, chat):
        chat.hold = asyncio.Event()
        ears = call.ears
        ears.utterance = ears._pauses = 1
        ears.hear(ev.SpeechStarted(1, 1600))
        ears.hear(ev.SpeechPaused(1, 2400))
        await let_work()
        assert changes(call) == [("hearing", None), ("thinking", Stage.ASR)]
        ears.hear(ev.TranscriptReady(1, 1, "How is the weather?"))
        await let_work()
        assert call.states[-1] == ("thinking", Stage.LLM_PREFILL)
        chat.hold.set()
        await let_work()
        assert call.states[-1] == ("thinking", Stage.ENDPOINT)
        assert not call.of(say.ReplyStarted)
        before = len(call.states)
        await end(call)
        await call.until(say.ReplyAudio)
        assert ("thinking", Stage.TTS) in call.states
        assert changes(call)[-1] == ("speaking", None)
        assert set(call.states[before:-1]) <= {("thinking", Stage.PACING)}, "it was ready"


async def test_continued_speech_returns_to_hearing() -> None:
    async with remembering("It is sunny.") as (call, _):
        listen(call)
        await pause(call, "How is the")
        call.ears.resume()
        await let_work()
        assert changes(call)[-1] == ("hearing", None)


async def test_a_typed_message_and_a_cancelled_reply() -> None:
    async with call_with("It is sunny.") as call:
        call.chat.hold = asyncio.Event()
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await let_work()
        assert changes(call) == [("thinking", None), ("thinking", Stage.LLM_PREFILL)]
        await call.session.handle(ask.CancelResponse())
        await let_work()
        assert changes(call)[-1] == ("listening", None)


def test_an_interruption_is_hearing_and_a_backchannel_goes_on_speaking() -> None:
    async def interrupt(call: Call) -> None:
        await asyncio.sleep(1)
        call.states.clear()
        begin(call, "No, wait")
        await call.until(say.ReplyEnded)
        assert changes(call) == [("hearing", None)]

    async def agree(call: Call) -> None:
        await asyncio.sleep(1)
        call.states.clear()
        await over(call, "Mm-hmm.")
        await call.until(say.ReplyEnded, 2)
        await asyncio.sleep(1)
        states = [state for state, _ in changes(call)]
        assert states == ["hearing", "thinking", "speaking", "listening"]

    async def talk_over(call: Call) -> None:
        await asyncio.sleep(1)
        call.states.clear()
        await over(call, "Mm-hmm.")
        await call.until(say.ReplyEnded)
        await asyncio.sleep(1)
        assert changes(call) == [("listening", None)], "it was only turned down"

    play(interrupt)
    play(agree)
    play(talk_over, ducks=True)


STEPS = (
    ((), Stage.ENDPOINT, None),
    (("speech_paused", "asr_start", "asr_final"), Stage.ENDPOINT, None),
    (("reply_requested",), Stage.LLM_PREFILL, Stage.LLM_PREFILL),
    (("tool_start",), Stage.TOOL, Stage.TOOL),
    (("tool_done", "reply_requested"), Stage.LLM_PREFILL, Stage.LLM_PREFILL),
    (("llm_first_token",), Stage.LLM_CLAUSE, Stage.LLM_CLAUSE),
    (("first_piece",), Stage.TTS, Stage.TTS),
    (("tts_start",), Stage.TTS, Stage.TTS),
    (("first_audible_ready",), Stage.ENDPOINT, Stage.PACING),
    (("endpoint", "released"), None, None),
)
"""Marks that come, and what is waited for then while the turn is open, and when it is over."""


def test_the_stage_is_the_one_that_the_marks_wait_for() -> None:
    ledger, at_ns = TurnLedger(TurnId(1)), 0
    for names, while_open, once_over in STEPS:
        for name in names:
            at_ns += 1_000_000
            ledger.add(Mark(TurnId(1), MarkName(name), at_ns))
        assert ledger.at_work(decided=False) == while_open, names
        assert ledger.at_work(decided=True) == once_over, names


@pytest.mark.parametrize("name", ["discarded", "reply_requested"])
def test_what_was_thrown_away_is_no_work(name: str) -> None:
    ledger = TurnLedger(TurnId(1))
    for at_ns, each in enumerate(("reply_requested", "llm_first_token", "first_piece", name)):
        ledger.add(Mark(TurnId(1), MarkName(each), at_ns))
    expected = None if name == "discarded" else Stage.LLM_PREFILL
    assert ledger.at_work(decided=True) == expected
