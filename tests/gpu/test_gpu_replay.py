"""Recorded graphs against the same work launched anew, over thousands of random schedules.

Both backends have the same weights and the same kernels. What differs is that one replays graphs,
whose operands are where they were when they were recorded: whatever the host forgot to say, or said
too late, shows as another token.
"""

import random

import pytest
import torch

from llm_engine.backends.base import Backend, Plan, SequenceRows, Slot
from llm_engine.config import SamplingParams
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.steps.graph_runner import EagerGraphs
from tests.gpu import ground
from tests.gpu.schedules import CONTEXT, NUM_PAGES, Schedule

pytestmark = ground.pytestmark


@pytest.fixture(scope="module")
def backends() -> tuple[CudaBackend, CudaBackend]:
    weights = ground.model("1b", "fp8 by row", 2, CONTEXT)
    return (
        ground.backend(weights, num_pages=NUM_PAGES),
        ground.backend(weights, num_pages=NUM_PAGES, graphs=EagerGraphs()),
    )


def run(backend: Backend, plan: Plan) -> dict[Slot, tuple[int, ...]]:
    return dict(backend.collect(backend.launch(plan)).tokens)


@pytest.mark.parametrize("part", range(4))
def test_recorded_and_launched_anew_say_the_same(
    backends: tuple[CudaBackend, CudaBackend], part: int
) -> None:
    recorded, anew = backends
    vocab_size = ground.ground().config("1b", 2).vocab_size
    for seed in range(ground.ground().count(500)):
        schedule = Schedule(random.Random(1000 * part + seed), vocab_size)
        for number in range(12):
            plan, drafts = schedule.plan()
            found, expected = run(recorded, plan), run(anew, plan)
            assert found == expected, f"schedule {part}/{seed}, step {number}"
            schedule.take(drafts, found)


def test_what_is_stored_is_the_same_to_the_last_bit(
    backends: tuple[CudaBackend, CudaBackend],
) -> None:
    """Tokens may agree by luck; logits do not."""
    vocab_size = ground.ground().config("1b", 2).vocab_size
    schedule = Schedule(random.Random(7), vocab_size)
    for _ in range(ground.ground().count(300)):
        plan, drafts = schedule.plan()
        outcomes = [run(backend, plan) for backend in backends]
        schedule.take(drafts, outcomes[0])
    for talk in schedule.talks:
        rows = SequenceRows(
            talk.slot, (talk.tokens[-1],), len(talk.tokens) - 1, 1, SamplingParams(), 0,
            pages=talk.pages,
        )  # fmt: skip
        if talk.num_cached == len(talk.tokens) - 1:
            recorded, anew = (backend.logits(rows) for backend in backends)
            assert torch.equal(recorded, anew)
