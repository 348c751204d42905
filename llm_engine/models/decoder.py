"""Decoder of the Llama, Mistral, Qwen2 and Qwen3 families, in plain torch operations.

Written for one sequence at a time: rows are tokens, `[T, ...]`, with no batch dimension. How a
matrix is stored and multiplied is the backend's choice (`Linear`); everything between the matrices
is here, once.

Grouped-query attention needs no repeated keys: the queries that share a key head become rows of
that head, `[kv_heads, group * T, head_dim]`.

A layer with a sliding window is given only the keys that some row can see; where rows see different
ones of them, a mask says which. Caches keep all keys: truncating a conversation brings old ones
back into the window.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.packed_weights import FusedMatrix, FusedWeights
from llm_engine.config import ModelConfig

from . import rope
from .tensors import tensor

Linear = Callable[[Tensor], Tensor]
"""Linear layer: `[T, in]` float32 -> `[T, out]` float32."""

MakeLinear = Callable[[Tensor, Tensor | None], Linear]
"""Makes a linear layer from a weight `[out, in]` and a bias `[out]`, both float32."""


class LayerCache(Protocol):
    """Keys and values of one sequence in one layer."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store `[kv_heads, T, head_dim]` after the past; return past and present together."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    window: int | None
    """Latest keys that a row sees; None: all."""


class Decoder:
    """The model's weights and its forward pass. Thread-safe once built; keeps no state between
    calls."""

    def __init__(
        self, checkpoint: Checkpoint, make_linear: MakeLinear, context_length: int
    ) -> None:
        """Read every tensor. Raises ModelError for missing ones and wrong shapes."""
        self.config = config = checkpoint.config
        weights = FusedWeights(checkpoint)
        self._embedding = tensor(weights.embedding()).float()
        self._layers = [
            read_layer(
                weights,
                index,
                config.sliding_window(index),
                {each.name: make_linear(*joined(each)) for each in weights.matrices(index)},
            )
            for index in range(config.num_layers)
        ]
        self._windows = {layer.window for layer in self._layers}
        self._norm = tensor(weights.final_norm())
        head = tensor(weights.head()).float() if weights.has_own_head else self._embedding
        self._head = make_linear(head, None)
        self._cos, self._sin = rotary_tables(config, context_length)

    def hidden(self, token_ids: Tensor, first_position: int, caches: list[LayerCache]) -> Tensor:
        """Final hidden states `[T, hidden]` of tokens `[T]` at consecutive positions.

        Extends every layer's cache, which must hold exactly `first_position` tokens.
        """
        num_rows = token_ids.shape[0]
        positions = slice(first_position, first_position + num_rows)
        cos, sin = self._cos[positions], self._sin[positions]
        masks = {
            window: attention_mask(self.config, num_rows, first_position, window)
            for window in self._windows
        }
        rows = self._embedding[token_ids]
        width, eps = (self.config.hidden_size,), self.config.norm_eps
        for layer, cache in zip(self._layers, caches, strict=True):
            normed = F.rms_norm(rows, width, layer.input_norm, eps)
            attended = attend(self.config, layer, normed, cos, sin, masks[layer.window], cache)
            rows = rows + layer.out(attended)
            gate, up = layer.gate_up(F.rms_norm(rows, width, layer.post_norm, eps)).chunk(2, dim=1)
            rows = rows + layer.down(F.silu(gate) * up)
        return F.rms_norm(rows, width, self._norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """`[T, vocab]` from final hidden states."""
        return self._head(hidden)


def attend(
    config: ModelConfig,
    layer: Layer,
    rows: Tensor,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor | None,
    cache: LayerCache,
) -> Tensor:
    """Attention `[T, heads * head_dim]` of normalized rows; `cos` and `sin` are their rows of
    `rotary_tables`, `mask` is that of `attention_mask`."""
    num_rows, heads, kv_heads = rows.shape[0], config.num_heads, config.num_kv_heads
    qkv = layer.qkv(rows).view(num_rows, heads + 2 * kv_heads, config.head_dim)
    rotated, values = torch.split(qkv, [heads + kv_heads, kv_heads], dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        width, eps = (config.head_dim,), config.norm_eps
        queries, keys = torch.split(rotated, [heads, kv_heads], dim=1)
        rotated = torch.cat(
            [
                F.rms_norm(queries, width, layer.q_norm, eps),
                F.rms_norm(keys, width, layer.k_norm, eps),
            ],
            dim=1,
        )
    first, second = rotated.chunk(2, dim=2)
    rotated = rotated * cos + torch.cat([-second, first], dim=2) * sin
    queries, keys = torch.split(rotated, [heads, kv_heads], dim=1)
    all_keys, all_values = cache.extend(keys.transpose(0, 1), values.transpose(0, 1))
    if layer.window is not None:
        first_seen = -(layer.window + num_rows - 1)
        all_keys, all_values = all_keys[:, first_seen:], all_values[:, first_seen:]
    group = heads // kv_heads
    by_kv_head = queries.view(num_rows, kv_heads, group, config.head_dim).permute(1, 2, 0, 3)
    attended = F.scaled_dot_product_attention(
        by_kv_head.reshape(1, kv_heads, group * num_rows, config.head_dim),
        all_keys[None],
        all_values[None],
        attn_mask=mask,
    )
    by_token = attended.view(kv_heads, group, num_rows, config.head_dim).permute(2, 0, 1, 3)
    return by_token.reshape(num_rows, heads * config.head_dim)


def attention_mask(
    config: ModelConfig, num_rows: int, first_position: int, window: int | None
) -> Tensor | None:
    """Mask added to the scores `[group * T, keys]` of the keys that a layer is given.

    None for a single row, which sees all of those.
    """
    if num_rows == 1:
        return None
    num_keys = first_position + num_rows
    if window is not None:
        num_keys = min(num_keys, window + num_rows - 1)
    own_key = num_keys - num_rows  # of the first row; the next row's is one further
    hidden = torch.ones(num_rows, num_keys, dtype=torch.bool).triu_(own_key + 1)
    if window is not None:
        hidden |= torch.ones_like(hidden).tril_(own_key - window)
    mask = torch.zeros(num_rows, num_keys).masked_fill_(hidden, -math.inf)
    return mask.repeat(config.num_heads // config.num_kv_heads, 1)


def rotary_tables(config: ModelConfig, context_length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[context_length, 1, head_dim]`, float32."""
    cosines, sines = map(tensor, rope.rotary_tables(config, np.arange(context_length)))
    return cosines.repeat(1, 2)[:, None], sines.repeat(1, 2)[:, None]


def joined(matrix: FusedMatrix) -> tuple[Tensor, Tensor | None]:
    """Read a fused matrix `[out, in]` and its bias, both float32. Raises ModelError."""
    weight, bias = matrix.joined()
    return tensor(weight), None if bias is None else tensor(bias)


def read_layer(
    weights: FusedWeights, index: int, window: int | None, linears: Mapping[str, Linear]
) -> Layer:
    """A layer of these linear layers, by the names of `FusedMatrix`; its norms are read. Raises
    ModelError."""
    norms = {name: tensor(vector) for name, vector in weights.vectors(index)}
    return Layer(
        input_norm=norms["input_layernorm"],
        qkv=linears["qkv"],
        q_norm=norms.get("q_norm"),
        k_norm=norms.get("k_norm"),
        out=linears["out"],
        post_norm=norms["post_attention_layernorm"],
        gate_up=linears["gate_up"],
        down=linears["down"],
        window=window,
    )
