"""Calibration (GPTQ): rounds weights so that a layer's outputs on real text change least.

The rounding is that of `models/compensated_rounding.py`. It costs a pass of some thousand tokens
through each layer. A layer's inputs come from the layers before it after their rounding.

Measured by `halfsec bench quality` on SmolLM2 135M, a small model whose wide vocabulary makes its
LM head as sensitive as its body: see `benchmarks/`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from llm_engine.checkpoints.fp8 import Fp8Matrix
from llm_engine.config import Precision
from llm_engine.cuda.model import DeviceLayer
from llm_engine.cuda.ops.int4_layout import pack
from llm_engine.cuda.ops.interface import Int4Weight, Matrix, Norm, Rope, Weight
from llm_engine.models.compensated_rounding import Compensation
from llm_engine.models.int4_rounding import GPU_GROUPS, rounded

from .emulation import Emulation
from .quantize import LARGEST, quantize


class CudaCalibration:
    """Runs a text through the layers, in one sequence or several, and rounds each on the way."""

    def __init__(
        self,
        embedding: Tensor,
        rope: Rope,
        token_ids: Sequence[Sequence[int]],
        block: tuple[int, int],
        made: Callable[[str], Precision],
    ) -> None:
        """`block`: rows and columns that share a scale of 8-bit weights. `made`: format that a
        float matrix gets, by its name. Sequences longer than the rotary tables are cut."""
        self._emulation = Emulation(rope, embedding.dtype)
        length = len(rope.cos)
        self._rows = [
            embedding[torch.tensor(ids[:length], device=embedding.device)] for ids in token_ids
        ]
        self._block = block
        self._made = made

    def layer(self, layer: DeviceLayer) -> DeviceLayer:
        """Run the text through the next layer, and round its float weights on the way."""
        emulation, attention = self._emulation, layer.attention
        normed = [emulation.normed(rows, attention.norm) for rows in self._rows]
        attention = replace(attention, qkv=self._rounded("qkv", attention.qkv, normed))
        attended = [emulation.attended(rows, attention) for rows in normed]
        out = self._rounded("out", layer.out, attended)
        self._add(attended, out)
        normed = [emulation.normed(rows, layer.mlp_norm) for rows in self._rows]
        gate_up = self._rounded("gate_up", layer.gate_up, normed)
        inner = [emulation.inner(rows, gate_up) for rows in normed]
        down = self._rounded("down", layer.down, inner)
        self._add(inner, down)
        return DeviceLayer(attention, out, layer.mlp_norm, gate_up, down)

    def head(self, norm: Norm, head: Weight) -> Weight:
        """Round the LM head, behind all layers."""
        normed = [self._emulation.normed(rows, norm) for rows in self._rows]
        return self._rounded("head", head, normed)

    def _add(self, inputs: list[Tensor], weight: Weight) -> None:
        pairs = zip(self._rows, inputs, strict=True)
        self._rows = [self._emulation.added(rows, each, weight) for rows, each in pairs]

    def _rounded(self, name: str, weight: Weight, inputs: list[Tensor]) -> Weight:
        precision = self._made(name)
        if isinstance(weight, Int4Weight) or weight.scales is not None:
            return weight  # of few bits in the checkpoint
        if precision is Precision.BFLOAT16:
            return weight
        moments = sum(rows.float().T @ rows.float() for rows in inputs)
        assert isinstance(moments, Tensor)
        moments /= sum(map(len, inputs))
        if precision is Precision.INT4:
            fours = rounded(weight.values, Compensation(moments), GPU_GROUPS[name], torch.float16)
            return pack(fours, weight.bias)
        eights = compensated(weight.values, moments, self._block)
        return Matrix(eights.values, eights.scales, eights.block, weight.bias)


def compensated(weight: Tensor, moments: Tensor, block: tuple[int, int]) -> Fp8Matrix:
    """Round `[out, in]` to 8-bit floats with error compensation for inputs with these second
    moments `[in, in]`. Scales are those of `quantize`. Raises ModelError for NaN and infinity."""
    plain = quantize(weight, block)
    rows, columns = plain.block
    scales = plain.scales.repeat_interleave(rows, 0)[: len(weight)]

    def nearest(values: Tensor, column: int, part: slice) -> tuple[Tensor, Tensor]:
        scale = scales[part, column // columns]
        codes = (values / scale).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        return codes, codes.float() * scale

    codes = Compensation(moments).round(weight, torch.float8_e4m3fn, nearest)
    return Fp8Matrix(codes, plain.scales, plain.block)
