"""Prologue kernels of prefill: normalization, 8-bit rounding, and numbers of keys."""

import triton
import triton.language as tl

from .common import wait_for_inputs


@triton.jit(do_not_specialize=["num_rows"])
def ready_kernel(
    x, norm, out, scales, num_rows, EPS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Normalize a row, where there is a norm, and round it to 8-bit floats, where there are `scales
    [WIDTH / GROUP, M]`: `GROUP` columns share one, and their largest becomes the type's largest.
    `out [M, PADDED]` has zeros behind the row."""
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, BLOCK // GROUP)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    kept = column < WIDTH
    values = tl.load(x + row * WIDTH + column, mask=kept, other=0.0).to(tl.float32)
    if norm is not None:
        squares = tl.sum(tl.sum(values * values, axis=1), axis=0)
        values *= tl.rsqrt(squares / WIDTH + EPS) * tl.load(norm + column, mask=kept, other=0.0)
    if scales is not None:
        largest = tl.max(tl.abs(values), axis=1)
        # Zeros, or nearly: dividing by less would leave the range of float32.
        scale = tl.maximum(largest / 448.0, 1e-12)
        tl.store(scales + group * num_rows + row, scale, mask=group * GROUP < WIDTH)
        values /= scale[:, None]
    tl.store(out + row * PADDED + column, values.to(out.dtype.element_ty), mask=column < PADDED)


@triton.jit
def lengths_kernel(
    positions, out, NUM_SEQS: tl.constexpr, NUM_QUERIES: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Number of keys of each sequence with all its rows, computed from its first row."""
    wait_for_inputs(PDL)
    seq = tl.arange(0, BLOCK)
    kept = seq < NUM_SEQS
    first = tl.load(positions + seq * NUM_QUERIES, mask=kept, other=0)
    tl.store(out + seq, tl.maximum(first, 0) + NUM_QUERIES, mask=kept)
