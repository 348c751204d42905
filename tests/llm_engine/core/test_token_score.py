"""Scores of a place in a prompt: given once, wherever it lies, without changing replies."""

from typing import Any

import pytest

from llm_engine.backends.base import Plan, ScoredRow, StepHandle, StepResult
from llm_engine.core.request import Output, TokenScore
from llm_engine.errors import RequestError
from tests.support.fakes.llm_core import Bench, alone
from tests.support.fakes.llm_models import ScriptedBackend, ScriptedStep

FULL_STOP = (ord("."),)


class ScoringBackend(ScriptedBackend):
    """Scores a row by the number of tokens up to it."""

    def launch(self, plan: Plan) -> StepHandle:
        handle = super().launch(plan)
        assert isinstance(handle, ScriptedStep)
        scores = {
            rows.slot: float(rows.first_position + rows.scored.index + 1)
            for batch in plan.sub_batches
            for rows in batch.sequences
            if rows.scored is not None
        }
        return ScriptedStep(plan, StepResult(handle.result.tokens, scores))


def scoring_bench(**settings: Any) -> Bench:
    bench = Bench(**settings)
    bench.backend.__class__ = ScoringBackend
    return bench


def scores(outputs: list[Output]) -> list[float]:
    return [output.log_prob for output in outputs if output.log_prob is not None]


@pytest.mark.parametrize("place", [1, 7, 8, 9, 19, 20])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_one_score_from_whatever_chunk(place: int, max_tokens: int) -> None:
    bench = scoring_bench()
    request = bench.add("01234567890123456789", max_tokens, score=TokenScore(place, FULL_STOP))
    bench.run()
    outputs = bench.outputs[request]
    assert scores(outputs) == [place]
    assert [output.log_prob for output in outputs].index(place) == 0, "before the first token"
    assert outputs[-1].finish_reason is not None
    assert bench.text(request) == (alone("01234567890123456789", 3) if max_tokens else "")


def test_the_cache_holds_back_the_row_that_is_scored() -> None:
    bench = scoring_bench()
    sequence = bench.core.open_sequence()
    bench.add("please book a table.", 0, sequence)
    bench.run()
    score = TokenScore(len("please book"), FULL_STOP)
    request = bench.add("please book a table.", 2, sequence, score=score)
    bench.run()
    last = bench.outputs[request][-1]
    assert scores(bench.outputs[request]) == [score.num_before]
    assert last.usage is not None
    assert last.usage.cached_tokens == score.num_before - 1


def test_rows_ask_for_the_logits_of_the_scored_one_and_the_sampled_ones() -> None:
    bench = scoring_bench(prefill_chunk=100)
    bench.add("0123456789", 2, score=TokenScore(7, FULL_STOP))
    bench.step()
    (rows,) = bench.backend.steps[0]
    assert rows.scored == ScoredRow(6, FULL_STOP)
    assert (rows.num_sampled, rows.logit_rows) == (1, (6, 9))
    bench.step()
    (rows,) = bench.backend.steps[1]
    assert (rows.scored, rows.logit_rows) == (None, (0,))


def test_a_backend_without_scores_answers_all_the_same() -> None:
    bench = Bench()
    request = bench.add("0123456789", 3, score=TokenScore(4, FULL_STOP))
    bench.run()
    assert scores(bench.outputs[request]) == []
    assert bench.text(request) == alone("0123456789", 3)


def test_a_reply_that_lost_its_pages_is_scored_once() -> None:
    bench = scoring_bench(num_pages=9)
    first = bench.add("a" * 12, 14, score=TokenScore(12, FULL_STOP))
    while not bench.outputs.get(first):
        bench.step()
    bench.add("b" * 12, 10, deadline_ns=0)
    bench.run()
    assert bench.core.stats().num_preempted > 0
    assert scores(bench.outputs[first]) == [12.0]


@pytest.mark.parametrize("place", [0, -1, 11])
def test_a_place_outside_the_prompt_is_refused(place: int) -> None:
    with pytest.raises(RequestError, match="score"):
        Bench().add("0123456789", 3, score=TokenScore(place, FULL_STOP))
