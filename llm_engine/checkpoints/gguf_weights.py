"""Opens a GGUF file as a checkpoint: maps tensor names, and undoes the row order of converters."""

import re
from pathlib import Path

import numpy as np

from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError

from .checkpoint import Checkpoint, is_known_tensor
from .gguf_config import ROPE_DIVISORS, read_config
from .gguf_reader import INT4_TYPES, GgufFile
from .gguf_tokenizer import build_tokenizer
from .int4 import INT4_BLOCK, ZERO, AffineInt4, Int4Matrix
from .packed_cache import Array

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
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF model. Raises ModelError."""
    file = GgufFile(path)
    config = read_config(file)
    own_names = {
        _canonical(file, config, name): name for name in file.tensors if name != ROPE_DIVISORS
    }
    permuted_heads = {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}

    def in_order(name: str, values: Array) -> Array:
        part = name.removeprefix("layers.").partition(".")[2].rpartition(".")[0]
        if config.architecture == "llama" and part in permuted_heads:
            if values.shape[0] != permuted_heads[part] * config.head_dim:
                raise ModelError(f"{path}: tensor {own_names[name]!r} does not fit the heads")
            return _unpermute(values, permuted_heads[part])
        return values

    def read(name: str) -> Array:
        return in_order(name, file.read(own_names[name]))

    def read_affine_int4(name: str) -> AffineInt4 | None:
        stored = file.read_int4(own_names[name])
        if stored is None:
            return None
        parts = (stored.codes, stored.scales, stored.offsets)
        return AffineInt4(*(in_order(name, values) for values in parts))

    def read_int4(name: str) -> Int4Matrix | None:
        stored = read_affine_int4(name) if name in int4_names else None
        if stored is None:
            return None
        import torch

        codes, scales = torch.from_numpy(stored.codes), torch.from_numpy(stored.scales)
        zeros = torch.full(scales.shape, ZERO, dtype=torch.uint8)
        return Int4Matrix(codes, scales, zeros, INT4_BLOCK)

    kinds = {name: file.tensors[own].type.name for name, own in own_names.items()}
    int4_names = frozenset(name for name, kind in kinds.items() if kind == "Q4_0")
    return Checkpoint(
        path=path,
        config=config,
        tokenizer=build_tokenizer(file.metadata, path),
        names=frozenset(own_names),
        read=read,
        read_int4=read_int4,
        int4_names=int4_names,
        read_affine_int4=read_affine_int4,
        affine_int4_names=frozenset(name for name, kind in kinds.items() if kind in INT4_TYPES),
    )


def _unpermute(values: Array, num_heads: int) -> Array:
    """Undo the row order that converters give to Llama's queries and keys.

    ggml's rotary embedding for Llama rotates neighbouring pairs (0,1), (2,3)...; the original
    weights rotate (i, i + head_dim/2). Converters interleave the rows of each head accordingly.
    """
    by_head = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(by_head.swapaxes(1, 2).reshape(values.shape))


def _canonical(file: GgufFile, config: ModelConfig, name: str) -> str:
    match = _LAYER.fullmatch(name)
    part = _LAYER_NAMES.get(match[2]) if match else None
    ours = f"layers.{match[1]}.{part}.{match[3]}" if match else _TOP_NAMES.get(name, name)
    if not is_known_tensor(ours, config):
        raise ModelError(
            f"{file.path}: tensor {name!r} has no place in a decoder of {config.num_layers} layers "
            f"of the {config.architecture} family"
        )
    return ours
