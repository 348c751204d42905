"""A Hugging Face directory: config.json, safetensors (one file or sharded), tokenizer.json."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from llm_engine.checkpoint import Checkpoint
from llm_engine.config import ModelConfig, RopeScaling
from llm_engine.errors import ModelError
from llm_engine.huggingface_tokenizer import load_tokenizer

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Old exports store what follows from the configuration."""


def open_directory(path: Path) -> Checkpoint:
    """Open a model directory. Raises ModelError."""
    values = read_json(path / "config.json")
    config = read_config(values, path)
    files = _tensor_files(path)
    if values.get("tie_word_embeddings", False):
        files.pop("lm_head.weight", None)

    def read(name: str) -> torch.Tensor:
        file, stored_name = files[name]
        try:
            with safe_open(file, framework="pt") as shard:
                tensor: torch.Tensor = shard.get_tensor(stored_name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: tensor {stored_name!r} cannot be read: {error}") from None
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ModelError(
                f"{file}: tensor {stored_name!r} is {tensor.dtype}; float32, float16 and bfloat16 "
                "are supported"
            )
        return tensor

    tokenizer = load_tokenizer(path, values)
    return Checkpoint(path, config, tokenizer, frozenset(files), read)


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object from a file. Raises ModelError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path.parent}: {path.name} is missing; a Hugging Face model has config.json, "
            "tokenizer.json and *.safetensors"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: holds {type(values).__name__} instead of an object")
    return values


def _tensor_files(path: Path) -> dict[str, tuple[Path, str]]:
    """Where each tensor lies: our name -> (file, name in the file)."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index}: lacks 'weight_map'")
        stored = {name: path / str(file) for name, file in weight_map.items()}
    else:
        file = path / "model.safetensors"
        try:
            with safe_open(file, framework="pt") as shard:
                stored = dict.fromkeys(shard.keys(), file)
        except FileNotFoundError:
            raise ModelError(f"{path}: model.safetensors is missing") from None
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: truncated or not safetensors: {error}") from None
    missing = {file.name for file in stored.values() if not file.exists()}
    if missing:
        raise ModelError(f"{path}: {', '.join(sorted(missing))} missing, named by {index.name}")
    return {
        name.removeprefix("model."): (file, name)
        for name, file in stored.items()
        if not name.endswith(_IGNORED_SUFFIX)
    }


def read_config(values: dict[str, Any], path: Path) -> ModelConfig:
    """The decoder's shape. Raises ModelError naming what is not supported."""
    architecture = values.get("model_type")
    if architecture not in SUPPORTED_ARCHITECTURES:
        names = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ModelError(
            f"{path}: model type {architecture!r} is not supported; these are: {names}"
        )
    _refuse_variants(values, path)

    def integer(name: str, default: int | None = None) -> int:
        value = values.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{path}/config.json: {name!r} must be a positive whole number")
        return value

    num_heads = integer("num_attention_heads")
    hidden_size = integer("hidden_size")
    rope = values.get("rope_parameters") or {}
    return ModelConfig(
        architecture=str(architecture),
        num_layers=integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=integer("num_key_value_heads", num_heads),
        head_dim=integer("head_dim", hidden_size // num_heads),
        vocab_size=integer("vocab_size"),
        context_length=integer("max_position_embeddings", 2048),
        norm_eps=float(values.get("rms_norm_eps", 1e-6)),
        rope_theta=float(values.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        rope_scaling=_rope_scaling(values.get("rope_scaling") or rope, path),
    )


def _refuse_variants(values: dict[str, Any], path: Path) -> None:
    refused = {
        "hidden_act": values.get("hidden_act", "silu") != "silu",
        "mlp_bias": bool(values.get("mlp_bias")),
        "use_sliding_window": bool(values.get("use_sliding_window")),
        "quantization_config": bool(values.get("quantization_config")),
        "partial_rotary_factor": values.get("partial_rotary_factor", 1.0) != 1.0,
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise ModelError(f"{path}/config.json: {name!r} = {values[name]!r} is not supported")


def _rope_scaling(values: dict[str, Any], path: Path) -> RopeScaling | None:
    kind = values.get("rope_type") or values.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"{path}/config.json: rotary scaling {kind!r} is not supported")
    try:
        return RopeScaling(
            float(values["factor"]),
            float(values["low_freq_factor"]),
            float(values["high_freq_factor"]),
            int(values["original_max_position_embeddings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}/config.json: rotary scaling lacks {error}") from None
