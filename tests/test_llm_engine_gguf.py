"""GGUF files: the same model as in safetensors, and every kind of damage named."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.checkpoint import Checkpoint
from llm_engine.errors import ModelError
from llm_engine.weights import load_checkpoint
from tests.fakes.llm_models import save_tiny_gguf, save_tiny_model
from tests.models import model_path

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GGUF to damage."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, "llama", num_hidden_layers=1)
    save_tiny_gguf(folder / "tiny.gguf", folder)
    return folder / "tiny.gguf"


def assert_same_tensors(checkpoint: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    assert checkpoint.names == set(expected)
    for name, values in expected.items():
        torch.testing.assert_close(checkpoint.read(name), values, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_model_as_in_safetensors(family: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family, **FAMILIES[family])
    save_tiny_gguf(tmp_path / "m.gguf", tmp_path)
    directory, file = load_checkpoint(tmp_path), load_checkpoint(tmp_path / "m.gguf")
    # GGUF stores the epsilon in single precision.
    assert file.config == replace(directory.config, norm_eps=file.config.norm_eps)
    assert file.config.norm_eps == pytest.approx(directory.config.norm_eps)
    assert_same_tensors(file, {name: directory.read(name) for name in directory.names})
    text = "hello <|im_end|> the cat's mat, 12 日本"
    assert file.tokenizer.encode(text) == directory.tokenizer.encode(text)
    assert file.tokenizer.encode_template(text) == directory.tokenizer.encode_template(text)
    assert file.tokenizer.token_bytes == directory.tokenizer.token_bytes
    assert file.tokenizer.end_ids == directory.tokenizer.end_ids
    assert file.tokenizer.chat_template == directory.tokenizer.chat_template


def test_llama_3_rope_is_found_in_its_divisors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    oracle = save_tiny_model(tmp_path, "llama", rope_parameters=rope)
    plain = 500000.0 ** -(np.arange(0, 16, 2) / 16)
    divisors = (plain / oracle.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    save_tiny_gguf(tmp_path / "m.gguf", tmp_path, rope_divisors=divisors)
    scaling = load_checkpoint(tmp_path / "m.gguf").config.rope_scaling
    expected = load_checkpoint(tmp_path).config.rope_scaling
    assert scaling is not None
    assert replace(scaling, factor=8.0) == expected
    assert scaling.factor == pytest.approx(8.0)
    save_tiny_gguf(tmp_path / "odd.gguf", tmp_path, rope_divisors=divisors[::-1].copy())
    with pytest.raises(ModelError, match="not Llama 3's kind of rotary scaling"):
        load_checkpoint(tmp_path / "odd.gguf")


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_tensors(quantization: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", num_hidden_layers=1)
    stored = save_tiny_gguf(tmp_path / "m.gguf", tmp_path, quantization)
    assert_same_tensors(load_checkpoint(tmp_path / "m.gguf"), stored)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.gguf: no such file"):
        load_checkpoint(tmp_path / "nothing.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GG", "not a GGUF file"),
        (b"RIFF....WAVEfmt ", "begins with b'RIFF'"),
        (b"GGUF", "ends inside"),
        (b"GGUF" + struct.pack("<I", 1), "version 1"),
        (b"GGUF" + struct.pack(">I", 3), "version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "architecture None is not supported"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), "does not fit in the file"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "ends inside"),
    ],
)
def test_not_a_model(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value)


def load_all(path: Path) -> None:
    checkpoint = load_checkpoint(path)
    for name in checkpoint.names:
        checkpoint.read(name)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.2, 0.5, 0.999])
def test_a_truncated_file(share: float, tiny: Path, tmp_path: Path) -> None:
    whole = tiny.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        load_all(path)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_damage_to_the_header_is_told_or_harmless(tiny: Path, data: st.DataObject) -> None:
    whole = bytearray(tiny.read_bytes())
    header_size = whole.index(b"token_embd.weight") + 400
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, header_size))
        whole[at] = data.draw(st.integers(0, 255))
    damaged = tiny.with_name("damaged.gguf")
    damaged.write_bytes(whole)
    try:
        load_all(damaged)
    except ModelError as error:
        message = str(error)
    else:
        message = "damaged.gguf is as good as before"
    assert "damaged.gguf" in message


def patched(tiny: Path, tmp_path: Path, old: bytes, new: bytes) -> Path:
    whole = tiny.read_bytes()
    assert old in whole
    path = tmp_path / "patched.gguf"
    path.write_bytes(whole.replace(old, new))
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def test_unsupported_parts_are_named(tiny: Path, tmp_path: Path) -> None:
    architecture = text("general.architecture") + struct.pack("<I", 8)
    path = patched(tiny, tmp_path, architecture + text("llama"), architecture + text("mamba"))
    with pytest.raises(ModelError, match="'mamba' is not supported; these are: llama, qwen2"):
        load_checkpoint(path)
    pre = text("tokenizer.ggml.pre") + struct.pack("<I", 8)
    path = patched(tiny, tmp_path, pre + text("gpt-2"), pre + text("gpt-9"))
    with pytest.raises(ModelError, match=r"'gpt-9' is not supported; these are: .*smollm"):
        load_checkpoint(path)
    shape = text("token_embd.weight") + struct.pack("<IQQ", 2, 64, 320)
    kind = struct.pack("<I", 0)
    path = patched(tiny, tmp_path, shape + kind, shape + struct.pack("<I", 16))
    with pytest.raises(ModelError, match=r"IQ2_XXS; supported are .*Q4_0"):
        load_checkpoint(path)
    path = patched(tiny, tmp_path, b"blk.0.attn_q.weight", b"blk.0.attn_z.weight")
    with pytest.raises(ModelError, match=r"attn_z\.weight' has no place"):
        load_checkpoint(path)


@pytest.mark.models
def test_the_embedded_model() -> None:
    path = model_path("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
    checkpoint = load_checkpoint(path)
    assert checkpoint.config.num_layers == 30
    assert checkpoint.read("layers.29.mlp.down_proj.weight").shape == (576, 1536)
    assert checkpoint.tokenizer.end_ids == {0, 2}
