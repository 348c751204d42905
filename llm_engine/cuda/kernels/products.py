"""Products of a few rows with a large weight, and what follows on them.

A program has `BLOCK_N` rows of the weight, which are the rows of its tile for the matrix units;
the activations' rows are the tile's columns, filled up to `ROWS`. So a row's result is the outcome
of the same instructions for each number of rows and for each place among them.

The weight is read once and in order; 8-bit values become what the matrix units take in registers.
A norm needs no pass of its own: the sum of squares is gathered beside the product, and the root
multiplies in the end, as the scales of rows do.

*Pairs.* Where two outputs belong together (gate and up, the halves of a head), half of a tile's
rows are the first ones, the other half their partners: `pair_rows`.
"""

import triton
import triton.language as tl

from llm_engine.cuda.kernels.common import fetch_ahead, is_last, operand, wait_for_inputs


@triton.jit
def accumulate(
    x, weight, scales, norm, at, begin, num_rows,
    IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`[BLOCK_N, ROWS]`, float32: rows `at` of the weight times `x * norm`, over `SPAN` columns
    from `begin`; and `[ROWS]`, the sums of the squares of x.

    Scales that change along a row are applied, scales of whole rows are not.
    """
    columns = tl.arange(0, BLOCK_K)
    row = tl.arange(0, ROWS)
    lines = weight + at.to(tl.int64)[:, None] * IN
    if PDL:
        LINE: tl.constexpr = 128 // (weight.dtype.element_ty.primitive_bitwidth // 8)
        ahead = begin + tl.arange(0, AHEAD) * LINE
        fetch_ahead(lines + tl.minimum(ahead, IN - 1)[None, :])
    wait_for_inputs(PDL)

    total = tl.zeros((BLOCK_N, ROWS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for step in range(0, SPAN // BLOCK_K):
        k = begin + step * BLOCK_K + columns
        inside = k < IN
        if IN % SPAN == 0:
            values = tl.load(lines + k[None, :], eviction_policy="evict_first")
        else:
            values = tl.load(
                lines + k[None, :], mask=inside[None, :], other=0.0, eviction_policy="evict_first"
            )
        wanted = (row < num_rows)[None, :] & inside[:, None]
        part = tl.load(x + row[None, :] * IN + k[:, None], mask=wanted, other=0.0).to(tl.float32)
        if norm is not None:
            squares += tl.sum(part * part, axis=0)
            part *= tl.load(norm + k, mask=inside, other=0.0)[:, None]
        left = operand(values, TYPE, EMULATED)
        right = operand(part, TYPE, EMULATED)
        if SCALE_COLUMNS < IN:
            across = (IN + SCALE_COLUMNS - 1) // SCALE_COLUMNS
            block = tl.minimum((begin + step * BLOCK_K) // SCALE_COLUMNS, across - 1)
            scale = tl.load(scales + (at // SCALE_ROWS) * across + block)
            total += tl.dot(left, right, input_precision="ieee") * scale[:, None]
        else:
            total = tl.dot(left, right, total, input_precision="ieee")
    return total, squares


@triton.jit
def finished(
    total, squares, scales, norm, bias, at, EPS: tl.constexpr, IN: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """A product with its scales of rows, its norm and its bias."""
    if scales is not None and SCALE_COLUMNS >= IN:
        total *= tl.load(scales + at // SCALE_ROWS)[:, None]
    if norm is not None:
        total *= tl.rsqrt(squares / IN + EPS)[None, :]
    if bias is not None:
        total += tl.load(bias + at)[:, None]
    return total


@triton.jit
def pair_rows(first, DISTANCE: tl.constexpr, BLOCK_N: tl.constexpr):
    """`[BLOCK_N]`: rows of the weight, given `[BLOCK_N / 2]` first ones."""
    offset = tl.arange(0, 2) * DISTANCE
    return tl.reshape(offset[:, None] + first[None, :], (BLOCK_N,))


@triton.jit
def pairs(total, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    """The firsts and the partners of `[BLOCK_N, ROWS]`, `[BLOCK_N / 2, ROWS]` each."""
    halves = tl.reshape(total, (2, BLOCK_N // 2, ROWS))
    return tl.split(tl.permute(halves, (1, 2, 0)))


@triton.jit(do_not_specialize=["num_rows"])
def plain_kernel(
    x, weight, scales, norm, bias, out, num_rows,
    EPS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out [M, OUT]` = product."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.minimum(n, OUT - 1)
    total, squares = accumulate(
        x, weight, scales, norm, at, 0, num_rows, IN, SPAN, ROWS, BLOCK_N, BLOCK_K,
        SCALE_ROWS, SCALE_COLUMNS, TYPE, EMULATED, AHEAD, PDL,
    )  # fmt: skip
    total = finished(total, squares, scales, norm, bias, at, EPS, IN, SCALE_ROWS, SCALE_COLUMNS)
    row = tl.arange(0, ROWS)
    kept = (n < OUT)[:, None] & (row < num_rows)[None, :]
    where = row.to(tl.int64)[None, :] * OUT + n[:, None]
    tl.store(out + where, total.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["num_rows"])
def gate_up_kernel(
    x, weight, scales, norm, bias, out, num_rows,
    EPS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out [M, OUT]` = silu(gate) * up, `OUT` being half of the weight's rows."""
    n = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    at = pair_rows(tl.minimum(n, OUT - 1), OUT, BLOCK_N)
    total, squares = accumulate(
        x, weight, scales, norm, at, 0, num_rows, IN, SPAN, ROWS, BLOCK_N, BLOCK_K,
        SCALE_ROWS, SCALE_COLUMNS, TYPE, EMULATED, AHEAD, PDL,
    )  # fmt: skip
    total = finished(total, squares, scales, norm, bias, at, EPS, IN, SCALE_ROWS, SCALE_COLUMNS)
    gate, up = pairs(total, BLOCK_N, ROWS)
    row = tl.arange(0, ROWS)
    kept = (n < OUT)[:, None] & (row < num_rows)[None, :]
    result = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row[None, :] * OUT + n[:, None], result.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["num_rows"])
def residual_kernel(
    x, weight, scales, bias, residual, partials, counters, num_rows,
    OUT: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, NUM_SPLITS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`residual [M, OUT]` += product. The columns of the weight are divided among `NUM_SPLITS`
    programs; the last one to be done adds their sums, always in the same order."""
    tile, split = tl.program_id(0), tl.program_id(1)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.minimum(n, OUT - 1)
    total, squares = accumulate(
        x, weight, scales, None, at, split * SPAN, num_rows, IN, SPAN, ROWS, BLOCK_N, BLOCK_K,
        SCALE_ROWS, SCALE_COLUMNS, TYPE, EMULATED, AHEAD, PDL,
    )  # fmt: skip
    if NUM_SPLITS > 1:
        row = tl.arange(0, ROWS)
        SIZE: tl.constexpr = BLOCK_N * ROWS
        inner = tl.arange(0, BLOCK_N)[:, None] * ROWS + row[None, :]
        sums = partials + tile * (NUM_SPLITS * SIZE) + inner
        tl.store(sums + split * SIZE, total, cache_modifier=".cg")
        if is_last(counters + tile, NUM_SPLITS):
            total = tl.zeros((BLOCK_N, ROWS), tl.float32)
            for part in range(0, NUM_SPLITS):
                total += tl.load(sums + part * SIZE, cache_modifier=".cg")
            _add(
                total, squares, scales, bias, residual, at, n, num_rows,
                OUT, IN, ROWS, SCALE_ROWS, SCALE_COLUMNS,
            )  # fmt: skip
    else:
        _add(
            total, squares, scales, bias, residual, at, n, num_rows,
            OUT, IN, ROWS, SCALE_ROWS, SCALE_COLUMNS,
        )  # fmt: skip


@triton.jit
def _add(
    total, squares, scales, bias, residual, at, n, num_rows,
    OUT: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
):  # fmt: skip
    total = finished(total, squares, scales, None, bias, at, 0.0, IN, SCALE_ROWS, SCALE_COLUMNS)
    row = tl.arange(0, ROWS)
    kept = (n < OUT)[:, None] & (row < num_rows)[None, :]
    where = residual + row[None, :] * OUT + n[:, None]
    old = tl.load(where, mask=kept, other=0.0).to(tl.float32)
    tl.store(where, (old + total).to(residual.dtype.element_ty), mask=kept)
