"""Reference sampler: chooses a token from logits.

A token's *weight* is its probability relative to the likeliest, exp((logit - largest) /
temperature), as a multiple of 2^-40. `top_k`, `min_p` and `top_p` keep the heaviest, of equal ones
those with lower ids. The draw walks the kept tokens in the order of the vocabulary until their
running sum exceeds a random share of the whole. Any fixed order would do; with this one a GPU need
not sort, only find the lightest that is kept.

Weights are integers, so that their sums are the same in any order of addition: one after another
here, by parts of the vocabulary on a GPU, where even the same row may be added in another order
every time. 2^-40 is fine enough to keep all 24 bits of those that are likelier
than a sixty-thousandth of the likeliest, and to lose of 128 k tokens less than 2^-23 of it; and the
sum of the largest vocabulary still has room in 63 bits.

The one random number of a choice is a hash of (seed, position). Which requests happen to run
together, how the prompt was cut into chunks and what was thrown away before therefore cannot change
the text.
"""

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llm_engine.config import SamplingParams

from .base import ScoredRow, SequenceRows

Logits: TypeAlias = NDArray[np.float32]

UNITS: Final = 1 << 40
"""Weight of the likeliest token."""

SEED_FACTOR: Final = 0x9E3779B97F4A7C15
POSITION_FACTOR: Final = 0xD1B54A32D192ED03
MIXES: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Constants of the hash in `uniform`; shifts and factors of its rounds. The sampling kernel repeats
them as literals."""

_MASK: Final = (1 << 64) - 1
_SHORTLISTS: Final = (UNITS >> 4, UNITS >> 8, UNITS >> 16, 1)
"""Lowest weights of the shortlists that are tried in turn before all tokens are sorted. Sorting a
49 k vocabulary takes 3 ms; at usual settings a hundred tokens reach the first or second of
these."""


def choose(
    logits: Logits,
    params: SamplingParams,
    seed: int,
    position: int,
    chosen: Sequence[int] = (),
    banned: Sequence[int] = (),
    allowed: bytes | None = None,
) -> int:
    """Choose the token at `position` of a sequence from float32 logits `[vocab]`.

    `chosen` are the reply's tokens so far; only the repetition penalty looks at them. `banned` ones
    are never chosen, nor those whose bit is missing in `allowed` (see `SequenceRows.allowed`).
    """
    scores = logits
    if allowed is not None or banned:
        scores = scores.copy()
        if allowed is not None:
            np.putmask(scores, _forbidden(allowed, len(scores)), -np.inf)
        scores[list(banned)] = -np.inf
    if params.repetition_penalty != 1 and chosen:
        scores = _penalized(scores, params.repetition_penalty, chosen)
    top = scores.max()
    if params.temperature == 0 or not math.isfinite(top):
        return int(scores.argmax())
    weights = np.exp((scores - top) / np.float32(params.temperature))
    weights *= UNITS
    return drawn(weights.astype(np.int64), params, uniform(seed, position))


def choose_tokens(rows: SequenceRows, logits: Logits) -> tuple[int, ...]:
    """Choose a token after each sampled row, from the logits of `rows.logit_rows`, `[rows, vocab]`
    float32."""
    logits = logits[len(logits) - rows.num_sampled :]
    first_sampled = len(rows.token_ids) - rows.num_sampled
    position = rows.first_position + first_sampled + 1
    drafted = rows.token_ids[first_sampled + 1 :]
    penalized = rows.sampling.repetition_penalty != 1
    return tuple(
        choose(
            row,
            rows.sampling,
            rows.seed,
            position + index,
            rows.chosen + drafted[:index] if penalized else (),
            rows.banned if index < rows.num_banned else (),
            rows.allowed[index] if rows.allowed else None,
        )
        for index, row in enumerate(logits)
    )


def log_prob(scored: ScoredRow, logits: Logits) -> float:
    """Log-probability that one of the scored row's tokens follows it, from its logits `[vocab]`
    float32."""
    return _log_sum_exp(logits[list(scored.token_ids)]) - _log_sum_exp(logits)


def _log_sum_exp(logits: Logits) -> float:
    top = logits.max()
    if not np.isfinite(top):
        return float(top)
    return float(top) + math.log(float(np.exp(logits - top).sum(dtype=np.float64)))


def drawn(weights: NDArray[np.int64], params: SamplingParams, share: float) -> int:
    """Draw a token: the one at which the running sum of the kept weights `[vocab]` exceeds `share`,
    in [0, 1), of the whole."""
    # As on a GPU, in float32, where a top_p just below 1 can be 1.
    top_p, min_p = float(np.float32(params.top_p)), float(np.float32(params.min_p))
    if params.top_k == 0 and top_p == 1 and min_p == 0:
        return _passing(weights, share)
    kept = _kept(weights, params.top_k, top_p, min_p)
    return int(kept[_passing(weights[kept], share)])


def _forbidden(allowed: bytes, num_logits: int) -> NDArray[np.bool_]:
    """Mask of forbidden tokens, `[num_logits]` bool. Takes 60 us for 49 k tokens, filling
    included."""
    bits = np.frombuffer(allowed, dtype=np.uint8)
    forbidden: NDArray[np.bool_] = np.unpackbits(bits, count=num_logits, bitorder="little") == 0
    return forbidden


def _penalized(logits: Logits, penalty: float, chosen: Sequence[int]) -> Logits:
    """Lower scores for chosen tokens (Keskar et al. 2019, "CTRL", section 4.1)."""
    ids = sorted(set(chosen))
    scores, factor = logits[ids], np.float32(penalty)
    penalized = logits.copy()
    penalized[ids] = np.where(scores > 0, scores / factor, scores * factor)
    return penalized


def _kept(weights: NDArray[np.int64], top_k: int, top_p: float, min_p: float) -> NDArray[np.intp]:
    """Tokens that all filters keep, ascending."""
    if min_p == 0:
        return _heaviest(weights, top_k, top_p)
    heavy = np.flatnonzero(weights >= min_p * UNITS)
    if top_k == 0 and top_p == 1:
        return heavy
    return heavy[_heaviest(weights[heavy], top_k, top_p)]


def _heaviest(weights: NDArray[np.int64], top_k: int, top_p: float) -> NDArray[np.intp]:
    """Tokens that `top_k` and `top_p` keep, ascending."""
    goal = 0 if top_k else _part(int(weights.sum()), top_p)
    for lightest in _SHORTLISTS:
        ids = np.flatnonzero(weights >= lightest)
        found = weights[ids]
        if len(ids) >= top_k > 0 or (top_k == 0 and int(found.sum()) >= goal):
            break
    if 0 < top_k < len(ids):
        listed = found >= np.partition(found, -top_k)[-top_k]
        ids, found = ids[listed], found[listed]
    order = np.argsort(-found, kind="stable")[: top_k or None]
    if top_p < 1:
        sums = found[order].cumsum()
        goal = _part(int(sums[-1]), top_p) if top_k else goal
        order = order[: int(np.searchsorted(sums, goal)) + 1]
    return np.sort(ids[order])


def _part(mass: int, top_p: float) -> int:
    """Least mass that top_p asks for. In float64, where rounding is the same everywhere."""
    return math.ceil(top_p * float(mass))


def _passing(weights: NDArray[np.int64], share: float) -> int:
    """First index at which the running sum exceeds `share` of the whole."""
    sums = weights.cumsum()
    passed = int(
        share * float(sums[-1])
    )  # below the whole: for a share below 1 no product rounds up to it
    return int(np.searchsorted(sums, passed, side="right"))


def uniform(seed: int, position: int) -> float:
    """Uniform number in [0, 1) that depends only on its arguments (SplitMix64, Steele 2014)."""
    state = (seed * SEED_FACTOR + position * POSITION_FACTOR + 1) & _MASK
    for shift, factor in MIXES:
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)
