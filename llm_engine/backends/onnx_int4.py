"""Packs 4-bit codes for MatMulNBits: two in a byte, the first in the lower half, and zero points
alike. `models/int4_rounding.py` makes codes of floats."""

from collections.abc import Iterator

import numpy as np

from llm_engine.checkpoints.int4 import ZERO, Int4Matrix
from llm_engine.checkpoints.packed_cache import Array


def packed_arrays(name: str, matrix: Int4Matrix) -> Iterator[tuple[str, Array]]:
    """Arrays of a matrix as the graph wants them: nibbles `[out, blocks, group / 2]`, zero points
    `[out, ceil(blocks / 2)]`, scales `[out, blocks]`."""
    num_outputs, num_inputs = matrix.codes.shape
    nibbles = _in_pairs(matrix.codes.numpy(), -num_inputs % matrix.group)
    yield f"{name}.nibbles", nibbles.reshape(num_outputs, -1, matrix.group // 2)
    zeros = matrix.zeros.numpy()
    yield f"{name}.zeros", _in_pairs(zeros, zeros.shape[1] % 2)
    yield f"{name}.scales", matrix.scales.numpy()


def _in_pairs(codes: Array, num_padded: int) -> Array:
    codes = np.pad(codes, ((0, 0), (0, num_padded)), constant_values=ZERO)
    pairs: Array = codes[:, ::2] | codes[:, 1::2] << 4
    return pairs
