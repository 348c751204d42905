"""4-bit weights in product kernels: their layout in a row, and the loops over its columns.

A byte has two codes that are half a *unit* of columns apart: of a unit's `UNIT` bytes, the lower
halves are its first `UNIT` columns, in order, and the upper halves the `UNIT` behind. A block of
bytes thus becomes two blocks of numbers, each of consecutive columns, in the registers where the
bytes are: nothing moves between threads. A unit has the columns of a group, but at least 64: of two
groups of 32, one is in the lower halves, the other in the upper ones (`ops/int4_layout.py`).

Numbers are (code - zero point), which 16-bit floats hold exactly; sums are float32. A group's scale
multiplies its sum: no weight is rounded again.
"""

import triton
import triton.language as tl

from .common import let_next_begin, operand, wait_for_inputs

CENTER = tl.constexpr(8.0)
"""Zero point where there are no offsets."""


@triton.jit
def numbers(codes, low_offset, high_offset, TYPE: tl.constexpr, EMULATED: tl.constexpr):
    """Numbers of a block of bytes, of type `TYPE`: of their lower halves, and of their upper ones.
    Offsets are what zero points have more than 8, of shapes that broadcast to the block's; None: 0.

    Bfloat16 ones are made two at a time: a code in the low bits of 128 is 128 more, and one
    multiplication and addition takes the rest off.
    """
    if TYPE == tl.bfloat16 and not EMULATED:
        if low_offset is None:
            return tl.inline_asm_elementwise(
                """
                {
                    .reg .b32 low, high, one, less;
                    mov.b32 one, 0x3f803f80;
                    mov.b32 less, 0xc308c308;
                    and.b32 low, $4, 0x0f0f0f0f;
                    shr.b32 high, $4, 4;
                    and.b32 high, high, 0x0f0f0f0f;
                    prmt.b32 $0, low, 0x43434343, 0x4140;
                    prmt.b32 $1, low, 0x43434343, 0x4342;
                    prmt.b32 $2, high, 0x43434343, 0x4140;
                    prmt.b32 $3, high, 0x43434343, 0x4342;
                    fma.rn.bf16x2 $0, $0, one, less;
                    fma.rn.bf16x2 $1, $1, one, less;
                    fma.rn.bf16x2 $2, $2, one, less;
                    fma.rn.bf16x2 $3, $3, one, less;
                }
                """,
                "=r,=r,=r,=r,r",
                [codes],
                dtype=(tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=4,
            )
        else:
            low_less = (-128.0 - CENTER - low_offset).to(tl.bfloat16)
            high_less = (-128.0 - CENTER - high_offset).to(tl.bfloat16)
            return tl.inline_asm_elementwise(
                """
                {
                    .reg .b32 low, high, one, a, b, c, d;
                    mov.b32 one, 0x3f803f80;
                    and.b32 low, $4, 0x0f0f0f0f;
                    shr.b32 high, $4, 4;
                    and.b32 high, high, 0x0f0f0f0f;
                    prmt.b32 a, low, 0x43434343, 0x4140;
                    prmt.b32 b, low, 0x43434343, 0x4342;
                    prmt.b32 c, high, 0x43434343, 0x4140;
                    prmt.b32 d, high, 0x43434343, 0x4342;
                    fma.rn.bf16x2 a, a, one, $5;
                    fma.rn.bf16x2 b, b, one, $6;
                    fma.rn.bf16x2 c, c, one, $7;
                    fma.rn.bf16x2 d, d, one, $8;
                    mov.b32 $0, a;
                    mov.b32 $1, b;
                    mov.b32 $2, c;
                    mov.b32 $3, d;
                }
                """,
                "=r,=r,=r,=r,r,r,r,r,r",
                [codes, low_less, high_less],
                dtype=(tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=4,
            )
    else:
        low = (codes & 15).to(tl.float32) - CENTER
        high = (codes >> 4).to(tl.float32) - CENTER
        if low_offset is not None:
            low -= low_offset
            high -= high_offset
        return operand(low, TYPE, EMULATED), operand(high, TYPE, EMULATED)


@triton.jit
def accumulate_int4(
    x, codes, scales, offsets, norm, at, begin, num_rows,
    LINES: tl.constexpr, IN: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr,
    TYPE: tl.constexpr, EMULATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Accumulate `[BLOCK_N, ROWS]`, float32: rows `at` of the weight, which has `LINES`, times `x *
    norm`, over `SPAN` columns from `begin`; and `[ROWS]`, the sums of the squares of x. As
    `gemm.accumulate`, with a unit in each of several pieces. Scales are applied."""
    UNIT: tl.constexpr = BLOCK_K // PIECES // 2
    WIDTH: tl.constexpr = (IN + 2 * UNIT - 1) // (2 * UNIT) * UNIT
    byte = tl.arange(0, PIECES)[:, None] * UNIT + tl.arange(0, UNIT)[None, :]
    row = tl.arange(0, ROWS)
    start = at.to(tl.int64) * WIDTH
    wait_for_inputs(PDL, IS_SHORT=False)

    lines = codes + start[None, :, None]
    total = tl.zeros((PIECES, BLOCK_N, ROWS), tl.float32)
    squares = tl.zeros((PIECES, ROWS), tl.float32)
    for step in range(0, SPAN // BLOCK_K):
        first = begin + step * BLOCK_K
        where = first // 2 + byte
        if IN % SPAN == 0:
            packed = tl.load(lines + where[:, None, :], eviction_policy="evict_first")
        else:
            packed = tl.load(
                lines + where[:, None, :], mask=(where < WIDTH)[:, None, :], other=0,
                eviction_policy="evict_first",
            )  # fmt: skip
        column = first + tl.arange(0, PIECES) * (2 * UNIT)
        low = entries(column, at, LINES, WIDTH, GROUP)
        low_scale = tl.load(scales + low).to(tl.float32)
        high, high_scale = low, low_scale
        if GROUP == UNIT:
            high = entries(column + UNIT, at, LINES, WIDTH, GROUP)
            high_scale = tl.load(scales + high).to(tl.float32)
        if offsets is None:
            both = numbers(packed, None, None, TYPE, EMULATED)
        else:
            low_offset = tl.load(offsets + low).to(tl.float32)
            high_offset = low_offset
            if GROUP == UNIT:
                high_offset = tl.load(offsets + high).to(tl.float32)
            both = numbers(packed, low_offset[:, :, None], high_offset[:, :, None], TYPE, EMULATED)
        product = tl.zeros((PIECES, BLOCK_N, ROWS), tl.float32)
        for half in tl.static_range(2):
            k = column[:, None] + half * UNIT + tl.arange(0, UNIT)[None, :]
            inside = k < IN
            wanted = (row < num_rows)[None, None, :] & inside[:, :, None]
            part = tl.load(x + row[None, None, :] * IN + k[:, :, None], mask=wanted, other=0.0)
            if norm is not None:
                part = part.to(tl.float32)
                squares += tl.sum(part * part, axis=1)
                part *= tl.load(norm + k, mask=inside, other=0.0)[:, :, None]
            right = operand(part, TYPE, EMULATED)
            product = tl.dot(both[half], right, product, input_precision="ieee")
            if half == 0 and GROUP == UNIT:
                total += product * low_scale[:, :, None]
                product = tl.zeros((PIECES, BLOCK_N, ROWS), tl.float32)
        total += product * high_scale[:, :, None]
    let_next_begin(PDL)
    return tl.sum(total, axis=0), tl.sum(squares, axis=0)


@triton.jit
def entries(column, at, LINES: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """Places `[PIECES, BLOCK_N]` among scales and offsets, of the groups at columns `[PIECES]` and
    of rows `at [BLOCK_N]`. Behind the last group that one is taken again."""
    group = tl.minimum(column // GROUP, 2 * WIDTH // GROUP - 1)
    return group[:, None] * LINES + at[None, :]
