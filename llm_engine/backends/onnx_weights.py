"""A checkpoint's tensors as the ONNX backend multiplies with them: 8-bit blocks.

Each row of a matrix is cut into blocks of `BLOCK` inputs with one scale, the largest weight over
127. Codes are unsigned around 128, as MatMulNBits wants them; a last block that the inputs do not
fill is padded with zeros. Queries, keys and values stand in one matrix, and so do gate and up:
fewer, larger products.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from llm_engine.checkpoint import Checkpoint
from llm_engine.weight_cache import Array

KIND = "onnx-int8-1"
"""Names this conversion in the cache; to be raised with every change to it."""

BLOCK = 64
_ZERO = 128
"""What a weight of 0 is stored as; MatMulNBits' default for 8 bits."""


def convert(
    checkpoint: Checkpoint, on_progress: Callable[[float], None]
) -> Iterator[tuple[str, Array]]:
    """All of a model's weights by the names that the graph calls them, one at a time.

    `on_progress` hears the share that is done. Raises ModelError for missing tensors and wrong
    shapes.
    """
    config = checkpoint.config
    vocabulary = (config.vocab_size, config.hidden_size)
    # The vocabulary takes about as long as a few layers; the bar need not be more exact.
    num_parts = config.num_layers + 1
    embedding = checkpoint.tensor("embed_tokens.weight", *vocabulary)
    yield "embedding", embedding.half().numpy()
    is_tied = "lm_head.weight" not in checkpoint.names
    head = embedding if is_tied else checkpoint.tensor("lm_head.weight", *vocabulary)
    yield from _matrix("head", head.float(), None)
    yield "norm", _vector(checkpoint, "norm", config.hidden_size)
    for index in range(config.num_layers):
        on_progress((index + 1) / num_parts)
        yield from _layer(checkpoint, index)
    on_progress(1.0)


def _layer(checkpoint: Checkpoint, index: int) -> Iterator[tuple[str, Array]]:
    config, prefix = checkpoint.config, f"layers.{index}."
    hidden, inner = config.hidden_size, config.intermediate_size
    width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    vectors = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.has_qk_norm:
        vectors |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    for name, size in vectors.items():
        yield f"{prefix}{name}", _vector(checkpoint, f"{prefix}{name}", size)
    queries_keys_values = {
        f"{prefix}self_attn.q_proj": width,
        f"{prefix}self_attn.k_proj": kv_width,
        f"{prefix}self_attn.v_proj": kv_width,
    }
    gate_up = {f"{prefix}mlp.gate_proj": inner, f"{prefix}mlp.up_proj": inner}
    for name, num_inputs, parts in (
        ("qkv", hidden, queries_keys_values),
        ("out", width, {f"{prefix}self_attn.o_proj": hidden}),
        ("gate_up", hidden, gate_up),
        ("down", inner, {f"{prefix}mlp.down_proj": hidden}),
    ):
        yield from _matrix(f"{prefix}{name}", *_joined(checkpoint, num_inputs, parts))


def _vector(checkpoint: Checkpoint, name: str, size: int) -> Array:
    return np.asarray(checkpoint.tensor(f"{name}.weight", size).float().numpy())


def _joined(
    checkpoint: Checkpoint, num_inputs: int, parts: dict[str, int]
) -> tuple[Tensor, Tensor | None]:
    """One matrix of several, one below the other, and their biases."""
    weights, biases = [], []
    for name, num_outputs in parts.items():
        weights.append(checkpoint.tensor(f"{name}.weight", num_outputs, num_inputs).float())
        if f"{name}.bias" in checkpoint.names:
            biases.append(checkpoint.tensor(f"{name}.bias", num_outputs).float())
        else:
            biases.append(torch.zeros(num_outputs))
    bias = torch.cat(biases)
    return torch.cat(weights), bias if bool(bias.any()) else None


def _matrix(name: str, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[str, Array]]:
    codes, scales = quantize(weight)
    yield f"{name}.codes", codes.numpy()
    yield f"{name}.scales", scales.numpy()
    if bias is not None:
        yield f"{name}.bias", bias.numpy()


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes `[out, blocks, BLOCK]` uint8 and scales `[out, blocks]` of a float32 `[out, in]`."""
    num_outputs, num_inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -num_inputs % BLOCK))
    blocks = padded.view(num_outputs, -1, BLOCK)
    scales = blocks.abs().amax(dim=2).clamp(min=1e-12) / 127
    codes = (blocks / scales[..., None]).round_().add_(_ZERO).to(torch.uint8)
    return codes, scales


def dequantize(codes: Tensor, scales: Tensor, num_inputs: int) -> Tensor:
    """The matrix `[out, in]` that codes and scales stand for."""
    return ((codes.float() - _ZERO) * scales[..., None]).flatten(1)[:, :num_inputs]
