"""Damaged models are refused with cause and remedy and leave nothing behind; damaged converted
weights are replaced."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_engine.backends.base import SequenceRows
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.gguf_reader import GgufFile
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.engine import Engine
from llm_engine.errors import ModelError
from tests.support.fakes.llm_decoding import CPU_PRECISIONS
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model

CONTEXT = 64


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    save_tiny_model(path, "qwen2", num_hidden_layers=1)
    save_tiny_gguf(path / "model.gguf", path, "Q8_0")
    return path


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig(precision=Precision.INT8, num_threads=1, cache_dir=tmp_path / "converted")


def cut(directory: Path, name: str) -> None:
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[: len(content) * 9 // 10])


def nan_as_scale(directory: Path, name: str) -> None:
    """The first block of a Q8_0 matrix begins with its scale, in float16."""
    file = GgufFile(directory / name)
    at = file.tensors["blk.0.ffn_up.weight"].first_byte
    content = bytearray((directory / name).read_bytes())
    content[at : at + 2] = b"\x00\x7e"
    (directory / name).write_bytes(content)


def nan_as_weight(directory: Path, name: str) -> None:
    tensors = load_file(directory / name)
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, directory / name, metadata={"format": "pt"})


def another_shape(directory: Path, name: str) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["intermediate_size"] *= 2
    (directory / "config.json").write_text(json.dumps(config))


def a_tensor_less(directory: Path, name: str) -> None:
    tensors = load_file(directory / name)
    del tensors["model.layers.0.self_attn.o_proj.weight"]
    save_file(tensors, directory / name, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.gguf", cut, "truncated: tensor .*; fetch it again"),
        ("model.gguf", nan_as_scale, "up_proj.weight' is damaged.*; fetch it again"),
        ("model.safetensors", cut, "truncated or not safetensors.*; fetch it again"),
        ("model.safetensors", nan_as_weight, "up_proj.weight' is damaged.*; fetch it again"),
        (
            "model.safetensors",
            another_shape,
            r"has shape \(96, 64\).*\(192, 64\).*fetch both again",
        ),
        ("model.safetensors", a_tensor_less, "o_proj.weight' is missing; fetch the model again"),
    ],
)
@pytest.mark.parametrize("precision", CPU_PRECISIONS)
def test_a_damaged_model(
    directory: Path,
    config: EngineConfig,
    precision: Precision,
    name: str,
    damage: Callable[[Path, str], None],
    message: str,
) -> None:
    damage(directory, name)
    path = directory if name.endswith(".safetensors") else directory / name
    with pytest.raises(ModelError, match=message) as caught:
        Engine.load(path, replace(config, precision=precision))
    assert str(path) in str(caught.value)
    assert config.cache_dir is not None
    assert not config.cache_dir.exists() or not list(config.cache_dir.glob("*.weights*"))


def test_an_embedding_beyond_sixteen_bits(directory: Path, config: EngineConfig) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][5, 5] = 1e5
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="beyond float16; use precision float32"):
        OnnxBackend(load_checkpoint(directory), config, CONTEXT)


def logits(checkpoint: Checkpoint, config: EngineConfig) -> torch.Tensor:
    backend = OnnxBackend(checkpoint, config, CONTEXT)
    rows = SequenceRows(backend.open_slot(), (5, 6, 7), 0, 3, SamplingParams(), 0)
    with torch.inference_mode():
        return torch.tensor(backend.logits(rows))


def one_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damaged",
    [one_bit, lambda content: content[:-1000], lambda content: b"", lambda content: b"x" * 9999],
    ids=["bit", "cut", "empty", "other"],
)
def test_damaged_converted_weights_are_made_anew(
    directory: Path,
    config: EngineConfig,
    damaged: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoint = load_checkpoint(directory)
    expected = logits(checkpoint, config)
    assert config.cache_dir is not None
    (file,) = config.cache_dir.glob("*.weights")
    whole = file.read_bytes()
    file.write_bytes(damaged(whole))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(checkpoint, config), expected)
    assert f"{file} is not used and will be replaced" in caplog.text
    assert file.read_bytes() == whole
    assert list(config.cache_dir.glob("*.weights*")) == [file]
