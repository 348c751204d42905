"""Calibration for 4-bit weights on a CPU: runs a text through the layers and rounds on the way.

A layer's inputs come from the layers before it after their rounding. One layer is in memory at a
time, in float32, besides the text's rows and the second moments of one matrix's inputs.

Which matrices become 4-bit is `onnx_int4.CPU_GROUPS`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.int4 import Int4Matrix
from llm_engine.checkpoints.packed_cache import Array
from llm_engine.checkpoints.packed_weights import FusedWeights
from llm_engine.models.calibration_text import CalibrationText
from llm_engine.models.compensated_rounding import Compensation
from llm_engine.models.decoder import (
    Layer,
    attend,
    attention_mask,
    joined,
    read_layer,
    rotary_tables,
)
from llm_engine.models.int4_rounding import rounded
from llm_engine.models.tensors import tensor

from .onnx_int4 import CPU_GROUPS

Weight: TypeAlias = tuple[Int4Matrix | Tensor, Tensor | None]
"""A matrix, in 4 bits or `[out, in]` float32, and its bias `[out]`."""

Rounded: TypeAlias = tuple[Int4Matrix | Array, Array | None]
"""The same with numpy's arrays, as the conversion takes it."""


class CpuCalibration:
    """State of a calibration: the text's rows behind the layers that are done. Layers come in
    order, then the head."""

    def __init__(self, checkpoint: Checkpoint, text: CalibrationText, num_threads: int) -> None:
        """`num_threads`: threads of products; the rounding itself runs on the caller's setting."""
        self._config = checkpoint.config
        self._weights = FusedWeights(checkpoint)
        self._num_threads = num_threads
        self._cos, self._sin = rotary_tables(self._config, max(map(len, text.sequences)))
        embedding = tensor(self._weights.embedding())
        self._rows = [embedding[torch.tensor(ids)].float() for ids in text.sequences]

    def layer(self, index: int) -> Iterator[tuple[str, Rounded]]:
        """Read and round layer `index`; yields its matrices by name. Raises ModelError."""
        matrices = {each.name: joined(each) for each in self._weights.matrices(index)}
        linears = {name: partial(_product, weight) for name, weight in matrices.items()}
        window = self._config.sliding_window(index)
        layer = read_layer(self._weights, index, window, linears)
        rows = self._normed(self._rows, layer.input_norm)
        rounded = self._rounded("qkv", matrices, rows)
        yield "qkv", _arrays(rounded)
        layer = replace(layer, qkv=partial(_product, rounded))
        with torch_threads(self._num_threads):
            rows = [self._attended(each, layer) for each in rows]
        rounded = self._rounded("out", matrices, rows)
        yield "out", _arrays(rounded)
        self._add(rows, rounded)
        rows = self._normed(self._rows, layer.post_norm)
        rounded = self._rounded("gate_up", matrices, rows)
        yield "gate_up", _arrays(rounded)
        with torch_threads(self._num_threads):
            rows = [_gated(_product(rounded, each)) for each in rows]
        rounded = self._rounded("down", matrices, rows)
        yield "down", _arrays(rounded)
        self._add(rows, rounded)

    def head(self, weight: Array) -> Int4Matrix | Array:
        """Round the LM head, behind all layers."""
        if "head" not in CPU_GROUPS:
            return weight
        rows = self._normed(self._rows, tensor(self._weights.final_norm()))
        matrix, _ = _arrays(self._rounded("head", {"head": (tensor(weight), None)}, rows))
        return matrix

    def _rounded(
        self,
        name: str,
        matrices: Mapping[str, tuple[Tensor, Tensor | None]],
        inputs: Sequence[Tensor],
    ) -> Weight:
        weight, bias = matrices[name]
        if name not in CPU_GROUPS:
            return weight, bias
        with torch_threads(self._num_threads):
            moments = torch.zeros(weight.shape[1], weight.shape[1])
            for rows in inputs:
                moments.addmm_(rows.T, rows)
            compensation = Compensation(moments.div_(sum(map(len, inputs))))
        return rounded(weight, compensation, CPU_GROUPS[name]), bias

    def _normed(self, rows: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
        width, eps = (self._config.hidden_size,), self._config.norm_eps
        return [F.rms_norm(each, width, weight, eps) for each in rows]

    def _attended(self, rows: Tensor, layer: Layer) -> Tensor:
        num_rows = len(rows)
        mask = attention_mask(self._config, num_rows, 0, layer.window)
        cos, sin = self._cos[:num_rows], self._sin[:num_rows]
        return attend(self._config, layer, rows, cos, sin, mask, _NoCache())

    def _add(self, inputs: Sequence[Tensor], weight: Weight) -> None:
        with torch_threads(self._num_threads):
            self._rows = [
                rows + _product(weight, each) for rows, each in zip(self._rows, inputs, strict=True)
            ]


class _NoCache:
    """Keys and values of a text that is read once, from its first token."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values


def _arrays(weight: Weight) -> Rounded:
    values, bias = weight
    matrix = values if isinstance(values, Int4Matrix) else values.numpy()
    return matrix, None if bias is None else bias.numpy()


def _product(weight: Weight, rows: Tensor) -> Tensor:
    values, bias = weight
    if isinstance(values, Int4Matrix):
        values = values.dequantize()
    return F.linear(rows, values, bias)


def _gated(rows: Tensor) -> Tensor:
    gate, up = rows.chunk(2, dim=1)
    return F.silu(gate) * up


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run torch on this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
