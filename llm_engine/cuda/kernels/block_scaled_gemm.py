"""Prefill product kernel with 8-bit weights and activations, both scaled by blocks of columns.

Both are 8-bit floats, so that the matrix units take them directly, at twice the rate of 16 bits.
Each block of columns has a sum of its own; the rows' scales times the weights' are applied
where it joins the others, one multiplication and addition for each number. That keeps sums exact as
well: Hopper's matrix units add 8-bit products with about 14 bits, which does for 128 of them and
not for thousands (DeepSeek-V3, arXiv 2412.19437, section 3.3.2).
"""

import triton
import triton.language as tl

from .common import fetch_ahead, operand, wait_for_inputs


@triton.jit
def _with_block(
    total, left, left_scales, lines, scales, first, at, step,
    IN: tl.constexpr, COLUMNS: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr, ONE_SCALE: tl.constexpr,
    EMULATED: tl.constexpr,
):  # fmt: skip
    """Add to `total [BLOCK_M, BLOCK_N]` the product of `left [BLOCK_M, COLUMNS]`, whose rows have
    scales `left_scales`, with the weight's rows `at`, which begin with `first`."""
    if SCALE_COLUMNS < IN:  # loaded before the product, to hide their latency
        ACROSS: tl.constexpr = (IN + SCALE_COLUMNS - 1) // SCALE_COLUMNS
        block = step * COLUMNS // SCALE_COLUMNS
        if ONE_SCALE:
            left_scales *= tl.load(scales + first // SCALE_ROWS * ACROSS + block)
        else:
            right_scales = tl.load(scales + at // SCALE_ROWS * ACROSS + block)
    k = step * COLUMNS + tl.arange(0, COLUMNS)
    if IN % COLUMNS == 0:
        right = tl.load(lines[None, :] + k[:, None])
    else:
        right = tl.load(lines[None, :] + k[:, None], mask=(k < IN)[:, None], other=0.0)
    right = operand(right, lines.dtype.element_ty, EMULATED)
    product = tl.dot(left, right, input_precision="ieee")
    if SCALE_COLUMNS < IN and not ONE_SCALE:
        product *= right_scales[None, :]
    return tl.fma(product, left_scales[:, None], total)


@triton.jit
def _finished(
    total, scales, bias, at, IN: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Apply the scales of whole rows and the bias."""
    if SCALE_COLUMNS >= IN:
        total *= tl.load(scales + at // SCALE_ROWS)[None, :]
    if bias is not None:
        total += tl.load(bias + at)[None, :]
    return total


@triton.jit(do_not_specialize=["num_rows"])
def blocks_kernel(
    x, x_scales, weight, scales, bias, residual, out, num_rows,
    OUT: tl.constexpr, IN: tl.constexpr, PAIRED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COLUMNS: tl.constexpr,
    SCALE_ROWS: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
    EMULATED: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out [M, OUT]` = product, or `residual` + product, where that may be `out` itself; `PAIRED`:
    silu(gate) * up, `OUT` being half of the weight's rows.

    `x [M, blocks * COLUMNS]` has zeros behind its `IN` columns; `x_scales [blocks, M]`. For rows
    beyond the last, on either side, that one is taken again: loads need no mask for them.
    """
    # Programs that begin together share rows of the weight, which come from memory once.
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    first = tl.program_id(1) * BLOCK_N
    n = first + tl.arange(0, BLOCK_N)
    at = tl.minimum(n, OUT - 1)
    lines = weight + at.to(tl.int64) * IN
    partners = weight + (at + OUT).to(tl.int64) * IN
    ONE_SCALE: tl.constexpr = SCALE_ROWS % BLOCK_N == 0 and (not PAIRED or OUT % SCALE_ROWS == 0)
    if PDL:
        ahead = tl.minimum(tl.arange(0, AHEAD) * COLUMNS, IN - 1)
        fetch_ahead(lines[:, None] + ahead[None, :])
        if PAIRED:
            fetch_ahead(partners[:, None] + ahead[None, :])
    wait_for_inputs(PDL)

    BLOCKS: tl.constexpr = (IN + COLUMNS - 1) // COLUMNS
    there = tl.minimum(row, num_rows - 1)
    x_lines = x + there.to(tl.int64)[:, None] * (BLOCKS * COLUMNS) + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    partner = total
    for step in range(0, BLOCKS):
        left_scales = tl.load(x_scales + step * num_rows + there)
        left = operand(tl.load(x_lines + step * COLUMNS), x.dtype.element_ty, EMULATED)
        total = _with_block(
            total, left, left_scales, lines, scales, first, at, step,
            IN, COLUMNS, SCALE_ROWS, SCALE_COLUMNS, ONE_SCALE, EMULATED,
        )  # fmt: skip
        if PAIRED:
            partner = _with_block(
                partner, left, left_scales, partners, scales, first + OUT, at + OUT, step,
                IN, COLUMNS, SCALE_ROWS, SCALE_COLUMNS, ONE_SCALE, EMULATED,
            )  # fmt: skip
    total = _finished(total, scales, bias, at, IN, SCALE_ROWS, SCALE_COLUMNS)
    if PAIRED:
        partner = _finished(partner, scales, bias, at + OUT, IN, SCALE_ROWS, SCALE_COLUMNS)
        total = total / (1 + tl.exp(-total)) * partner

    kept = (row < num_rows)[:, None] & (n < OUT)[None, :]
    where = row.to(tl.int64)[:, None] * OUT + n[None, :]
    if residual is not None:
        total += tl.load(residual + where, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + where, total.to(out.dtype.element_ty), mask=kept)
