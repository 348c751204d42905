"""Kernels that project or take QKV, rotate it (RoPE), and store keys and values in their pages.

`queries_kernel` is fused with the projection; `place_kernel` takes a finished projection: where
each head is normalized as a whole first (Qwen3), and for prompts.
"""

import triton
import triton.language as tl

from .common import existing, wait_for_inputs
from .gemm import accumulate, finished, pair_rows, pairs


@triton.jit
def rotated(first, second, cos, sin, position, index, is_rotated, HALF: tl.constexpr):
    """Rotate a head's halves by their rotary angles; unchanged where not `is_rotated`."""
    where = tl.maximum(position, 0) * HALF + index
    cosine = tl.load(cos + where, mask=is_rotated, other=1.0)
    sine = tl.load(sin + where, mask=is_rotated, other=0.0)
    return first * cosine - second * sine, second * cosine + first * sine


@triton.jit
def store_head(
    first, second, queries, keys, values, tables, row, seq, position, head, index, kept,
    table_width, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """Store the halves of a head: a query in its row, a key or value in its page."""
    DIM: tl.constexpr = 2 * HALF
    is_query = head < HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    query = queries + (row.to(tl.int64) * HEADS + head) * DIM + index
    TYPE: tl.constexpr = queries.dtype.element_ty
    tl.store(query, first.to(TYPE), mask=kept & is_query)
    tl.store(query + HALF, second.to(TYPE), mask=kept & is_query)

    has_position = position >= 0
    at = tl.maximum(position, 0)
    entry = tables + seq * table_width + at // PAGE_SIZE
    page = tl.load(entry, mask=has_position, other=0).to(tl.int64)
    kv_head = (head - HEADS) % KV_HEADS
    where = ((page * KV_HEADS + kv_head) * PAGE_SIZE + at % PAGE_SIZE) * DIM + index
    KV_TYPE: tl.constexpr = keys.dtype.element_ty
    # To 8 bits this saturates: E4M3 has no infinity.
    first, second = first.to(KV_TYPE), second.to(KV_TYPE)
    kept = kept & has_position
    tl.store(keys + where, first, mask=kept & is_key)
    tl.store(keys + where + HALF, second, mask=kept & is_key)
    is_value = head >= HEADS + KV_HEADS
    tl.store(values + where, first, mask=kept & is_value)
    tl.store(values + where + HALF, second, mask=kept & is_value)


@triton.jit(
    do_not_specialize=["num_rows", "num_queries", "table_width"],
    do_not_specialize_on_alignment=["tables"],
)
def queries_kernel(
    x, weight, scales, offsets, norm, bias, queries, keys, values, cos, sin, positions, tables,
    num_rows, num_queries, table_width,
    EPS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    PAGE_SIZE: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """QKV projection, rotation and cache write. A program has `BLOCK_N / 2` pairs, each of the same
    element of a head's two halves."""
    NUM_PAIRS: tl.constexpr = (HEADS + 2 * KV_HEADS) * HALF
    pair = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    exists = pair < NUM_PAIRS
    pair = tl.minimum(pair, NUM_PAIRS - 1)
    head, index = pair // HALF, pair % HALF
    first, is_partner = pair_rows(BLOCK_N)
    first = existing(tl.program_id(0) * (BLOCK_N // 2) + first, NUM_PAIRS, BLOCK_N // 2)
    at = first // HALF * (2 * HALF) + first % HALF + is_partner * HALF
    total, squares = accumulate(
        x, weight, scales, offsets, norm, at, 0, num_rows, 2 * NUM_PAIRS, IN, SPAN, ROWS, BLOCK_N,
        BLOCK_K, PIECES, SCALE_ROWS, SCALE_COLUMNS, GROUP, TYPE, EMULATED, PDL,
    )  # fmt: skip
    total = finished(total, squares, scales, norm, bias, at, EPS, IN, SCALE_ROWS, SCALE_COLUMNS)
    first, second = pairs(total, BLOCK_N, ROWS)

    row = tl.arange(0, ROWS)
    position = tl.load(positions + row, mask=row < num_rows, other=-1)[None, :]
    kept = exists[:, None] & (row < num_rows)[None, :]
    head, index = head[:, None], index[:, None]
    is_rotated = kept & (head < HEADS + KV_HEADS)
    first, second = rotated(first, second, cos, sin, position, index, is_rotated, HALF)
    store_head(
        first, second, queries, keys, values, tables, row[None, :], (row // num_queries)[None, :],
        position, head, index, kept, table_width, HEADS, KV_HEADS, HALF, PAGE_SIZE,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["num_queries", "table_width"], do_not_specialize_on_alignment=["tables"]
)
def place_kernel(
    projected, q_norm, k_norm, queries, keys, values, cos, sin, positions, tables,
    num_queries, table_width,
    EPS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK: tl.constexpr, PAGE_SIZE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotation and cache write of a projection. A program has one head of one row of `projected [M,
    all heads * head_dim]`."""
    wait_for_inputs(PDL)
    index = tl.arange(0, BLOCK)
    # Blocks of one repeated number: some interpreters reject masks made of scalars.
    row = tl.program_id(0) + tl.zeros((BLOCK,), tl.int32)
    head = tl.program_id(1) + tl.zeros((BLOCK,), tl.int32)
    kept = index < HALF
    DIM: tl.constexpr = 2 * HALF
    source = projected + (row.to(tl.int64) * (HEADS + 2 * KV_HEADS) + head) * DIM + index
    first = tl.load(source, mask=kept, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=kept, other=0.0).to(tl.float32)
    is_rotated = kept & (head < HEADS + KV_HEADS)
    if q_norm is not None:
        mean = (tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / DIM
        root = tl.where(head < HEADS + KV_HEADS, tl.rsqrt(mean + EPS), 1.0)
        norm = tl.where(head < HEADS, q_norm, k_norm) + index
        first *= root * tl.load(norm, mask=is_rotated, other=1.0)
        second *= root * tl.load(norm + HALF, mask=is_rotated, other=1.0)
    position = tl.load(positions + row)
    first, second = rotated(first, second, cos, sin, position, index, is_rotated, HALF)
    store_head(
        first, second, queries, keys, values, tables, row, row // num_queries,
        position, head, index, kept, table_width, HEADS, KV_HEADS, HALF, PAGE_SIZE,
    )  # fmt: skip
