"""Attention over pages, for a few rows as for prompts.

A program has up to `TILE` rows of queries: those heads that share a key-value head, of one lane's
rows. It goes over every `NUM_SPLITS`th chunk of keys, beginning with the chunk of its own number.
So which keys are summed where depends on their positions only, and a row's sums are the same bits
whatever other rows are beside it: chunks that it does not see multiply by one and add zero.

The last of the programs that share rows puts the parts together, always in the same order
("flash decoding", Dao et al. 2023, in one kernel).
"""

import triton
import triton.language as tl

from llm_engine.cuda.kernels.common import is_last, operand, wait_for_inputs

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_chunk(
    query, keys, values, table, chunk, kv_head, first, last, position, biggest, sums, mixed,
    SCALE: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    """One step of the softmax that is known only in the end: the largest score, the sum of the
    exponentials and the weighted sum of values, each so far."""
    column = tl.arange(0, BLOCK_D)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    # Nothing else is read: what was never written may be NaN, which times zero is NaN.
    written = (at >= first) & (at <= last)
    page = tl.load(table + at // PAGE_SIZE, mask=written, other=0).to(tl.int64)
    where = ((page * KV_HEADS + kv_head) * PAGE_SIZE + at % PAGE_SIZE) * DIM
    wide = column < DIM
    key = tl.load(
        keys + where[None, :] + column[:, None], mask=wide[:, None] & written[None, :], other=0.0
    )
    value = tl.load(
        values + where[:, None] + column[None, :], mask=written[:, None] & wide[None, :], other=0.0
    )
    scores = tl.dot(query, operand(key, TYPE, EMULATED), input_precision="ieee")
    behind = position[:, None] - at[None, :]
    visible = behind >= 0
    if WINDOW > 0:
        visible = visible & (behind < WINDOW)
    scores = tl.where(visible, scores * (SCALE * LOG2_E), float("-inf"))
    new_biggest = tl.maximum(biggest, tl.max(scores, axis=1))
    # A row that has seen nothing yet: any number but infinity, whose difference is NaN.
    base = tl.where(new_biggest == float("-inf"), 0.0, new_biggest)
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(biggest - base)
    sums = sums * kept + tl.sum(weights, axis=1)
    mixed = tl.dot(
        operand(weights, TYPE, EMULATED), operand(value, TYPE, EMULATED), mixed * kept[:, None],
        input_precision="ieee",
    )  # fmt: skip
    return new_biggest, sums, mixed


@triton.jit
def put_together(
    mixtures, maxima, totals, where, inside, column, wide,
    NUM_SPLITS: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The parts' sums and mixtures of rows `where`, as if there had been one part."""
    biggest = tl.full((TILE,), float("-inf"), tl.float32)
    for part in range(0, NUM_SPLITS):
        at = maxima + where * NUM_SPLITS + part
        part_max = tl.load(at, mask=inside, other=float("-inf"), cache_modifier=".cg")
        biggest = tl.maximum(biggest, part_max)
    base = tl.where(biggest == float("-inf"), 0.0, biggest)
    sums = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, BLOCK_D), tl.float32)
    for part in range(0, NUM_SPLITS):
        at = where * NUM_SPLITS + part
        part_max = tl.load(maxima + at, mask=inside, other=float("-inf"), cache_modifier=".cg")
        has_any = part_max > float("-inf")  # else nothing was written
        weight = tl.exp2(part_max - base)
        sums += weight * tl.load(totals + at, mask=has_any, other=0.0, cache_modifier=".cg")
        spot = at.to(tl.int64)[:, None] * BLOCK_D + column[None, :]
        mask = has_any[:, None] & wide[None, :]
        mixed += weight[:, None] * tl.load(
            mixtures + spot, mask=mask, other=0.0, cache_modifier=".cg"
        )
    return sums, mixed


@triton.jit(do_not_specialize=["num_queries", "table_width"])
def attend_kernel(
    queries, keys, values, positions, tables, out, mixtures, maxima, totals, counters,
    num_queries, table_width, SCALE: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, NUM_SPLITS: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: tiles of rows of all lanes, key-value heads, splits."""
    wait_for_inputs(PDL)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    tiles_of_lane = tl.cdiv(num_queries * GROUP, TILE)
    lane, kv_head, split = tl.program_id(0) // tiles_of_lane, tl.program_id(1), tl.program_id(2)
    member = tl.program_id(0) % tiles_of_lane * TILE + tl.arange(0, TILE)
    query_row = member // GROUP
    inside = query_row < num_queries
    row = lane * num_queries + query_row
    where = row * HEADS + kv_head * GROUP + member % GROUP
    column = tl.arange(0, BLOCK_D)
    wide = column < DIM
    kept = inside[:, None] & wide[None, :]
    spot = where.to(tl.int64)[:, None] * DIM + column[None, :]

    position = tl.load(positions + row, mask=inside, other=-1)
    last = tl.max(position, axis=0)
    first = 0
    if WINDOW > 0:
        lowest = tl.min(tl.where(position >= 0, position, 2147483647), axis=0)
        first = tl.maximum(lowest - WINDOW + 1, 0)
    query = operand(tl.load(queries + spot, mask=kept, other=0.0), TYPE, EMULATED)

    biggest = tl.full((TILE,), float("-inf"), tl.float32)
    sums = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, BLOCK_D), tl.float32)
    begin = first // CHUNK
    begin += (split + NUM_SPLITS - begin % NUM_SPLITS) % NUM_SPLITS
    for chunk in range(begin, (last + CHUNK) // CHUNK, NUM_SPLITS):
        biggest, sums, mixed = attend_chunk(
            query, keys, values, tables + lane * table_width, chunk, kv_head, first, last,
            position, biggest, sums, mixed,
            SCALE, KV_HEADS, DIM, BLOCK_D, PAGE_SIZE, WINDOW, CHUNK, TYPE, EMULATED,
        )  # fmt: skip

    if NUM_SPLITS > 1:
        at = where * NUM_SPLITS + split
        has_any = inside & (biggest > float("-inf"))
        tl.store(maxima + at, biggest, mask=inside, cache_modifier=".cg")
        tl.store(totals + at, sums, mask=has_any, cache_modifier=".cg")
        part = mixtures + at.to(tl.int64)[:, None] * BLOCK_D + column[None, :]
        tl.store(part, mixed, mask=has_any[:, None] & wide[None, :], cache_modifier=".cg")
        counter = counters + tl.program_id(0) * KV_HEADS + kv_head
        if is_last(counter, NUM_SPLITS):
            sums, mixed = put_together(
                mixtures, maxima, totals, where, inside, column, wide, NUM_SPLITS, BLOCK_D, TILE
            )
            write(out, spot, sums, mixed, kept)
    else:
        write(out, spot, sums, mixed, kept)


@triton.jit
def write(out, spot, sums, mixed, kept):
    """Zeros for a row that saw nothing."""
    result = mixed / tl.where(sums > 0, sums, 1.0)[:, None]
    tl.store(out + spot, result.to(out.dtype.element_ty), mask=kept)
