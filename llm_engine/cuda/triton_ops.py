"""The operations by kernels of our own.

Up to `FUSED_ROWS` rows take a fused kernel each; up to `MAX_ROWS` of them the very same one, so
that a row's result is the same bits however many there are. Longer prompts take products of
torch's libraries, with normalizing and placing around them; where torch has none for a kind of
8-bit weights, our products take the rows in portions.

Kernels run on the current stream. They share a workspace: one instance serves one stream.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from llm_engine.cuda.flashinfer_attention import XqaAttention
from llm_engine.cuda.kernels.attention import attend_kernel
from llm_engine.cuda.kernels.common import EMULATED
from llm_engine.cuda.kernels.products import gate_up_kernel, plain_kernel, residual_kernel
from llm_engine.cuda.kernels.queries import place_kernel, queries_kernel
from llm_engine.cuda.kernels.rows import ready_kernel
from llm_engine.cuda.ops import MAX_ROWS, Attention, LayerPages, Matrix, Norm, Rope, Rows
from llm_engine.cuda.tiles import Tiles, attention_splits, product_tiles

FUSED_ROWS = 64
"""Rows that a kernel takes at once. The weight's bytes still count most then: 64 rows of an 8B
model are 1 TFLOP, 1.3 ms of matrix units, its weights in 8 bits 1.75 ms of memory."""

_LINES_AHEAD = 4
"""Cache lines of every weight row that a program asks for before it waits for its inputs: 32 KB
for each program, some 8 MB of the 50 MB of L2."""


class Divide(Protocol):
    """What `product_tiles` is."""

    def __call__(self, weight: Matrix, num_sms: int, *, divisible: bool) -> Tiles: ...


_NUM_COUNTERS = 1 << 14
"""One for each tile of outputs whose columns are divided, and of queries whose keys are."""

_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that kernels need between their programs, made once."""

    floats: Tensor
    """Float32."""
    counters: Tensor
    """Int32, zero whenever no kernel runs."""

    @classmethod
    def on(cls, device: torch.device, num_floats: int) -> "Workspace":
        counters = torch.zeros(_NUM_COUNTERS, dtype=torch.int32, device=device)
        return cls(torch.empty(num_floats, dtype=torch.float32, device=device), counters)

    def take(self, *sizes: int, num_counters: int = 0) -> list[Tensor]:
        """So many floats each, aligned to 64 bytes. Raises ValueError if there aren't enough, or
        not enough counters."""
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

    `attention`: what serves few rows instead of our kernel, where it serves such layers.
    `halves`: what 8-bit weights become for the matrix units. Float16 takes one instruction for two
    of them, bfloat16 three, but has the range of float32: activations beyond 65504 are cut.
    `divide`: how products are divided; a bench compares.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        attention: XqaAttention | None = None,
        halves: torch.dtype = torch.float16,
        divide: Divide = product_tiles,
        num_sms: int | None = None,
        num_floats: int = 4 << 20,
    ) -> None:
        self._attention = attention
        self._divide = divide
        self._on_gpu = device.type == "cuda"
        self._num_sms = num_sms or _num_multiprocessors(device)
        self._halves = halves
        capability = torch.cuda.get_device_capability(device) if self._on_gpu else (0, 0)
        self._pdl = capability >= (9, 0)
        self._scaled_products = not self._on_gpu or capability >= (9, 0)
        self._workspace = Workspace.on(device, num_floats)

    def queries(
        self, x: Tensor, layer: Attention, rope: Rope, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        heads = layer.heads
        places = {
            **{"queries": out, "keys": pages.keys, "values": pages.values},
            **{"cos": rope.cos, "sin": rope.sin, "positions": rows.positions},
            **{"tables": rows.tables, "num_queries": len(x) // rows.num_lanes},
            **{"table_width": rows.tables.shape[1], "PAGE_SIZE": pages.page_size},
            **{"HEADS": heads.num_heads, "KV_HEADS": heads.num_kv_heads},
            "HALF": heads.head_dim // 2,
        }
        if len(x) <= FUSED_ROWS and layer.q_norm is None:
            tiles = self._divide(layer.qkv, self._num_sms, divisible=False)
            grid = (triton.cdiv(layer.qkv.values.shape[0], tiles.block_n),)
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
        num_queries = len(queries) // rows.num_lanes
        tile = max(16, min(64, triton.next_power_of_2(group * MAX_ROWS)))
        num_tiles = rows.num_lanes * triton.cdiv(num_queries * group, tile)
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
            **{"AT_ONCE": max(1, 8192 // (num_splits * block_d))},
            **{"TILE": tile, "CHUNK": 64, "TYPE": _TYPES[queries.dtype]},
            **{"EMULATED": EMULATED, "num_warps": 4, "num_stages": 2},
            **self._dependent(),
        )

    def add_product(self, x: Tensor, weight: Matrix, residual: Tensor) -> None:
        num_out = weight.values.shape[0]
        if self._in_library(x, weight):
            residual += self._library_product(x, None, weight)
            return
        tiles = self._divide(weight, self._num_sms, divisible=True)
        num_tiles = triton.cdiv(num_out, tiles.block_n)
        for part, old in zip(_portions(x), _portions(residual), strict=True):
            options = self._of_weight(part, weight, tiles)
            size = num_tiles * tiles.num_splits * tiles.block_n * options["ROWS"]
            divided = tiles.num_splits > 1
            (partials,) = self._workspace.take(
                size if divided else 0, num_counters=num_tiles if divided else 0
            )
            residual_kernel[num_tiles, tiles.num_splits](
                x=part, residual=old, partials=partials, counters=self._workspace.counters,
                num_rows=len(part), OUT=num_out, NUM_SPLITS=tiles.num_splits, **options,
            )  # fmt: skip

    def gate_up(self, x: Tensor, norm: Norm, weight: Matrix, out: Tensor) -> None:
        if self._in_library(x, weight):
            gate, up = self._library_product(x, norm, weight).chunk(2, dim=-1)
            torch.mul(functional.silu(gate), up, out=out)
            return
        tiles = self._divide(weight, self._num_sms, divisible=False)
        num_out = weight.values.shape[0] // 2
        grid = (triton.cdiv(num_out, tiles.block_n // 2),)
        for part, result in zip(_portions(x), _portions(out), strict=True):
            gate_up_kernel[grid](
                x=part, norm=norm.weight, EPS=norm.eps, out=result, num_rows=len(part),
                OUT=num_out, **self._of_weight(part, weight, tiles),
            )  # fmt: skip

    def logits(self, x: Tensor, norm: Norm, weight: Matrix, out: Tensor) -> None:
        if self._in_library(x, weight):
            out.copy_(self._library_product(x, norm, weight))
        else:
            self._plain(x, norm, weight, out)

    def _product(self, x: Tensor, norm: Norm, weight: Matrix) -> Tensor:
        """Float32 and in the workspace for few rows, else of the activations' type."""
        if self._in_library(x, weight):
            return self._library_product(x, norm, weight)
        shape = (len(x), weight.values.shape[0])
        if len(x) <= FUSED_ROWS:
            out = self._workspace.take(math.prod(shape))[0][: math.prod(shape)].view(shape)
        else:
            out = x.new_empty(shape)
        self._plain(x, norm, weight, out)
        return out

    def _plain(self, x: Tensor, norm: Norm, weight: Matrix, out: Tensor) -> None:
        tiles = self._divide(weight, self._num_sms, divisible=False)
        num_out = weight.values.shape[0]
        grid = (triton.cdiv(num_out, tiles.block_n),)
        for part, result in zip(_portions(x), _portions(out), strict=True):
            plain_kernel[grid](
                x=part, norm=norm.weight, EPS=norm.eps, out=result, num_rows=len(part),
                OUT=num_out, **self._of_weight(part, weight, tiles),
            )  # fmt: skip

    def _in_library(self, x: Tensor, weight: Matrix) -> bool:
        if len(x) <= FUSED_ROWS:
            return False
        if weight.scales is None:
            return True
        fits = all(size % 16 == 0 for size in weight.values.shape)
        return self._scaled_products and fits and weight.block == (1, weight.values.shape[1])

    def _library_product(self, x: Tensor, norm: Norm | None, weight: Matrix) -> Tensor:
        """`[M, out]`, of x's type. 8-bit weights multiply activations of 8 bits here, each row with
        a scale of its own: prompts wait for the matrix units, which are twice as fast so."""
        ready, scales = self._ready(x, norm, weight)
        if weight.scales is None or scales is None:
            product = ready @ weight.values.T
        else:
            product = torch._scaled_mm(
                ready, weight.values.T, scale_a=scales, scale_b=weight.scales.T,
                out_dtype=x.dtype, use_fast_accum=True,
            )  # fmt: skip
        return product if weight.bias is None else product.add_(weight.bias)

    def _ready(self, x: Tensor, norm: Norm | None, weight: Matrix) -> tuple[Tensor, Tensor | None]:
        """x as a library multiplies it, and the scales of its rows where these are 8-bit."""
        if norm is None and weight.scales is None:
            return x, None
        scales = None if weight.scales is None else x.new_empty((len(x), 1), dtype=torch.float32)
        out = torch.empty_like(x, dtype=x.dtype if scales is None else weight.values.dtype)
        ready_kernel[len(x),](
            x=x, norm=None if norm is None else norm.weight, out=out, scales=scales,
            EPS=0.0 if norm is None else norm.eps, WIDTH=x.shape[1],
            BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8, **self._dependent(),
        )  # fmt: skip
        return out, scales

    def _of_weight(self, x: Tensor, weight: Matrix, tiles: Tiles) -> dict[str, Any]:
        """What all products of ours are told, by the kernels' names for it."""
        if not x.is_contiguous():
            raise ValueError("the activations' rows do not lie one behind the other")
        num_in = weight.values.shape[1]
        block = (1, num_in) if weight.scales is None else weight.block
        converted = weight.values.itemsize == 1 and x.dtype != torch.float32
        rows = _padded(len(x))
        return {
            **{"weight": weight.values, "scales": weight.scales, "bias": weight.bias},
            **{"IN": num_in, "SPAN": tiles.span, "ROWS": rows},
            **{"BLOCK_N": tiles.block_n, "BLOCK_K": tiles.block_k},
            **{"SCALE_ROWS": block[0], "SCALE_COLUMNS": block[1]},
            **{"TYPE": _TYPES[self._halves if converted else x.dtype], "EMULATED": EMULATED},
            **{"AHEAD": _LINES_AHEAD, "num_warps": tiles.num_warps},
            **{"num_stages": tiles.stages(weight, rows)},
            **self._dependent(),
        }

    def _dependent(self) -> dict[str, bool]:
        """Whether a kernel may begin before the one before it has ended."""
        return {"PDL": self._pdl, "launch_pdl": self._pdl}


def _portions(x: Tensor) -> list[Tensor]:
    return [x[start : start + FUSED_ROWS] for start in range(0, len(x), FUSED_ROWS)]


def _num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # of no importance to the interpreter but for how programs are divided
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _padded(num_rows: int) -> int:
    """Columns of a tile. The same for all numbers of rows up to `MAX_ROWS`, and not fewer than
    matrix units take."""
    return max(16, int(triton.next_power_of_2(num_rows)))
