"""Hugging Face directories that cannot be used say why."""

import json
from pathlib import Path
from typing import Any

import pytest

from llm_engine.backends.cpu import CpuBackend
from llm_engine.config import EngineConfig
from llm_engine.errors import ModelError
from llm_engine.weights import load_checkpoint
from tests.fakes.llm_models import save_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path, "qwen2", num_hidden_layers=1)
    return tmp_path


def change_config(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, "'gemma3' is not supported; these are: llama, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "'hidden_act' = 'gelu' is not supported"),
        ({"use_sliding_window": True}, "'use_sliding_window'"),
        ({"quantization_config": {"bits": 4}}, "'quantization_config'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rotary scaling lacks 'factor'"),
        ({"hidden_size": "64"}, "'hidden_size' must be a positive whole number"),
        ({"num_hidden_layers": 2}, r"layers\.1\.\S+ is missing"),
        ({"intermediate_size": 95}, r"shape \(96, 64\)"),
    ],
)
def test_configurations(model: Path, changes: dict[str, Any], message: str) -> None:
    change_config(model, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        CpuBackend(load_checkpoint(model), EngineConfig(), 128)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "cannot be read as JSON"),
        ("config.json", "[]", "holds list instead of an object"),
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{}", "not a usable tokenizer"),
        ("tokenizer_config.json", "{", "cannot be read as JSON"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", "short", "truncated or not safetensors"),
        ("model.safetensors.index.json", "{}", "lacks 'weight_map'"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "b.st"}}', r"b\.st missing"),
    ],
)
def test_files(model: Path, name: str, content: str | None, message: str) -> None:
    file = model / name
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(ModelError, match=message) as caught:
        load_checkpoint(model)
    assert str(model) in str(caught.value)


def test_a_truncated_safetensors_file(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="truncated"):
        load_checkpoint(model)
