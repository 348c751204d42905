"""Fused weights of a decoder: QKV in one matrix, gate and up in one, for any checkpoint.

Fewer, larger products are faster. Everything is read on demand, so that a conversion part by part
never has a whole layer in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .checkpoint import Checkpoint
from .fp8 import Fp8Matrix
from .int4 import AffineInt4, Int4Matrix
from .packed_cache import Array


@dataclass(frozen=True, slots=True)
class FusedPart:
    """One of the matrices that make up a fused one."""

    weight: Array
    """`[out, in]`, in its stored type."""
    bias: Array
    """`[out]`, float32; zeros where the checkpoint has none."""


@dataclass(frozen=True, slots=True)
class FusedMatrix:
    """A linear layer whose weights are still on disk."""

    name: str
    """`qkv`, `out`, `gate_up` or `down`."""
    num_inputs: int
    parts: tuple[tuple[str, int], ...]
    """Names of the tensors, without `.weight`, and the number of outputs of each."""
    checkpoint: Checkpoint

    def read(self) -> Iterator[FusedPart]:
        """Read the parts from top to bottom. Raises ModelError."""
        for name, num_outputs in self.parts:
            weight = self.checkpoint.tensor(f"{name}.weight", num_outputs, self.num_inputs)
            yield FusedPart(weight, self._bias(name, num_outputs))

    def stored(self) -> Iterator[tuple[str, Fp8Matrix | Array, Array]]:
        """Read the parts' names, weights and biases, keeping 8-bit floats as stored. Raises
        ModelError."""
        for name, num_outputs in self.parts:
            shape = num_outputs, self.num_inputs
            weight: Fp8Matrix | Array | None = self.checkpoint.fp8(f"{name}.weight", *shape)
            if weight is None:
                weight = self.checkpoint.tensor(f"{name}.weight", *shape)
            yield name, weight, self._bias(name, num_outputs)

    @property
    def may_be_int4(self) -> bool:
        """True if all parts are stored in 4 bits; `int4` says if they can be had so."""
        return self.checkpoint.int4_names >= {f"{name}.weight" for name, _ in self.parts}

    @property
    def may_be_affine_int4(self) -> bool:
        """True if all parts are stored in GGUF's 4-bit blocks."""
        return self.checkpoint.affine_int4_names >= {f"{name}.weight" for name, _ in self.parts}

    def int4(self) -> tuple[Int4Matrix, Array | None] | None:
        """Read the whole matrix, exactly as stored in 4 bits, and its bias; None where a part is
        stored differently, or in groups of another size. Raises ModelError."""
        if not self.may_be_int4:
            return None
        parts: list[Int4Matrix] = []
        for name, num_outputs in self.parts:
            part = self.checkpoint.int4(f"{name}.weight", num_outputs, self.num_inputs)
            if part is None or (parts and part.group != parts[0].group):
                return None
            parts.append(part)
        import torch

        joined = Int4Matrix(
            torch.cat([part.codes for part in parts]),
            torch.cat([part.scales for part in parts]),
            torch.cat([part.zeros for part in parts]),
            parts[0].group,
        )
        return joined, joined_bias([self._bias(*part) for part in self.parts])

    def affine_int4(self) -> tuple[AffineInt4, Array | None] | None:
        """Read the whole matrix in GGUF's 4-bit blocks, exactly as stored, and its bias; None where
        a part is stored differently. Raises ModelError."""
        if not self.may_be_affine_int4:
            return None
        parts: list[AffineInt4] = []
        for name, num_outputs in self.parts:
            part = self.checkpoint.affine_int4(f"{name}.weight", num_outputs, self.num_inputs)
            if part is None:
                return None
            parts.append(part)
        joined = AffineInt4(
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.scales for part in parts]),
            np.concatenate([part.offsets for part in parts]),
        )
        return joined, joined_bias([self._bias(*part) for part in self.parts])

    def _bias(self, name: str, num_outputs: int) -> Array:
        if f"{name}.bias" in self.checkpoint.names:
            return self.checkpoint.tensor(f"{name}.bias", num_outputs).astype(
                np.float32, copy=False
            )
        return np.zeros(num_outputs, np.float32)

    def joined(self) -> tuple[Array, Array | None]:
        """Read the whole matrix `[out, in]` and its bias, both float32. Raises ModelError."""
        parts = [
            FusedPart(part.weight.astype(np.float32, copy=False), part.bias) for part in self.read()
        ]
        weights = [part.weight for part in parts]
        weight = weights[0] if len(weights) == 1 else np.concatenate(weights)
        return weight, joined_bias([part.bias for part in parts])


def joined_bias(biases: list[Array]) -> Array | None:
    """Join the parts' biases to one `[out]`; None where all are zero."""
    bias = np.concatenate(biases)
    return bias if bool(bias.any()) else None


class FusedWeights:
    """Reads a checkpoint layer by layer. Every method raises ModelError for missing tensors, wrong
    shapes, NaN and infinity."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self.has_own_head = "lm_head.weight" in checkpoint.names
        """False: the LM head is tied to the embedding."""

    def embedding(self) -> Array:
        """Embedding `[vocab, hidden]`, in its stored type."""
        return self._vocabulary("embed_tokens.weight")

    def head(self) -> Array:
        """LM head `[vocab, hidden]`, in its stored type; only with `has_own_head`."""
        return self._vocabulary("lm_head.weight")

    def head_matrix(self) -> FusedMatrix:
        """LM head as a linear layer of one part; the embedding, where it is tied to that."""
        config = self._config
        parts = (("lm_head" if self.has_own_head else "embed_tokens", config.vocab_size),)
        return FusedMatrix("head", config.hidden_size, parts, self._checkpoint)

    def final_norm(self) -> Array:
        """Weight of the final norm `[hidden]`, float32."""
        return self._vector("norm", self._config.hidden_size)

    def vectors(self, layer: int) -> Iterator[tuple[str, Array]]:
        """A layer's norms, float32, by the last part of their names: `input_layernorm`,
        `post_attention_layernorm`, and `q_norm` and `k_norm` where the family has them."""
        config, prefix = self._config, f"layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield name, self._vector(prefix + name, config.hidden_size)
        for name in ("q_norm", "k_norm") if config.has_qk_norm else ():
            yield name, self._vector(f"{prefix}self_attn.{name}", config.head_dim)

    def matrices(self, layer: int) -> Iterator[FusedMatrix]:
        """A layer's fused matrices."""
        config = self._config
        attention, mlp = f"layers.{layer}.self_attn.", f"layers.{layer}.mlp."
        hidden, inner = config.hidden_size, config.intermediate_size
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        for name, num_inputs, parts in (
            ("qkv", hidden, {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width}),
            ("out", width, {"o_proj": hidden}),
        ):
            yield self._matrix(name, num_inputs, attention, parts)
        for name, num_inputs, parts in (
            ("gate_up", hidden, {"gate_proj": inner, "up_proj": inner}),
            ("down", inner, {"down_proj": hidden}),
        ):
            yield self._matrix(name, num_inputs, mlp, parts)

    def _matrix(
        self, name: str, num_inputs: int, prefix: str, parts: dict[str, int]
    ) -> FusedMatrix:
        full = tuple((prefix + part, num_outputs) for part, num_outputs in parts.items())
        return FusedMatrix(name, num_inputs, full, self._checkpoint)

    def _vocabulary(self, name: str) -> Array:
        config = self._config
        return self._checkpoint.tensor(name, config.vocab_size, config.hidden_size)

    def _vector(self, name: str, size: int) -> Array:
        return self._checkpoint.tensor(f"{name}.weight", size).astype(np.float32, copy=False)
