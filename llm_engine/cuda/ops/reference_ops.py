"""Reference implementation of the operations in plain torch: slow, any device, any activation type.

The kernels are compared with it, and the GPU backend's logic is tested with it where there is no
GPU. All arithmetic is float32, and rounds once, where it stores.

Up to `MAX_ROWS` rows are computed one by one, each from a copy of its own: libraries choose other
loops for one row than for several, and for other alignments, all with other roundings. Unlike the
kernels this reads positions back to the host.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from llm_engine.checkpoints.fp8 import Fp8Matrix

from .int4_layout import unpack
from .interface import (
    MAX_ROWS,
    Attention,
    Int4Weight,
    LayerPages,
    Norm,
    Rope,
    RowMasks,
    Rows,
    SamplingInputs,
    StepState,
    Weight,
)
from .sampling import masked, sampled


class ReferenceStepOps:
    """Reference implementation of `StepOps`."""

    def embed(self, state: StepState, table: Tensor, positions: Tensor, hidden: Tensor) -> None:
        num_queries = len(hidden) // state.num_seqs
        places = torch.arange(num_queries, dtype=torch.int32, device=hidden.device)
        here = state.first_positions[:, None] + places
        here = torch.where(places < state.num_rows[:, None], here, -1)
        positions.copy_(here.flatten())
        hidden.copy_(table[state.tokens[:, :num_queries].flatten()])

    def likeliest(self, logits: Tensor, out: Tensor) -> None:
        out.copy_(logits.argmax(dim=1).view_as(out))

    def mask(self, logits: Tensor, masks: RowMasks) -> None:
        logits.copy_(masked(logits, masks))

    def sample(
        self, logits: Tensor, positions: Tensor, sampling: SamplingInputs, out: Tensor
    ) -> None:
        out.copy_(sampled(logits, positions, sampling).view_as(out))

    def advance(self, state: StepState, chosen: Tensor, last: Tensor) -> None:
        places = torch.arange(1, chosen.shape[1], device=chosen.device)
        is_right = chosen[:, :-1] == state.tokens[:, 1 : chosen.shape[1]]
        is_right &= places < state.num_rows[:, None]
        is_right |= places <= state.first_sampled[:, None]
        last.copy_(is_right.int().cumprod(dim=1).sum(dim=1))
        state.tokens[:, :1] = chosen.gather(1, last[:, None].long())
        state.first_positions.add_(last + 1)
        state.first_sampled.zero_()
        state.num_rows.clamp_(max=1)


class ReferenceOps:
    """Reference implementation of `Ops`."""

    step = ReferenceStepOps()

    def queries(
        self, x: Tensor, layer: Attention, rope: Rope, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        heads, dim = layer.heads, layer.heads.head_dim
        ends = (heads.num_heads, heads.num_heads + heads.num_kv_heads)
        weight = dense(layer.qkv)

        def projected(part: Tensor, positions: Tensor) -> Tensor:
            normed = normalized(part, layer.norm)
            all_heads = _product(normed, weight, layer.qkv.bias).reshape(len(part), -1, dim)
            queries, keys, values = all_heads.tensor_split(ends, dim=1)
            if layer.q_norm is not None and layer.k_norm is not None:
                queries = normalized(queries, layer.q_norm)
                keys = normalized(keys, layer.k_norm)
            rotated = [_rotated(part, rope, positions) for part in (queries, keys)]
            return torch.cat((*rotated, values), dim=1)

        result = _by_rows(projected, x, rows.positions)
        queries, keys, values = result.tensor_split(ends, dim=1)
        out.copy_(queries)
        _store(keys, pages.keys, rows)
        _store(values, pages.values, rows)

    def attend(
        self, queries: Tensor, layer: Attention, rows: Rows, pages: LayerPages, out: Tensor
    ) -> None:
        num_queries = len(queries) // rows.num_seqs
        alone = len(queries) <= MAX_ROWS
        step = 1 if alone else num_queries  # rows computed together: all are of one sequence
        positions = rows.positions.tolist()
        for start in range(0, len(queries), step):
            chosen = slice(start, start + step)
            end = max(positions[chosen]) + 1
            if not end:
                out[chosen] = 0
                continue
            window = layer.window or end
            first = max(0, min(p for p in positions[chosen] if p >= 0) + 1 - window)
            table = rows.tables[start // num_queries]
            keys, values = (
                _gathered(part, table, first, end) for part in (pages.keys, pages.values)
            )
            out[chosen] = _attended(
                queries[chosen], keys, values, rows.positions[chosen] - first, window
            )

    def add_product(self, x: Tensor, weight: Weight, residual: Tensor) -> None:
        dense_weight = dense(weight)

        def added(part: Tensor, old: Tensor) -> Tensor:
            return old.float() + _product(part, dense_weight, weight.bias)

        residual.copy_(_by_rows(added, x, residual))

    def part(self, x: Tensor, weight: Weight, out: Tensor) -> None:
        dense_weight = dense(weight)
        out.copy_(_by_rows(lambda row: _product(row, dense_weight, weight.bias), x))

    def add_parts(self, parts: Tensor, residual: Tensor) -> None:
        total = residual.float()
        for part in parts:
            total += part
        residual.copy_(total)

    def gate_up(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        dense_weight = dense(weight)

        def gated(part: Tensor) -> Tensor:
            both = _product(normalized(part, norm), dense_weight, weight.bias)
            gate, up = both.chunk(2, dim=-1)
            return functional.silu(gate) * up

        out.copy_(_by_rows(gated, x))

    def logits(self, x: Tensor, norm: Norm, weight: Weight, out: Tensor) -> None:
        dense_weight = dense(weight)

        def scored(part: Tensor) -> Tensor:
            return _product(normalized(part, norm), dense_weight, weight.bias)

        out.copy_(_by_rows(scored, x))


def dense(matrix: Weight) -> Tensor:
    """Weight as float32 `[out, in]`, dequantized."""
    if isinstance(matrix, Int4Weight):
        return unpack(matrix).dequantize()
    if matrix.scales is None:
        return matrix.values.float()
    return Fp8Matrix(matrix.values, matrix.scales, matrix.block).dequantize()


def normalized(x: Tensor, norm: Norm) -> Tensor:
    """RMS norm, float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps) * norm.weight


def _by_rows(function: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """Apply `function` to tensors `[M, ...]`, row by row for up to `MAX_ROWS` rows."""
    if len(parts[0]) > MAX_ROWS:
        return function(*parts)
    rows = range(len(parts[0]))
    return torch.cat([function(*(part[m : m + 1].clone() for part in parts)) for m in rows])


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x.float(), weight, bias)


def _rotated(x: Tensor, rope: Rope, positions: Tensor) -> Tensor:
    """Rotate `x [M, heads, head_dim]`, float32, by the positions."""
    at = positions.clamp(min=0).long()
    cos, sin = rope.cos[at].unsqueeze(1), rope.sin[at].unsqueeze(1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _store(new: Tensor, pages: Tensor, rows: Rows) -> None:
    """Store `new [M, kv_heads, head_dim]`, float32, in the rows' pages."""
    num_queries = len(new) // rows.num_seqs
    kept = (rows.positions >= 0).nonzero().squeeze(1)
    at = rows.positions[kept].long()
    page = rows.tables[kept // num_queries, at // pages.shape[2]].long()
    _bits(pages)[page, :, at % pages.shape[2]] = _bits(_rounded(new[kept], pages.dtype))


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert; saturate to the largest 8-bit float, as GPUs do. torch made it NaN for years."""
    if dtype == torch.float8_e4m3fn:
        largest = torch.finfo(dtype).max
        x = x.clamp(-largest, largest)
    return x.to(dtype)


def _bits(x: Tensor) -> Tensor:
    """8-bit floats as bytes: torch lacks most operations on them, even those that only move
    data."""
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def _gathered(pages: Tensor, table: Tensor, first: int, end: int) -> Tensor:
    """Gather a sequence's keys or values `[kv_heads, end - first, head_dim]`, float32."""
    page_size = pages.shape[2]
    at = torch.arange(first, end, device=pages.device)
    found = _bits(pages)[table[at // page_size].long(), :, at % page_size]
    return found.view(pages.dtype).float().transpose(0, 1)


def _attended(
    queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, window: int
) -> Tensor:
    """Attention, `[rows, heads, head_dim]`, float32; zeros for padding rows. `positions` count from
    the first key."""
    at = torch.arange(keys.shape[1], device=keys.device)
    behind = positions[:, None] - at
    mask = (behind >= 0) & (behind < window)
    mixed = functional.scaled_dot_product_attention(
        queries.float().transpose(0, 1).contiguous(),
        keys.contiguous(),
        values.contiguous(),
        attn_mask=mask,
        enable_gqa=True,
    )
    return mixed.transpose(0, 1).masked_fill(~mask.any(1)[:, None, None], 0)
