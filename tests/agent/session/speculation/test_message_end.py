"""What the language model says about the end of the caller's message reaches the machine, if it can
say so; recorded, replayable, and harmless where it comes late."""

import json
import math
from collections.abc import AsyncGenerator, Sequence

import pytest

from agent.cli.replay import replay
from agent.session.api import server_events as say
from agent.session.ports.stage_ports import OnMark, OnMessageEnd, ReplyToken, Tools
from latency_budget.account.turn import TurnId
from latency_budget.reporting.trace import read_trace
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import Calling
from tests.support.session.guess_call import let_work, pause
from tests.support.session.session_call import Call, call_with

pytestmark = pytest.mark.virtual_time


class ScoringChat(RememberingChat):
    """Scores every message that it is to answer: a `ScoresMessageEnd`."""

    def __init__(
        self, log_prob: float = -0.5, replies: Sequence[str | Exception | Calling] = ()
    ) -> None:
        super().__init__(replies)
        self.log_prob = log_prob
        self.tell: OnMessageEnd | None = None

    def watch_message_end(self, tell: OnMessageEnd) -> None:
        self.tell = tell

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        assert self.tell is not None
        self.tell(self.history[-1].text, self.log_prob)
        tokens = super().generate(
            turn, deadline_ns=deadline_ns, max_tokens=max_tokens, on_mark=on_mark, tools=tools
        )
        async for token in tokens:
            yield token


def scores(call: Call) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in call.trace.lines()]
    return [line for line in lines if line.get("type") == "MessageEndScored"]


async def test_the_score_of_a_guess_is_evidence_of_its_pause() -> None:
    async with call_with(chat=ScoringChat()) as call:
        await pause(call, "Hello there")
        (scored,) = scores(call)
        assert (scored["utterance"], scored["text"], scored["log_prob"]) == (1, "Hello there", -0.5)
        machine = call.session._machine
        assert machine._state.message_end_log_prob == -0.5
        assert machine.stale_events == 0


async def test_a_score_after_the_decision_is_dropped_and_counted() -> None:
    async with call_with(chat=ScoringChat()) as call:
        call.ears.say("Hello there.")
        await call.until(say.ReplyEnded)
        assert len(scores(call)) == 1
        assert call.session._machine.stale_events == 1


async def test_a_call_with_scores_is_replayed() -> None:
    async with call_with(chat=ScoringChat()) as call:
        await pause(call, "Hello there")
        await pause(call, "Hello there, and you?")
        call.ears.fall_silent()
        await call.until(say.ReplyEnded)
        assert len(scores(call)) == 2
        assert replay(read_trace(call.trace.lines())).difference is None


@pytest.mark.parametrize("log_prob", [math.nan, -math.inf])
async def test_no_number_is_no_evidence(log_prob: float) -> None:
    async with call_with(chat=ScoringChat(log_prob)) as call:
        await pause(call, "Hello there")
        await let_work()
        assert scores(call) == []


async def test_a_chat_without_scores_answers() -> None:
    async with call_with(chat=RememberingChat()) as call:
        call.ears.say("Hello there.")
        await call.until(say.ReplyEnded)
        assert scores(call) == []
