"""The operations by our Triton kernels.

Up to `FUSED_ROWS` rows (`FUSED_BLOCK_ROWS`, or `MAX_ROWS` where weights have 4 bits) take one fused
kernel for each operation; up to `MAX_ROWS` rows the same compiled one, so that a row's result is
the same bits in any company. Longer prompts take the products of `prefill_gemm.py`, with
normalization before and cache writes behind them.

Kernels run on the current stream. They share a workspace: one instance serves one stream.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from llm_engine.cuda.kernels.attention import attend_kernel
from llm_engine.cuda.kernels.common import EMULATED
from llm_engine.cuda.kernels.gemm import (
    add_parts_kernel,
    divided_kernel,
    gate_up_kernel,
    plain_kernel,
)
from llm_engine.cuda.kernels.qkv_rope import place_kernel, queries_kernel

from .flashinfer_attention import XqaAttention
from .gemm_tiles import NUM_WARPS, Tiles, attention_splits, product_tiles
from .interface import MAX_ROWS, Attention, Int4Weight, LayerPages, Norm, Rope, Rows, Weight
from .prefill_gemm import PrefillGemm
from .triton_step_inputs import TritonStepOps

FUSED_ROWS = 16
"""Rows that a fused kernel takes where a library multiplies more. On an H100, twelve layers of an
8B model in 8 bits take 1.58 ms fused for 16 rows and 1.75 by the library; for 32, 2.00 and 1.75."""

FUSED_BLOCK_ROWS = 64
"""Rows that a fused kernel takes where `block_scaled_gemm.py` multiplies more, which for 64 rows
takes a third longer (same measurement)."""

_ADDED_AT_ONCE = 512
"""Elements of the devices' partial sums that a program adds: a row of 8192 occupies 16
multiprocessors."""

_MIXED_AT_ONCE = 1 << 14
"""Elements of attention's partial results that a program combines at once, half of its registers:
with fewer, the rows of a draft take more trips to memory, one behind the other."""


_PROMPT_KEYS = 64
"""Keys that a program multiplies at once with a tile of a prompt."""


class Divide(Protocol):
    """Signature of `product_tiles`."""

    def __call__(
        self, weight: Weight, num_sms: int, *, divisible: bool, shared_bytes: int
    ) -> Tiles: ...


_NUM_COUNTERS = 1 << 14
"""Counters of the workspace: one for each tile of outputs with split columns, and of queries with
split keys."""

_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that kernels need between their programs, allocated once."""

    floats: Tensor
    """Float32."""
    counters: Tensor
    """Int32, zero whenever no kernel runs."""

    @classmethod
    def on(cls, device: torch.device, num_floats: int) -> "Workspace":
        counters = torch.zeros(_NUM_COUNTERS, dtype=torch.int32, device=device)
        return cls(torch.empty(num_floats, dtype=torch.float32, device=device), counters)

    def take(self, *sizes: int, num_counters: int = 0) -> list[Tensor]:
        """Buffers of these numbers of floats, aligned to 64 bytes. Raises ValueError without enough
        floats or counters."""
        rounded = [-(-size // 16) * 16 for size in sizes]
        for name, has, needs in (
            ("floats", len(self.floats), sum(rounded)),
            ("counters", len(self.counters), num_counters),
        ):
            if needs > has:
                raise ValueError(f"the workspace has {has} {name}, {needs} are needed")
        return list(self.floats[: sum(rounded)].split_with_sizes(rounded))


class TritonOps:
    """`Ops` on an NVIDIA GPU, or slowly, for tests, in Triton's interpreter.

    `attention`: replaces our kernel for few rows, for layers that it serves. `halves`: type of
    8-bit weights in the matrix units. Float16 takes one instruction for two of them, bfloat16
    three, but has the range of float32: with float16, activations beyond 65504 are cut. `divide`:
    division of products among programs. `dependent`: allow programmatic dependent launch where the
    device has it. `by_library`: prompts in 8 bits with a scale for each row are multiplied by
    torch, where it can, instead of by our kernel. A bench compares these.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        attention: XqaAttention | None = None,
        halves: torch.dtype = torch.float16,
        divide: Divide = product_tiles,
        dependent: bool = True,
        by_library: bool = True,
        num_sms: int | None = None,
        num_floats: int = 4 << 20,
    ) -> None:
        self._attention = attention
        self._divide = divide
        self._on_gpu = device.type == "cuda"
        self._num_sms = num_sms or _num_multiprocessors(device)
        self._halves = halves
        capability = torch.cuda.get_device_capability(device) if self._on_gpu else (0, 0)
        self._pdl = dependent and capability >= (9, 0)
        self._shared_bytes = _shared_bytes(capability)
        self._prompts = PrefillGemm(
            self._num_sms,
            self._shared_bytes,
            scales_in_library=by_library and (not self._on_gpu or capability >= (9, 0)),
            pdl=self._pdl,
        )
        self._workspace = Workspace.on(device, num_floats)
        self.step = TritonStepOps(device, dependent=self._pdl)

    def queries(
        self, x: Tensor, layer: Attention, rope: Rope, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        heads = layer.heads
        places = {
            **{"queries": out, "keys": pages.keys, "values": pages.values},
            **{"cos": rope.cos, "sin": rope.sin, "positions": rows.positions},
            **{"tables": rows.tables, "num_queries": len(x) // rows.num_seqs},
            **{"table_width": rows.tables.shape[1], "PAGE_SIZE": pages.page_size},
            **{"HEADS": heads.num_heads, "KV_HEADS": heads.num_kv_heads},
            "HALF": heads.head_dim // 2,
        }
        if self._is_fused(x, layer.qkv) and layer.q_norm is None:
            tiles = self._tiles(layer.qkv, divisible=False)
            grid = (triton.cdiv(layer.qkv.num_out, tiles.block_n),)
            queries_kernel[grid](
                x=x, norm=layer.norm.weight, EPS=layer.norm.eps, num_rows=len(x), **places,
                **self._of_weight(x, layer.qkv, tiles),
            )  # fmt: skip
            return
        q_norm, k_norm = layer.q_norm, layer.k_norm
        place_kernel[len(x), heads.num_heads + 2 * heads.num_kv_heads](
            projected=self._product(x, layer.norm, layer.qkv),
            q_norm=None if q_norm is None else q_norm.weight,
            k_norm=None if k_norm is None else k_norm.weight,
            EPS=0.0 if q_norm is None else q_norm.eps,
            BLOCK=triton.next_power_of_2(heads.head_dim // 2),
            num_warps=1,
            **places,
            **self._dependent(),
        )

    def attend(
        self, queries: Tensor, layer: Attention, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        few = len(queries) <= MAX_ROWS
        other = self._attention
        if few and other is not None and other.serves(queries, layer, pages):
            other.attend(queries, layer, rows, pages, out)
            return
        heads = layer.heads
        group = heads.num_heads // heads.num_kv_heads
        num_queries = len(queries) // rows.num_seqs
        tile = max(16, min(64, triton.next_power_of_2(group * MAX_ROWS)))
        num_tiles = rows.num_seqs * triton.cdiv(num_queries * group, tile)
        num_splits = attention_splits(heads.num_kv_heads, self._num_sms, 1 if few else num_tiles)
        block_d = max(16, triton.next_power_of_2(heads.head_dim))
        num_parts = len(queries) * heads.num_heads * num_splits if num_splits > 1 else 0
        maxima, totals, mixtures = self._workspace.take(
            num_parts,
            num_parts,
            num_parts * block_d,
            num_counters=num_tiles * heads.num_kv_heads if num_parts else 0,
        )
        attend_kernel[num_tiles, heads.num_kv_heads, num_splits](
            **{"queries": queries, "keys": pages.keys, "values": pages.values, "out": out},
            **{"positions": rows.positions, "tables": rows.tables, "num_queries": num_queries},
            **{"table_width": rows.tables.shape[1], "PAGE_SIZE": pages.page_size},
            **{"mixtures": mixtures, "maxima": maxima, "totals": totals},
            **{"counters": self._workspace.counters, "SCALE": 1 / math.sqrt(heads.head_dim)},
            **{"HEADS": heads.num_heads, "KV_HEADS": heads.num_kv_heads, "DIM": heads.head_dim},
            **{"BLOCK_D": block_d, "WINDOW": layer.window or 0, "NUM_SPLITS": num_splits},
            **{"AT_ONCE": max(1, _MIXED_AT_ONCE // (num_splits * block_d)), "maxnreg": 255},
            **{"TILE": tile, "TYPE": _TYPES[queries.dtype]},
            **{"CHUNK": _keys_at_once(heads.head_dim) if few else _PROMPT_KEYS},
            **{"EMULATED": EMULATED, "num_warps": 4, "num_stages": 2},
            **self._dependent(),
        )

    def add_product(self, x: Tensor, weight: Weight, residual: Tensor) -> None:
        if not self._is_fused(x, weight):
            self._prompts.add(x, weight, residual)
            return
        self._divided(x, weight, residual, adds=True)

    def part(self, x: Tensor, weight: Weight, out: Tensor) -> None:
        self._divided(x, weight, out, adds=False)

    def add_parts(self, parts: Tensor, residual: Tensor) -> None:
        add_parts_kernel[triton.cdiv(residual.numel(), _ADDED_AT_ONCE),](
            parts=parts, residual=residual, num_numbers=residual.numel(), COUNT=len(parts),
            BLOCK=_ADDED_AT_ONCE, num_warps=4,
        )  # fmt: skip

    def gate_up(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        if not self._is_fused(x, weight):
            self._prompts.gate_up(x, norm, weight, out)
            return
        tiles = self._tiles(weight, divisible=False)
        num_out = weight.num_out // 2
        gate_up_kernel[triton.cdiv(num_out, tiles.block_n // 2),](
            x=x, norm=norm.weight, EPS=norm.eps, out=out, num_rows=len(x), OUT=num_out,
            **self._of_weight(x, weight, tiles),
        )  # fmt: skip

    def logits(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        if not self._is_fused(x, weight):
            self._prompts.product(x, norm, weight, out)
        else:
            self._plain(x, norm, weight, out)

    def _product(self, x: Tensor, norm: Norm, weight: Weight) -> Tensor:
        """Projection, float32 and in the workspace for few rows, else of the activations' type."""
        if not self._is_fused(x, weight):
            return self._prompts.product(x, norm, weight)
        shape = (len(x), weight.num_out)
        out = self._workspace.take(math.prod(shape))[0][: math.prod(shape)].view(shape)
        self._plain(x, norm, weight, out)
        return out

    def _divided(self, x: Tensor, weight: Weight, out: Tensor, *, adds: bool) -> None:
        tiles = self._tiles(weight, divisible=True)
        num_out = weight.num_out
        num_tiles = triton.cdiv(num_out, tiles.block_n)
        options = self._of_weight(x, weight, tiles)
        size = num_tiles * tiles.num_splits * tiles.block_n * options["ROWS"]
        divided = tiles.num_splits > 1
        (partials,) = self._workspace.take(
            size if divided else 0, num_counters=num_tiles if divided else 0
        )
        divided_kernel[num_tiles, tiles.num_splits](
            x=x, out=out, partials=partials, counters=self._workspace.counters, num_rows=len(x),
            OUT=num_out, NUM_SPLITS=tiles.num_splits, ADDS=adds, **options,
        )  # fmt: skip

    def _plain(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        tiles = self._tiles(weight, divisible=False)
        num_out = weight.num_out
        plain_kernel[triton.cdiv(num_out, tiles.block_n),](
            x=x, norm=norm.weight, EPS=norm.eps, out=out, num_rows=len(x), OUT=num_out,
            **self._of_weight(x, weight, tiles),
        )  # fmt: skip

    def _is_fused(self, x: Tensor, weight: Weight) -> bool:
        """True if the fused kernels take as many rows with this weight. With 4 bits the kernels of
        prompts are as good from 9 rows on: for 16 the fused ones spill."""
        if isinstance(weight, Int4Weight):
            return len(x) <= MAX_ROWS
        return len(x) <= (FUSED_ROWS if self._prompts.fits_library(weight) else FUSED_BLOCK_ROWS)

    def _tiles(self, weight: Weight, *, divisible: bool) -> Tiles:
        shared_bytes = self._shared_bytes
        return self._divide(weight, self._num_sms, divisible=divisible, shared_bytes=shared_bytes)

    def _of_weight(self, x: Tensor, weight: Weight, tiles: Tiles) -> dict[str, Any]:
        """Arguments common to our product kernels, by parameter name."""
        if not x.is_contiguous():
            raise ValueError("the activations' rows do not lie one behind the other")
        rows = _padded(len(x))
        tiles = tiles.for_rows(weight, rows)
        return {
            **self._stored(x, weight),
            **{"bias": weight.bias, "EMULATED": EMULATED},
            **{"IN": weight.num_in, "SPAN": tiles.span, "ROWS": rows},
            **{"BLOCK_N": tiles.block_n, "BLOCK_K": tiles.block_k, "PIECES": tiles.pieces},
            **{"num_warps": NUM_WARPS, "num_stages": tiles.num_stages},
            **{"maxnreg": tiles.max_registers},
            **self._dependent(),
        }

    def _stored(self, x: Tensor, weight: Weight) -> dict[str, Any]:
        """Arguments for a weight's numbers, and the type in which they are multiplied."""
        if isinstance(weight, Int4Weight):
            return {
                **{"weight": weight.codes, "scales": weight.scales, "offsets": weight.offsets},
                **{"GROUP": weight.group, "SCALE_ROWS": 1, "SCALE_COLUMNS": 0},
                "TYPE": _TYPES[x.dtype],
            }
        block = (1, weight.num_in) if weight.scales is None else weight.block
        converted = weight.bits == 8 and x.dtype != torch.float32
        return {
            **{"weight": weight.values, "scales": weight.scales, "offsets": None},
            **{"GROUP": 0, "SCALE_ROWS": block[0], "SCALE_COLUMNS": block[1]},
            "TYPE": _TYPES[self._halves if converted else x.dtype],
        }

    def _dependent(self) -> dict[str, bool]:
        """Launch options: a kernel may begin before the one before it has ended."""
        return {"PDL": self._pdl, "launch_pdl": self._pdl}


def _keys_at_once(head_dim: int) -> int:
    """Keys that a program multiplies at once for few rows. With heads of 128 numbers, 64 keys make
    a step of an 8B model 0.7 % slower than 32, with heads of 64 they are as good (H100)."""
    return 32 if head_dim >= 128 else _PROMPT_KEYS


def _num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # matters to the interpreter only for how programs are divided
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _shared_bytes(capability: tuple[int, int]) -> int:
    """Shared memory that one program can have: CUDA C++ Programming Guide, technical specifications
    per compute capability."""
    return (99 if capability[0] in (8, 12) else 227) << 10


def _padded(num_rows: int) -> int:
    """Columns of a tile: the same for all numbers of rows up to `MAX_ROWS`, the width of the matrix
    units' narrowest instruction."""
    return max(MAX_ROWS, int(triton.next_power_of_2(num_rows)))
