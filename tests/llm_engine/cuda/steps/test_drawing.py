"""Sampling kernels and plain torch choose the tokens of the host's sampler."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_engine.config import SamplingParams
from llm_engine.cuda.ops import triton_step_inputs
from llm_engine.cuda.ops.interface import MAX_ROWS, RowMasks, StepOps
from llm_engine.cuda.ops.reference_ops import ReferenceStepOps
from llm_engine.cuda.ops.triton_step_inputs import TritonStepOps
from tests.support.llm.cuda_ops_devices import DEVICE, IMPLEMENTATIONS, LARGE_VOCABULARY
from tests.support.llm.sampling_cases import (
    EVERY_FILTER,
    distribution,
    even_shares,
    lane_sampling,
    on_host,
    seed_for,
    some_logits,
)
from tests.support.llm.sampling_strategies import PARAMS, SEEDS

pytestmark = pytest.mark.slow

POISON = 0x55555555


def lane_ops(name: str) -> StepOps:
    return IMPLEMENTATIONS[name]().step


def drawn(
    ops: StepOps,
    logits: torch.Tensor,
    positions: Sequence[int],
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
) -> list[int]:
    num_seqs, num_queries = len(params), len(logits) // len(params)
    out = torch.full((num_seqs, num_queries + 2), POISON, dtype=torch.int32, device=DEVICE)
    ops.sample(
        logits.to(DEVICE),
        torch.tensor(list(positions), dtype=torch.int32, device=DEVICE),
        lane_sampling(params, seeds, DEVICE),
        out[:, :num_queries],
    )
    assert bool((out[:, num_queries:] == POISON).all())
    return out[:, :num_queries].flatten().tolist()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary of a thousand is divided like one of a hundred thousand."""
    monkeypatch.setattr(triton_step_inputs, "_MAX_PARTS", 4)
    monkeypatch.setattr(triton_step_inputs, "_BLOCK", 128)


def assert_all_draw_the_host_s(
    logits: torch.Tensor, params: Sequence[SamplingParams], seeds: Sequence[int]
) -> None:
    """And kernels leave what they add up in as they found it."""
    ops, positions = TritonStepOps(DEVICE, dependent=False), [3 * m for m in range(len(logits))]
    expected = on_host(logits, positions, params, seeds)
    assert drawn(ops, logits, positions, params, seeds) == expected
    assert drawn(ReferenceStepOps(), logits, positions, params, seeds) == expected
    assert not any(bool(each.any()) for each in (*ops._counts, *ops._masses, *ops._counters))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lanes=st.lists(st.tuples(PARAMS, SEEDS), min_size=1, max_size=4),
    num_queries=st.integers(1, 2),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([3.0, 0.01, 30.0]),
    size=st.sampled_from([1100, 2, 203, 512, 1]),
    has_ties=st.booleans(),
)
def test_kernels_draw_the_host_s_tokens(
    small_parts: None,
    lanes: list[tuple[SamplingParams, int]],
    num_queries: int,
    seed: int,
    scale: float,
    size: int,
    has_ties: bool,
) -> None:
    params, seeds = zip(*lanes, strict=True)
    logits = some_logits(len(lanes) * num_queries, size, seed, scale, has_ties=has_ties)
    assert_all_draw_the_host_s(logits, params, seeds)


@pytest.mark.parametrize("seed", range(6))
def test_every_filter_beside_the_others(seed: int) -> None:
    params = [SamplingParams(), *EVERY_FILTER, SamplingParams(temperature=1.0, top_k=1)]
    logits = some_logits(len(params), 300, seed, 2.0, has_ties=seed == 5)
    assert_all_draw_the_host_s(logits, params, range(seed, seed + len(params)))


def test_several_rows_of_a_lane() -> None:
    """One lane's `top_k` keeps all that its `min_p` leaves."""
    params = [
        SamplingParams(temperature=1.0, top_p=0.95),
        SamplingParams(temperature=2.0, top_k=1000, min_p=0.3),
    ]
    assert_all_draw_the_host_s(some_logits(8, 300, 1, 1.0, has_ties=False), params, [7, 8])


@pytest.mark.parametrize("fields", [{"top_k": 600}, {"top_k": 400, "top_p": 0.9}, {"top_p": 0.7}])
def test_few_of_the_tied_among_heavier_ones(small_parts: None, fields: dict[str, Any]) -> None:
    """Every third token is heavier than the others, of which so many are kept as come first."""
    logits = (torch.arange(1100) % 3 == 0).float().expand(MAX_ROWS, -1).contiguous()
    params = [SamplingParams(temperature=1.0, **fields)] * MAX_ROWS
    seeds = [seed_for(share, 3 * m + 1) for m, share in enumerate(even_shares(MAX_ROWS))]
    assert_all_draw_the_host_s(logits, params, seeds)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("scale", "has_ties"), [(0.01, False), (4.0, True)])
def test_a_large_vocabulary(name: str, scale: float, has_ties: bool) -> None:
    params = [
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(),
        SamplingParams(temperature=1.0, top_k=500, top_p=0.95),
    ]
    logits = some_logits(3, LARGE_VOCABULARY, 7, scale, has_ties=has_ties)
    ops, positions, seeds = lane_ops(name), [5, 6, 7], [3, 2, (1 << 64) - 1]
    assert drawn(ops, logits, positions, params, seeds) == on_host(logits, positions, params, seeds)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("size", [1, 203, 3000])
def test_what_is_forbidden_and_penalized(name: str, size: int) -> None:
    """To the last bit as the host does it, for each row by itself."""
    generator = np.random.default_rng(size)
    logits = some_logits(MAX_ROWS, size, 2, 5.0, has_ties=False)
    bits = generator.integers(0, 2, (2, MAX_ROWS, size), dtype=np.uint8)
    bits[0, 3], bits[1, 4] = 0, 1
    penalties = torch.linspace(1.0, 2.0, MAX_ROWS)
    expected = logits.clone()
    for m, (row, penalty) in enumerate(zip(expected, penalties.tolist(), strict=True)):
        for token in range(size):
            if not bits[0, m, token]:
                row[token] = -torch.inf
            if bits[1, m, token]:
                row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    packed = torch.from_numpy(np.packbits(bits, axis=2, bitorder="little")).to(DEVICE)
    masks = RowMasks(packed[0], packed[1], penalties.to(DEVICE))
    found = logits.to(DEVICE)
    lane_ops(name).mask(found, masks)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("params", EVERY_FILTER[-2:])
def test_kernels_draw_from_the_distribution(params: SamplingParams) -> None:
    """By random numbers that lie evenly: each token gets its share, and one more at most."""
    ops, num = TritonStepOps(DEVICE, dependent=False), 64
    logits = some_logits(1, 300, 3, 2.0, has_ties=False)
    tokens: list[int] = []
    shares = even_shares(num)
    for start in range(0, num, MAX_ROWS):
        seeds = [seed_for(share, 1) for share in shares[start : start + MAX_ROWS]]
        rows = logits.expand(MAX_ROWS, -1).contiguous()
        tokens += drawn(ops, rows, [0] * MAX_ROWS, [params] * MAX_ROWS, seeds)
    assert tokens == sorted(tokens)
    found = np.bincount(tokens, minlength=300)
    assert np.abs(found - num * distribution(logits[0].numpy(), params)).max() < 1.001


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("fields", "first", "last"), [({}, 1, 99), ({"top_k": 3}, 1, 3), ({"top_p": 0.5}, 1, 50)]
)
def test_a_share_at_either_end_finds_a_token_with_weight(
    name: str, fields: dict[str, Any], first: int, last: int
) -> None:
    """Of equal tokens those with lower ids are kept."""
    logits = torch.full((2, 102), -torch.inf)
    logits[:, 1:100] = 3.0
    params = [SamplingParams(temperature=1.0, **fields)] * 2
    seeds = [seed_for(share, 8) for share in (0, 1 - 2**-53)]
    assert drawn(lane_ops(name), logits, [7, 7], params, seeds) == [first, last]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter's
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_what_is_no_number_gives_some_token(name: str) -> None:
    """And nothing else to the rows beside it, then and later."""
    ops, size = lane_ops(name), 50
    logits = some_logits(MAX_ROWS, size, 1, 3.0, has_ties=False)
    whole = logits.clone()
    for row, value in enumerate((torch.nan, -torch.inf, torch.inf)):
        logits[row] = value
        logits[3 + row, 7 + row] = value
    params = [SamplingParams(temperature=1.0, top_k=20, top_p=0.8)] * MAX_ROWS
    positions, seeds = list(range(MAX_ROWS)), list(range(MAX_ROWS))
    for _ in range(2):
        found = drawn(ops, logits, positions, params, seeds)
        assert all(0 <= token < size for token in found)
        assert found[6:] == on_host(logits[6:], positions[6:], params[6:], seeds[6:])
    assert drawn(ops, whole, positions, params, seeds) == on_host(whole, positions, params, seeds)
