"""Triton kernels that do only the measured work; imported on a GPU and by tests."""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@dataclass(frozen=True, slots=True)
class Reading:
    """Parameters of the read kernel; the fastest set depends on the card."""

    block: int
    """Number of 32-bit values that a program loads at a time."""
    num_stages: int
    """Number of blocks loaded concurrently, through shared memory; 1: through registers."""
    programs_per_sm: int


READINGS: Final = (Reading(4096, 4, 2), Reading(8192, 4, 1), Reading(2048, 1, 8))
ALIGNED: Final = 8192
"""Number of values that sizes are a multiple of."""
_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def read_kernel(  # type: ignore[no-untyped-def]
    values, sums, num_blocks, ROUNDS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Read every n-th block in each program; the sum only keeps the loads from being removed."""
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for turn in tl.range(0, ROUNDS, num_stages=STAGES):
        block = tl.program_id(0) + turn * tl.num_programs(0)
        at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        is_there = tl.zeros((BLOCK,), dtype=tl.int32) + block < num_blocks
        total += tl.load(values + at, mask=is_there, other=0)
    tl.store(sums + tl.program_id(0), tl.sum(total))


@triton.jit  # type: ignore[untyped-decorator]
def nothing_kernel(touched, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    tl.store(touched, 1)


def read(values: Tensor, sums: Tensor, num_sms: int, reading: Reading) -> None:
    """Read `values` (int32) once. `sums`: from `read_sums`."""
    num_blocks, num_programs = values.numel() // reading.block, num_sms * reading.programs_per_sm
    rounds = -(-num_blocks // num_programs)
    read_kernel[(num_programs,)](
        values,
        sums,
        num_blocks,
        ROUNDS=rounds,
        BLOCK=reading.block,
        STAGES=reading.num_stages,
        num_warps=_WARPS,
    )


def read_sums(num_sms: int, device: torch.device) -> Tensor:
    """Make the output buffer of `read`, a value for each program."""
    most = max(reading.programs_per_sm for reading in READINGS)
    return torch.zeros(num_sms * most, dtype=torch.int32, device=device)


def nothing(touched: Tensor, *, pdl: bool) -> None:
    """Launch a kernel of one program that stores one value. `pdl`: launch it before the previous
    kernel has ended (programmatic dependent launch); it then waits for it."""
    nothing_kernel[(1,)](touched, PDL=pdl, num_warps=1, launch_pdl=pdl)
