"""Converts a Hugging Face config.json to a `ModelConfig`.

Unsupported features are refused here by name, before a weight is read. Defaults are those of
transformers, which wrote the file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from llm_engine.config import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    yarn_attention_factor,
)
from llm_engine.errors import ModelError

from .checkpoint import MAX_DIMENSION

SUPPORTED_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
_REASONS = {
    "mixtures of experts": "mixtral qwen2_moe qwen3_moe deepseek_v2 deepseek_v3 llama4 dbrx olmoe",
    "capped logits": "gemma2",
    "attention sinks and mixtures of experts": "gpt_oss",
    "layers without rotary embedding": "smollm3 cohere2",
    "rotary embedding of part of a head": "phi gpt_neox stablelm nemotron glm glm4",
    "rotary scaling 'longrope'": "phi3 minicpm",
    "ALiBi": "bloom mpt falcon",
    "state-space layers": "mamba mamba2 falcon_mamba falcon_h1 jamba bamba zamba2 rwkv",
    "linear attention": "qwen3_next qwen3_5 kimi_linear minimax",
    "other norms and activations": "gemma gemma3 gemma3_text gpt2 opt olmo2 starcoder2",
}
"""Unsupported feature of well-known model types."""

_REFUSED = {
    "num_local_experts": "mixtures of experts",
    "num_experts": "mixtures of experts",
    "n_routed_experts": "mixtures of experts",
    "attn_logit_softcapping": "capped attention scores",
    "final_logit_softcapping": "capped logits",
    "alibi": "ALiBi",
    "use_alibi": "ALiBi",
    "attention_sinks": "attention sinks",
    "no_rope_layers": "layers without rotary embedding",
    "no_rope_layer_interval": "layers without rotary embedding",
    "partial_rotary_factor": "rotary embedding of part of a head",
    "rope_interleaved": "interleaved rotary embedding",
    "clip_qkv": "clipped queries, keys and values",
    "use_qk_norm": "normalized queries and keys in this family",
    "embedding_multiplier": "scaled embeddings",
    "residual_multiplier": "scaled residuals",
    "attention_multiplier": "scaled attention",
    "logits_scaling": "scaled logits",
}
"""Settings of unsupported features that files of a supported model type may have."""


def read_config(values: dict[str, Any], file: Path) -> ModelConfig:
    """Read the decoder's shape. Raises ModelError naming the file and what is not supported."""
    architecture = values.get("model_type")
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ModelError(f"{file}: {_unsupported_type(architecture)}")
    _refuse_variants(values, file)
    settings = _Settings(values, file)
    num_heads = settings.integer("num_attention_heads")
    hidden_size = settings.integer("hidden_size")
    num_layers = settings.integer("num_hidden_layers")
    context_length = settings.integer("max_position_embeddings", 2048)
    scaling, theta = _rope(values, context_length, file)
    if isinstance(scaling, YarnScaling):
        # Qwen tells users to add YaRN to a file and to leave the trained length unchanged.
        context_length = max(context_length, scaling.context_length)
    return ModelConfig(
        architecture=str(architecture),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=settings.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=settings.integer("num_key_value_heads", num_heads),
        head_dim=settings.integer("head_dim", hidden_size // num_heads),
        vocab_size=settings.integer("vocab_size"),
        context_length=context_length,
        norm_eps=settings.real("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        sliding_windows=_sliding_windows(settings, num_layers, context_length),
    )


def _unsupported_type(architecture: object) -> str:
    reason = next((r for r, types in _REASONS.items() if architecture in types.split()), None)
    names = ", ".join(SUPPORTED_ARCHITECTURES)
    because = f" ({reason})" if reason else ""
    return f"model type {architecture!r} is not supported{because}; these are: {names}"


def _refuse_variants(values: dict[str, Any], file: Path) -> None:
    activation = values.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise ModelError(f"{file}: activation 'hidden_act' = {activation!r} is not supported")
    for name, feature in _REFUSED.items():
        if not _is_neutral(values.get(name)):
            raise ModelError(f"{file}: not supported: {feature} ({name!r} = {values[name]!r})")


def _is_neutral(value: object) -> bool:
    """True for a value without effect: absent, empty, off, a factor or a number of 1."""
    return not value or (value == 1 and value is not True)


class _Settings:
    """Typed access to config.json."""

    def __init__(self, values: dict[str, Any], file: Path, prefix: str = "") -> None:
        self.values = values
        self.file = file
        self._prefix = prefix

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._get(name, default)
        if type(value) is not int or not least <= value <= MAX_DIMENSION:
            self._refuse(name, f"a whole number from {least} to {MAX_DIMENSION}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if type(value) not in (int, float) or abs(value) > 1e30:
            self._refuse(name, "a number")
        return float(value)

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def _refuse(self, name: str, wanted: str) -> NoReturn:
        found = self.values.get(name)
        raise ModelError(f"{self.file}: {self._prefix}{name!r} must be {wanted}, not {found!r}")


def _sliding_windows(
    settings: _Settings, num_layers: int, context_length: int
) -> tuple[int | None, ...]:
    """Window of each layer; empty where none would ever hide a key."""
    values = settings.values
    is_mistral = values["model_type"] == "mistral"
    if values["model_type"] == "llama":
        return ()
    if is_mistral and "sliding_window" in values and values["sliding_window"] is None:
        return ()
    if not is_mistral and not values.get("use_sliding_window"):
        return ()
    window = settings.integer("sliding_window", 4096)
    kinds = values.get("layer_types")
    if is_mistral:
        if kinds is not None:
            raise ModelError(f"{settings.file}: 'layer_types' in a Mistral are not supported")
        slides = [True] * num_layers
    elif kinds is None:
        first = settings.integer("max_window_layers", 28, least=0)
        slides = [layer >= first for layer in range(num_layers)]
    else:
        known = ["full_attention", "sliding_attention"]
        if not isinstance(kinds, list) or not all(kind in known for kind in kinds):
            raise ModelError(f"{settings.file}: 'layer_types' = {kinds!r} are not supported")
        slides = [kind == "sliding_attention" for kind in kinds]
    if window >= context_length or not any(slides):
        return ()
    return tuple(window if slide else None for slide in slides)


def _rope(
    values: dict[str, Any], context_length: int, file: Path
) -> tuple[RopeScaling | None, float]:
    """Rotary scaling and base. The newer key holds the base as well; the older one has
    precedence."""
    found = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(found, dict) or any(isinstance(value, dict) for value in found.values()):
        raise ModelError(f"{file}: rotary settings {found!r} are not supported")
    rope = _Settings(found, file, "rotary scaling: ")
    theta = _Settings({"rope_theta": values.get("rope_theta"), **found}, file).real(
        "rope_theta", 10000.0
    )
    kind = found.get("rope_type") or found.get("type") or "default"
    build = _SCALINGS.get(kind) if isinstance(kind, str) else None
    if build is None:
        known = ", ".join(_SCALINGS)
        raise ModelError(f"{file}: rotary scaling {kind!r} is not supported; these are: {known}")
    if not _is_neutral(found.get("partial_rotary_factor")):
        raise ModelError(f"{file}: rotary embedding of part of a head is not supported")
    outside = values.get("original_max_position_embeddings")
    original = rope.integer("original_max_position_embeddings", context_length)
    if outside is not None:  # Phi3 has it there, with precedence
        original = _Settings(values, file).integer("original_max_position_embeddings")
    try:
        return build(rope, original, context_length), theta
    except ModelError:
        raise
    except ValueError as error:
        raise ModelError(f"{file}: rotary scaling: {error}") from None


def _linear(rope: _Settings, _original: int, _context: int) -> LinearScaling:
    return LinearScaling(rope.real("factor"))


def _llama3(rope: _Settings, original: int, _context: int) -> Llama3Scaling:
    return Llama3Scaling(
        rope.real("factor"), rope.real("low_freq_factor"), rope.real("high_freq_factor"), original
    )


def _yarn(rope: _Settings, original: int, context_length: int) -> YarnScaling:
    factor = rope.real("factor", context_length / original)
    recommended = yarn_attention_factor(
        factor, rope.real("mscale", 0.0), rope.real("mscale_all_dim", 0.0)
    )
    return YarnScaling(
        factor,
        original,
        rope.real("attention_factor", recommended),
        # Here 0 means unset.
        rope.real("beta_fast", 0.0) or 32.0,
        rope.real("beta_slow", 0.0) or 1.0,
        bool(rope.values.get("truncate", True)),
    )


_SCALINGS: dict[str, Callable[[_Settings, int, int], RopeScaling | None]] = {
    "default": lambda *_: None,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
