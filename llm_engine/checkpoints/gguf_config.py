"""Converts a GGUF file's metadata to a `ModelConfig`.

Unsupported features are refused here by name. Keys and their defaults are those of llama.cpp's
loader (`src/llama-model.cpp`), except that a sliding window is honoured where a file has one:
llama.cpp reads it only for architectures that always slide.
"""

from typing import Any, NoReturn

import numpy as np

from llm_engine.config import (
    DivisorScaling,
    LinearScaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    yarn_attention_factor,
)
from llm_engine.errors import ModelError

from .gguf_reader import GgufFile

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_DIVISORS = "rope_freqs.weight"
"""Tensor of the rotary frequencies' divisors (Llama 3.1): settings, in spite of its name."""

_REFUSED = {
    "expert_count": "mixtures of experts",
    "attn_logit_softcapping": "capped attention scores",
    "final_logit_softcapping": "capped logits",
    "attention.max_alibi_bias": "ALiBi",
    "attention.clamp_kqv": "clipped queries, keys and values",
    "attention.scale": "scaled attention",
    "attention.temperature_length": "attention scaled by position",
    "attention.temperature_scale": "attention scaled by position",
    "logit_scale": "scaled logits",
    "embedding_scale": "scaled embeddings",
    "residual_scale": "scaled residuals",
    "use_parallel_residual": "parallel residuals",
    "rope.scaling.alpha": "dynamic NTK scaling",
    "rope.scaling.yarn_log_multiplier": "DeepSeek's scaling of attention",
}
"""Keys of unsupported features, refused unless their value is neutral."""


def read_config(file: GgufFile) -> ModelConfig:
    """Read the decoder's shape. Raises ModelError for other families and unsupported variants."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        names = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ModelError(
            f"{file.path}: architecture {architecture!r} is not supported; these are: {names}"
        )
    values = _Metadata(file, architecture)
    _refuse_variants(values)
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
    num_layers = values.integer("block_count")
    context_length = values.integer("context_length")
    scaling = _rope_scaling(values, head_dim, context_length)
    if isinstance(scaling, YarnScaling):
        context_length = max(context_length, scaling.context_length)
    return ModelConfig(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=values.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=values.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        context_length=context_length,
        norm_eps=values.real("attention.layer_norm_rms_epsilon"),
        rope_theta=values.real("rope.freq_base", 10000.0),
        rope_scaling=scaling,
        sliding_windows=_sliding_windows(values, num_layers, context_length),
    )


def _refuse_variants(values: "_Metadata") -> None:
    for key, feature in _REFUSED.items():
        found = values.get(key)
        if found and (found != 1 or found is True):
            values.refuse(f"not supported: {feature} ({values.architecture}.{key} = {found!r})")
    if values.get("attention.causal", True) is not True:
        values.refuse("attention to later tokens is not supported")


def _sliding_windows(
    values: "_Metadata", num_layers: int, context_length: int
) -> tuple[int | None, ...]:
    """Window of each layer; empty where none would ever hide a key."""
    window = values.integer("attention.sliding_window", 0)
    if not 0 < window < context_length or num_layers > len(values.file.tensors):
        return ()
    slides = values.get("attention.sliding_window_pattern", [True] * num_layers)
    if not isinstance(slides, list):
        values.refuse("attention.sliding_window_pattern must say for each layer whether it slides")
    return tuple(window if slide else None for slide in slides) if any(slides) else ()


def _rope_scaling(values: "_Metadata", head_dim: int, context_length: int) -> RopeScaling | None:
    try:
        scaling = _declared_scaling(values, context_length)
        if ROPE_DIVISORS not in values.file.tensors:
            return scaling
        divisors = values.file.read(ROPE_DIVISORS)
        if scaling is not None or divisors.shape != (head_dim // 2,):
            values.refuse(
                f"{ROPE_DIVISORS!r} of shape {divisors.shape} does not go with heads of {head_dim} "
                f"and the scaling {scaling}"
            )
        return None if np.all(divisors == 1) else DivisorScaling(tuple(divisors.tolist()))
    except ModelError:
        raise
    except ValueError as error:
        values.refuse(f"rotary scaling: {error}")


def _declared_scaling(values: "_Metadata", context_length: int) -> RopeScaling | None:
    factor = values.real("rope.scaling.factor", values.real("rope.scale_linear", 0.0)) or 1.0
    kind = values.get("rope.scaling.type", "linear")
    if kind == "yarn":
        return _yarn(values, factor, context_length)
    if kind not in ("none", "linear"):
        values.refuse(f"rotary scaling {kind!r} is not supported; these are: linear, yarn")
    return None if kind == "none" or factor == 1 else LinearScaling(factor)


def _yarn(values: "_Metadata", factor: float, context_length: int) -> YarnScaling:
    # Negative means unset. No known model has another weight of the extrapolated part.
    if values.real("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        values.refuse("yarn with an extrapolation factor is not supported")
    # Converters write the whole factor of the original configuration, or a factor on top of the
    # recommended one.
    whole = values.real("rope.scaling.yarn_attn_factor", yarn_attention_factor(factor))
    return YarnScaling(
        factor,
        values.integer("rope.scaling.original_context_length", context_length),
        whole * values.real("rope.scaling.attn_factor", 1.0),
        values.real("rope.scaling.yarn_beta_fast", 32.0),
        values.real("rope.scaling.yarn_beta_slow", 1.0),
    )


class _Metadata:
    """Typed access to `<architecture>.<key>`."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file = file
        self.architecture = architecture

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def refuse(self, problem: str) -> NoReturn:
        raise ModelError(f"{self.file.path}: {problem}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int):
            self._refuse_value(key, value, "one whole number")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float):
            self._refuse_value(key, value, "a number")
        return float(value)

    def _refuse_value(self, key: str, value: object, wanted: str) -> NoReturn:
        name = f"{self.architecture}.{key}"
        self.refuse(f"the header lacks {name!r}" if value is None else f"{name} must be {wanted}")
