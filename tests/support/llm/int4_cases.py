"""Random 4-bit weights for the GPU's operations."""

import math
from dataclasses import dataclass

import torch

from llm_engine.checkpoints.int4 import ZERO, Int4Matrix
from llm_engine.cuda.ops.interface import Matrix, Weight


@dataclass(frozen=True)
class Int4Kind:
    """A kind of 4-bit weights."""

    group: int
    has_zeros: bool

    def __str__(self) -> str:
        return f"groups of {self.group}" + (" with zeros" if self.has_zeros else "")


def not_int4(weight: Weight) -> Matrix:
    """The weight, which has more bits."""
    assert isinstance(weight, Matrix)
    return weight


INT4_KINDS = tuple(Int4Kind(group, zeros) for group in (32, 64, 128) for zeros in (True, False))


def int4_matrix(
    num_out: int, num_in: int, kind: Int4Kind, generator: torch.Generator
) -> Int4Matrix:
    """Codes of all values, with scales that differ much: to take a neighbour's would show."""
    grid = num_out, -(-num_in // kind.group)
    codes = torch.randint(0, 16, (num_out, num_in), generator=generator, dtype=torch.uint8)
    scales = torch.exp2(torch.randn(grid, generator=generator)) / (12 * math.sqrt(num_in))
    zeros = torch.randint(0, 16, grid, generator=generator, dtype=torch.uint8)
    if not kind.has_zeros:
        zeros.fill_(ZERO)
    return Int4Matrix(codes, scales.half().float(), zeros, kind.group)
