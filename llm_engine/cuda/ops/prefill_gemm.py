"""Matrix products of prefill, with more rows than the fused kernels take: bound by arithmetic.

Weights of the activations' type are multiplied by torch's library. 8-bit ones multiply activations
of 8 bits, which the matrix units do twice as fast: by the library where there is one scale for each
row, by our kernel where scales change along it, or the library does not support the shape or GPU. A
row of activations is normalized and rounded by one kernel before, with one scale, or one for each
128 columns. 4-bit weights multiply normalized activations of their own type, by a kernel of ours.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from llm_engine.cuda.kernels.block_scaled_gemm import blocks_kernel
from llm_engine.cuda.kernels.common import EMULATED
from llm_engine.cuda.kernels.int4_prompt import int4_prompt_kernel
from llm_engine.cuda.kernels.prefill import ready_kernel

from .gemm_tiles import int4_prompt_tiles, prompt_tiles
from .interface import Int4Weight, Matrix, Norm, Weight

_LINES_AHEAD = 4
"""Cache lines of every weight row that a program prefetches before it waits for its inputs: 64
KB."""

_APART = "the activations' rows do not lie one behind the other"

_TYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@dataclass(frozen=True, slots=True)
class PrefillGemm:
    """Prefill products on one device. Kernels run on the current stream; buffers are allocated by
    each call."""

    num_sms: int
    shared_bytes: int
    """Shared memory that a program can have."""
    scales_in_library: bool
    """True if torch multiplies 8-bit floats with a scale for each row."""
    pdl: bool
    """Programmatic dependent launch: a kernel may begin before the one before it has ended."""

    def product(
        self, x: Tensor, norm: Norm | None, weight: Weight, out: Tensor | None = None
    ) -> Tensor:
        """`x [M, in]`, normalized, times the weight, `[M, out]`: in `out`, of any type, or new and
        of x's type."""
        if isinstance(weight, Matrix) and self.fits_library(weight):
            product = self._library(x, norm, weight)
            return product if out is None else out.copy_(product)
        if out is None:
            out = x.new_empty(len(x), weight.num_out)
        self._ours(x, norm, weight, out)
        return out

    def add(self, x: Tensor, weight: Weight, residual: Tensor) -> None:
        """`residual [M, out] += x [M, in] @ weight^T`."""
        if isinstance(weight, Matrix) and self.fits_library(weight):
            residual += self._library(x, None, weight)
        else:
            self._ours(x, None, weight, residual, residual=residual)

    def gate_up(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        """silu(gate) * up of `x [M, hidden]`, normalized, into `out [M, inner]`."""
        if isinstance(weight, Matrix) and self.fits_library(weight):
            gate, up = self._library(x, norm, weight).chunk(2, dim=-1)
            torch.mul(functional.silu(gate), up, out=out)
        else:
            self._ours(x, norm, weight, out, paired=True)

    def fits_library(self, weight: Matrix) -> bool:
        """True if torch's library multiplies with this weight."""
        if weight.scales is None:
            return True
        fits = all(size % 16 == 0 for size in weight.values.shape)
        return self.scales_in_library and fits and weight.block == (1, weight.values.shape[1])

    def _library(self, x: Tensor, norm: Norm | None, weight: Matrix) -> Tensor:
        """Product by torch's library, `[M, out]`, of x's type."""
        if weight.scales is None:
            ready = x if norm is None else self._ready(x, norm, torch.empty_like(x))
            product = ready @ weight.values.T
        else:
            ready, scales = self._rounded(x, norm, weight, x.shape[1])
            product = torch._scaled_mm(
                ready, weight.values.T, scale_a=scales.view(-1, 1), scale_b=weight.scales.T,
                out_dtype=x.dtype, use_fast_accum=True,
            )  # fmt: skip
        return product if weight.bias is None else product.add_(weight.bias)

    def _ours(
        self, x: Tensor, norm: Norm | None, weight: Weight, out: Tensor,
        *, residual: Tensor | None = None, paired: bool = False,
    ) -> None:  # fmt: skip
        """Product by a kernel of ours."""
        if isinstance(weight, Int4Weight):
            self._int4(x, norm, weight, out, residual=residual, paired=paired)
        else:
            self._blocks(x, norm, weight, out, residual=residual, paired=paired)

    def _int4(
        self, x: Tensor, norm: Norm | None, weight: Int4Weight, out: Tensor,
        *, residual: Tensor | None, paired: bool,
    ) -> None:  # fmt: skip
        num_out = out.shape[1]
        tiles = int4_prompt_tiles(
            weight, len(x), num_out, self.num_sms, self.shared_bytes, paired=paired
        )
        if norm is not None:
            x = self._ready(x, norm, torch.empty_like(x))
        elif not x.is_contiguous():
            raise ValueError(_APART)
        grid = triton.cdiv(len(x), tiles.block_m), triton.cdiv(num_out, tiles.block_n)
        int4_prompt_kernel[grid](
            x=x, codes=weight.codes, scales=weight.scales, offsets=weight.offsets, bias=weight.bias,
            residual=residual, out=out, num_rows=len(x), OUT=num_out, IN=weight.num_in,
            PAIRED=paired, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k,
            GROUP=weight.group, TYPE=_TYPES[x.dtype], EMULATED=EMULATED, AHEAD=_LINES_AHEAD,
            num_warps=tiles.num_warps, num_stages=tiles.num_stages, PDL=self.pdl,
            launch_pdl=self.pdl,
        )  # fmt: skip

    def _blocks(
        self, x: Tensor, norm: Norm | None, weight: Matrix, out: Tensor,
        *, residual: Tensor | None, paired: bool,
    ) -> None:  # fmt: skip
        num_in, num_out = weight.values.shape[1], out.shape[1]
        tiles = prompt_tiles(len(x), num_out, self.num_sms, self.shared_bytes, paired=paired)
        scale_rows, scale_columns = weight.block
        if scale_columns < num_in and scale_columns % tiles.block_k:
            raise ValueError(f"scales of {scale_columns} columns each are not supported")
        ready, scales = self._rounded(x, norm, weight, tiles.block_k)
        grid = triton.cdiv(len(x), tiles.block_m), triton.cdiv(num_out, tiles.block_n)
        blocks_kernel[grid](
            x=ready, x_scales=scales, weight=weight.values, scales=weight.scales, bias=weight.bias,
            residual=residual, out=out, num_rows=len(x), OUT=num_out, IN=num_in, PAIRED=paired,
            BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, COLUMNS=tiles.block_k,
            SCALE_ROWS=scale_rows, SCALE_COLUMNS=scale_columns, EMULATED=EMULATED,
            AHEAD=_LINES_AHEAD, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
            PDL=self.pdl, launch_pdl=self.pdl,
        )  # fmt: skip

    def _rounded(
        self, x: Tensor, norm: Norm | None, weight: Matrix, group: int
    ) -> tuple[Tensor, Tensor]:
        """x in 8 bits, its last group of columns padded with zeros, and a scale for each group,
        `[groups, M]`."""
        num_groups = triton.cdiv(x.shape[1], group)
        out = x.new_empty((len(x), num_groups * group), dtype=weight.values.dtype)
        scales = x.new_empty((num_groups, len(x)), dtype=torch.float32)
        return self._ready(x, norm, out, scales, group), scales

    def _ready(
        self,
        x: Tensor,
        norm: Norm | None,
        out: Tensor,
        scales: Tensor | None = None,
        group: int | None = None,
    ) -> Tensor:
        if not x.is_contiguous():
            raise ValueError(_APART)
        padded = out.shape[1]
        ready_kernel[len(x),](
            x=x, norm=None if norm is None else norm.weight, out=out, scales=scales,
            num_rows=len(x), EPS=0.0 if norm is None else norm.eps, WIDTH=x.shape[1],
            PADDED=padded, BLOCK=triton.next_power_of_2(padded),
            GROUP=triton.next_power_of_2(group or padded), num_warps=8,
            PDL=self.pdl, launch_pdl=self.pdl,
        )  # fmt: skip
        return out
