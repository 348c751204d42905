"""Loads a checkpoint's weights onto the device, as floats or in 8 bits.

Matrices are read and converted one after another, on the device: the host never holds more than
one, and the device no more than the model and one matrix besides, or one layer where it gets a
shard of each. 8-bit floats of a checkpoint are kept bit for bit (`quantize.join` names the
exceptions).

Norms, biases and scales are float32; they are small. The embedding is a table of the activations'
type, as only single rows of it are read; where it is the LM head as well, the head may still be
8-bit, and is then a copy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.fp8 import Fp8Matrix
from llm_engine.checkpoints.packed_weights import FusedMatrix, FusedWeights, joined_bias
from llm_engine.config import ModelConfig, Precision
from llm_engine.cuda.ops.interface import Attention, Heads, Matrix, Norm, Rope
from llm_engine.cuda.quantization.calibrate import Calibration
from llm_engine.cuda.quantization.quantize import ONE_A_ROW, check, join
from llm_engine.cuda.tensor_parallel.sharding import Shard
from llm_engine.errors import ModelError
from llm_engine.models.rope import inverse_frequencies

from .model import DeviceLayer, DeviceModel


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Number formats of the matrices. Raises ModelError for one that a GPU does not compute in."""

    body: Precision = Precision.BFLOAT16
    """Format of all matrices but the LM head. `BFLOAT16`: the activations' type. `FP8`: 8-bit
    floats and scales."""
    head: Precision | None = None
    """Format of the LM head; None: as the body."""
    block: tuple[int, int] = ONE_A_ROW
    """Block that shares a scale when quantizing: `quantize.ONE_A_ROW` or `quantize.BLOCK`."""
    dtype: torch.dtype = torch.bfloat16
    """Type of activations. bfloat16 on a GPU; float32 in tests on a CPU, to exclude rounding."""

    def __post_init__(self) -> None:
        for precision in (self.body, self.head):
            if precision not in (None, Precision.BFLOAT16, Precision.FP8):
                raise ModelError(f"weights on a GPU are bfloat16 or fp8, not {precision}")

    @property
    def head_precision(self) -> Precision:
        return self.head or self.body


def load_model(
    checkpoint: Checkpoint,
    weight_format: WeightFormat,
    device: torch.device | str,
    *,
    context_length: int,
    shard: Shard | None = None,
    calibration: Sequence[Sequence[int]] = (),
    on_progress: Callable[[float], None] = lambda share: None,
) -> DeviceModel:
    """Load all weights, or one device's shard of each matrix. `on_progress` is called with the
    share that is done.

    With `calibration`, token ids of some texts, weights are rounded so that these change least
    (`quantization/calibrate.py`): a few thousand tokens, computed layer by layer. Raises ModelError
    for missing tensors, wrong shapes, NaN and infinity, and for a model that can't be sharded like
    that.
    """
    config, weights = checkpoint.config, FusedWeights(checkpoint)
    if shard is not None:
        shard.check(config)
    loading = _Loading(config, weight_format, torch.device(device), shard, bool(calibration))
    body, head_precision = weight_format.body, weight_format.head_precision
    # The vocabulary counts as a layer; the progress is approximate.
    num_parts = config.num_layers + 1
    with torch.inference_mode():
        stored = loading.on_device(weights.embedding())
        embedding = stored.to(weight_format.dtype)
        if weights.has_own_head:
            del stored
        rope = rope_tables(config, context_length, device)
        text = Calibration(embedding, rope, calibration, weight_format.block)
        layers = []
        for index in range(config.num_layers):
            on_progress((index + 1) / num_parts)
            layer = _layer(weights, loading, index)
            if calibration:
                layer = text.layer(layer, rounds=body is Precision.FP8)
            layers.append(loading.cut(layer))
        norm = loading.norm(weights.final_norm())
        if weights.has_own_head:
            head = loading.matrix(weights.head_matrix(), head_precision)
        elif head_precision is Precision.FP8:
            # From the stored values: the activations' type would round once more.
            head = loading.quantized([stored])
        else:
            head = Matrix(embedding)
        if calibration and head_precision is Precision.FP8:
            head = text.head(norm, head)
        head = loading.part("head", head)
    on_progress(1.0)
    return DeviceModel(loading.local, embedding, tuple(layers), norm, head, rope)


def rope_tables(config: ModelConfig, context_length: int, device: torch.device | str) -> Rope:
    """Rotary tables of `context_length` positions, equal to the reference's."""
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    angles = torch.outer(torch.arange(context_length, dtype=torch.float32), frequencies)
    factor = config.rope_attention_factor
    # On the host: devices differ in how they round sines of large angles.
    return Rope((angles.cos() * factor).to(device), (angles.sin() * factor).to(device))


@dataclass(frozen=True, slots=True)
class _Loading:
    """Settings of one load, and conversion of single matrices."""

    config: ModelConfig
    weight_format: WeightFormat
    device: torch.device
    shard: Shard | None
    is_calibrated: bool
    """True: matrices stay floats until the calibration text has reached them."""

    @property
    def local(self) -> ModelConfig:
        """Shape of this device's shard."""
        return self.config if self.shard is None else self.shard.local(self.config)

    def part(self, name: str, matrix: Matrix) -> Matrix:
        """This device's shard of a matrix."""
        return matrix if self.shard is None else self.shard.cut(name, matrix, self.config)

    def cut(self, layer: DeviceLayer) -> DeviceLayer:
        """This device's shard of a layer."""
        if self.shard is None:
            return layer
        local, attention = self.local, layer.attention
        heads = Heads(local.num_heads, local.num_kv_heads, local.head_dim)
        qkv = self.part("qkv", attention.qkv)
        return DeviceLayer(
            attention=replace(attention, qkv=qkv, heads=heads),
            out=self.part("out", layer.out),
            mlp_norm=layer.mlp_norm,
            gate_up=self.part("gate_up", layer.gate_up),
            down=self.part("down", layer.down),
        )

    def on_device(self, values: Tensor) -> Tensor:
        return values.to(self.device)

    def norm(self, weight: Tensor) -> Norm:
        return Norm(self.on_device(weight.float()), self.config.norm_eps)

    def matrix(self, matrix: FusedMatrix, precision: Precision) -> Matrix:
        """Load a linear layer and join its parts."""
        parts: list[Fp8Matrix | Tensor] = []
        biases: list[Tensor] = []
        for name, weight, part_bias in matrix.stored():
            biases.append(part_bias)
            if isinstance(weight, Fp8Matrix):
                values, scales = self.on_device(weight.values), self.on_device(weight.scales)
                stored = Fp8Matrix(values, scales, weight.block)
                if not check(stored):
                    raise ModelError(
                        f"{matrix.checkpoint.path}: tensor '{name}.weight' is damaged: it holds "
                        "NaN; fetch it again"
                    )
                parts.append(stored)
            else:
                parts.append(self.on_device(weight))
        added = joined_bias(biases)
        bias = None if added is None else self.on_device(added)
        if precision is Precision.FP8:
            return self.quantized(parts, bias)
        dtype = self.weight_format.dtype
        floats = [
            (part.dequantize() if isinstance(part, Fp8Matrix) else part).to(dtype) for part in parts
        ]
        return Matrix(_joined(floats), bias=bias)

    def quantized(self, parts: Sequence[Fp8Matrix | Tensor], bias: Tensor | None = None) -> Matrix:
        floats = [part for part in parts if isinstance(part, Tensor)]
        if self.is_calibrated and len(floats) == len(parts):
            return Matrix(_joined(floats), bias=bias)
        return as_matrix(join(parts, self.weight_format.block), bias)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def as_matrix(quantized: Fp8Matrix, bias: Tensor | None = None) -> Matrix:
    """`Matrix` of 8-bit floats."""
    return Matrix(quantized.values, quantized.scales, quantized.block, bias)


def _layer(weights: FusedWeights, loading: _Loading, index: int) -> DeviceLayer:
    config = loading.config
    norms = {name: loading.norm(vector) for name, vector in weights.vectors(index)}
    body = loading.weight_format.body
    linear = {each.name: loading.matrix(each, body) for each in weights.matrices(index)}
    attention = Attention(
        norm=norms["input_layernorm"],
        qkv=linear["qkv"],
        heads=Heads(config.num_heads, config.num_kv_heads, config.head_dim),
        q_norm=norms.get("q_norm"),
        k_norm=norms.get("k_norm"),
        window=config.sliding_window(index),
    )
    return DeviceLayer(
        attention=attention,
        out=linear["out"],
        mlp_norm=norms["post_attention_layernorm"],
        gate_up=linear["gate_up"],
        down=linear["down"],
    )
