"""Operations around a forward pass on a GPU: embedding, greedy choice, draft verification and the
next inputs; plain torch and kernels against the definition."""

import random
from dataclasses import dataclass

import pytest
import torch

from llm_engine.cuda.ops.interface import MAX_ROWS, StepState
from tests.support.llm.cuda_ops_devices import DEVICE, IMPLEMENTATIONS, LARGE_VOCABULARY

pytestmark = pytest.mark.slow

POISON = 0x55555555


def ints(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@dataclass
class Lane:
    """One lane as it is meant."""

    tokens: list[int]
    first_position: int
    num_rows: int
    first_sampled: int

    def advance(self, chosen: list[int]) -> int:
        """Which row was the last of use."""
        last = 0
        while last + 1 < len(chosen) and (
            last + 1 <= self.first_sampled
            or (last + 1 < self.num_rows and chosen[last] == self.tokens[last + 1])
        ):
            last += 1
        self.tokens[0] = chosen[last]
        self.first_position += last + 1
        self.first_sampled, self.num_rows = 0, min(self.num_rows, 1)
        return last


def drawn(chance: random.Random, num_seqs: int, width: int) -> list[Lane]:
    lanes = []
    for _ in range(num_seqs):
        num_rows = chance.randint(0, width)
        tokens = [chance.randint(0, 2) for _ in range(width)]
        lanes.append(Lane(tokens, chance.randint(0, 90), num_rows, chance.randint(0, num_rows)))
    return lanes


def state_of(lanes: list[Lane]) -> StepState:
    return StepState(
        tokens=ints([lane.tokens for lane in lanes]),
        first_positions=ints([lane.first_position for lane in lanes]),
        num_rows=ints([lane.num_rows for lane in lanes]),
        first_sampled=ints([lane.first_sampled for lane in lanes]),
    )


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("num_seqs", "num_queries"), [(1, 1), (1, 2), (1, 3), (1, 8), (4, 1), (8, 1)]
)
def test_lanes_go_on_behind_the_last_row_that_was_right(
    name: str, num_seqs: int, num_queries: int
) -> None:
    ops = IMPLEMENTATIONS[name]().step
    chance = random.Random(num_seqs + num_queries)
    width = MAX_ROWS if num_seqs == 1 else 1
    lasts = set()
    for _ in range(40):
        lanes = drawn(chance, num_seqs, width)
        chosen = [[chance.randint(0, 2) for _ in range(num_queries)] for _ in lanes]
        state, last = state_of(lanes), ints([POISON] * num_seqs)
        there = ints([[*each, POISON, POISON] for each in chosen])
        ops.advance(state, there[:, :num_queries], last)
        expected = [lane.advance(each) for lane, each in zip(lanes, chosen, strict=True)]
        assert last.tolist() == expected
        for found, meant in zip(
            (state.tokens, state.first_positions, state.num_rows, state.first_sampled),
            (state_of(lanes).tokens, *list(_rest(state_of(lanes)))),
            strict=True,
        ):
            assert torch.equal(found, meant)
        lasts |= set(expected)
    assert lasts >= set(range(min(num_queries, 4)))


def _rest(state: StepState) -> tuple[torch.Tensor, ...]:
    return state.first_positions, state.num_rows, state.first_sampled


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("num_seqs", "num_queries"), [(1, 1), (1, 8), (1, 20), (8, 1)])
@pytest.mark.parametrize("width", [64, 1500])
def test_rows_are_embedded_where_they_stand(
    name: str, num_seqs: int, num_queries: int, width: int
) -> None:
    ops = IMPLEMENTATIONS[name]().step
    table = torch.randn(3, width, device=DEVICE).to(torch.bfloat16)
    lanes = drawn(random.Random(width + num_queries), num_seqs, num_queries + 3)
    num_rows = num_seqs * num_queries
    positions = ints([POISON] * num_rows)
    hidden = torch.full((num_rows, width), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    ops.embed(state_of(lanes), table, positions, hidden)
    rows = [(lane, place) for lane in lanes for place in range(num_queries)]
    assert positions.tolist() == [
        lane.first_position + place if place < lane.num_rows else -1 for lane, place in rows
    ]
    expected = table[[lane.tokens[place] for lane, place in rows]]
    assert torch.equal(hidden, expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("num_seqs", [1, 2, 8])
@pytest.mark.parametrize("vocab_size", [5, 1024, LARGE_VOCABULARY])
def test_the_first_of_the_largest_logits_is_the_likeliest(
    name: str, num_seqs: int, vocab_size: int
) -> None:
    """Many are equal; one row has nothing but -inf."""
    ops = IMPLEMENTATIONS[name]().step
    num_queries = MAX_ROWS // num_seqs
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randint(-9, 9, (MAX_ROWS, vocab_size), generator=generator).float()
    logits[2] -= 100.0
    logits[3] = -torch.inf
    logits[4, -1] = 50.0
    out = torch.full((num_seqs, num_queries + 2), POISON, dtype=torch.int32, device=DEVICE)
    for _ in range(2):  # counters are as they were
        ops.likeliest(logits.to(DEVICE), out[:, :num_queries])
        expected = [row.index(max(row)) for row in logits.tolist()]
        assert out[:, :num_queries].flatten().tolist() == expected
        assert bool((out[:, num_queries:] == POISON).all())
