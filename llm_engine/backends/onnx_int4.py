"""4-bit blocks for MatMulNBits: packing of stored codes, and the grid that weights are rounded to.

A block has one scale and one whole zero point. MatMulNBits wants two codes a byte, the first in the
lower half, and as many zero points.

Of the scales that shrink a block's range, the one with the least squared error wins, each input
weighted by its mean square (see `models/compensated_rounding.py`).
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_engine.checkpoints.int4 import LARGEST, ZERO, Int4Matrix
from llm_engine.checkpoints.packed_cache import Array
from llm_engine.models.compensated_rounding import Compensation

_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Shares of a block's range that are tried."""
_PIECE = 4096
"""Rows whose scales are searched at a time."""


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


def rounded(weight: Tensor, compensation: Compensation, group: int) -> Int4Matrix:
    """Round a floating `[out, in]` to 4 bits with error compensation."""
    num_outputs, num_inputs = weight.shape
    num_groups = -(-num_inputs // group)
    scales, zeros = torch.empty(2, num_outputs, num_groups)
    for first in range(0, num_outputs, _PIECE):
        rows = slice(first, first + _PIECE)
        scales[rows], zeros[rows] = _grid(weight[rows].float(), compensation.diagonal, group)
    # One column of groups after another is read.
    own_scales, own_zeros = scales.T.contiguous(), zeros.T.contiguous()

    def nearest(values: Tensor, column: int, rows: slice) -> tuple[Tensor, Tensor]:
        scale, zero = own_scales[column // group, rows], own_zeros[column // group, rows]
        codes = (values / scale).round_().add_(zero).clamp_(0, LARGEST)
        return codes, (codes - zero) * scale

    codes = compensation.round(weight, torch.uint8, nearest)
    return Int4Matrix(codes.contiguous(), scales, zeros.to(torch.uint8), group)


def _grid(weight: Tensor, importance: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Scales and zero points `[out, groups]` of a float `[out, in]`."""
    padding = 0, -weight.shape[1] % group
    blocks = F.pad(weight, padding).view(len(weight), -1, group)
    importance = F.pad(importance, padding).view(-1, group)
    high, low = blocks.amax(2).clamp_(min=0), blocks.amin(2).clamp_(max=0)
    best = torch.full(high.shape, torch.inf)
    scales, zeros = torch.ones_like(high), torch.zeros_like(high)
    for share in _SHRINKS:
        scale = ((high - low) * (share / LARGEST)).clamp_(min=1e-12)
        zero = (-low * share / scale).round_().clamp_(0, LARGEST)
        codes = (blocks / scale[..., None]).round_().add_(zero[..., None]).clamp_(0, LARGEST)
        numbers = codes.sub_(zero[..., None]).mul_(scale[..., None])
        error = numbers.sub_(blocks).square_().mul_(importance).sum(2)
        is_better = error < best
        best = torch.where(is_better, error, best)
        scales, zeros = torch.where(is_better, scale, scales), torch.where(is_better, zero, zeros)
    return scales, zeros
