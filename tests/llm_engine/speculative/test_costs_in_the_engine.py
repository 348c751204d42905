"""A draft model in the engine: replies are unchanged, and it runs only where that pays."""

from collections.abc import Callable, Sequence

import pytest

from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import Plan, Slot, StepHandle
from llm_engine.config import SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.output import FinishReason
from llm_engine.core.request import Request
from llm_engine.speculative.draft_length import NUM_TRIALS
from llm_engine.speculative.draft_model import ModelDrafter
from llm_engine.speculative.drafter import Draft, Drafter
from tests.support.fakes.llm_core import END, LETTERS, next_letter
from tests.support.fakes.llm_models import ScriptedBackend

NextToken = Callable[[list[int]], int]
PROMPT = tuple(b"the cat sat on the mat")


class TimedBackend(ScriptedBackend):
    """Takes a time for each step and for each row beside the first."""

    def __init__(
        self, next_token: NextToken, clock: ManualClock, step_ms: float, row_ms: float
    ) -> None:
        super().__init__(next_token)
        self._clock, self.step_ms, self._row_ms = clock, step_ms, row_ms

    def launch(self, plan: Plan) -> StepHandle:
        num_rows = sum(len(rows.token_ids) for each in plan.sub_batches for rows in each.sequences)
        self._clock.advance_ms(self.step_ms + self._row_ms * (num_rows - 1))
        return super().launch(plan)


class Pair:
    """An engine of a target model of 10 ms a step, and its draft model."""

    def __init__(
        self, draft_step_ms: float | None, draft_token: NextToken = next_letter, *others: Drafter
    ) -> None:
        self.clock = ManualClock()
        self.target = TimedBackend(next_letter, self.clock, 10, 0.5)
        self.draft = TimedBackend(draft_token, self.clock, draft_step_ms or 0, 0.2)
        model = ModelDrafter(self.draft, context_length=500, max_sequences=2, prefill_chunk=16)
        self.core = EngineCore(
            self.target,
            LETTERS,
            context_length=500,
            prefill_chunk=16,
            max_sequences=2,
            clock=self.clock,
            drafters=[] if draft_step_ms is None else [*others, model],
        )

    def reply(self, num_tokens: int, prompt: tuple[int, ...] = PROMPT) -> tuple[list[int], float]:
        """Token ids of a reply, and its time in ms."""
        sequence = self.core.open_sequence()
        start_ns = self.clock.now_ns()
        self.core.add(Request(prompt, SamplingParams(), frozenset([END]), num_tokens, sequence))
        outputs = []
        while self.core.has_work:
            outputs += self.core.step()
        assert outputs[-1].finish_reason is FinishReason.LENGTH
        self.core.close_sequence(sequence)
        self.core.cache.check()
        ids = [token_id for output in outputs for token_id in output.token_ids]
        return ids, (self.clock.now_ns() - start_ns) / 1e6


def often_wrong(held: list[int]) -> int:
    return 33 if sum(held) % 3 == 0 else next_letter(held)


DRAFT_TOKENS: dict[str, NextToken] = {
    "right": next_letter,
    "often wrong": often_wrong,
    "wrong": lambda held: 33,
}


@pytest.mark.parametrize("draft_step_ms", [0.5, 4, 10])
@pytest.mark.parametrize("kind", DRAFT_TOKENS)
def test_replies_are_those_without_a_draft_model(kind: str, draft_step_ms: float) -> None:
    pair, plain = Pair(draft_step_ms, DRAFT_TOKENS[kind]), Pair(None)
    for num_tokens in (1, 2, 40, 7, 150, 20):
        assert pair.reply(num_tokens)[0] == plain.reply(num_tokens)[0]
    assert pair.core.stats().drafts["model"].num_drafted > 0
    assert not pair.draft.slots


def test_a_cheap_draft_model_pays() -> None:
    pair, plain = Pair(0.5), Pair(None)
    pair.reply(100)
    assert pair.reply(100)[1] < plain.reply(100)[1] / 2


@pytest.mark.parametrize("kind", DRAFT_TOKENS)
def test_a_draft_model_as_dear_as_the_target_is_not_run(kind: str) -> None:
    pair, plain = Pair(10, DRAFT_TOKENS[kind]), Pair(None)
    pair.reply(20)
    num_steps = len(pair.draft.steps)
    assert num_steps <= 2 * NUM_TRIALS + 2
    drafted_ms = sum(pair.reply(30)[1] for _ in range(50))
    plain_ms = sum(plain.reply(30)[1] for _ in range(50))
    assert drafted_ms <= 1.01 * plain_ms
    assert len(pair.draft.steps) - num_steps < 0.02 * 50 * 30


def test_it_reads_what_came_while_it_paused() -> None:
    """It gets cheap in the middle of a reply; then it has all of the text to read."""
    pair, plain = Pair(10), Pair(None)
    pair.reply(300)
    pair.draft.step_ms = 0.2
    for num_tokens in (300,) * 6:
        assert pair.reply(num_tokens)[0] == plain.reply(num_tokens)[0]
    assert pair.reply(200)[1] < plain.reply(200)[1] / 1.5


class Mute:
    """Proposes nothing."""

    name = "mute"
    grade = 0

    def begin(self, slot: Slot) -> Draft:
        return self

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return ()

    def num_unread(self, num_tokens: int) -> int:
        return 0

    def close(self) -> None:
        pass


class Misled(Mute):
    """Proposes what is never right."""

    name = "misled"

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return [33] * max_tokens


@pytest.mark.parametrize("other", [Mute(), Misled()])
def test_the_drafter_that_promises_more_is_asked_before_an_earlier_one(other: Drafter) -> None:
    pair, plain = Pair(0.5, next_letter, other), Pair(None)
    pair.reply(100)
    assert pair.reply(100)[1] < plain.reply(100)[1] / 2
    assert pair.core.stats().drafts[other.name].num_drafted < 20
