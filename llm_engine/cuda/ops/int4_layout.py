"""Packs 4-bit matrices into the layout of the GPU's kernels, and unpacks them.

Codes stay what they are, bit for bit: `unpack(pack(matrix))` is the matrix.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_engine.checkpoints.int4 import ZERO, Int4Matrix
from llm_engine.cuda.memory import int4_unit_bytes

from .interface import Int4Weight


def pack(matrix: Int4Matrix, bias: Tensor | None = None) -> Int4Weight:
    """Pack a matrix on its device. Columns are filled up to whole units, with a scale of 0."""
    num_out, num_in = matrix.codes.shape
    unit = int4_unit_bytes(matrix.group)
    codes = F.pad(matrix.codes, (0, -num_in % (2 * unit)), value=ZERO).view(num_out, -1, 2, unit)
    packed = (codes[:, :, 0] | codes[:, :, 1] << 4).flatten(1)
    num_groups = 2 * packed.shape[1] // matrix.group
    filling = 0, num_groups - matrix.scales.shape[1]
    scales = F.pad(matrix.scales, filling).T.contiguous()
    halves = scales.half()
    if torch.equal(halves.float(), scales):
        scales = halves
    offsets = None
    if bool((matrix.zeros != ZERO).any()):
        zeros = F.pad(matrix.zeros, filling, value=ZERO)
        offsets = (zeros.T.to(torch.int16) - ZERO).half().contiguous()
    return Int4Weight(packed, scales, offsets, matrix.group, num_in, bias)


def unpack(weight: Int4Weight) -> Int4Matrix:
    """The matrix that was packed."""
    unit, num_out = int4_unit_bytes(weight.group), weight.num_out
    packed = weight.codes.view(num_out, -1, 1, unit)
    codes = torch.cat((packed & 0xF, packed >> 4), dim=2).flatten(1)[:, : weight.num_in]
    num_groups = -(-weight.num_in // weight.group)
    scales = weight.scales[:num_groups].T.float().contiguous()
    if weight.offsets is None:
        zeros = torch.full(scales.shape, ZERO, dtype=torch.uint8, device=codes.device)
    else:
        zeros = (weight.offsets[:num_groups].T.float() + ZERO).to(torch.uint8).contiguous()
    return Int4Matrix(codes.contiguous(), scales, zeros, weight.group)
