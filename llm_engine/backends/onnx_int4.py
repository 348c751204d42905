"""4-bit blocks for MatMulNBits: rounding floats to them, and packing their codes.

Two codes are in a byte, the first in the lower half, and zero points alike. A matrix that a
checkpoint stores in 4 bits comes as an `Int4Matrix` or an `AffineInt4`; any other is rounded to the
nearest here, without torch, or by calibration (`models/int4_rounding.py`).

The offset of an `AffineInt4`'s block is any number, that of MatMulNBits a whole multiple of the
scale. What is left of the offset after the nearest multiple is the same for all inputs of a block,
so it multiplies their sum: a matrix with such rests has more inputs, the sums of its blocks
(`onnx_graph`), and the rests as their weights. These are rounded to 4 bits in turn: by no more than
a 30th of a code's step, where leaving them out would double the error of the file's own rounding.
They are a 32nd of the weights.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llm_engine.checkpoints.int4 import (
    INT4_BLOCK,
    LARGEST,
    SHRINKS,
    ZERO,
    AffineInt4,
    Int4Matrix,
)
from llm_engine.checkpoints.packed_cache import Array

CPU_GROUPS: Final = {"down": 32, "head": 32}
"""Inputs that share a scale, of each matrix that is rounded to 4 bits; others have 8. Half of a
half-billion model's weights, chosen by what their rounding costs: perplexity in that of float32,
Qwen2.5-Coder 0.5B, standard errors 0.003 on dialogue scripts and 0.01 on a licence that it knows by
heart: 1.016 and 1.058. In blocks of 128, calibrated, 1.017 and 1.23; gate and up in blocks of 32,
calibrated, 1.025 and 1.17."""

_PIECE: Final = 1 << 18
"""Numbers rounded at a time: they stay in the processor's cache while the shares are tried."""


def packed_arrays(name: str, matrix: Int4Matrix) -> Iterator[tuple[str, Array]]:
    """Arrays of a stored or calibrated matrix as the graph wants them."""
    codes, scales, zeros = (each.numpy() for each in (matrix.codes, matrix.scales, matrix.zeros))
    yield from _packed(name, codes, scales, zeros, matrix.group)


def affine_arrays(name: str, matrix: AffineInt4) -> Iterator[tuple[str, Array]]:
    """Arrays of a matrix in GGUF's blocks, with weights for the sums of its blocks where its
    offsets need them."""
    steps = np.where(matrix.scales == 0, 1, matrix.scales)
    zeros = np.clip(np.rint(-matrix.offsets / steps), 0, LARGEST)
    rests = matrix.offsets + zeros * matrix.scales
    parts = [(matrix.codes, matrix.scales, zeros.astype(np.uint8))]
    if rests.any():
        parts.append(nearest(rests, INT4_BLOCK))
    codes, scales, zeros = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    yield from _packed(name, codes, scales, zeros, INT4_BLOCK)


def rounded_arrays(name: str, weight: Array, group: int) -> Iterator[tuple[str, Array]]:
    """Round a floating `[out, in]` to the nearest codes of its blocks, and pack them."""
    yield from _packed(name, *nearest(weight, group), group)


def nearest(
    weight: Array, group: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """Codes `[out, in]`, scales and zero points `[out, blocks]` of a floating `[out, in]`; a weight
    is `(code - zero point) * scale`."""
    num_outputs, num_inputs = weight.shape
    num_blocks = -(-num_inputs // group)
    codes = np.empty((num_outputs, num_inputs), np.uint8)
    scales = np.empty((num_outputs, num_blocks), np.float32)
    zeros = np.empty((num_outputs, num_blocks), np.uint8)
    step = max(1, _PIECE // num_inputs)
    padded = np.zeros((step, num_blocks * group), np.float32)
    for first in range(0, num_outputs, step):
        rows = slice(first, first + step)
        size = len(codes[rows])
        padded[:size, :num_inputs] = weight[rows]
        blocks = padded[:size].reshape(size, num_blocks, group)
        scale, zero = _grid(blocks)
        found = _codes(blocks, scale, zero).reshape(size, -1)
        codes[rows], scales[rows], zeros[rows] = found[:, :num_inputs], scale, zero
    return codes, scales, zeros


def _grid(blocks: Array) -> tuple[Array, Array]:
    """Scale and zero point of each of `[rows, blocks, group]`, both `[rows, blocks]` float32."""
    high = np.maximum(blocks.max(axis=2), 0)
    low = np.minimum(blocks.min(axis=2), 0)
    best = np.full(high.shape, np.inf, np.float32)
    scales, zeros = np.ones_like(high), np.zeros_like(high)
    for share in SHRINKS:
        scale = np.maximum((high - low) * np.float32(share / LARGEST), np.float32(1e-12))
        zero = np.clip(np.rint(low * np.float32(-share) / scale), 0, LARGEST)
        numbers = _codes(blocks, scale, zero)
        numbers -= zero[..., None]
        numbers *= scale[..., None]
        numbers -= blocks
        error = np.einsum("rbg,rbg->rb", numbers, numbers)
        is_better = error < best
        for values, found in ((best, error), (scales, scale), (zeros, zero)):
            np.copyto(values, found, where=is_better)
    return scales, zeros


def _codes(blocks: Array, scale: Array, zero: Array) -> Array:
    codes = blocks / scale[..., None]
    np.rint(codes, out=codes)
    codes += zero[..., None]
    clipped: Array = np.clip(codes, 0, LARGEST, out=codes)
    return clipped


def _packed(
    name: str, codes: Array, scales: Array, zeros: Array, group: int
) -> Iterator[tuple[str, Array]]:
    """Yield nibbles `[out, blocks, group / 2]`, zero points `[out, ceil(blocks / 2)]` and scales
    `[out, blocks]`."""
    num_outputs, num_inputs = codes.shape
    nibbles = _in_pairs(codes, -num_inputs % group)
    yield f"{name}.nibbles", nibbles.reshape(num_outputs, -1, group // 2)
    yield f"{name}.zeros", _in_pairs(zeros, zeros.shape[1] % 2)
    yield f"{name}.scales", scales


def _in_pairs(codes: Array, num_padded: int) -> Array:
    if num_padded:
        codes = np.pad(codes, ((0, 0), (0, num_padded)), constant_values=ZERO)
    pairs: Array = codes[:, 1::2] << 4
    pairs |= codes[:, ::2]
    return pairs
