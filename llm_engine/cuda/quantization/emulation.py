"""Emulation of the GPU's arithmetic in plain torch: whole texts at once, rounded where it rounds.

Operands are of the activations' type or 8-bit floats, sums are float32, and the activations' type
stands between two operations, as in `ops/interface.py`. Products are computed in float32 from
rounded operands, so that only the order of sums differs from the kernels. It serves calibration,
training of draft heads, and measuring on a CPU what 8 bits cost in quality. It is slow, has no KV
cache, and serves no request.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_engine.checkpoints.fp8 import Fp8Matrix
from llm_engine.cuda.model import DeviceLayer, DeviceModel
from llm_engine.cuda.ops.int4_layout import unpack
from llm_engine.cuda.ops.interface import Attention, Int4Weight, Matrix, Norm, Rope, Weight

from .quantize import LARGEST, quantize


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Tensors that are rounded to 8 bits besides the weights."""

    activations: bool = False
    """Inputs of products with 8-bit weights, as in prefill (`ops/prefill_gemm.py`): a token has one
    scale, or one for as many columns as the weight's. Not those of the LM head, which a prompt
    needs for one row only."""
    cache: bool = False
    """Keys and values."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """Operations of a layer. Rows `[T, ...]` are a text from position 0."""

    rope: Rope
    dtype: torch.dtype
    """Type of activations."""
    arithmetic: Arithmetic = Arithmetic()

    def layer(self, rows: Tensor, layer: DeviceLayer) -> Tensor:
        """Residual stream behind a layer."""
        attention = layer.attention
        attended = self.attended(self.normed(rows, attention.norm), attention)
        rows = self.added(rows, attended, layer.out)
        inner = self.inner(self.normed(rows, layer.mlp_norm), layer.gate_up)
        return self.added(rows, inner, layer.down)

    def normed(self, rows: Tensor, norm: Norm) -> Tensor:
        return _rms(rows.float(), norm).to(self.dtype)

    def attended(self, rows: Tensor, layer: Attention) -> Tensor:
        """Attention of normalized rows, `[T, heads * head_dim]`."""
        heads, num_rows = layer.heads, len(rows)
        sizes = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads]
        qkv = self._product(rows, layer.qkv).view(num_rows, sum(sizes), heads.head_dim)
        queries, keys, values = torch.split(qkv, sizes, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            queries, keys = _rms(queries, layer.q_norm), _rms(keys, layer.k_norm)
        queries, keys = (_rotated(part, self.rope).to(self.dtype) for part in (queries, keys))
        keys, values = self._stored(keys), self._stored(values.to(self.dtype))
        by_head = [part.float().transpose(0, 1)[None] for part in (queries, keys, values)]
        attended = F.scaled_dot_product_attention(
            by_head[0],
            by_head[1],
            by_head[2],
            attn_mask=None if layer.window is None else _mask(rows, layer.window),
            is_causal=layer.window is None,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1).reshape(num_rows, -1).to(self.dtype)

    def inner(self, rows: Tensor, gate_up: Weight) -> Tensor:
        """MLP activations of normalized rows, `[T, inner]`."""
        gate, up = self._product(rows, gate_up).chunk(2, dim=1)
        return (F.silu(gate) * up).to(self.dtype)

    def added(self, rows: Tensor, inputs: Tensor, weight: Weight) -> Tensor:
        return (rows + self._product(inputs, weight)).to(self.dtype)

    def _stored(self, values: Tensor) -> Tensor:
        if not self.arithmetic.cache:
            return values
        return values.float().clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).to(self.dtype)

    def _product(self, rows: Tensor, weight: Weight) -> Tensor:
        if self.arithmetic.activations and isinstance(weight, Matrix) and weight.scales is not None:
            rows = quantize(rows, (1, weight.block[1])).dequantize()
        return product(rows, weight)


@torch.inference_mode()
def hidden(model: DeviceModel, token_ids: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Residual stream `[T, hidden]` behind the last layer, for tokens `[T]` from position 0."""
    emulation = Emulation(model.rope, model.embedding.dtype, arithmetic)
    rows = model.embedding[token_ids]
    for layer in model.layers:
        rows = emulation.layer(rows, layer)
    return rows


@torch.inference_mode()
def logits(model: DeviceModel, rows: Tensor) -> Tensor:
    """Logits `[T, vocab]` float32 of the rows from `hidden`."""
    emulation = Emulation(model.rope, model.embedding.dtype)
    return product(emulation.normed(rows, model.norm), model.head)


def product(rows: Tensor, weight: Weight) -> Tensor:
    """`rows @ weight^T + bias`, float32."""
    if isinstance(weight, Int4Weight):
        values = unpack(weight).dequantize()
    elif weight.scales is not None:
        values = Fp8Matrix(weight.values, weight.scales, weight.block).dequantize()
    else:
        values = weight.values
    return F.linear(rows.float(), values.float(), weight.bias)


def _rms(rows: Tensor, norm: Norm) -> Tensor:
    return F.rms_norm(rows, (rows.shape[-1],), norm.weight, norm.eps)


def _rotated(heads: Tensor, rope: Rope) -> Tensor:
    cos, sin = (table[: len(heads), None] for table in (rope.cos, rope.sin))
    first, second = heads.chunk(2, dim=2)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=2)


def _mask(rows: Tensor, window: int) -> Tensor:
    """Mask of the keys that each row sees."""
    seen = torch.ones(len(rows), len(rows), dtype=torch.bool, device=rows.device)
    return seen.tril().triu(1 - window)
