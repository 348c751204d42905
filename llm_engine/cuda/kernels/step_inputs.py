"""Kernels around a forward pass: embedding, greedy choice, and the next step's inputs.

As torch operations these are some twenty launches of two microseconds each; as kernels they are
three.

The inputs lie in one array, at other offsets for other numbers of sequences: kernels are not
compiled again for each alignment.
"""

import triton
import triton.language as tl

from .common import is_last, wait_for_inputs


@triton.jit(
    do_not_specialize=["num_queries", "tokens_width"],
    do_not_specialize_on_alignment=["tokens", "first_positions", "num_rows"],
)
def embed_kernel(
    tokens, first_positions, num_rows, table, positions, hidden, num_queries, tokens_width,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Embed rows and compute their positions. Programs: rows, blocks of the embedding's columns."""
    wait_for_inputs(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    seq, place = row // num_queries, row % num_queries
    if block == 0:
        position = tl.load(first_positions + seq) + place
        tl.store(positions + row, tl.where(place < tl.load(num_rows + seq), position, -1))
    token = tl.load(tokens + seq * tokens_width + place).to(tl.int64)
    column = block * BLOCK + tl.arange(0, BLOCK)
    kept = column < WIDTH
    values = tl.load(table + token * WIDTH + column, mask=kept, other=0.0)
    tl.store(hidden + row.to(tl.int64) * WIDTH + column, values, mask=kept)


@triton.jit(do_not_specialize=["num_queries", "out_width"])
def likeliest_kernel(
    logits, out, biggest, places, counters, num_queries, out_width,
    WIDTH: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, NUM_PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Greedy choice. Programs: rows, parts of `NUM_BLOCKS` blocks of the vocabulary. The last of a
    row's programs compares their results. Of equal logits the first wins, as on the host."""
    wait_for_inputs(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    column = part * (NUM_BLOCKS * BLOCK) + tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    found = tl.minimum(column, WIDTH - 1)
    for _ in range(NUM_BLOCKS):
        value = tl.load(
            logits + row.to(tl.int64) * WIDTH + column, mask=column < WIDTH, other=float("-inf")
        )
        found = tl.where(value > best, column, found)
        best = tl.maximum(value, best)
        column += BLOCK
    most = tl.max(best, axis=0)
    at = row * NUM_PARTS + part
    tl.store(biggest + at, most, cache_modifier=".cg")
    tl.store(
        places + at, tl.min(tl.where(best == most, found, WIDTH - 1), axis=0), cache_modifier=".cg"
    )
    if is_last(counters + row, NUM_PARTS):
        each = row * NUM_PARTS + tl.arange(0, NUM_PARTS)
        bests = tl.load(biggest + each, cache_modifier=".cg")
        finds = tl.load(places + each, cache_modifier=".cg")
        token = tl.min(tl.where(bests == tl.max(bests, axis=0), finds, WIDTH - 1), axis=0)
        tl.store(out + (row // num_queries) * out_width + row % num_queries, token)


@triton.jit(
    do_not_specialize=["num_queries", "tokens_width", "chosen_width"],
    do_not_specialize_on_alignment=["tokens", "first_positions", "num_rows", "first_sampled"],
)
def advance_kernel(
    tokens, first_positions, num_rows, first_sampled, chosen, last,
    num_queries, tokens_width, chosen_width, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Verify drafts and make the next step's inputs. A program has one sequence, in one warp: all
    is read before anything is written."""
    wait_for_inputs(PDL)
    seq = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    is_draft = (place > 0) & (place < num_queries)
    row = tl.load(tokens + seq * tokens_width + place, mask=is_draft, other=-1)
    before = tl.load(chosen + seq * chosen_width + place - 1, mask=is_draft, other=-2)
    count = tl.load(num_rows + seq)
    is_right = (before == row) & (place < count)
    is_right |= place <= tl.load(first_sampled + seq)  # in a prompt, or certain
    first_wrong = tl.min(tl.where(is_draft & ~is_right, place, num_queries), axis=0)
    token = tl.load(chosen + seq * chosen_width + first_wrong - 1)
    position = tl.load(first_positions + seq) + first_wrong
    tl.debug_barrier()
    tl.store(tokens + seq * tokens_width, token)
    tl.store(first_positions + seq, position)
    tl.store(first_sampled + seq, 0)
    tl.store(num_rows + seq, tl.minimum(count, 1))  # 0 stays 0
    tl.store(last + seq, first_wrong - 1)
