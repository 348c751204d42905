"""Packs 4-bit codes for MatMulNBits: two in a byte, the first in the lower half, and zero points
alike. `models/int4_rounding.py` makes codes of floats."""

from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional as F

from llm_engine.checkpoints.int4 import ZERO, Int4Matrix
from llm_engine.checkpoints.packed_cache import Array


def packed_arrays(name: str, matrix: Int4Matrix) -> Iterator[tuple[str, Array]]:
    """Arrays of a matrix as the graph wants them: nibbles `[out, blocks, group / 2]`, zero points
    `[out, ceil(blocks / 2)]`, scales `[out, blocks]`."""
    num_outputs, num_inputs = matrix.codes.shape
    codes = F.pad(matrix.codes, (0, -num_inputs % matrix.group), value=ZERO)
    yield f"{name}.nibbles", _in_pairs(codes).view(num_outputs, -1, matrix.group // 2).numpy()
    zeros = F.pad(matrix.zeros, (0, matrix.zeros.shape[1] % 2), value=ZERO)
    yield f"{name}.zeros", _in_pairs(zeros).numpy()
    yield f"{name}.scales", matrix.scales.numpy()


def _in_pairs(codes: Tensor) -> Tensor:
    return codes[:, ::2] | codes[:, 1::2] << 4
