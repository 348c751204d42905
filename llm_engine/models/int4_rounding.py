"""Rounds weights to 4 bits: which matrices, and the grid of numbers of each group.

A group has one scale and one whole zero point. Of the scales that shrink a group's range, the one
with the least squared error wins, each input weighted by its mean square (see
`compensated_rounding.py`).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_engine.checkpoints.int4 import LARGEST, SHRINKS, Int4Matrix

from .compensated_rounding import Compensation

GPU_GROUPS = {"down": 128, "head": 128}
"""Inputs that share a scale, of each matrix that a GPU rounds to 4 bits; others have 8. Half of a
half-billion model's weights. `backends.onnx_int4.CPU_GROUPS` says what their rounding costs, in
smaller groups, which kernels on a GPU read more slowly."""

_PIECE = 4096
"""Rows whose scales are searched at a time."""


def rounded(
    weight: Tensor,
    compensation: Compensation,
    group: int,
    scale_type: torch.dtype = torch.float32,
) -> Int4Matrix:
    """Round a floating `[out, in]` on its device to 4 bits with error compensation. `scale_type`
    holds the scales exactly."""
    scales, zeros = _grids(weight, compensation.diagonal, group, scale_type)
    # One column of groups after another is read.
    own_scales, own_zeros = scales.T.contiguous(), zeros.T.contiguous()

    def nearest(values: Tensor, column: int, rows: slice) -> tuple[Tensor, Tensor]:
        scale, zero = own_scales[column // group, rows], own_zeros[column // group, rows]
        codes = (values / scale).round_().add_(zero).clamp_(0, LARGEST)
        return codes, (codes - zero) * scale

    codes = compensation.round(weight, torch.uint8, nearest)
    return Int4Matrix(codes.contiguous(), scales, zeros.to(torch.uint8), group)


def nearest(weight: Tensor, group: int, scale_type: torch.dtype = torch.float32) -> Int4Matrix:
    """Round each number of a floating `[out, in]` on its device to the nearest of its group."""
    scales, zeros = _grids(weight, weight.new_ones(weight.shape[1]).float(), group, scale_type)
    codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    for first in range(0, len(weight), _PIECE):
        rows = slice(first, first + _PIECE)
        scale, zero = (
            each[rows].repeat_interleave(group, 1)[:, : weight.shape[1]] for each in (scales, zeros)
        )
        codes[rows] = (weight[rows].float() / scale).round_().add_(zero).clamp_(0, LARGEST)
    return Int4Matrix(codes, scales, zeros.to(torch.uint8), group)


def _grids(
    weight: Tensor, importance: Tensor, group: int, scale_type: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Scales and zero points `[out, groups]`, float32, some rows at a time."""
    num_groups = -(-weight.shape[1] // group)
    scales, zeros = torch.empty(2, len(weight), num_groups, device=weight.device)
    for first in range(0, len(weight), _PIECE):
        rows = slice(first, first + _PIECE)
        scales[rows], zeros[rows] = _grid(weight[rows].float(), importance, group, scale_type)
    return scales, zeros


def _grid(
    weight: Tensor, importance: Tensor, group: int, scale_type: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Scales and zero points `[out, groups]` of a float `[out, in]`."""
    padding = 0, -weight.shape[1] % group
    blocks = F.pad(weight, padding).view(len(weight), -1, group)
    importance = F.pad(importance, padding).view(-1, group)
    high, low = blocks.amax(2).clamp_(min=0), blocks.amin(2).clamp_(max=0)
    smallest = max(1e-12, torch.finfo(scale_type).tiny)
    best = torch.full_like(high, torch.inf)
    scales, zeros = torch.ones_like(high), torch.zeros_like(high)
    for share in SHRINKS:
        scale = ((high - low) * (share / LARGEST)).clamp_(min=smallest).to(scale_type).float()
        zero = (-low * share / scale).round_().clamp_(0, LARGEST)
        codes = (blocks / scale[..., None]).round_().add_(zero[..., None]).clamp_(0, LARGEST)
        numbers = codes.sub_(zero[..., None]).mul_(scale[..., None])
        error = numbers.sub_(blocks).square_().mul_(importance).sum(2)
        is_better = error < best
        best = torch.where(is_better, error, best)
        scales, zeros = torch.where(is_better, scale, scales), torch.where(is_better, zero, zeros)
    return scales, zeros
