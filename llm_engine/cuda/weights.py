"""Loads a checkpoint's weights onto the device, as floats, in 8 bits or in 4.

Matrices are read and converted one after another, on the device: the host never holds more than
one, and the device no more than the model and one matrix besides, or one layer where it gets a
shard of each. 8-bit floats of a checkpoint are kept bit for bit (`quantize.join` names the
exceptions), and so are matrices stored in 4 bits. With those, the others of a checkpoint keep more
bits: rounding what its maker has not would lose quality. A checkpoint that has none gets 4 bits in
the matrices of `int4_rounding.GPU_GROUPS`, as on a CPU.

Norms, biases and scales are float32; they are small. The embedding is a table of the activations'
type, as only single rows of it are read; where it is the LM head as well, the head may still be
8-bit, and is then a copy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.fp8 import Fp8Matrix
from llm_engine.checkpoints.int4 import GROUP_SIZES, ZERO, Int4Matrix
from llm_engine.checkpoints.packed_cache import Array
from llm_engine.checkpoints.packed_weights import FusedMatrix, FusedWeights, joined_bias
from llm_engine.config import ModelConfig, Precision
from llm_engine.cuda.memory import MATRICES, Int4Storage
from llm_engine.cuda.ops.int4_layout import pack
from llm_engine.cuda.ops.interface import Attention, Heads, Int4Weight, Matrix, Norm, Rope, Weight
from llm_engine.cuda.quantization.calibrate import CudaCalibration
from llm_engine.cuda.quantization.quantize import ONE_A_ROW, check, join
from llm_engine.cuda.tensor_parallel.sharding import Shard
from llm_engine.errors import ModelError
from llm_engine.models.int4_rounding import GPU_GROUPS, nearest
from llm_engine.models.rope import rotary_tables
from llm_engine.models.tensors import tensor

from .model import DeviceLayer, DeviceModel


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Number formats of the matrices. Raises ModelError for one that a GPU does not compute in."""

    body: Precision = Precision.BFLOAT16
    """Format of all matrices but the LM head. `BFLOAT16`: the activations' type. `FP8`: 8-bit
    floats and scales. `INT4`: 4 bits where the checkpoint has them, or where they are made."""
    head: Precision | None = None
    """Format of the LM head; None: as the body."""
    rest: Precision = Precision.BFLOAT16
    """Format of the matrices of an `INT4` body that are not in 4 bits."""
    block: tuple[int, int] = ONE_A_ROW
    """Block that shares a scale when quantizing: `quantize.ONE_A_ROW` or `quantize.BLOCK`."""
    dtype: torch.dtype = torch.bfloat16
    """Type of activations. bfloat16 on a GPU; float32 in tests on a CPU, to exclude rounding."""

    def __post_init__(self) -> None:
        floats = (Precision.BFLOAT16, Precision.FP8)
        if self.body not in (*floats, Precision.INT4):
            raise ModelError(f"weights on a GPU are bfloat16, fp8 or int4, not {self.body}")
        for precision in (self.head, self.rest):
            if precision not in (None, *floats):
                raise ModelError(f"weights not in 4 bits are bfloat16 or fp8, not {precision}")

    @property
    def head_precision(self) -> Precision:
        """Format of an LM head; `INT4`: only where it is stored so, else `rest`."""
        return self.head or self.body

    def made(self, name: str) -> Precision:
        """Format that a matrix gets, by its name in `FusedWeights` or `head`, if it has none."""
        precision = self.head_precision if name == "head" else self.body
        if precision is not Precision.INT4 or name in GPU_GROUPS:
            return precision
        return self.rest


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
    loading = _Loading(checkpoint, weight_format, torch.device(device), shard, bool(calibration))
    # The vocabulary counts as a layer; the progress is approximate.
    num_parts = config.num_layers + 1
    with torch.inference_mode():
        stored: Tensor | None = loading.on_device(tensor(weights.embedding()))
        assert stored is not None
        embedding = stored.to(weight_format.dtype)
        if weights.has_own_head:
            stored = None  # only a tied head is made of it
        rope = rope_tables(config, context_length, device)
        text = CudaCalibration(embedding, rope, calibration, weight_format.block, loading.made)
        layers = []
        for index in range(config.num_layers):
            on_progress((index + 1) / num_parts)
            layer = _layer(weights, loading, index)
            if calibration:
                layer = text.layer(layer)
            layers.append(loading.cut(layer))
        norm = loading.norm(tensor(weights.final_norm()))
        head = loading.head(weights, embedding, stored)
        if calibration:
            head = text.head(norm, head)
        head = loading.part("head", head)
    on_progress(1.0)
    return DeviceModel(loading.local, embedding, tuple(layers), norm, head, rope)


def int4_storage(checkpoint: Checkpoint, weight_format: WeightFormat) -> Int4Storage:
    """Matrices that an `INT4` body will have in 4 bits, as far as a look at the first of each kind
    tells. Raises ModelError."""
    config = checkpoint.config
    if not checkpoint.has_int4_layers:
        layer = frozenset(GPU_GROUPS.keys() & set(MATRICES))
        has_head = weight_format.made("head") is Precision.INT4
        return Int4Storage((layer,) * config.num_layers, has_head, min(GPU_GROUPS.values()))
    weights = FusedWeights(checkpoint)
    candidates = [list(weights.matrices(index)) for index in range(config.num_layers)]
    kept: dict[str, Int4Matrix | None] = {}
    layers = []
    for matrices in candidates:
        names: set[str] = set()
        for matrix in matrices:
            if matrix.may_be_int4 and matrix.name not in kept:
                stored = matrix.int4()
                kept[matrix.name] = None if stored is None else stored[0]
            if matrix.may_be_int4 and kept[matrix.name] is not None:
                names.add(matrix.name)
        layers.append(frozenset(names))
    found = [matrix for matrix in kept.values() if matrix is not None]
    head = weights.head_matrix()
    return Int4Storage(
        tuple(layers),
        has_head=weight_format.head is None and head.may_be_int4,
        group=min((matrix.group for matrix in found), default=GROUP_SIZES[0]),
        group_bytes=max((_group_bytes(matrix) for matrix in found), default=0),
    )


def _group_bytes(matrix: Int4Matrix) -> int:
    """Bytes of a group's scale and zero point on the device."""
    has_offsets = bool((matrix.zeros != ZERO).any())
    has_halves = torch.equal(matrix.scales.half().float(), matrix.scales)
    return (2 if has_halves else 4) + 2 * has_offsets


def rope_tables(config: ModelConfig, context_length: int, device: torch.device | str) -> Rope:
    """Rotary tables of `context_length` positions, equal to the reference's."""
    cosines, sines = map(tensor, rotary_tables(config, np.arange(context_length)))
    return Rope(cosines.to(device), sines.to(device))


@dataclass(frozen=True, slots=True)
class _Loading:
    """Settings of one load, and conversion of single matrices."""

    checkpoint: Checkpoint
    weight_format: WeightFormat
    device: torch.device
    shard: Shard | None
    is_calibrated: bool
    """True: matrices stay floats until the calibration text has reached them."""

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def local(self) -> ModelConfig:
        """Shape of this device's shard."""
        return self.config if self.shard is None else self.shard.local(self.config)

    def part(self, name: str, matrix: Weight) -> Weight:
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

    def made(self, name: str) -> Precision:
        """Format that a matrix gets which is not stored in 4 or 8 bits."""
        precision = self.weight_format.made(name)
        if precision is Precision.INT4 and self.checkpoint.has_int4_layers:
            return self.weight_format.rest
        return precision

    def head(self, weights: FusedWeights, embedding: Tensor, stored: Tensor | None) -> Weight:
        """Load the LM head. `stored`: the embedding as stored, where the head is tied to it."""
        matrix = weights.head_matrix()
        if stored is None:
            return self.matrix(matrix, self.weight_format.head_precision)
        kept = self._int4(matrix, self.weight_format.head_precision)
        if kept is not None:
            return kept
        if self.made("head") is Precision.FP8:
            # From the stored values: the activations' type would round once more.
            return self.made_of("head", [stored])
        return Matrix(embedding)

    def matrix(self, matrix: FusedMatrix, precision: Precision) -> Weight:
        """Load a linear layer and join its parts."""
        kept = self._int4(matrix, precision)
        if kept is not None:
            return kept
        parts: list[Fp8Matrix | Tensor] = []
        biases: list[Array] = []
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
                parts.append(self.on_device(tensor(weight)))
        added = joined_bias(biases)
        bias = None if added is None else self.on_device(tensor(added))
        return self.made_of(matrix.name, parts, bias)

    def _int4(self, matrix: FusedMatrix, precision: Precision) -> Int4Weight | None:
        """A matrix that stays in 4 bits as stored."""
        stored = matrix.int4() if precision is Precision.INT4 else None
        if stored is None:
            return None
        codes, bias = stored
        on_device = Int4Matrix(
            self.on_device(codes.codes),
            self.on_device(codes.scales),
            self.on_device(codes.zeros),
            codes.group,
        )
        return pack(on_device, None if bias is None else self.on_device(tensor(bias)))

    def made_of(
        self, name: str, parts: Sequence[Fp8Matrix | Tensor], bias: Tensor | None = None
    ) -> Weight:
        """A matrix of its parts as stored; floats, where calibration is to round it."""
        precision = self.made(name)
        are_floats = all(isinstance(part, Tensor) for part in parts)
        if precision is Precision.FP8 and not (self.is_calibrated and are_floats):
            return as_matrix(join(parts, self.weight_format.block), bias)
        floats = [part.dequantize() if isinstance(part, Fp8Matrix) else part for part in parts]
        if precision is Precision.BFLOAT16:
            dtype = self.weight_format.dtype
            return Matrix(_joined([part.to(dtype) for part in floats]), bias=bias)
        values = _joined(floats)
        if self.is_calibrated:
            return Matrix(values, bias=bias)
        return pack(nearest(values, GPU_GROUPS[name], torch.float16), bias)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def as_matrix(quantized: Fp8Matrix, bias: Tensor | None = None) -> Matrix:
    """`Matrix` of 8-bit floats."""
    return Matrix(quantized.values, quantized.scales, quantized.block, bias)


def _layer(weights: FusedWeights, loading: _Loading, index: int) -> DeviceLayer:
    config = loading.config
    norms = {name: loading.norm(tensor(vector)) for name, vector in weights.vectors(index)}
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
