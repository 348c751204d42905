"""Fused product kernels: a few rows times a large weight, with norm, scales, bias and SwiGLU.

A program has `BLOCK_N` rows of the weight, which are the rows of its tile for the matrix units;
the activations' rows are the tile's columns, padded to `ROWS`. So a row's result comes from the
same instructions for any number of rows and any index among them.

The weight is read once and in order; 8-bit values are converted in registers. A norm needs no pass
of its own: the sum of squares is accumulated beside the product, and its root multiplies at the
end, as the scales of rows do.

*Pieces.* Each of a program's `PIECES` warps multiplies a piece of the columns, in a dot product
that has the pieces for its first axis, and sums of its own, which are added at the end. If
the warps divided the weight's rows instead, each would need all activations and convert them again:
more than half of the instructions for 8-bit weights. The sums of 32 rows and more would take too
many registers; there the warps share one (`ops/gemm_tiles.py`).

*Pairs.* Where two outputs belong together (gate and up, the halves of a head), half of a tile's
rows are the first outputs, the other half their partners: `pair_rows`.

*4 bits* have a layout of their own, and so a loop: `int4.py`.
"""

import triton
import triton.language as tl

from .common import (
    existing,
    is_last,
    let_next_begin,
    operand,
    wait_for_inputs,
)
from .int4 import accumulate_int4

NORM_RANGE = tl.constexpr(8.0)
"""Divisor of activations before they become float16, where they are normalized only at the end: a
few channels of some models' residual reach 10,000 before the norm's weight multiplies them, and
float16 ends at 65,504. A power of two: only numbers below 0.0005 are rounded by it."""


@triton.jit
def accumulate(
    x, weight, scales, offsets, norm, at, begin, num_rows,
    LINES: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Accumulate the product of rows `at` of a weight: `_accumulate_floats`, or `accumulate_int4`
    where it has 4 bits, in groups of `GROUP` columns; 0: it has not."""
    if GROUP > 0:
        return accumulate_int4(
            x, weight, scales, offsets, norm, at, begin, num_rows, LINES, IN, SPAN, ROWS, BLOCK_N,
            BLOCK_K, PIECES, GROUP, TYPE, EMULATED, PDL,
        )  # fmt: skip
    else:
        return _accumulate_floats(
            x, weight, scales, norm, at, begin, num_rows, IN, SPAN, ROWS, BLOCK_N, BLOCK_K, PIECES,
            SCALE_ROWS, SCALE_COLUMNS, TYPE, EMULATED, PDL,
        )  # fmt: skip


@triton.jit
def _accumulate_floats(
    x, weight, scales, norm, at, begin, num_rows,
    IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Accumulate `[BLOCK_N, ROWS]`, float32: rows `at` of the weight times `x * norm`, over `SPAN`
    columns from `begin`; and `[ROWS]`, the sums of the squares of x.

    Scales that change along a row are applied, one for each piece; scales of whole rows are not.
    """
    PIECE: tl.constexpr = BLOCK_K // PIECES
    columns = tl.arange(0, PIECES)[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    row = tl.arange(0, ROWS)
    start = at.to(tl.int64) * IN
    wait_for_inputs(PDL, IS_SHORT=False)

    lines = weight + start[None, :, None]
    total = zeros(PIECES, BLOCK_N, ROWS)
    # Added up at the end: a sum across threads takes as long as a product.
    squares = tl.zeros((PIECES, PIECE if PIECES > 1 else 1, ROWS), tl.float32)
    for step in range(0, SPAN // BLOCK_K):
        k = begin + step * BLOCK_K + columns
        inside = k < IN
        values = weight_block(lines + k[:, None, :], inside[:, None, :], IS_WHOLE=IN % SPAN == 0)
        wanted = (row < num_rows)[None, None, :] & inside[:, :, None]
        part = tl.load(x + row[None, None, :] * IN + k[:, :, None], mask=wanted, other=0.0)
        part = part.to(tl.float32)
        if norm is not None:
            if PIECES > 1:
                squares += part * part
            else:
                squares += tl.sum(part * part, axis=1, keep_dims=True)
            part *= norm_weights(norm, k, inside, TYPE)[:, :, None]
        left = operand(values, TYPE, EMULATED)
        right = operand(part, TYPE, EMULATED)
        if SCALE_COLUMNS < IN:
            ACROSS: tl.constexpr = (IN + SCALE_COLUMNS - 1) // SCALE_COLUMNS
            first = begin + step * BLOCK_K + tl.arange(0, PIECES) * PIECE
            block = tl.minimum(first // SCALE_COLUMNS, ACROSS - 1)
            scale = tl.load(scales + (at // SCALE_ROWS)[None, :] * ACROSS + block[:, None])
            product = multiply(left, right, zeros(PIECES, BLOCK_N, ROWS), PIECES)
            total += product * tl.expand_dims(tl.reshape(scale, product.shape[:-1]), -1)
        else:
            total = multiply(left, right, total, PIECES)
    let_next_begin(PDL)
    if PIECES > 1:
        total = tl.sum(total, axis=0)
    if norm is not None and TYPE == tl.float16:
        total *= NORM_RANGE
    return total, tl.sum(tl.sum(squares, axis=1), axis=0)


@triton.jit
def weight_block(pointers, inside, IS_WHOLE: tl.constexpr):
    """Load a block of the weight; it is read only once, so it is evicted first."""
    if IS_WHOLE:
        return tl.load(pointers, eviction_policy="evict_first")
    else:
        return tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def norm_weights(norm, k, inside, TYPE: tl.constexpr):
    """Norm weights at columns `k`, for activations that become `TYPE`."""
    weights = tl.load(norm + k, mask=inside, other=0.0)
    if TYPE == tl.float16:
        weights /= NORM_RANGE
    return weights


@triton.jit
def zeros(PIECES: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    """Zero sums: `[PIECES, BLOCK_N, ROWS]`, for one piece `[BLOCK_N, ROWS]`."""
    if PIECES > 1:
        return tl.zeros((PIECES, BLOCK_N, ROWS), tl.float32)
    else:
        return tl.zeros((BLOCK_N, ROWS), tl.float32)


@triton.jit
def multiply(left, right, total, PIECES: tl.constexpr):
    """`total + left [PIECES, BLOCK_N, k] @ right [PIECES, k, ROWS]`."""
    if PIECES == 1:
        left = tl.reshape(left, left.shape[1:])
        right = tl.reshape(right, right.shape[1:])
    return tl.dot(left, right, total, input_precision="ieee")


@triton.jit
def finished(
    total, squares, scales, norm, bias, at, EPS: tl.constexpr, IN: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Apply scales of rows, norm and bias to a product."""
    if scales is not None and SCALE_COLUMNS >= IN:
        total *= tl.load(scales + at // SCALE_ROWS)[:, None]
    if norm is not None:
        total *= tl.rsqrt(squares / IN + EPS)[None, :]
    if bias is not None:
        total += tl.load(bias + at)[:, None]
    return total


@triton.jit
def pair_rows(BLOCK_N: tl.constexpr):
    """Pairs of a tile's rows, `[BLOCK_N]` each: index of the pair, and 1 in its second half, which
    has the partners."""
    row = tl.arange(0, BLOCK_N)
    return row % (BLOCK_N // 2), row // (BLOCK_N // 2)


@triton.jit
def pairs(total, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    """Split `[BLOCK_N, ROWS]` into first outputs and partners, `[BLOCK_N / 2, ROWS]` each."""
    halves = tl.reshape(total, (2, BLOCK_N // 2, ROWS))
    return tl.split(tl.permute(halves, (1, 2, 0)))


@triton.jit(do_not_specialize=["num_rows"])
def plain_kernel(
    x, weight, scales, offsets, norm, bias, out, num_rows,
    EPS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out [M, OUT]` = product."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = existing(n, OUT, BLOCK_N)
    total, squares = accumulate(
        x, weight, scales, offsets, norm, at, 0, num_rows, OUT, IN, SPAN, ROWS, BLOCK_N, BLOCK_K,
        PIECES, SCALE_ROWS, SCALE_COLUMNS, GROUP, TYPE, EMULATED, PDL,
    )  # fmt: skip
    total = finished(total, squares, scales, norm, bias, at, EPS, IN, SCALE_ROWS, SCALE_COLUMNS)
    row = tl.arange(0, ROWS)
    kept = (n < OUT)[:, None] & (row < num_rows)[None, :]
    where = row.to(tl.int64)[None, :] * OUT + n[:, None]
    tl.store(out + where, total.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["num_rows"])
def gate_up_kernel(
    x, weight, scales, offsets, norm, bias, out, num_rows,
    EPS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out [M, OUT]` = silu(gate) * up, `OUT` being half of the weight's rows."""
    n = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    first, is_partner = pair_rows(BLOCK_N)
    at = existing(tl.program_id(0) * (BLOCK_N // 2) + first, OUT, BLOCK_N // 2) + is_partner * OUT
    total, squares = accumulate(
        x, weight, scales, offsets, norm, at, 0, num_rows, 2 * OUT, IN, SPAN, ROWS, BLOCK_N,
        BLOCK_K, PIECES, SCALE_ROWS, SCALE_COLUMNS, GROUP, TYPE, EMULATED, PDL,
    )  # fmt: skip
    total = finished(total, squares, scales, norm, bias, at, EPS, IN, SCALE_ROWS, SCALE_COLUMNS)
    gate, up = pairs(total, BLOCK_N, ROWS)
    row = tl.arange(0, ROWS)
    kept = (n < OUT)[:, None] & (row < num_rows)[None, :]
    result = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row[None, :] * OUT + n[:, None], result.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["num_rows"])
def divided_kernel(
    x, weight, scales, offsets, bias, out, partials, counters, num_rows,
    OUT: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, NUM_SPLITS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, PDL: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """`out [M, OUT]` += product, or = product unless it `ADDS`. The columns of the weight are
    divided among `NUM_SPLITS` programs; the last one to finish adds their sums, always in the same
    order (split-K)."""
    tile, split = tl.program_id(0), tl.program_id(1)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    at = existing(n, OUT, BLOCK_N)
    total, squares = accumulate(
        x, weight, scales, offsets, None, at, split * SPAN, num_rows, OUT, IN, SPAN, ROWS, BLOCK_N,
        BLOCK_K, PIECES, SCALE_ROWS, SCALE_COLUMNS, GROUP, TYPE, EMULATED, PDL,
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
            _write(
                total, squares, scales, bias, out, at, n, num_rows,
                OUT, IN, ROWS, SCALE_ROWS, SCALE_COLUMNS, ADDS,
            )  # fmt: skip
    else:
        _write(
            total, squares, scales, bias, out, at, n, num_rows,
            OUT, IN, ROWS, SCALE_ROWS, SCALE_COLUMNS, ADDS,
        )  # fmt: skip


@triton.jit
def _write(
    total, squares, scales, bias, out, at, n, num_rows,
    OUT: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    total = finished(total, squares, scales, None, bias, at, 0.0, IN, SCALE_ROWS, SCALE_COLUMNS)
    row = tl.arange(0, ROWS)
    kept = (n < OUT)[:, None] & (row < num_rows)[None, :]
    where = out + row[None, :] * OUT + n[:, None]
    if ADDS:
        total += tl.load(where, mask=kept, other=0.0).to(tl.float32)
    tl.store(where, total.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["num_numbers"])
def add_parts_kernel(
    parts, residual, num_numbers, COUNT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """`residual` += each of `parts [COUNT, num_numbers]`, in their order. No dependent launch: the
    kernel before it is a library's all-gather, maybe on streams of its own."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = at < num_numbers
    total = tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
    for part in tl.static_range(COUNT):
        total += tl.load(parts + part * num_numbers + at, mask=kept, other=0.0)
    tl.store(residual + at, total.to(residual.dtype.element_ty), mask=kept)
