"""Models of known shapes with random weights: a step's cost does not depend on the values.

Weights are drawn on the device, which takes seconds for the largest model. Matrices have a variance
of one over their inputs, and the terms of the residual are smaller with more layers: activations
neither explode nor vanish, and every token's logits differ.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from llm_engine.config import Llama3Scaling, ModelConfig, Precision
from llm_engine.cuda.model import DeviceLayer, DeviceModel
from llm_engine.cuda.ops.int4_layout import pack
from llm_engine.cuda.ops.interface import Attention, Heads, Matrix, Norm, Weight
from llm_engine.cuda.quantization.quantize import quantize
from llm_engine.cuda.weights import WeightFormat, as_matrix, rope_tables
from llm_engine.models.int4_rounding import nearest
from llm_engine.models.medusa_heads import DraftHead, DraftHeads, HeadsShape
from llm_engine.training.draft_head_training import Recipe

_PIECE = 1 << 26
"""Number of values drawn at a time: 256 MB."""
_BIAS_STD = 0.1


def _llama(
    num_layers: int, sizes: tuple[int, int], heads: int, dim: int, far: float
) -> ModelConfig:
    hidden, inner = sizes
    return ModelConfig(
        architecture="llama",
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=dim,
        vocab_size=128_256,
        context_length=131_072,
        norm_eps=1e-5,
        rope_theta=500_000.0,
        rope_scaling=Llama3Scaling(far, 1.0, 4.0, 8192),
    )


INT4_GROUP: Final = 128
"""Columns of 4-bit weights that share a scale and a zero point, as in most GPTQ and AWQ
checkpoints."""

SHAPES: Final = {
    "1b": _llama(16, (2048, 8192), heads=32, dim=64, far=32.0),
    "3b": _llama(28, (3072, 8192), heads=24, dim=128, far=32.0),
    "8b": _llama(32, (4096, 14_336), heads=32, dim=128, far=8.0),
    "70b": _llama(80, (8192, 28_672), heads=64, dim=128, far=8.0),
    "qwen2-7b": ModelConfig(
        architecture="qwen2",
        num_layers=28,
        hidden_size=3584,
        intermediate_size=18_944,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        vocab_size=152_064,
        context_length=32_768,
        norm_eps=1e-6,
        rope_theta=1_000_000.0,
    ),
    "qwen3-8b": ModelConfig(
        architecture="qwen3",
        num_layers=36,
        hidden_size=4096,
        intermediate_size=12_288,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=151_936,
        context_length=40_960,
        norm_eps=1e-6,
        rope_theta=1_000_000.0,
    ),
}
"""Llama 3.2 1B and 3B, 3.1 8B, 3.3 70B; Qwen 2.5 7B, whose queries have biases, and Qwen 3 8B,
whose heads have norms."""


def random_model(
    config: ModelConfig,
    weight_format: WeightFormat,
    device: torch.device | str,
    *,
    seed: int,
    context_length: int,
) -> DeviceModel:
    """Make a model of this shape. The same seed gives the same weights on the same kind of
    device."""
    with torch.inference_mode():
        draw = _Draw(torch.device(device), weight_format, seed)
        hidden, vocab = config.hidden_size, config.vocab_size
        embedding = draw.floats((vocab, hidden), 1.0)
        layers = tuple(_layer(draw, config, index) for index in range(config.num_layers))
        head = draw.matrix((vocab, hidden), precision=weight_format.made("head"))
        norm = draw.norm(hidden, config.norm_eps)
        rope = rope_tables(config, context_length, device)
    return DeviceModel(config, embedding, layers, norm, head, rope)


def random_heads(model: DeviceModel, number: int, *, seed: int) -> DraftHeads:
    """Make draft heads for a model, of the default size of trained ones, in the model's type and on
    its device, so that a backend copies nothing."""
    config, like, recipe = model.config, model.embedding, Recipe()
    shape = HeadsShape(
        model="",
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        num_heads=number,
        inner_size=recipe.inner_size or 2 * config.hidden_size,
        num_tokens=min(recipe.num_tokens, config.vocab_size),
        norm_eps=config.norm_eps,
    )
    with torch.inference_mode():
        draw = _Draw(like.device, WeightFormat(dtype=like.dtype), seed)
        heads = tuple(_head(draw, shape.shapes(), index) for index in range(number))
        order = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(seed))
        tokens = order[: shape.num_tokens].sort().values
    return DraftHeads(shape, heads, tokens)


def _head(draw: "_Draw", shapes: Mapping[str, tuple[int, ...]], index: int) -> DraftHead:
    def matrix(name: str) -> Tensor:
        rows, columns = shapes[f"{index}.{name}"]
        return draw.floats((rows, columns), 1 / math.sqrt(columns))

    def norm(name: str) -> Tensor:
        return torch.ones(shapes[f"{index}.{name}"], device=draw.device)

    return DraftHead(
        matrix("token"), norm("norm"), matrix("gate_up"), matrix("down"), norm("out_norm")
    )


def _layer(draw: "_Draw", config: ModelConfig, index: int) -> DeviceLayer:
    hidden, inner, eps = config.hidden_size, config.intermediate_size, config.norm_eps
    heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
    width = heads.num_heads * heads.head_dim
    num_outputs = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    added = 1 / math.sqrt(2 * config.num_layers)
    has_bias = config.architecture == "qwen2"
    attention = Attention(
        norm=draw.norm(hidden, eps),
        qkv=draw.matrix((num_outputs, hidden), bias=_BIAS_STD if has_bias else None),
        heads=heads,
        q_norm=draw.norm(heads.head_dim, eps) if config.has_qk_norm else None,
        k_norm=draw.norm(heads.head_dim, eps) if config.has_qk_norm else None,
        window=config.sliding_window(index),
    )
    return DeviceLayer(
        attention=attention,
        out=draw.matrix((hidden, width), gain=added),
        mlp_norm=draw.norm(hidden, eps),
        gate_up=draw.matrix((2 * inner, hidden)),
        down=draw.matrix((hidden, inner), gain=added),
    )


@dataclass(slots=True)
class _Draw:
    """Random generator of tensors on a device."""

    device: torch.device
    weight_format: WeightFormat
    seed: int
    _generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._generator = torch.Generator(self.device)
        self._generator.manual_seed(self.seed)

    def floats(self, shape: tuple[int, int], std: float) -> Tensor:
        """Draw normal values in the activations' type; at most a piece of them is in float32 at a
        time."""
        values = torch.empty(shape, dtype=self.weight_format.dtype, device=self.device)
        piece = max(1, _PIECE // shape[1])
        for first in range(0, shape[0], piece):
            part = values[first : first + piece]
            drawn = torch.randn(part.shape, generator=self._generator, device=self.device)
            part.copy_(drawn.mul_(std))
        return values

    def norm(self, width: int, eps: float) -> Norm:
        return Norm(torch.ones(width, device=self.device), eps)

    def matrix(
        self,
        shape: tuple[int, int],
        *,
        gain: float = 1.0,
        bias: float | None = None,
        precision: Precision | None = None,
    ) -> Weight:
        """Draw a matrix. `bias`: standard deviation of its bias; None: no bias."""
        values = self.floats(shape, gain / math.sqrt(shape[1]))
        added = None if bias is None else self.floats((shape[0], 1), bias).flatten().float()
        precision = precision or self.weight_format.body
        if precision is Precision.FP8:
            return as_matrix(quantize(values, self.weight_format.block), added)
        if precision is Precision.INT4:
            return pack(nearest(values, INT4_GROUP, torch.float16), added)
        return Matrix(values, bias=added)
