"""Directories of Hugging Face: config.json, tokenizer.json, its settings, safetensors.

The first byte chooses the file that the rest of the input replaces in a valid directory; of the
weights also a JSON description, from which a file is made. A model is opened and read, or refused
with a ModelError.
"""

import json
import random
from typing import Any, Final

from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.errors import ModelError
from tests.fuzz.scratch import directory_of
from tests.fuzz.target import JsonGrammar, Target
from tests.fuzz.targets.gguf_files import check_checkpoint, check_refusal
from tests.support.fakes.small_model_files import (
    CONFIG,
    SETTINGS,
    TENSORS,
    safetensors_file,
    tokenizer_json,
)

NAMES: Final = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "chat_template.jinja", "model.safetensors.index.json", "model.safetensors", "weights as JSON",
)  # fmt: skip
"""What the first byte chooses."""

VALID: Final = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": json.dumps(tokenizer_json()).encode(),
    "tokenizer_config.json": json.dumps(SETTINGS).encode(),
    "model.safetensors": safetensors_file(TENSORS),
}
SCALINGS: Final[tuple[dict[str, Any], ...]] = (
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32},
)  # fmt: skip
CONFIGS: Final[tuple[dict[str, Any], ...]] = (
    CONFIG,
    *({**CONFIG, "rope_scaling": scaling} for scaling in SCALINGS),
    {**CONFIG, "model_type": "mistral", "sliding_window": 16},
    {**CONFIG, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0,
        "layer_types": ["sliding_attention"]},
    {**CONFIG, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32,
        "desc_act": False, "sym": True}},
    {**CONFIG, "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}},
    {**CONFIG, "model_type": "llama", "rope_parameters": {"rope_theta": 1e4}},
)  # fmt: skip
_PREPENDED: Final = {
    **tokenizer_json(),
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": False},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}]},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
}  # fmt: skip
SAMPLES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "config.json": CONFIGS,
    "tokenizer.json": (tokenizer_json(), _PREPENDED),
    "tokenizer_config.json": (SETTINGS, {"chat_template": [{"name": "default", "template": "x"}]}),
    "generation_config.json": ({"eos_token_id": [2, 0]},),
    "model.safetensors.index.json": ({"weight_map": dict.fromkeys(TENSORS, "model.safetensors")},),
    "weights as JSON": (TENSORS, {"model.norm.weight_scale": ["F8_E4M3", [32]], **TENSORS}),
}
GRAMMAR: Final = JsonGrammar([each for samples in SAMPLES.values() for each in samples])


def examine(data: bytes) -> None:
    """One directory."""
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    content = data[1:]
    if name == NAMES[-1]:
        try:
            content = safetensors_file(json.loads(content))
        except (ValueError, RecursionError, AttributeError):
            return  # no description
        name = "model.safetensors"
    with directory_of({**VALID, name: content}) as path:
        try:
            check_checkpoint(load_checkpoint(path))
        except ModelError as error:
            check_refusal(error)


def change(data: bytes, chance: random.Random) -> bytes | None:
    """As JSON, or with other values, or as bytes."""
    if chance.random() < 0.2:
        return None
    text: bytes | None = data[1:]
    for _ in range(chance.choice((1, 1, 2))):
        text = None if text is None else GRAMMAR.change_text(text, chance)
    return None if text is None else data[:1] + text


def seeds() -> list[bytes]:
    return [
        *(
            bytes([NAMES.index(name)]) + json.dumps(sample).encode()
            for name, samples in SAMPLES.items()
            for sample in samples
        ),
        bytes([NAMES.index("chat_template.jinja")]) + str(SETTINGS["chat_template"]).encode(),
        bytes([NAMES.index("model.safetensors")]) + VALID["model.safetensors"],
    ]


TARGET: Final = Target(
    examine,
    seeds,
    change,
    words=[f'"{name}"'.encode() for name in GRAMMAR.names],
    max_bytes=24_000,
)
