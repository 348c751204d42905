"""A decoder's weights on the device, as the operations take them."""

from dataclasses import dataclass

from torch import Tensor

from llm_engine.config import ModelConfig
from llm_engine.cuda.ops.interface import Attention, Matrix, Norm, Rope


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """One decoder layer."""

    attention: Attention
    out: Matrix
    """From all heads side by side back to the hidden size."""
    mlp_norm: Norm
    gate_up: Matrix
    """Gate and up, one below the other."""
    down: Matrix


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """All of it."""

    config: ModelConfig
    embedding: Tensor
    """`[vocab, hidden]`, the activations' type."""
    layers: tuple[DeviceLayer, ...]
    norm: Norm
    head: Matrix
    rope: Rope

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that every step has to read: all matrices, not the embedding's table."""
        matrices = [self.head]
        for layer in self.layers:
            matrices += [layer.attention.qkv, layer.out, layer.gate_up, layer.down]
        return sum(matrix.num_bytes for matrix in matrices)
