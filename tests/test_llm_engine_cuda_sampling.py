"""Choosing on the device gives the tokens that the host's sampler gives, row by row."""

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from llm_engine.backends.base import SequenceRows, Slot
from llm_engine.backends.immediate import choose_tokens
from llm_engine.config import SamplingParams
from llm_engine.cuda.masks import MaskBuffers
from llm_engine.cuda.sampling import RowSampling, _running_sums, masked, sampled, uniform
from llm_engine.sampler import choose
from llm_engine.sampler import uniform as uniform_on_host

VOCAB = 203
CPU = torch.device("cpu")

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 40, VOCAB, 1000]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)
SEEDS = st.integers(0, (1 << 63) - 1)


def row_sampling(rows: list[tuple[SamplingParams, int, int]]) -> RowSampling:
    """Of (params, seed, position)."""
    params = [each for each, _, _ in rows]
    return RowSampling(
        temperature=torch.tensor([each.temperature for each in params]),
        top_k=torch.tensor([each.top_k for each in params], dtype=torch.int32),
        top_p=torch.tensor([each.top_p for each in params]),
        min_p=torch.tensor([each.min_p for each in params]),
        seed=torch.tensor([seed for _, seed, _ in rows]),
        position=torch.tensor([position for _, _, position in rows], dtype=torch.int32),
    )


def some_logits(num_rows: int, seed: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed))


@given(SEEDS, st.integers(0, (1 << 31) - 1))
def test_the_random_number_is_the_host_s(seed: int, position: int) -> None:
    on_device = uniform(torch.tensor([seed]), torch.tensor([position], dtype=torch.int32))
    assert float(on_device) == uniform_on_host(seed, position)


@given(
    st.lists(st.tuples(PARAMS, SEEDS, st.integers(0, 5000)), min_size=1, max_size=8),
    st.integers(0, 1000),
    st.sampled_from([0.01, 3.0, 30.0]),
)
def test_tokens_are_the_host_s(
    rows: list[tuple[SamplingParams, int, int]], seed: int, scale: float
) -> None:
    logits = some_logits(len(rows), seed, scale)
    on_device = sampled(logits, row_sampling(rows)).tolist()
    expected = [choose(row, *each) for row, each in zip(logits, rows, strict=True)]
    assert on_device == expected


@given(
    st.integers(1, 4),
    PARAMS,
    st.sampled_from([1.0, 1.3, 2.0]),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 1000),
)
def test_what_is_forbidden_is_forbidden_here_too(
    num_sampled: int,
    params: SamplingParams,
    penalty: float,
    has_grammar: bool,
    num_banned: int,
    seed: int,
) -> None:
    """A draft of some tokens behind two of a prompt, beside another sequence."""
    generator = np.random.default_rng(seed)
    sampling = SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=penalty,
    )
    width = -(-VOCAB // 8) - int(generator.integers(2))  # beyond the last byte nothing is allowed
    rows = SequenceRows(
        slot=Slot(1),
        token_ids=tuple(int(each) for each in generator.integers(VOCAB, size=num_sampled + 2)),
        first_position=10,
        num_sampled=num_sampled,
        sampling=sampling,
        seed=seed,
        chosen=tuple(int(each) for each in generator.integers(VOCAB, size=30)),
        banned=(3, 4, VOCAB - 1),
        num_banned=num_banned,
        allowed=tuple(
            generator.integers(1, 256, size=width, dtype=np.uint8).tobytes()
            for _ in range(num_sampled if has_grammar else 0)
        ),
    )
    other = SequenceRows(Slot(2), (1,), 0, 1, SamplingParams(), 0)
    num_queries = num_sampled + 3
    logits = some_logits(2 * num_queries, seed)
    masks = MaskBuffers(2 * num_queries, VOCAB, CPU)
    masks.send([rows, other], num_queries)
    positions = [10 + index for index in range(num_queries)] + list(range(num_queries))
    each = [(sampling, seed)] * num_queries + [(SamplingParams(), 0)] * num_queries
    on_device = sampled(
        masked(logits, masks.rows(2 * num_queries)),
        row_sampling([(*pair, place + 1) for pair, place in zip(each, positions, strict=True)]),
    ).tolist()
    assert tuple(on_device[2 : num_sampled + 2]) == choose_tokens(rows, logits[2:][:num_sampled])
    assert on_device[num_queries] == int(logits[num_queries].argmax())


@pytest.mark.parametrize("share", [0.0, 1 - 2**-53])
def test_a_share_at_either_end_finds_a_token_with_weight(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.tensor([[-torch.inf, 2.0, 1.0, -torch.inf]])
    monkeypatch.setattr(
        "llm_engine.cuda.sampling.uniform", lambda seed, position: torch.tensor([share]).double()
    )
    found = sampled(logits, row_sampling([(SamplingParams(temperature=1.0), 0, 0)]))
    assert found.tolist() == ([1] if share == 0 else [2])


def test_running_sums_of_a_vocabulary_are_not_rounded() -> None:
    """So that it is of no importance in which order a device adds, or how many rows there are."""
    logits = torch.randn(3, 5003, generator=torch.Generator().manual_seed(1))
    weights = torch.softmax(logits, dim=1)
    weights[0, 4000:] = 0
    exact = [[float(each) for each in accumulate(map(Fraction, row))] for row in weights.tolist()]
    assert _running_sums(weights).tolist() == exact
