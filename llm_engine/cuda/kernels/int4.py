"""4-bit weights in product kernels: their layout in a row, and sums over its columns.

A byte has two codes that are half a *unit* of columns apart: of a unit's `UNIT` bytes, the lower
halves are its first `UNIT` columns, in order, and the upper halves the `UNIT` behind. A block of
bytes thus becomes two blocks of numbers, each of consecutive columns, in the registers where the
bytes are: nothing moves between threads. A unit never has more than 64 bytes, nor halves that are
larger than a group (`ops/interface.Int4Weight`).

Numbers are (code - 8), which 16-bit floats hold exactly; sums are float32. A group's scale
multiplies its sum, so that a weight is not rounded again. A zero point that is not 8 is taken off
there as well: it multiplies the sum of the group's activations.
"""

import triton
import triton.language as tl

from .common import fetch_ahead, let_next_begin, multiply, operand, wait_for_inputs, zeros

LARGEST_UNIT = tl.constexpr(64)
"""Bytes of a unit: what a warp loads of a row at once (`ops/gemm_tiles.py`)."""
CENTER = tl.constexpr(8)
"""Code of the number 0, where there are no zero points."""


@triton.jit
def unit_bytes(GROUP: tl.constexpr) -> tl.constexpr:
    """Bytes of a unit."""
    return GROUP if GROUP < LARGEST_UNIT else LARGEST_UNIT


@triton.jit
def numbers(codes, TYPE: tl.constexpr, EMULATED: tl.constexpr):
    """Numbers of a block of bytes: of their lower halves, and of their upper ones.

    Bfloat16 ones are made two at a time: a code in the low bits of 128 is 128 more, and one
    multiplication and addition takes 136 off.
    """
    if TYPE == tl.bfloat16 and not EMULATED:
        return tl.inline_asm_elementwise(
            """
            {
                .reg .b32 low, high;
                and.b32 low, $4, 0x0f0f0f0f;
                shr.b32 high, $4, 4;
                and.b32 high, high, 0x0f0f0f0f;
                prmt.b32 $0, low, 0x43434343, 0x4140;
                prmt.b32 $1, low, 0x43434343, 0x4342;
                prmt.b32 $2, high, 0x43434343, 0x4140;
                prmt.b32 $3, high, 0x43434343, 0x4342;
                fma.rn.bf16x2 $0, $0, 0x3f803f80, 0xc308c308;
                fma.rn.bf16x2 $1, $1, 0x3f803f80, 0xc308c308;
                fma.rn.bf16x2 $2, $2, 0x3f803f80, 0xc308c308;
                fma.rn.bf16x2 $3, $3, 0x3f803f80, 0xc308c308;
            }
            """,
            "=r,=r,=r,=r,r",
            [codes],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        low = (codes & 15).to(tl.float32) - CENTER
        high = (codes >> 4).to(tl.float32) - CENTER
        return operand(low, TYPE, EMULATED), operand(high, TYPE, EMULATED)


@triton.jit
def accumulate_int4(
    x, codes, scales, offsets, norm, at, begin, num_rows,
    LINES: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, AHEAD: tl.constexpr, NEXT_AT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Accumulate `[BLOCK_N, ROWS]`, float32: rows `at` of the weight, which has `LINES`, times `x *
    norm`, over `SPAN` columns from `begin`; and `[ROWS]`, the sums of the squares of x. Scales and
    zero points are applied (`offsets`: what these have more than 8; None: nothing). As `gemm.accumulate`, with a unit for each piece."""
    UNIT: tl.constexpr = unit_bytes(GROUP)
    WIDTH: tl.constexpr = (IN + 2 * UNIT - 1) // (2 * UNIT) * UNIT
    NUM_GROUPS: tl.constexpr = (2 * WIDTH) // GROUP
    byte = tl.arange(0, PIECES)[:, None] * UNIT + tl.arange(0, UNIT)[None, :]
    row = tl.arange(0, ROWS)
    start = at.to(tl.int64) * WIDTH
    if PDL:
        ahead = begin // 2 + tl.arange(0, AHEAD) * 128
        fetch_ahead(codes + start[:, None] + tl.minimum(ahead, WIDTH - 1)[None, :])
    wait_for_inputs(PDL, IS_SHORT=False)

    lines = codes + start[None, :, None]
    total = zeros(PIECES, BLOCK_N, ROWS)
    squares = tl.zeros((PIECES, ROWS), tl.float32)
    for step in range(0, SPAN // BLOCK_K):
        if step == SPAN // BLOCK_K * NEXT_AT // 4:
            let_next_begin(PDL)
        first = begin + step * BLOCK_K
        where = first // 2 + byte
        if IN % SPAN == 0:
            packed = tl.load(lines + where[:, None, :], eviction_policy="evict_first")
        else:
            packed = tl.load(
                lines + where[:, None, :], mask=(where < WIDTH)[:, None, :], other=0,
                eviction_policy="evict_first",
            )  # fmt: skip
        both = numbers(packed, TYPE, EMULATED)
        product = zeros(PIECES, BLOCK_N, ROWS)
        activations = tl.zeros((PIECES, ROWS), tl.float32)
        for half in tl.static_range(2):
            column = tl.arange(0, PIECES) * (2 * UNIT) + half * UNIT
            k = first + column[:, None] + tl.arange(0, UNIT)[None, :]
            inside = k < IN
            wanted = (row < num_rows)[None, None, :] & inside[:, :, None]
            part = tl.load(x + row[None, None, :] * IN + k[:, :, None], mask=wanted, other=0.0)
            if norm is not None:
                part = part.to(tl.float32)
                squares += tl.sum(part * part, axis=1)
                part *= tl.load(norm + k, mask=inside, other=0.0)[:, :, None]
            right = operand(part, TYPE, EMULATED)
            product = multiply(both[half], right, product, PIECES)
            if offsets is not None:
                activations += tl.sum(right.to(tl.float32), axis=1)
            if half == 1 or GROUP == UNIT:
                group = tl.minimum((first + column) // GROUP, NUM_GROUPS - 1)
                entry = group[:, None] * LINES + at[None, :]
                if offsets is not None:
                    offset = tl.load(offsets + entry).to(tl.float32)
                    product -= _outer(offset, activations, PIECES)
                scale = tl.load(scales + entry).to(tl.float32)
                total += product * tl.expand_dims(tl.reshape(scale, product.shape[:-1]), -1)
                product = zeros(PIECES, BLOCK_N, ROWS)
                activations = tl.zeros((PIECES, ROWS), tl.float32)
    if PIECES > 1:
        total = tl.sum(total, axis=0)
    return total, tl.sum(squares, axis=0)


@triton.jit
def _outer(offset, activations, PIECES: tl.constexpr):
    """Product of `[PIECES, BLOCK_N]` and `[PIECES, ROWS]` in each piece."""
    if PIECES > 1:
        return offset[:, :, None] * activations[:, None, :]
    else:
        flat, sums = (
            tl.reshape(offset, offset.shape[1:]),
            tl.reshape(activations, activations.shape[1:]),
        )
        return flat[:, None] * sums[None, :]
