"""Sliding windows and stretched rotary embeddings give the logits and tokens of transformers.

The same random model is read from safetensors and, where the format can express it, from GGUF.
Prompts are longer than the windows and than the contexts before stretching.
"""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import DivisorScaling, LinearScaling, Llama3Scaling, YarnScaling
from llm_engine.models.rope import inverse_frequencies
from tests.support.fakes.llm_decoding import all_logits, greedy
from tests.support.fakes.llm_models import greedy_oracle, save_tiny_gguf, save_tiny_model

os.environ["HF_HUB_OFFLINE"] = "1"

ORIGINAL = 64
THETA = 10000.0
PROMPT = [3 + 7 * index % 311 for index in range(200)]


def rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": THETA, "factor": 4.0, **values}


LINEAR = rope("linear")
YARN = rope("yarn", original_max_position_embeddings=ORIGINAL)
LLAMA3 = rope(
    "llama3",
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=ORIGINAL,
)
WINDOWED = {"use_sliding_window": True, "sliding_window": 24}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]

IN_BOTH: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 24}),
    "mistral, window of two": ("mistral", {"sliding_window": 2}),
    "mistral, own head size": ("mistral", {"sliding_window": 33, "head_dim": 24}),
    "mistral, window and yarn": ("mistral", {"sliding_window": 24, "rope_parameters": YARN}),
    "qwen2, window from a layer on": ("qwen2", {**WINDOWED, "max_window_layers": 1}),
    "qwen2, window everywhere": ("qwen2", {**WINDOWED, "max_window_layers": 0}),
    "qwen3, alternating": ("qwen3", {**WINDOWED, "head_dim": 16, "layer_types": ALTERNATING}),
    "llama, linear": ("llama", {"rope_parameters": LINEAR}),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, yarn, bent": (
        "llama",
        {"rope_parameters": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3}},
    ),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3, yarn": ("qwen3", {"head_dim": 32, "rope_parameters": YARN}),
}
IN_SAFETENSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn, mscale": ("llama", {"rope_parameters": {**YARN, "mscale": 1.5, "mscale_all_dim": 0.7}}),
    "yarn, fractions": ("llama", {"rope_parameters": {**YARN, "truncate": False}}),
}


def assert_equal_to(oracle: Any, checkpoint: Checkpoint) -> None:
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(all_logits(checkpoint, PROMPT), expected, rtol=1e-4, atol=2e-4)
    tokens = greedy_oracle(oracle, PROMPT, 40)
    assert len(set(tokens)) > 5  # a model stuck on one token would prove nothing
    for chunk in (1000, 10):
        assert greedy(checkpoint, PROMPT, 40, chunk=chunk) == tokens


@pytest.mark.parametrize("name", [*IN_BOTH, *IN_SAFETENSORS])
def test_safetensors_equal_transformers(name: str, tmp_path: Path) -> None:
    model_type, changes = {**IN_BOTH, **IN_SAFETENSORS}[name]
    oracle = save_tiny_model(tmp_path, model_type, **changes)
    assert_equal_to(oracle, load_checkpoint(tmp_path))


@pytest.mark.parametrize("name", IN_BOTH)
def test_gguf_equals_transformers(name: str, tmp_path: Path) -> None:
    model_type, changes = IN_BOTH[name]
    oracle = save_tiny_model(tmp_path, model_type, **changes)
    frequencies = oracle.model.rotary_emb.inv_freq.numpy()
    plain = THETA ** -(np.arange(0, 2 * len(frequencies), 2) / (2 * len(frequencies)))
    is_llama3 = changes.get("rope_parameters") is LLAMA3
    divisors = (plain / frequencies).astype(np.float32) if is_llama3 else None
    save_tiny_gguf(tmp_path / "m.gguf", tmp_path, rope_divisors=divisors)
    assert_equal_to(oracle, load_checkpoint(tmp_path / "m.gguf"))


def test_windows_and_scalings_matter(tmp_path: Path) -> None:
    """The tests above could not fail if they did not."""
    save_tiny_model(tmp_path, "mistral", sliding_window=24, rope_parameters=YARN)
    checkpoint = load_checkpoint(tmp_path)
    config = checkpoint.config
    assert [config.sliding_window(layer) for layer in range(3)] == [24, 24, 24]
    logits = all_logits(checkpoint, PROMPT)
    dull = replace(config.rope_scaling, attention_factor=1.0)  # type: ignore[type-var]
    for changes in (
        {"sliding_windows": ()},
        {"sliding_windows": (25, 25, 25)},
        {"sliding_windows": (24, 24, None)},
        {"rope_scaling": None},
        {"rope_scaling": dull},
    ):
        other = replace(checkpoint, config=replace(config, **changes))
        assert (all_logits(other, PROMPT) - logits).abs().max() > 0.05


def test_a_window_is_measured_from_each_row(tmp_path: Path) -> None:
    """Rows far apart in one pass see what they see alone."""
    save_tiny_model(tmp_path, "mistral", sliding_window=24)
    checkpoint = load_checkpoint(tmp_path)
    assert greedy(checkpoint, PROMPT, 20, chunk=1) == greedy(checkpoint, PROMPT, 20, chunk=199)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, ()),  # Qwen's default: a window is named, but not used
        ({"use_sliding_window": True, "max_window_layers": 2}, (None, None, 300)),
        ({"use_sliding_window": True, "max_window_layers": 3}, ()),
        ({"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 512}, ()),
    ],
)
def test_windows_that_hide_nothing_are_none(
    changes: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, "qwen2")
    rewrite(tmp_path, sliding_window=300, layer_types=None)
    rewrite(tmp_path, **changes)
    assert load_checkpoint(tmp_path).config.sliding_windows == windows


def test_a_mistral_that_names_no_window_has_its_default(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "mistral", max_position_embeddings=8192)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_checkpoint(tmp_path).config.sliding_windows == (4096,) * 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2}}, LinearScaling(2.0)),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            YarnScaling(4.0, 512, 1 + 0.1 * math.log(4)),
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 64}},
            YarnScaling(8.0, 64, 1 + 0.1 * math.log(8)),
        ),
        (
            {
                "rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": 0.5},
                "original_max_position_embeddings": 128,
            },
            YarnScaling(2.0, 128, 0.5),
        ),
        (
            {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": None}},
            Llama3Scaling(4.0, 1.0, 4.0, 512),
        ),
        ({"rope_scaling": {"type": "default"}}, None),
    ],
)
def test_spellings_of_rotary_scaling(
    changes: dict[str, Any], expected: object, tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, "llama", num_hidden_layers=1)
    rewrite(tmp_path, rope_parameters=None, rope_theta=777.0)
    rewrite(tmp_path, **changes)
    config = load_checkpoint(tmp_path).config
    assert config.rope_scaling == expected
    assert config.rope_theta == (THETA if "rope_parameters" in changes else 777.0)


def test_yarn_reaches_further_than_the_trained_positions(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2", max_position_embeddings=64, rope_parameters=YARN)
    save_tiny_gguf(tmp_path / "m.gguf", tmp_path)
    for path in (tmp_path, tmp_path / "m.gguf"):
        config = load_checkpoint(path).config
        assert config.context_length == 256
        assert config.rope_attention_factor == pytest.approx(1.138629)


def test_frequencies_of_divisors() -> None:
    plain = inverse_frequencies(8, THETA, None)
    divided = inverse_frequencies(8, THETA, DivisorScaling((1.0, 2.0, 4.0, 8.0)))
    np.testing.assert_allclose(divided * np.array([1, 2, 4, 8], np.float32), plain)


def rewrite(model: Path, **changes: Any) -> None:
    """Change a model's config.json; None removes a value."""
    config = json.loads((model / "config.json").read_text()) | changes
    kept = {name: value for name, value in config.items() if value is not None}
    (model / "config.json").write_text(json.dumps(kept))
