"""Calibration (GPTQ): rounds weights to 8 bits so that a layer's outputs on real text change least.

The rounding is that of `models/compensated_rounding.py`. It costs a pass of some thousand tokens
through each layer. A layer's inputs come from the layers before it after their rounding.

Measured by `halfsec bench quality` on SmolLM2 135M, a small model whose wide vocabulary makes its
LM head as sensitive as its body: see `benchmarks/`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from llm_engine.checkpoints.fp8 import Fp8Matrix
from llm_engine.cuda.model import DeviceLayer
from llm_engine.cuda.ops.interface import Matrix, Norm, Rope
from llm_engine.models.compensated_rounding import Compensation

from .emulation import Emulation
from .quantize import LARGEST, quantize


class Calibration:
    """Runs a text through the layers, in one sequence or several, and rounds each on the way."""

    def __init__(
        self,
        embedding: Tensor,
        rope: Rope,
        token_ids: Sequence[Sequence[int]],
        block: tuple[int, int],
    ) -> None:
        """`block`: rows and columns that share a scale. Sequences longer than the rotary tables are
        cut."""
        self._emulation = Emulation(rope, embedding.dtype)
        length = len(rope.cos)
        self._rows = [
            embedding[torch.tensor(ids[:length], device=embedding.device)] for ids in token_ids
        ]
        self._block = block

    def layer(self, layer: DeviceLayer, *, rounds: bool) -> DeviceLayer:
        """Run the text through the next layer; `rounds`: round its float weights to 8 bits
        first."""
        if not rounds:
            self._rows = [self._emulation.layer(rows, layer) for rows in self._rows]
            return layer
        emulation, attention = self._emulation, layer.attention
        normed = [emulation.normed(rows, attention.norm) for rows in self._rows]
        attention = replace(attention, qkv=self._rounded(attention.qkv, normed))
        attended = [emulation.attended(rows, attention) for rows in normed]
        out = self._rounded(layer.out, attended)
        self._add(attended, out)
        normed = [emulation.normed(rows, layer.mlp_norm) for rows in self._rows]
        gate_up = self._rounded(layer.gate_up, normed)
        inner = [emulation.inner(rows, gate_up) for rows in normed]
        down = self._rounded(layer.down, inner)
        self._add(inner, down)
        return DeviceLayer(attention, out, layer.mlp_norm, gate_up, down)

    def head(self, norm: Norm, head: Matrix) -> Matrix:
        """Round the LM head, behind all layers."""
        return self._rounded(head, [self._emulation.normed(rows, norm) for rows in self._rows])

    def _add(self, inputs: list[Tensor], weight: Matrix) -> None:
        pairs = zip(self._rows, inputs, strict=True)
        self._rows = [self._emulation.added(rows, each, weight) for rows, each in pairs]

    def _rounded(self, weight: Matrix, inputs: list[Tensor]) -> Matrix:
        if weight.scales is not None:
            return weight  # 8-bit in the checkpoint
        moments = sum(rows.float().T @ rows.float() for rows in inputs)
        assert isinstance(moments, Tensor)
        rounded = compensated(weight.values, moments / sum(map(len, inputs)), self._block)
        return Matrix(rounded.values, rounded.scales, rounded.block, weight.bias)


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
