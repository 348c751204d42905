"""Sampling kernels: draw tokens as `llm_engine.backends.sampler` defines it, without sorting.

Forbidden tokens have been masked before (`mask_kernel`).

Theory of operation
-------------------
`top_k` and `top_p` keep all tokens heavier than some *cut*, and the first few of those that weigh
as much as it. A weight is a whole number that float32 can hold, so its bits, read as an
integer, are its *rank*: 29 bits that order tokens as their weights do. The cut's rank is found from
the top, some bits at a time (`narrow_kernel`): programs add up, for each value of the next bits,
how many tokens have it and their total weight; the last program of a row finds the value at which,
from the heaviest down, the wanted count or mass is reached, and what is still wanted there. After
three levels the rank is known, and how many of its tokens are kept. `top_p` wants a share of what
`top_k` keeps: with both, one search follows the other. The second begins behind the first level, as
the sums there are those of all tokens.

`draw_kernel` then adds up what is kept in each part of the vocabulary. The last program of a row
finds the part in which the draw falls, and the token there.

All sums are of integers, so that the order of addition does not matter. A row without filters is
not searched, a greedy row is left unchanged: their programs end at once.

Each token adds to its level's sums by an atomic operation, and those on one address wait for one
another. At the first level that is the sixteenth part of a factor of two: of 128 k tokens whose
logits, divided by the temperature, have a standard deviation of 3, some 700 at most. With all
tokens alike, every one would: that costs time, and nothing else.
"""

import triton
import triton.language as tl

from llm_engine.backends.sampler import UNITS

from .common import is_last, wait_for_inputs

LEVELS = ((19, 10), (9, 10), (0, 9))
"""First bit and number of bits of a rank in each level of the search."""
NUM_STATE = tl.constexpr(4)
"""64-bit words of a row's search state: what is counted (see below), the lowest rank that is surely
kept so far, what is still wanted from there on, the weight of all above it."""

_NOTHING = tl.constexpr(0)
_TOKENS = tl.constexpr(1)
_MASS = tl.constexpr(2)
_ALL = tl.constexpr(1 << 62)
_UNITS = tl.constexpr(float(UNITS))
_ONE = tl.constexpr(0x3F800000)
"""The bits of 1.0, the smallest weight but 0."""
_FIRST_SHIFT = tl.constexpr(LEVELS[0][0])
_FIRST_BINS = tl.constexpr(1 << LEVELS[0][1])


@triton.jit
def mask_kernel(
    logits, allowed, penalized, penalties,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Apply logit masks in place. Programs: rows, blocks of the vocabulary."""
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = column < WIDTH
    at = row.to(tl.int64) * WIDTH + column
    byte = row * ((WIDTH + 7) // 8) + column // 8
    value = tl.load(logits + at, mask=kept, other=0.0)
    is_allowed = (tl.load(allowed + byte, mask=kept, other=0) >> (column % 8)) & 1
    is_penalized = (tl.load(penalized + byte, mask=kept, other=0) >> (column % 8)) & 1
    value = tl.where(is_allowed != 0, value, float("-inf"))
    penalty = tl.load(penalties + row)
    lower = tl.where(value > 0, tl.div_rn(value, penalty), value * penalty)
    tl.store(logits + at, tl.where(is_penalized != 0, lower, value), mask=kept)


@triton.jit(
    do_not_specialize=["num_queries"],
    do_not_specialize_on_alignment=["temperatures", "top_ks", "top_ps", "min_ps"],
)
def narrow_kernel(
    logits, biggest, temperatures, top_ks, top_ps, min_ps, states, counts, masses, first_masses,
    counters, num_queries,
    WIDTH: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, NUM_PARTS: tl.constexpr,
    SHIFT: tl.constexpr, BITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One level of the search for the cut. Programs: rows, parts of `NUM_BLOCKS` blocks of the
    vocabulary. `counts`, `masses`: this level's, zero before; zero after it too, except the first
    level's, which are `first_masses`."""
    wait_for_inputs(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    seq = row // num_queries
    temperature, top_p = tl.load(temperatures + seq), tl.load(top_ps + seq)
    top_k = tl.load(top_ks + seq).to(tl.int64)
    state = states + row * NUM_STATE
    is_first: tl.constexpr = SHIFT == _FIRST_SHIFT
    if is_first:
        low = lowest_rank(tl.load(min_ps + seq))
        is_searched = (temperature > 0) & ((top_k > 0) | (top_p < 1))
        by_tokens = top_k > 0
        if (part == 0) & ~is_searched:
            store_state(state, _NOTHING, low, _ALL, 0)
    else:
        by, low = tl.load(state), tl.load(state + 1).to(tl.int32)
        is_searched = by != _NOTHING
        by_tokens = by == _TOKENS
    if is_searched:
        top = top_of(biggest, row, NUM_PARTS)
        column = part * (NUM_BLOCKS * BLOCK) + tl.arange(0, BLOCK)
        for _ in range(NUM_BLOCKS):
            weight = weights_at(logits, row, column, top, temperature, WIDTH)
            rank = rank_of(weight)
            is_here = (rank >= low) & ((rank >> (SHIFT + BITS)) == (low >> (SHIFT + BITS)))
            at = (row << BITS) + ((rank >> SHIFT) & ((1 << BITS) - 1))
            if by_tokens:
                tl.atomic_add(counts + at, 1, mask=is_here, sem="relaxed")
            if top_p < 1:
                tl.atomic_add(masses + at, weight.to(tl.int64), mask=is_here, sem="relaxed")
            column += BLOCK
        if is_last(counters + row, NUM_PARTS):
            each = (row << BITS) + tl.arange(0, 1 << BITS)
            count = tl.load(counts + each, cache_modifier=".cg").to(tl.int64)
            mass = tl.load(masses + each, cache_modifier=".cg")
            if is_first:
                by, wanted = begun(count, mass, top_k, top_p)
                above = wanted * 0
            else:
                wanted, above = tl.load(state + 2), tl.load(state + 3)
                tl.debug_barrier()  # all threads have read
                tl.store(counts + each, 0)
                tl.store(masses + each, 0)
            if by != _NOTHING:
                sizes = tl.where(by == _TOKENS, count, mass)
                found, wanted, above = narrowed(sizes, mass, wanted, above)
                low = (0 if is_first else low) + (found << SHIFT)
            if SHIFT == 0:
                by, low, wanted = ended(
                    by, low, wanted, above, first_masses + row * _FIRST_BINS, top_p
                )
                above = wanted * 0
            store_state(state, by, low, wanted, above)


@triton.jit
def begun(count, mass, top_k, top_p):
    """Start of a search: what is counted first, and how much is wanted."""
    is_many = (top_k > 0) & (tl.sum(count, axis=0) > top_k)
    wanted = tl.where(top_p < 1, part_of(tl.sum(mass, axis=0), top_p), _ALL)
    by = tl.where(top_p < 1, _MASS, _NOTHING)
    return tl.where(is_many, _TOKENS, by).to(tl.int64), tl.where(is_many, top_k, wanted)


@triton.jit
def narrowed(sizes, mass, wanted, above):
    """Value of a level at which, from the heaviest down, the wanted size is reached; what is still
    wanted there; the weight of all above."""
    values = tl.arange(0, sizes.shape[0])
    down_to = tl.sum(sizes, axis=0) - tl.cumsum(sizes, axis=0) + sizes
    found = tl.max(tl.where(down_to >= wanted, values, 0), axis=0)
    wanted -= tl.sum(tl.where(values > found, sizes, 0), axis=0)
    return found, wanted, above + tl.sum(tl.where(values > found, mass, 0), axis=0)


@triton.jit
def ended(by, low, wanted, above, first_masses, top_p):
    """End of the last level: convert what is wanted to tokens. Where only `top_k` has been applied
    so far, begin a search by mass."""
    weight = weight_of(low).to(tl.int64)
    begins = (by == _TOKENS) & (top_p < 1)
    wanted = tl.where(by == _MASS, (wanted + weight - 1) // weight, wanted)
    if begins:
        mass = tl.load(first_masses + tl.arange(0, _FIRST_BINS), cache_modifier=".cg")
        wanted = part_of(above + wanted * weight, top_p)
        found, wanted, _ = narrowed(mass, mass, wanted, wanted)
        low = found << _FIRST_SHIFT
    return tl.where(begins, _MASS, _NOTHING).to(tl.int64), low, wanted


@triton.jit
def store_state(state, by, low, wanted, above):
    tl.store(state, by)
    tl.store(state + 1, low)
    tl.store(state + 2, wanted)
    tl.store(state + 3, above)


@triton.jit(
    do_not_specialize=["num_queries", "out_width"],
    do_not_specialize_on_alignment=["temperatures", "seeds", "out"],
)
def draw_kernel(
    logits, biggest, temperatures, seeds, positions, states, sums, ties, counts, masses, counters,
    out, num_queries, out_width,
    WIDTH: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, NUM_PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Draw a token of each row. Programs: rows, parts of the vocabulary. `counts`, `masses`: the
    first level's, zero after this. `out` is unchanged for greedy rows, and where all weights are
    0."""
    wait_for_inputs(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    seq = row // num_queries
    temperature = tl.load(temperatures + seq)
    if temperature > 0:
        state = states + row * NUM_STATE
        cut, num_ties = tl.load(state + 1).to(tl.int32), tl.load(state + 2)
        top = top_of(biggest, row, NUM_PARTS)
        column = part * (NUM_BLOCKS * BLOCK) + tl.arange(0, BLOCK)
        heavy = tl.zeros((BLOCK,), tl.int64)
        tied = tl.zeros((BLOCK,), tl.int32)
        for _ in range(NUM_BLOCKS):
            weight = weights_at(logits, row, column, top, temperature, WIDTH)
            rank = rank_of(weight)
            heavy += tl.where(rank > cut, weight, 0.0).to(tl.int64)
            tied += (rank == cut).to(tl.int32)
            column += BLOCK
        at = row * NUM_PARTS + part
        tl.store(sums + at, tl.sum(heavy, axis=0), cache_modifier=".cg")
        tl.store(ties + at, tl.sum(tied, axis=0), cache_modifier=".cg")
        if is_last(counters + row, NUM_PARTS):
            share = uniform(tl.load(seeds + seq), tl.load(positions + row) + 1)
            part, passed, before, num_before = part_passing(
                sums + row * NUM_PARTS, ties + row * NUM_PARTS, cut, num_ties, share, NUM_PARTS
            )
            token = part * (NUM_BLOCKS * BLOCK)
            column = token + tl.arange(0, BLOCK)
            for _ in range(NUM_BLOCKS):
                weight = weights_at(logits, row, column, top, temperature, WIDTH)
                rank = rank_of(weight)
                is_tied = (rank == cut).to(tl.int32)
                is_kept = (is_tied > 0) & (num_before + tl.cumsum(is_tied, axis=0) <= num_ties)
                kept = tl.where(is_kept | (rank > cut), weight, 0.0).to(tl.int64)
                token += tl.sum((before + tl.cumsum(kept, axis=0) <= passed).to(tl.int32), axis=0)
                before += tl.sum(kept, axis=0)
                num_before += tl.sum(is_tied, axis=0)
                column += BLOCK
            if passed >= 0:
                tl.store(out + seq * out_width + row % num_queries, token)
            each = row * _FIRST_BINS + tl.arange(0, _FIRST_BINS)
            tl.store(counts + each, 0)
            tl.store(masses + each, 0)


@triton.jit
def part_passing(sums, ties, cut, num_ties, share, NUM_PARTS: tl.constexpr):
    """Part in which the running sum of kept weights exceeds its share of the whole. Returns the
    part; the sum to exceed, below 0 where nothing is kept; the kept weight and the tied tokens
    before that part."""
    parts = tl.arange(0, NUM_PARTS)
    tied = tl.load(ties + parts, cache_modifier=".cg").to(tl.int64)
    upto = tl.cumsum(tied, axis=0)
    num_kept = tl.minimum(tl.maximum(num_ties - (upto - tied), 0), tied)
    kept = tl.load(sums + parts, cache_modifier=".cg") + num_kept * weight_of(cut).to(tl.int64)
    mass = tl.sum(kept, axis=0)
    passed = tl.minimum((share * mass.to(tl.float64)).to(tl.int64), mass - 1)
    part = tl.sum((tl.cumsum(kept, axis=0) <= passed).to(tl.int32), axis=0)
    num_before = tl.sum(tl.where(parts < part, tied, 0), axis=0)
    return part, passed, tl.sum(tl.where(parts < part, kept, 0), axis=0), num_before


@triton.jit
def top_of(biggest, row, NUM_PARTS: tl.constexpr):
    """The row's largest logit, from the parts of `likeliest_kernel`."""
    found = tl.load(biggest + row * NUM_PARTS + tl.arange(0, NUM_PARTS))
    return tl.max(found, axis=0)


@triton.jit
def weights_at(logits, row, column, top, temperature, WIDTH: tl.constexpr):
    """Weights as float32 whole numbers; 0 for NaN."""
    at = row.to(tl.int64) * WIDTH + column
    value = tl.load(logits + at, mask=column < WIDTH, other=float("-inf"))
    behind = (value - top) / temperature
    return tl.where(behind <= 0, tl.floor(tl.exp(behind) * _UNITS), 0.0)


@triton.jit
def rank_of(weight):
    """Rank of a weight, int32; negative for weight 0."""
    return weight.to(tl.int32, bitcast=True) - _ONE


@triton.jit
def weight_of(rank):
    return (rank + _ONE).to(tl.float32, bitcast=True)


@triton.jit
def lowest_rank(min_p):
    return tl.maximum(rank_of(tl.ceil(min_p * _UNITS)), 0)


@triton.jit
def part_of(mass, top_p):
    """Least mass that top_p asks for."""
    part = top_p.to(tl.float64) * mass.to(tl.float64)
    whole = part.to(tl.int64)
    return tl.maximum(whole + (whole.to(tl.float64) < part).to(tl.int64), 1)


@triton.jit
def uniform(seed, position):
    """`llm_engine.backends.sampler.uniform`, with the same constants."""
    state = seed.to(tl.uint64) * 0x9E3779B97F4A7C15 + position.to(tl.uint64) * 0xD1B54A32D192ED03
    state += 1
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    state = state ^ (state >> 31)
    return (state >> 11).to(tl.float64) * (2.0**-53)
