"""Choosing a token from logits.

The one random number of a choice is a hash of (seed, position). Which requests happen to run
together, how the prompt was cut into chunks and what was thrown away before therefore cannot change
the text.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from llm_engine.config import SamplingParams

_MASK = (1 << 64) - 1
_SHORTLIST = 512
"""Sorting a 49 k vocabulary takes 3 ms, finding its 512 likeliest 0.2 ms; at usual settings all of
top_p lies within them, and where it does not the whole vocabulary is sorted."""


def choose(
    logits: Tensor,
    params: SamplingParams,
    seed: int,
    position: int,
    chosen: Sequence[int] = (),
    banned: Sequence[int] = (),
    allowed: bytes | None = None,
) -> int:
    """A token id from float32 logits `[vocab]` for the token at `position` of its sequence.

    `chosen` are the reply's tokens so far; only the repetition penalty looks at them. `banned` ones
    are never chosen, nor those whose bit is missing in `allowed` (see `SequenceRows.allowed`).
    """
    if allowed is not None:
        logits = logits.masked_fill(_forbidden(allowed, logits.shape[0]), -math.inf)
    if banned:
        logits = logits.index_fill(0, torch.tensor(banned), -math.inf)
    if params.repetition_penalty != 1 and chosen:
        logits = _penalized(logits, params.repetition_penalty, chosen)
    if params.temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits / params.temperature, dim=0)
    if params.top_k == 0 and params.top_p == 1 and params.min_p == 0:
        return _draw(probabilities, uniform(seed, position))
    size = probabilities.shape[0]
    num_kept = min(params.top_k or size, size)
    sorted_, ids = torch.topk(probabilities, min(num_kept, _SHORTLIST))
    if num_kept > _SHORTLIST and not _covers(sorted_, params):
        sorted_, ids = torch.topk(probabilities, num_kept)
    kept = sorted_[sorted_ >= params.min_p * sorted_[0]]
    if params.top_p < 1:
        # In float64, as a GPU does it: there sums of float32 do not depend on their order.
        sums = kept.cumsum(0, dtype=torch.float64)
        mass = float(sums[-1]) if params.top_k or params.min_p else 1.0
        is_kept = sums - kept < float(np.float32(params.top_p)) * mass
        is_kept[0] = True  # also where top_p is nothing in float32
        kept = kept[is_kept]
    return int(ids[_draw(kept, uniform(seed, position))])


def _forbidden(allowed: bytes, num_logits: int) -> Tensor:
    """`[num_logits]` bool. With the filling 60 us for 49 k tokens."""
    bits = np.frombuffer(allowed, dtype=np.uint8)
    unpacked = np.unpackbits(bits, count=num_logits, bitorder="little")
    return torch.from_numpy(unpacked) == 0


def _penalized(logits: Tensor, penalty: float, chosen: Sequence[int]) -> Tensor:
    """Lower scores for chosen tokens (Keskar et al. 2019, "CTRL", section 4.1)."""
    ids = torch.tensor(sorted(set(chosen)))
    scores = logits[ids]
    lower = torch.where(scores > 0, scores / penalty, scores * penalty)
    return logits.index_copy(0, ids, lower)


def _draw(weights: Tensor, share: float) -> int:
    """The index at which the running sum passes `share` of the whole."""
    bounds = weights.cumsum(0, dtype=torch.float64)
    index = int(torch.searchsorted(bounds, share * float(bounds[-1]), right=True))
    if index < weights.shape[0]:
        return index
    # Rounded up to the whole sum: the last that has any weight, which may not be the last of all.
    return int(torch.searchsorted(bounds, float(bounds[-1])))


def _covers(shortlist: Tensor, params: SamplingParams) -> bool:
    """Whether the filters cannot reach beyond the shortlist."""
    by_min_p = bool(shortlist[-1] < params.min_p * shortlist[0])
    # min_p may shrink the mass of which top_p takes its share, so alone it must suffice here.
    by_top_p = params.min_p == 0 and params.top_k == 0 and float(shortlist.sum()) >= params.top_p
    return by_min_p or by_top_p


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (SplitMix64, Steele 2014)."""
    state = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 1) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)
