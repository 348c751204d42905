"""Paged attention kernel, for decode rows and for prompts.

A program has up to `TILE` rows of queries: the heads that share a key-value head, of one sequence's
rows. It processes every `NUM_SPLITS`th chunk of keys, beginning with the chunk of its own number.
So the order of summation depends on positions only, and a row's sums are the same bits in any
company: chunks that it does not see multiply by one and add zero.

The last of the programs that share rows combines the partial results, always in the same order
("flash decoding", Dao et al. 2023, in one kernel).
"""

import triton
import triton.language as tl

from .common import fetch_ahead, is_last, operand, wait_for_inputs

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def places(
    table, at, is_written, kv_head,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """Offsets of the keys and values of positions `at`."""
    page = tl.load(
        table + at // PAGE_SIZE, mask=is_written, other=0, cache_modifier=".cg"
    ).to(tl.int64)  # fmt: skip
    return ((page * KV_HEADS + kv_head) * PAGE_SIZE + at % PAGE_SIZE) * DIM


@triton.jit
def fetch_chunk(
    keys, values, table, chunk, kv_head, first, last,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Prefetch a chunk's keys and values. Positions outside the range are replaced by the first
    one, whose lines are prefetched anyway, or harmless."""
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    is_written = (at >= first) & (at <= last)
    where = places(table, at, is_written, kv_head, KV_HEADS, DIM, PAGE_SIZE)
    SIZE: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth // 8
    LINES: tl.constexpr = (BLOCK_D * SIZE + 127) // 128
    line = tl.minimum(tl.arange(0, LINES) * (128 // SIZE), DIM - 1)
    spot = tl.where(is_written, where, 0)[:, None] + line[None, :]
    fetch_ahead(keys + spot)
    fetch_ahead(values + spot)


@triton.jit
def attend_chunk(
    query, keys, values, table, chunk, kv_head, first, last, position, biggest, sums, mixed,
    SCALE: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax: the largest score, the sum of exponentials and the weighted
    sum of values, each so far."""
    column = tl.arange(0, BLOCK_D)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    # Only written positions are read: others may be NaN, which times zero is NaN.
    written = (at >= first) & (at <= last)
    where = places(table, at, written, kv_head, KV_HEADS, DIM, PAGE_SIZE)
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
def attend_chunks(
    query, keys, values, table, begin, end, kv_head, first, last, position,
    SCALE: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, NUM_SPLITS: tl.constexpr, TILE: tl.constexpr,
    CHUNK: tl.constexpr, TYPE: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    """Attend to every `NUM_SPLITS`th chunk from `begin`."""
    biggest = tl.full((TILE,), float("-inf"), tl.float32)
    sums = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, BLOCK_D), tl.float32)
    for chunk in range(begin, end, NUM_SPLITS):
        biggest, sums, mixed = attend_chunk(
            query, keys, values, table, chunk, kv_head, first, last, position, biggest, sums, mixed,
            SCALE, KV_HEADS, DIM, BLOCK_D, PAGE_SIZE, WINDOW, CHUNK, TYPE, EMULATED,
        )  # fmt: skip
    return biggest, sums, mixed


@triton.jit
def combine_parts(
    mixtures, maxima, totals, out, first_row, kv_head, num_members, begin,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    NUM_SPLITS: tl.constexpr, TILE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Combine the partial results of a tile's rows; some rows at a time, all their parts at once,
    so that each costs one trip to memory. A part that saw no key has written only its maximum; the
    rest of it, which may be NaN, is read and dropped."""
    column = tl.arange(0, BLOCK_D)
    part = tl.arange(0, NUM_SPLITS)
    end = tl.minimum(begin + TILE, num_members)  # what follows is another tile's, perhaps unwritten
    for start in range(begin, end, AT_ONCE):
        member = start + tl.arange(0, AT_ONCE)
        inside = member < end
        where = (first_row + member // GROUP) * HEADS + kv_head * GROUP + member % GROUP
        at = where[:, None] * NUM_SPLITS + part[None, :]
        biggest = tl.load(
            maxima + at, mask=inside[:, None], other=float("-inf"), cache_modifier=".cg"
        )
        total = tl.load(totals + at, mask=inside[:, None], other=0.0, cache_modifier=".cg")
        mixed = tl.load(
            mixtures + at.to(tl.int64)[:, :, None] * BLOCK_D + column[None, None, :],
            mask=inside[:, None, None] & (column < DIM)[None, None, :], other=0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        has_any = biggest > float("-inf")
        total = tl.where(has_any, total, 0.0)
        mixed = tl.where(has_any[:, :, None], mixed, 0.0)
        base = tl.max(biggest, axis=1)
        base = tl.where(base == float("-inf"), 0.0, base)
        weight = tl.exp2(biggest - base[:, None])
        write(
            out, where.to(tl.int64)[:, None] * DIM + column[None, :],
            tl.sum(weight * total, axis=1), tl.sum(weight[:, :, None] * mixed, axis=1),
            inside[:, None] & (column < DIM)[None, :],
        )  # fmt: skip


@triton.jit
def write(out, spot, sums, mixed, kept):
    """Normalize and store rows; zeros for a row that saw no key."""
    result = mixed / tl.where(sums > 0, sums, 1.0)[:, None]
    tl.store(out + spot, result.to(out.dtype.element_ty), mask=kept)


@triton.jit(
    do_not_specialize=["num_queries", "table_width"], do_not_specialize_on_alignment=["tables"]
)
def attend_kernel(
    queries, keys, values, positions, tables, out, mixtures, maxima, totals, counters,
    num_queries, table_width, SCALE: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, NUM_SPLITS: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, AT_ONCE: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attention. Programs: tiles of rows of all sequences, key-value heads, splits."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    num_members = num_queries * GROUP
    tiles_of_seq = tl.cdiv(num_members, TILE)
    seq, kv_head, split = tl.program_id(0) // tiles_of_seq, tl.program_id(1), tl.program_id(2)
    begin_member = tl.program_id(0) % tiles_of_seq * TILE
    member = begin_member + tl.arange(0, TILE)
    inside = member < num_members
    row = seq * num_queries + member // GROUP
    where = row * HEADS + kv_head * GROUP + member % GROUP
    column = tl.arange(0, BLOCK_D)
    kept = inside[:, None] & (column < DIM)[None, :]
    spot = where.to(tl.int64)[:, None] * DIM + column[None, :]

    # Positions and tables are older than the kernel before, which stores this step's keys: they can
    # be read already, and all other keys prefetched.
    position = tl.load(positions + row, mask=inside, other=-1, cache_modifier=".cg")
    last = tl.max(position, axis=0)
    first = 0
    if WINDOW > 0:
        lowest = tl.min(tl.where(position >= 0, position, 2147483647), axis=0)
        first = tl.maximum(lowest - WINDOW + 1, 0)
    begin = first // CHUNK
    begin += (split + NUM_SPLITS - begin % NUM_SPLITS) % NUM_SPLITS
    table = tables + seq * table_width
    if PDL:
        fetch_chunk(
            keys, values, table, begin, kv_head, first, last,
            KV_HEADS, DIM, BLOCK_D, PAGE_SIZE, CHUNK,
        )  # fmt: skip
    wait_for_inputs(PDL)
    query = operand(tl.load(queries + spot, mask=kept, other=0.0), TYPE, EMULATED)
    biggest, sums, mixed = attend_chunks(
        query, keys, values, table, begin, (last + CHUNK) // CHUNK, kv_head, first, last, position,
        SCALE, KV_HEADS, DIM, BLOCK_D, PAGE_SIZE, WINDOW, NUM_SPLITS, TILE, CHUNK, TYPE, EMULATED,
    )  # fmt: skip
    if NUM_SPLITS > 1:
        at = where * NUM_SPLITS + split
        has_any = inside & (biggest > float("-inf"))
        tl.store(maxima + at, biggest, mask=inside, cache_modifier=".cg")
        tl.store(totals + at, sums, mask=has_any, cache_modifier=".cg")
        part = mixtures + at.to(tl.int64)[:, None] * BLOCK_D + column[None, :]
        tl.store(part, mixed, mask=has_any[:, None] & kept, cache_modifier=".cg")
        if is_last(counters + tl.program_id(0) * KV_HEADS + kv_head, NUM_SPLITS):
            combine_parts(
                mixtures, maxima, totals, out, seq * num_queries, kv_head, num_members,
                begin_member, HEADS, GROUP, DIM, BLOCK_D, NUM_SPLITS, TILE, AT_ONCE,
            )  # fmt: skip
    else:
        write(out, spot, sums, mixed, kept)
