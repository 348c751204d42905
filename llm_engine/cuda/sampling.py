"""Choosing tokens on the device: `llm_engine.sampler` for many rows at once, inside a graph.

The same rules in the same order, and the same random number, a hash of (seed, position): from the
same logits come the same tokens. Nothing is read back and no shape depends on a value, so that a
graph can hold it; what the host's sampler decides by looking (whether a shortlist will do) is
computed here for all of the vocabulary.

Sums are float64. A GPU adds a single row in another order than several, and even the same row
otherwise on another day; of float32 numbers hardly any such sum is rounded at all, so that the
order is of no importance.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional


def _signed(word: int) -> int:
    """The 64-bit integer that torch, which has signed ones only, writes with the same bits."""
    return word - (1 << 64) if word >> 63 else word


_SEED_FACTOR: Final = _signed(0x9E3779B97F4A7C15)
_POSITION_FACTOR: Final = _signed(0xD1B54A32D192ED03)
_PIECE: Final = 512
"""Weights that are added up one after another."""
_MIXES: Final = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How each of M rows is sampled; every field on the device."""

    temperature: Tensor
    """`[M]`, float32; 0: the likeliest."""
    top_k: Tensor
    """`[M]`, int32; 0: all."""
    top_p: Tensor
    min_p: Tensor
    """Both `[M]`, float32."""
    seed: Tensor
    """`[M]`, int64."""
    position: Tensor
    """`[M]`, int32: of the token that is chosen."""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """What else decides about each of M rows; in bits, token i is bit i % 8 of byte i // 8."""

    allowed: Tensor
    """`[M, ceil(vocab / 8)]`, uint8. Others are never chosen."""
    penalized: Tensor
    """The same: the reply's tokens so far."""
    penalty: Tensor
    """`[M]`, float32: `SamplingParams.repetition_penalty`."""


def masked(logits: Tensor, masks: RowMasks) -> Tensor:
    """Float32 logits `[M, vocab]` with what is not allowed at -inf, and repetitions lowered."""
    num_logits = logits.shape[1]
    logits = torch.where(_bits(masks.allowed, num_logits), logits, -math.inf)
    penalty = masks.penalty[:, None]
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(_bits(masks.penalized, num_logits), lowered, logits)


def likeliest(logits: Tensor) -> Tensor:
    """`[M]` int64 from `[M, vocab]`."""
    return logits.argmax(dim=1)


def sampled(logits: Tensor, sampling: RowSampling) -> Tensor:
    """A token for each row, `[M]` int64, from float32 logits `[M, vocab]`."""
    greedy = sampling.temperature == 0
    temperature = torch.where(greedy, 1.0, sampling.temperature)
    probabilities = torch.softmax(logits / temperature[:, None], dim=1)
    sorted_, ids = torch.sort(probabilities, dim=1, descending=True)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    top_k, min_p, top_p = sampling.top_k[:, None], sampling.min_p[:, None], sampling.top_p[:, None]
    kept = torch.where((top_k > 0) & (ranks >= top_k), 0.0, sorted_)
    kept = torch.where(sorted_ >= min_p * sorted_[:, :1], kept, 0.0)
    has_less = (top_k > 0) | (min_p > 0)
    sums = _running_sums(kept)
    mass = torch.where(has_less, sums[:, -1:], 1.0)
    in_mass = (sums - kept < top_p * mass) | (top_p >= 1) | (ranks == 0)
    kept = torch.where(in_mass, kept, 0.0)
    has_filter = has_less | (top_p < 1)
    # The host draws in the order of the vocabulary where nothing is filtered out.
    weights = torch.where(has_filter, kept, probabilities)
    place = _drawn(weights, uniform(sampling.seed, sampling.position))
    drawn = torch.where(has_filter, ids.gather(1, place), place)[:, 0]
    return torch.where(greedy, likeliest(logits), drawn)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """`llm_engine.sampler.uniform` of each pair, `[M]` float64."""
    state = seed * _SEED_FACTOR + position.long() * _POSITION_FACTOR + 1
    for shift, factor in _MIXES:
        state = (state ^ _shifted(state, shift)) * factor
    state = state ^ _shifted(state, 31)
    return _shifted(state, 11).double() / (1 << 53)


def _shifted(words: Tensor, places: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (words >> places) & ((1 << (64 - places)) - 1)


def _drawn(weights: Tensor, share: Tensor) -> Tensor:
    """`[M, 1]`: the index at which each row's running sum passes its share of the whole."""
    bounds = _running_sums(weights)
    total = bounds[:, -1:].contiguous()
    place = torch.searchsorted(bounds, share[:, None] * total, right=True)
    # Rounded up to the whole sum: the last that has any weight.
    return torch.minimum(place, torch.searchsorted(bounds, total))


def _running_sums(weights: Tensor) -> Tensor:
    """`[M, n]` float64: of each row's weights up to each of them.

    In pieces, as a GPU's programs share a row only if it is the only one: of several rows each is
    one program's, which takes ten times as long for a vocabulary.
    """
    num_rows, size = weights.shape
    padded = functional.pad(weights, (0, -size % _PIECE))
    pieces = padded.view(num_rows, -1, _PIECE).cumsum(dim=2, dtype=torch.float64)
    ends = pieces[:, :, -1]
    pieces += (ends.cumsum(dim=1) - ends)[:, :, None]
    return pieces.flatten(1)[:, :size].contiguous()


def _bits(packed: Tensor, num_bits: int) -> Tensor:
    """`[M, num_bits]` bool."""
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    bits = (packed[:, :, None] >> places) & 1
    return bits.flatten(1)[:, :num_bits].bool()
