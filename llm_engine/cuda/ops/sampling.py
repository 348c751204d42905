"""Sampling on the device in plain torch: `llm_engine.backends.sampler` for many rows at once.

The same rules and the same random number, a hash of (seed, position): the same logits give the same
tokens, except where another exp rounds a weight differently. Nothing is read back to the host, and
no shape depends on a value.
"""

import math
from typing import Final

import torch
from torch import Tensor

from llm_engine.backends.sampler import MIXES, POSITION_FACTOR, SEED_FACTOR, UNITS

from .interface import RowMasks, SamplingInputs


def _signed(word: int) -> int:
    """Signed 64-bit integer with the same bits: torch has no unsigned ones."""
    return word - (1 << 64) if word >> 63 else word


_SEED_FACTOR: Final = _signed(SEED_FACTOR)
_POSITION_FACTOR: Final = _signed(POSITION_FACTOR)
_MIXES: Final = tuple((shift, _signed(factor)) for shift, factor in MIXES)


def masked(logits: Tensor, masks: RowMasks) -> Tensor:
    """Logits `[M, vocab]` after `StepOps.mask`."""
    num_logits = logits.shape[1]
    logits = torch.where(_bits(masks.allowed, num_logits), logits, -math.inf)
    penalty = masks.penalty[:, None]
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(_bits(masks.penalized, num_logits), lowered, logits)


def sampled(logits: Tensor, positions: Tensor, sampling: SamplingInputs) -> Tensor:
    """Tokens `[M]` int64 of `StepOps.sample`."""
    num_queries = len(logits) // len(sampling.seeds)

    def by_row(values: Tensor) -> Tensor:
        return values.repeat_interleave(num_queries)[:, None]

    temperature, top_k = by_row(sampling.temperature), by_row(sampling.top_k)
    top_p, min_p = by_row(sampling.top_p), by_row(sampling.min_p).double()
    weights = _weights(logits, torch.where(temperature == 0, 1.0, temperature))
    weights = torch.where(weights >= min_p * UNITS, weights, 0)
    sorted_, ids = weights.sort(dim=1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    sorted_ = torch.where((top_k == 0) | (ranks < top_k), sorted_, 0)
    sums = sorted_.cumsum(dim=1)
    goal = (top_p.double() * sums[:, -1:]).ceil().clamp(min=1).long()
    sorted_ = torch.where((top_p >= 1) | (sums - sorted_ < goal), sorted_, 0)
    sums = torch.zeros_like(weights).scatter(1, ids, sorted_).cumsum(dim=1)
    mass = sums[:, -1:].contiguous()
    share = uniform(by_row(sampling.seeds), positions[:, None] + 1)
    drawn = torch.searchsorted(sums, (share * mass).long(), right=True)
    has_choice = (temperature > 0) & (mass > 0)
    return torch.where(has_choice[:, 0], drawn[:, 0], logits.argmax(dim=1))


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """`llm_engine.backends.sampler.uniform` of each pair, float64."""
    state = seed * _SEED_FACTOR + position.long() * _POSITION_FACTOR + 1
    for shift, factor in _MIXES:
        state = (state ^ _shifted(state, shift)) * factor
    state = state ^ _shifted(state, 31)
    return _shifted(state, 11).double() / (1 << 53)


def _shifted(words: Tensor, places: int) -> Tensor:
    """Logical shift to the right."""
    return (words >> places) & ((1 << (64 - places)) - 1)


def _weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """Weights `[M, vocab]` int64; 0 for NaN."""
    behind = (logits - logits.amax(dim=1, keepdim=True)) / temperature
    return torch.where(behind <= 0, behind.exp() * UNITS, 0.0).long()


def _bits(packed: Tensor, num_bits: int) -> Tensor:
    """Unpack bits to `[M, num_bits]` bool."""
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    bits = (packed[:, :, None] >> places) & 1
    return bits.flatten(1)[:, :num_bits].bool()
