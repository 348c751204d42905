"""Sampling in plain torch chooses the tokens of the host's sampler, row by row."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.backends.base import SequenceRows, Slot
from llm_engine.backends.sampler import choose_tokens
from llm_engine.backends.sampler import uniform as uniform_on_host
from llm_engine.config import SamplingParams
from llm_engine.cuda.ops.sampling import masked, sampled, uniform
from llm_engine.cuda.steps.graph_runner import Choice, GraphRunner
from llm_engine.cuda.steps.logit_masks import MaskBuffers
from tests.support.llm.sampling_cases import (
    EVERY_FILTER,
    VOCAB,
    distribution,
    even_shares,
    lane_sampling,
    on_host,
    seed_for,
    some_logits,
)
from tests.support.llm.sampling_strategies import PARAMS, SEEDS

CPU = torch.device("cpu")


@given(SEEDS, st.integers(0, (1 << 31) - 1))
def test_the_random_number_is_the_host_s(seed: int, position: int) -> None:
    on_device = uniform(torch.tensor([seed]), torch.tensor([position], dtype=torch.int32))
    assert float(on_device) == uniform_on_host(seed, position)


@given(SEEDS, st.integers(0, (1 << 31) - 1))
def test_seeds_are_found_for_random_numbers(seed: int, position: int) -> None:
    share = uniform_on_host(seed, position)
    assert uniform_on_host(seed_for(share, position), position) == share


@given(
    st.lists(st.tuples(PARAMS, SEEDS), min_size=1, max_size=8),
    st.integers(1, 3),
    st.integers(0, 1000),
    st.sampled_from([0.01, 3.0, 30.0]),
    st.sampled_from([1, 2, VOCAB, 5000]),
    st.booleans(),
)
def test_tokens_are_the_host_s(
    lanes: list[tuple[SamplingParams, int]],
    num_queries: int,
    seed: int,
    scale: float,
    size: int,
    has_ties: bool,
) -> None:
    params, seeds = zip(*lanes, strict=True)
    num_rows = len(lanes) * num_queries
    logits = some_logits(num_rows, size, seed, scale, has_ties=has_ties)
    positions = [seed + 3 * m for m in range(num_rows)]
    on_device = sampled(
        logits, torch.tensor(positions, dtype=torch.int32), lane_sampling(params, seeds, CPU)
    )
    assert on_device.tolist() == on_host(logits, positions, params, seeds)


@pytest.mark.parametrize("params", EVERY_FILTER)
def test_tokens_are_drawn_from_the_distribution(params: SamplingParams) -> None:
    num = 2000
    logits = some_logits(1, VOCAB, 3, 2.0, has_ties=False)
    seeds = [seed_for(share, 1) for share in even_shares(num)]
    tokens = sampled(
        logits.expand(num, -1),
        torch.zeros(num, dtype=torch.int32),
        lane_sampling([params] * num, seeds, CPU),
    )
    found = torch.bincount(tokens, minlength=VOCAB).numpy()
    assert np.abs(found - num * distribution(logits[0].numpy(), params)).max() < 1.001


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
    logits = some_logits(2 * num_queries, VOCAB, seed, 3.0, has_ties=False)
    masks = MaskBuffers(2 * num_queries, VOCAB, CPU)
    masks.send([rows, other], 2, num_queries)
    positions = [10 + index for index in range(num_queries)] + list(range(num_queries))
    on_device = sampled(
        masked(logits, masks.rows(2 * num_queries)),
        torch.tensor(positions, dtype=torch.int32),
        lane_sampling([sampling, SamplingParams()], [seed, 0], CPU),
    ).tolist()
    assert tuple(on_device[2 : num_sampled + 2]) == choose_tokens(
        rows, logits[2:][:num_sampled].numpy()
    )
    assert on_device[num_queries] == int(logits[num_queries].argmax())


@pytest.mark.parametrize(
    ("rows", "choice"),
    [
        ([SamplingParams(), SamplingParams(top_p=0.5, top_k=3)], Choice.GREEDY),
        ([SamplingParams(), SamplingParams(temperature=0.8)], Choice.SAMPLED),
        ([SamplingParams(), SamplingParams(repetition_penalty=1.2)], Choice.MASKED),
    ],
)
def test_a_step_chooses_in_the_least_way_that_its_rows_need(
    rows: list[SamplingParams], choice: Choice
) -> None:
    sequences = [SequenceRows(Slot(1), (1,), 0, 1, sampling, 0) for sampling in rows]
    assert GraphRunner.choice_for(sequences) is choice
