"""A GGUF file's metadata and tensors in the engine's words."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llm_engine.checkpoint import Checkpoint
from llm_engine.config import ModelConfig, RopeScaling
from llm_engine.errors import ModelError
from llm_engine.gguf_reader import GgufFile
from llm_engine.gguf_tokenizer import build_tokenizer
from llm_engine.model import inverse_frequencies

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
_ROPE_FREQS = "rope_freqs.weight"
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF model. Raises ModelError."""
    file = GgufFile(path)
    config = read_config(file)
    own_names = {_canonical(file, name): name for name in file.tensors if name != _ROPE_FREQS}
    permuted_heads = {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}

    def read(name: str) -> torch.Tensor:
        values = torch.from_numpy(np.array(file.read(own_names[name])))
        part = name.removeprefix("layers.").partition(".")[2].rpartition(".")[0]
        if config.architecture == "llama" and part in permuted_heads:
            if values.shape[0] != permuted_heads[part] * config.head_dim:
                raise ModelError(f"{path}: tensor {own_names[name]!r} does not fit the heads")
            return _unpermute(values, permuted_heads[part])
        return values

    tokenizer = build_tokenizer(file.metadata, path)
    return Checkpoint(path, config, tokenizer, frozenset(own_names), read)


def _unpermute(values: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo the row order that converters give to Llama's queries and keys.

    ggml's rotary embedding for Llama turns neighbouring pairs (0,1), (2,3)...; the original weights
    turn (i, i + head_dim/2). Converters interleave the rows of each head accordingly.
    """
    by_head = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return by_head.transpose(1, 2).reshape(values.shape).contiguous()


def _canonical(file: GgufFile, name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ModelError(f"{file.path}: tensor {name!r} has no place in a Llama or Qwen decoder")
    return f"layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def read_config(file: GgufFile) -> ModelConfig:
    """The decoder's shape. Raises ModelError for other families and unsupported variants."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        names = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ModelError(
            f"{file.path}: architecture {architecture!r} is not supported; these are: {names}"
        )
    values = _Metadata(file, architecture)
    if values.integer("expert_count", 0):
        raise ModelError(f"{file.path}: mixtures of experts are not supported")
    hidden_size = values.integer("embedding_length")
    num_heads = values.integer("attention.head_count")
    if not num_heads:
        raise ModelError(f"{file.path}: {architecture}.attention.head_count is 0")
    head_dim = values.integer("attention.key_length", hidden_size // num_heads)
    if values.integer("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{file.path}: keys and values of different size are not supported")
    if values.integer("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{file.path}: rotary embedding of part of a head is not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' is missing")
    return ModelConfig(
        architecture=architecture,
        num_layers=values.integer("block_count"),
        hidden_size=hidden_size,
        intermediate_size=values.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=values.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        context_length=values.integer("context_length"),
        norm_eps=values.real("attention.layer_norm_rms_epsilon"),
        rope_theta=values.real("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(file, values, head_dim),
    )


def _rope_scaling(file: GgufFile, values: "_Metadata", head_dim: int) -> RopeScaling | None:
    kind = file.metadata.get(f"{values.architecture}.rope.scaling.type", "none")
    if kind != "none":
        raise ModelError(f"{file.path}: rotary scaling {kind!r} is not supported")
    if _ROPE_FREQS not in file.tensors:
        return None
    # Llama 3.1 and later: converters store only the divisors of the frequencies. The models that
    # carry them share all parameters but the factor, which is the largest divisor.
    divisors = torch.from_numpy(np.array(file.read(_ROPE_FREQS)))
    if divisors.shape == (head_dim // 2,):
        scaling = RopeScaling(float(divisors.max()), 1.0, 4.0, 8192)
        theta = values.real("rope.freq_base", 10000.0)
        plain, scaled = (inverse_frequencies(head_dim, theta, s) for s in (None, scaling))
        if torch.allclose(plain / scaled, divisors, rtol=1e-3):
            return scaling
    raise ModelError(f"{file.path}: {_ROPE_FREQS!r} is not Llama 3's kind of rotary scaling")


class _Metadata:
    """Typed access to `<architecture>.<key>`."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self.architecture = architecture

    def _get(self, key: str, default: Any) -> Any:
        full_key = f"{self.architecture}.{key}"
        value = self._file.metadata.get(full_key, default)
        if value is None:
            raise ModelError(f"{self._file.path}: the header lacks {full_key!r}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if not isinstance(value, int):
            raise ModelError(
                f"{self._file.path}: {self.architecture}.{key} must be one whole number"
            )
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if not isinstance(value, int | float):
            raise ModelError(f"{self._file.path}: {self.architecture}.{key} must be a number")
        return float(value)
