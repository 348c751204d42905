"""The decoder on the device: weights as the operations take them, and the forward pass.

The forward pass computes a fixed number of rows on buffers that stay at their addresses, so that it
can be captured."""

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_engine.config import ModelConfig
from llm_engine.cuda.ops.interface import Attention, LayerPages, Norm, Ops, Rope, Rows, Weight


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """Weights of one decoder layer."""

    attention: Attention
    out: Weight
    """Output projection, from all heads back to the hidden size."""
    mlp_norm: Norm
    gate_up: Weight
    """Gate and up, one below the other."""
    down: Weight


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Weights of a decoder."""

    config: ModelConfig
    embedding: Tensor
    """`[vocab, hidden]`, of the activations' type."""
    layers: tuple[DeviceLayer, ...]
    norm: Norm
    head: Weight
    rope: Rope

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that every step reads: all matrices, not the embedding table."""
        matrices = [self.head]
        for layer in self.layers:
            matrices += [layer.attention.qkv, layer.out, layer.gate_up, layer.down]
        return sum(matrix.num_bytes for matrix in matrices)


class Scratch:
    """Activation buffers of a forward pass over up to `num_rows` rows. Passes of one stream can
    share them."""

    def __init__(self, model: DeviceModel, num_rows: int) -> None:
        config, like = model.config, model.embedding
        self.num_rows = num_rows

        def buffer(*shape: int) -> Tensor:
            return torch.zeros(num_rows, *shape, dtype=like.dtype, device=like.device)

        self.hidden = buffer(config.hidden_size)
        """`[M, hidden]`: the residual stream."""
        self.queries = buffer(config.num_heads, config.head_dim)
        self.attended = buffer(config.num_heads, config.head_dim)
        self.inner = buffer(config.intermediate_size)


def hidden_states(
    model: DeviceModel,
    ops: Ops,
    cache: list[LayerPages],
    rows: Rows,
    scratch: Scratch,
) -> Tensor:
    """Run all layers. Returns the residual stream `[M, hidden]` behind the last layer, not yet
    normalized, in `scratch`, whose first M rows hold the embeddings before. Stores the rows' keys
    and values."""
    num_rows = rows.positions.shape[0]
    hidden, queries = scratch.hidden[:num_rows], scratch.queries[:num_rows]
    attended, inner = scratch.attended[:num_rows], scratch.inner[:num_rows]
    for layer, pages in zip(model.layers, cache, strict=True):
        attention = layer.attention
        ops.queries(hidden, attention, model.rope, rows, pages, queries)
        ops.attend(queries, attention, rows, pages, attended)
        ops.add_product(attended.flatten(1), layer.out, hidden)
        ops.gate_up(hidden, layer.mlp_norm, layer.gate_up, inner)
        ops.add_product(inner, layer.down, hidden)
    return hidden
