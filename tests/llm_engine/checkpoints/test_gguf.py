"""GGUF files: the same model as in safetensors, and every kind of damage named."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.gguf_config import read_config
from llm_engine.checkpoints.gguf_reader import GgufFile
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import DivisorScaling
from llm_engine.errors import ModelError
from llm_engine.models.rope import inverse_frequencies
from llm_engine.models.tensors import tensor
from tests.support.fakes.k_quants import K_QUANTS, SIZE, pack
from tests.support.fakes.llm_decoding import greedy
from tests.support.fakes.llm_models import greedy_oracle, save_tiny_gguf, save_tiny_model
from tests.support.fakes.small_model_files import GGUF_TENSORS, gguf_file, gguf_metadata
from tests.support.models import model_path

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
        torch.testing.assert_close(tensor(checkpoint.read(name)), values, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_model_as_in_safetensors(family: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family, **FAMILIES[family])
    save_tiny_gguf(tmp_path / "m.gguf", tmp_path)
    directory, file = load_checkpoint(tmp_path), load_checkpoint(tmp_path / "m.gguf")
    # GGUF stores the epsilon in single precision.
    assert file.config == replace(directory.config, norm_eps=file.config.norm_eps)
    assert file.config.norm_eps == pytest.approx(directory.config.norm_eps)
    assert_same_tensors(file, {name: tensor(directory.read(name)) for name in directory.names})
    text = "hello <|im_end|> the cat's mat, 12 日本"
    assert file.tokenizer.encode(text) == directory.tokenizer.encode(text)
    assert file.tokenizer.encode_template(text) == directory.tokenizer.encode_template(text)
    assert file.tokenizer.token_bytes == directory.tokenizer.token_bytes
    assert file.tokenizer.end_ids == directory.tokenizer.end_ids
    assert file.tokenizer.chat_template == directory.tokenizer.chat_template


def test_divisors_of_rotary_frequencies(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", num_hidden_layers=1)
    ones = np.ones(8, np.float32)
    path = tmp_path / "m.gguf"
    save_tiny_gguf(path, tmp_path, rope_divisors=ones)
    assert load_checkpoint(path).config.rope_scaling is None
    save_tiny_gguf(path, tmp_path, rope_divisors=ones * 8)
    assert load_checkpoint(path).config.rope_scaling == DivisorScaling((8.0,) * 8)
    for bad, message in (
        (ones * 0, r"m\.gguf: rotary scaling: a divisor is 0\.0"),
        (ones * np.nan, r"m\.gguf: rotary scaling: a divisor is nan"),
        (ones[:5], r"shape \(5,\) does not go with heads of 16"),
    ):
        save_tiny_gguf(path, tmp_path, rope_divisors=bad)
        with pytest.raises(ModelError, match=message):
            load_checkpoint(path)


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_tensors(quantization: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", num_hidden_layers=1)
    stored = save_tiny_gguf(tmp_path / "m.gguf", tmp_path, quantization)
    assert_same_tensors(load_checkpoint(tmp_path / "m.gguf"), stored)


@pytest.mark.parametrize("quantization", K_QUANTS)
def test_k_quants(quantization: str, tmp_path: Path) -> None:
    """Their bytes are written here, so what they stand for is known without any reader."""
    oracle = save_tiny_model(tmp_path, "llama", hidden_size=256, intermediate_size=512, head_dim=64)
    stored = save_tiny_gguf(tmp_path / "m.gguf", tmp_path, quantization)
    checkpoint = load_checkpoint(tmp_path / "m.gguf")
    assert_same_tensors(checkpoint, stored)
    original = load_checkpoint(tmp_path)
    for name in original.names:
        values = tensor(original.read(name))
        assert (stored[name] - values).norm() < 0.15 * values.norm()
    oracle.load_state_dict(
        {name if name.startswith("lm_") else f"model.{name}": stored[name] for name in stored}
    )
    prompt = [3 + 7 * index % 311 for index in range(50)]
    assert greedy(checkpoint, prompt, 30) == greedy_oracle(oracle, prompt, 30)


@pytest.mark.parametrize("kind", K_QUANTS)
def test_k_quants_of_any_numbers(kind: str) -> None:
    """The `gguf` package, which reads them for the engine, takes the bytes as they are meant."""
    random = np.random.default_rng(3)
    sizes = 10.0 ** random.uniform(-4, 2, (40, 1))
    rows = (random.normal(size=(40, 3 * SIZE)) * sizes).astype(np.float32)
    rows[7] = 0
    rows[8] = 5
    raw, plain = pack(rows, kind)
    np.testing.assert_allclose(
        dequantize(raw, GGMLQuantizationType[kind]), plain, rtol=1e-5, atol=1e-6
    )


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
def test_any_header_damage_is_reported_or_harmless(tiny: Path, data: st.DataObject) -> None:
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


JUNK = st.one_of(
    st.booleans(),
    st.integers(-2, 600),
    st.sampled_from([2**64 - 1, 1e300, float("nan"), float("inf"), -1.0, 0.0, 0.5, 4.0]),
    st.sampled_from(["", "none", "linear", "yarn", "longrope", "llama"]),
    st.lists(st.booleans(), max_size=4),
)
KEYS = (
    "rope.scaling.type rope.scaling.factor rope.scaling.attn_factor rope.scaling.yarn_attn_factor "
    "rope.scaling.original_context_length rope.scaling.yarn_ext_factor rope.scaling.yarn_beta_fast "
    "rope.scaling.yarn_beta_slow rope.scale_linear rope.freq_base rope.dimension_count block_count "
    "attention.sliding_window attention.sliding_window_pattern attention.layer_norm_rms_epsilon "
    "attention.head_count attention.head_count_kv attention.key_length context_length logit_scale "
    "embedding_length expert_count attention.causal"
)


@given(st.dictionaries(st.sampled_from(KEYS.split()), JUNK, max_size=5), st.booleans())
@settings(max_examples=400)
def test_any_metadata_are_used_or_refused(tiny: Path, values: dict[str, Any], yarn: bool) -> None:
    file = GgufFile(tiny)
    if yarn:
        file.metadata |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}
    file.metadata |= {f"llama.{key}": value for key, value in values.items()}
    tokenizer = load_checkpoint(tiny).tokenizer
    try:
        config = read_config(file)
        Checkpoint(tiny, config, tokenizer, frozenset(), lambda _: np.zeros(1))
    except ModelError as error:
        assert str(tiny) in str(error)  # noqa: PT017
    else:
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        assert np.isfinite(frequencies).all()
        assert 0 < config.rope_attention_factor < 1e12
        assert config.sliding_window(config.num_layers - 1) != 0


def patched(tiny: Path, tmp_path: Path, old: bytes, new: bytes) -> Path:
    whole = tiny.read_bytes()
    assert old in whole
    path = tmp_path / "patched.gguf"
    path.write_bytes(whole.replace(old, new))
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def test_a_sentencepiece_token_of_a_megabyte_is_refused(tmp_path: Path) -> None:
    """Its merges would take hours."""
    metadata = gguf_metadata("llama")
    tokens = metadata["tokenizer.ggml.tokens"]
    path = tmp_path / "long.gguf"
    for length, is_taken in ((1024, True), (1025, False), (1 << 20, False)):
        metadata["tokenizer.ggml.tokens"] = [*tokens[:-1], "t" * length]
        path.write_bytes(gguf_file(metadata, GGUF_TENSORS))
        if is_taken:
            assert load_checkpoint(path).tokenizer.token_bytes[-1] == b"t" * length
        else:
            with pytest.raises(
                ModelError, match=f"token {len(tokens) - 1} has {length} characters"
            ):
                load_checkpoint(path)


def test_a_panic_of_the_tokenizer_library_is_a_damaged_file(tmp_path: Path) -> None:
    """Found by fuzzing: a panic of Rust is no `Exception`."""
    metadata = gguf_metadata()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"][:-1], "b"]
    metadata["tokenizer.ggml.merges"] = ["t he"]
    path = tmp_path / "twice.gguf"
    path.write_bytes(gguf_file(metadata, GGUF_TENSORS))
    with pytest.raises(ModelError, match=r"twice\.gguf: its tokenizer is damaged"):
        load_checkpoint(path)


def test_unsupported_parts_are_named(tiny: Path, tmp_path: Path) -> None:
    architecture = text("general.architecture") + struct.pack("<I", 8)
    path = patched(tiny, tmp_path, architecture + text("llama"), architecture + text("mamba"))
    with pytest.raises(ModelError, match="'mamba' is not supported; these are: llama, qwen2"):
        load_checkpoint(path)
    for key, value, message in (
        ("rope.scaling.type", "longrope", "'longrope' is not supported; these are: linear, yarn"),
        ("expert_count", 8, "mixtures of experts"),
        ("final_logit_softcapping", 30.0, "capped logits"),
        ("attention.max_alibi_bias", 8.0, "ALiBi"),
        ("attention.causal", False, "attention to later tokens"),
        ("rope.scaling.alpha", 2.0, "dynamic NTK scaling"),
        ("rope.dimension_count", 8, "rotary embedding of part of a head"),
        ("attention.value_length", 8, "keys and values of different size"),
    ):
        file = GgufFile(tiny)
        file.metadata[f"llama.{key}"] = value
        with pytest.raises(ModelError, match=rf"tiny\.gguf: .*{message}"):
            read_config(file)
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


def test_tensors_that_share_bytes_or_a_name_are_refused(tiny: Path, tmp_path: Path) -> None:
    tensors = GgufFile(tiny).tensors
    up, gate = tensors["blk.0.ffn_up.weight"], tensors["blk.0.ffn_gate.weight"]
    start = min(info.first_byte for info in tensors.values())
    where = [struct.pack("<Q", info.first_byte - start) for info in (up, gate)]
    name = text("blk.0.ffn_up.weight") + struct.pack("<IQQI", 2, *up.shape[::-1], up.type)
    path = patched(tiny, tmp_path, name + where[0], name + where[1])
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_\w+\.weight' begins inside another one"):
        load_checkpoint(path)
    twice = text("blk.0.attn_k.weight")
    path = patched(tiny, tmp_path, text("blk.0.attn_v.weight"), twice)
    with pytest.raises(ModelError, match=r"attn_k\.weight' is there twice"):
        load_checkpoint(path)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_0", "Q4_K"])
@pytest.mark.parametrize("shape", [(0, 256), (64, 0), (0,)])
def test_tensors_without_numbers_are_refused(
    kind: str, shape: tuple[int, ...], tiny: Path, tmp_path: Path
) -> None:
    name = "blk.0.ffn_up.weight"
    found = GgufFile(tiny).tensors[name]
    dims = (
        struct.pack("<I", len(each)) + struct.pack(f"<{len(each)}Q", *each[::-1])
        for each in (found.shape, shape)
    )
    kinds = (struct.pack("<I", each) for each in (found.type, GGMLQuantizationType[kind]))
    old, new = (text(name) + dim + number for dim, number in zip(dims, kinds, strict=True))
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_up\.weight' of shape \(.*does not fit"):
        load_all(patched(tiny, tmp_path, old, new))


@pytest.mark.models
def test_the_embedded_model() -> None:
    path = model_path("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
    checkpoint = load_checkpoint(path)
    assert checkpoint.config.num_layers == 30
    assert checkpoint.read("layers.29.mlp.down_proj.weight").shape == (576, 1536)
    assert checkpoint.tokenizer.end_ids == {0, 2}
