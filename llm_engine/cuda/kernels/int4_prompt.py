"""Prefill product kernel with 4-bit weights, made 16-bit ones in registers.

The weights' rows are the rows of a tile for the matrix units, as in a step's kernels: Hopper's take
that side from registers, where the numbers are made, and activations from shared memory, as they
come. A group's scale multiplies its sum, as there: a prompt's rows are as exact as a step's.
"""

import triton
import triton.language as tl

from .common import existing, fetch_ahead, operand, wait_for_inputs
from .int4 import numbers


@triton.jit
def _scale_of(scales, group, at, LINES: tl.constexpr):
    return tl.load(scales + group * LINES + at).to(tl.float32)


@triton.jit
def _with_unit(
    total, low_right, high_right, codes, scales, offsets, at, step,
    LINES: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr,
):  # fmt: skip
    """Add to `total [BLOCK_N, BLOCK_M]` the product of rows `at` of the weight with a unit's
    activations, `[UNIT, BLOCK_M]` for either half of it."""
    low = step * 2 * UNIT // GROUP
    high = (step * 2 * UNIT + UNIT) // GROUP
    low_scale = _scale_of(scales, low, at, LINES)
    high_scale = low_scale
    if GROUP == UNIT:
        high_scale = _scale_of(scales, high, at, LINES)
    lines = codes + at.to(tl.int64) * WIDTH
    packed = tl.load(lines[:, None] + (step * UNIT + tl.arange(0, UNIT))[None, :])
    if offsets is None:
        low_left, high_left = numbers(packed, None, None, TYPE, EMULATED)
    else:
        low_offset = _scale_of(offsets, low, at, LINES)
        high_offset = low_offset
        if GROUP == UNIT:
            high_offset = _scale_of(offsets, high, at, LINES)
        low_left, high_left = numbers(
            packed, low_offset[:, None], high_offset[:, None], TYPE, EMULATED
        )
    product = tl.dot(low_left, low_right, input_precision="ieee")
    if GROUP == UNIT:
        total += product * low_scale[:, None]
        product = tl.dot(high_left, high_right, input_precision="ieee")
    else:
        product = tl.dot(high_left, high_right, product, input_precision="ieee")
    return tl.fma(product, tl.broadcast_to(high_scale[:, None], product.shape), total)


@triton.jit(do_not_specialize=["num_rows"])
def int4_prompt_kernel(
    x, codes, scales, offsets, bias, residual, out, num_rows,
    OUT: tl.constexpr, IN: tl.constexpr, PAIRED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out [M, OUT]` = product of `x [M, IN]`, or `residual` + product, where that may be `out`
    itself; `PAIRED`: silu(gate) * up, `OUT` being half of the weight's rows. For rows beyond the
    last, on either side, that one is taken again: loads need no mask for them."""
    UNIT: tl.constexpr = BLOCK_K // 2
    WIDTH: tl.constexpr = (IN + 2 * UNIT - 1) // (2 * UNIT) * UNIT
    LINES: tl.constexpr = 2 * OUT if PAIRED else OUT
    # Programs that begin together share rows of the weight, which come from memory once.
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = existing(n, OUT, BLOCK_N)
    if PDL:
        ahead = tl.minimum(tl.arange(0, AHEAD) * 128, WIDTH - 1)
        fetch_ahead((codes + at.to(tl.int64) * WIDTH)[:, None] + ahead[None, :])
        if PAIRED:
            fetch_ahead((codes + (at + OUT).to(tl.int64) * WIDTH)[:, None] + ahead[None, :])
    wait_for_inputs(PDL)

    there = tl.minimum(row, num_rows - 1).to(tl.int64)
    x_lines = x + there[None, :] * IN
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    partner = total
    for step in range(0, WIDTH // UNIT):
        k = step * 2 * UNIT + tl.arange(0, UNIT)
        if IN % (2 * UNIT) == 0:
            low_right = tl.load(x_lines + k[:, None])
            high_right = tl.load(x_lines + UNIT + k[:, None])
        else:
            low_right = tl.load(x_lines + k[:, None], mask=(k < IN)[:, None], other=0.0)
            high_right = tl.load(
                x_lines + UNIT + k[:, None], mask=(k + UNIT < IN)[:, None], other=0.0
            )
        low_right = operand(low_right, TYPE, EMULATED)
        high_right = operand(high_right, TYPE, EMULATED)
        total = _with_unit(
            total, low_right, high_right, codes, scales, offsets, at, step,
            LINES, WIDTH, UNIT, GROUP, TYPE, EMULATED,
        )  # fmt: skip
        if PAIRED:
            partner = _with_unit(
                partner, low_right, high_right, codes, scales, offsets, at + OUT, step,
                LINES, WIDTH, UNIT, GROUP, TYPE, EMULATED,
            )  # fmt: skip
    if bias is not None:
        total += tl.load(bias + at)[:, None]
    if PAIRED:
        if bias is not None:
            partner += tl.load(bias + at + OUT)[:, None]
        total = total / (1 + tl.exp(-total)) * partner

    kept = (n < OUT)[:, None] & (row < num_rows)[None, :]
    where = row.to(tl.int64)[None, :] * OUT + n[:, None]
    if residual is not None:
        total += tl.load(residual + where, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + where, total.to(out.dtype.element_ty), mask=kept)
