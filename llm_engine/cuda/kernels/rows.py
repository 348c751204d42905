"""Rows of prompts, made ready for libraries' products."""

import triton
import triton.language as tl

from llm_engine.cuda.kernels.common import wait_for_inputs


@triton.jit
def ready_kernel(
    x, norm, out, scales, EPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A row normalized, where there is a norm, and in 8-bit floats with a scale, where there are
    scales: a row's largest value becomes the type's largest."""
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    kept = column < WIDTH
    values = tl.load(x + row * WIDTH + column, mask=kept, other=0.0).to(tl.float32)
    if norm is not None:
        root = tl.rsqrt(tl.sum(values * values, axis=0) / WIDTH + EPS)
        values *= root * tl.load(norm + column, mask=kept, other=0.0)
    if scales is not None:
        largest = tl.max(tl.abs(values), axis=0)
        scale = tl.where(largest > 0, largest / 448.0, 1.0)
        tl.store(scales + row, scale)
        values /= scale
    tl.store(out + row * WIDTH + column, values.to(out.dtype.element_ty), mask=kept)


@triton.jit
def lengths_kernel(
    positions, out, NUM_LANES: tl.constexpr, NUM_QUERIES: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Keys that each lane has when all its rows are there, counted from its first row."""
    wait_for_inputs(PDL)
    lane = tl.arange(0, BLOCK)
    kept = lane < NUM_LANES
    first = tl.load(positions + lane * NUM_QUERIES, mask=kept, other=0)
    tl.store(out + lane, tl.maximum(first, 0) + NUM_QUERIES, mask=kept)
