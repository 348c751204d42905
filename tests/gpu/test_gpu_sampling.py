"""Tokens drawn by kernels where they really run: the host's, whatever else is drawn beside them."""

import pytest
import torch

from llm_engine.config import SamplingParams
from llm_engine.cuda.ops.interface import MAX_ROWS, Ops
from tests.gpu import ground
from tests.support.llm.sampling_cases import EVERY_FILTER, lane_sampling, on_host, some_logits

pytestmark = ground.pytestmark

PARAMS = (SamplingParams(), SamplingParams(temperature=0.7, top_p=0.9999), *EVERY_FILTER)
assert len(PARAMS) == MAX_ROWS


@pytest.fixture(scope="module")
def ops() -> Ops:
    return ground.ground().ops()


def drawn(ops: Ops, logits: torch.Tensor, rows: list[int], seed: int) -> list[int]:
    """A lane for each of these rows, whose parameters, seeds and positions are always the same."""
    device = ground.ground().device
    out = torch.full((len(rows), 1), -1, dtype=torch.int32, device=device)
    positions = torch.tensor(rows, dtype=torch.int32, device=device)
    sampling = lane_sampling([PARAMS[m] for m in rows], [seed + m for m in rows], device)
    ops.step.sample(logits[rows], positions, sampling, out)
    return out.flatten().tolist()


@pytest.mark.parametrize("size", [49_152, 128_256, 151_936])
@pytest.mark.parametrize("scale", [0.01, 3.0, 8.0])
def test_tokens_are_the_host_s(ops: Ops, size: int, scale: float) -> None:
    """But for a weight that another exp rounds otherwise: of some thousand draws one may fall in
    between. Where all logits are nearly alike, neighbours in their order change places by that, and
    one who leaves a nucleus moves the borders of all behind it."""
    count, num_others = ground.ground().count(200), 0
    for seed in range(count):
        logits = some_logits(MAX_ROWS, size, seed, scale, has_ties=seed % 4 == 0)
        rows = list(range(MAX_ROWS))
        found = drawn(ops, logits.to(ground.ground().device), rows, seed)
        expected = on_host(logits, rows, PARAMS, [seed + m for m in rows])
        num_others += sum(a != b for a, b in zip(found, expected, strict=True))
    share = 1 / 500 if scale > 1 else 1 / 50
    assert num_others <= max(2, count * MAX_ROWS * share)


@pytest.mark.parametrize("scale", [0.0, 0.01, 3.0])
def test_a_row_s_token_is_the_same_every_time_and_in_any_company(ops: Ops, scale: float) -> None:
    """Of logits that are all alike, too, whose weights all meet at one address."""
    logits = some_logits(MAX_ROWS, 128_256, 1, scale, has_ties=False).to(ground.ground().device)
    expected = drawn(ops, logits, list(range(MAX_ROWS)), 5)
    for turn in range(ground.ground().count(300)):
        rows = list(range(turn % MAX_ROWS, MAX_ROWS))
        assert drawn(ops, logits, rows, 5) == expected[rows[0] :]
