"""Sampler: tokens follow the filtered distribution, and depend on seed and position alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llm_engine.backends.sampler import choose, uniform
from llm_engine.config import SamplingParams
from tests.support.llm.sampling_cases import (
    EVERY_FILTER,
    VOCAB,
    distribution,
    even_shares,
    seed_for,
    some_logits,
)

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 0.0, 2.5], np.float32)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    powers = np.exp(logits.astype(np.float64) - logits.max())
    shares: NDArray[np.float64] = powers / powers.sum()
    return shares


def drawn(params: SamplingParams, num: int = 4000) -> NDArray[np.float64]:
    tokens = [choose(LOGITS, params, 11, position) for position in range(num)]
    return np.bincount(tokens, minlength=len(LOGITS)) / num


def test_temperature_zero_is_the_likeliest() -> None:
    assert {choose(LOGITS, SamplingParams(), seed, 5) for seed in range(20)} == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_probabilities(temperature: float) -> None:
    expected = softmax(LOGITS / np.float32(temperature))
    # 4 standard deviations of a frequency over 4000 draws are at most 0.032.
    assert np.abs(drawn(SamplingParams(temperature=temperature)) - expected).max() < 0.032


def filtered(params: SamplingParams) -> set[int]:
    return set(np.flatnonzero(drawn(params)).tolist())


def test_top_k_keeps_the_k_likeliest() -> None:
    assert filtered(SamplingParams(temperature=2, top_k=3)) == {1, 5, 2}
    assert filtered(SamplingParams(temperature=2, top_k=100)) == set(range(6))


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    second, first = np.sort(softmax(LOGITS))[-2:].tolist()
    assert filtered(SamplingParams(temperature=1, top_p=first - 0.01)) == {1}
    assert filtered(SamplingParams(temperature=1, top_p=first + 0.01)) == {1, 5}
    assert filtered(SamplingParams(temperature=1, top_p=first + second + 0.01)) == {1, 5, 2}


def test_min_p_is_relative_to_the_likeliest() -> None:
    just_above = float(np.exp(LOGITS[5] - LOGITS[1])) - 1e-3
    assert filtered(SamplingParams(temperature=1, min_p=just_above)) == {1, 5}


def test_a_flat_distribution_reaches_beyond_the_shortlist() -> None:
    flat = np.linspace(0, 0.01, 3000, dtype=np.float32)
    for params in (
        SamplingParams(temperature=1, top_p=0.999),
        SamplingParams(temperature=1, min_p=0.5),
        SamplingParams(temperature=1, top_k=2900, top_p=0.99),
    ):
        tokens = {choose(flat, params, 3, position) for position in range(300)}
        assert min(tokens) < 600
        assert max(tokens) > 2400


def test_filters_agree_on_either_side_of_the_shortlist() -> None:
    logits = np.random.default_rng(2).normal(size=2000).astype(np.float32) * 4
    params = SamplingParams(temperature=1, top_p=0.9)
    probabilities = softmax(logits)
    ids = np.argsort(-probabilities)
    sums = probabilities[ids].cumsum()
    kept = set(ids[sums - probabilities[ids] < 0.9].tolist())
    assert {choose(logits, params, 3, position) for position in range(500)} <= kept


def test_a_repetition_penalty_lowers_what_was_chosen() -> None:
    params = SamplingParams(repetition_penalty=2)
    assert choose(LOGITS, params, 0, 5) == 1
    assert choose(LOGITS, params, 0, 5, chosen=[1, 1]) == 5
    assert choose(LOGITS, params, 0, 5, chosen=[1, 5, 2]) == 1
    assert choose(-LOGITS - 1, params, 0, 5, chosen=[3]) == 3  # 0 stays 0
    assert choose(-LOGITS - 2, params, 0, 5, chosen=[3]) == 3  # -1 becomes -2, as 4 has
    assert LOGITS[1] == 3


def test_the_random_number_depends_on_seed_and_position_only() -> None:
    numbers = {uniform(seed, position) for seed in range(50) for position in range(50)}
    assert len(numbers) == 2500
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / 2500 - 0.5) < 0.025
    assert uniform(1 << 62, 1 << 20) == uniform(1 << 62, 1 << 20)


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.7, 2.0]))
def test_banned_tokens_are_never_chosen(seed: int, temperature: float) -> None:
    logits = np.array([9.0, 8.0, 1.0, 0.0], np.float32)
    params = SamplingParams(temperature=temperature, top_p=0.9)
    assert choose(logits, params, seed, 3, banned=(0, 1)) in (2, 3)
    assert logits[0] == 9


def test_only_what_is_allowed_is_chosen() -> None:
    logits = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 9.0, 9.0], np.float32)
    allowed = bytes([0b10100])  # tokens 2 and 4; beyond the last byte nothing
    assert choose(logits, SamplingParams(), 0, 0, allowed=allowed) == 2
    for params in (
        SamplingParams(temperature=1.5),
        SamplingParams(temperature=1.5, top_k=7),
        SamplingParams(temperature=1.5, top_p=0.99),
    ):
        assert {choose(logits, params, 1, at, allowed=allowed) for at in range(100)} == {2, 4}
    assert choose(logits, SamplingParams(), 0, 0, banned=[2], allowed=allowed) == 4


@pytest.mark.parametrize("params", EVERY_FILTER)
@pytest.mark.parametrize(("size", "scale"), [(6, 1.0), (VOCAB, 3.0), (3000, 0.01), (3000, 4.0)])
def test_tokens_are_drawn_from_the_distribution(
    params: SamplingParams, size: int, scale: float
) -> None:
    """By random numbers that lie evenly, of which each token gets its share, and one more at most;
    and in the order of the vocabulary."""
    logits = some_logits(1, size, seed=size, scale=scale, has_ties=False)[0].numpy()
    num = 3000
    tokens = [choose(logits, params, seed_for(share, 5), 5) for share in even_shares(num)]
    assert tokens == sorted(tokens)
    expected = num * distribution(logits, params)
    assert np.abs(np.bincount(tokens, minlength=size) - expected).max() < 1.001


def test_of_equal_ones_those_with_lower_ids_are_kept() -> None:
    logits = np.zeros(2000, np.float32)
    for params, count in (
        (SamplingParams(temperature=1.0, top_k=3), 3),
        (SamplingParams(temperature=1.0, top_p=0.5), 1000),
        (SamplingParams(temperature=1.0, top_k=1500, top_p=0.25), 375),
        (SamplingParams(temperature=1.0, top_k=1500, min_p=0.99), 1500),
    ):
        tokens = {choose(logits, params, seed_for(share, 1), 1) for share in even_shares(3000)}
        assert tokens == set(range(count))


@pytest.mark.parametrize("size", [2, 5, 99_999])
def test_a_share_at_either_end_finds_a_token_with_weight(size: int) -> None:
    """The sum of many that are alike has more bits than a double."""
    logits = np.full(size + 3, -np.inf, np.float32)
    logits[1:-2] = 0.0
    logits[size] = -1e-3
    for params, last in (
        (SamplingParams(temperature=1.0), size),
        (SamplingParams(temperature=1.0, top_k=2), 2),
    ):
        ends = [choose(logits, params, seed_for(share, 7), 7) for share in (0, 1 - 2**-53)]
        assert ends == [1, last]


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_what_is_no_number_gives_some_token(value: float) -> None:
    some = LOGITS.copy()
    some[2] = value
    for logits in (some, np.full(6, value, np.float32)):
        assert choose(logits, SamplingParams(temperature=1.0, top_p=0.9), 1, 1) in range(6)
