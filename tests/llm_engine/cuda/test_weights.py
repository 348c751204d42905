"""Weights on the device equal the reference's, in floats and in 8 bits."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.llm.gpu.random_weights import SHAPES, random_model
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.fp8 import Fp8Matrix
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.checkpoints.packed_weights import FusedWeights
from llm_engine.config import ModelConfig, Precision
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops.interface import Matrix
from llm_engine.cuda.quantization.quantize import BLOCK, ONE_A_ROW, quantize
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.errors import ModelError
from llm_engine.models.decoder import joined
from llm_engine.models.tensors import tensor
from tests.support.fakes.fp8_models import LAYOUTS, save_fp8_model
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model
from tests.support.llm.int4_cases import not_int4

CONTEXT = 40
EXACT = WeightFormat(dtype=torch.float32)
FP8 = WeightFormat(Precision.FP8, dtype=torch.float32)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8, "head_dim": 16},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
}


def loaded(checkpoint: Checkpoint, weight_format: WeightFormat) -> DeviceModel:
    return load_model(checkpoint, weight_format, "cpu", context_length=CONTEXT)


def plain(matrix: Matrix) -> Tensor:
    if matrix.scales is None:
        return matrix.values.float()
    return Fp8Matrix(matrix.values, matrix.scales, matrix.block).dequantize()


def matrices(model: DeviceModel) -> dict[str, Matrix]:
    found = {"head": not_int4(model.head)}
    for index, layer in enumerate(model.layers):
        own = {"qkv": layer.attention.qkv, "out": layer.out}
        own |= {"gate_up": layer.gate_up, "down": layer.down}
        found |= {f"{index} {name}": not_int4(matrix) for name, matrix in own.items()}
    return found


def reference(checkpoint: Checkpoint) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The matrices and biases that the float decoder multiplies with."""
    weights = FusedWeights(checkpoint)
    head = weights.head() if weights.has_own_head else weights.embedding()
    found: dict[str, tuple[Tensor, Tensor | None]] = {"head": (tensor(head).float(), None)}
    for index in range(checkpoint.config.num_layers):
        for matrix in weights.matrices(index):
            found[f"{index} {matrix.name}"] = joined(matrix)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_floats_are_the_reference_s(family: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family, **FAMILIES[family])
    checkpoint = load_checkpoint(tmp_path)
    model, expected = loaded(checkpoint, EXACT), reference(checkpoint)
    found = matrices(model)
    assert found.keys() == expected.keys()
    for name, (weight, bias) in expected.items():
        assert torch.equal(found[name].values, weight), name
        assert found[name].scales is None
        own = found[name].bias
        assert (own is None) == (bias is None)
        assert own is None or bias is None or torch.equal(own, bias)
    assert any(bias is not None for _, bias in expected.values()) == (family == "qwen2")
    config, weights = checkpoint.config, FusedWeights(checkpoint)
    assert torch.equal(model.embedding, tensor(weights.embedding()))
    assert torch.equal(model.norm.weight, tensor(weights.final_norm()))
    for index, layer in enumerate(model.layers):
        norms = {name: tensor(vector) for name, vector in weights.vectors(index)}
        attention = layer.attention
        assert torch.equal(attention.norm.weight, norms["input_layernorm"])
        assert torch.equal(layer.mlp_norm.weight, norms["post_attention_layernorm"])
        assert attention.window == config.sliding_window(index)
        assert attention.heads.num_kv_heads == config.num_kv_heads
        for own_norm, name in ((attention.q_norm, "q_norm"), (attention.k_norm, "k_norm")):
            assert (own_norm is not None) == (family == "qwen3")
            assert own_norm is None or torch.equal(own_norm.weight, norms[name])
    assert {layer.attention.window for layer in model.layers} == {
        8 if family == "mistral" else None
    }


@pytest.mark.parametrize("block", [ONE_A_ROW, BLOCK], ids=["row", "block"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_eight_bits(family: str, block: tuple[int, int], tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family, **FAMILIES[family])
    checkpoint = load_checkpoint(tmp_path)
    shares: list[float] = []
    model = load_model(
        checkpoint,
        replace(FP8, block=block),
        "cpu",
        context_length=CONTEXT,
        on_progress=shares.append,
    )
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert model.embedding.dtype == torch.float32
    for name, (weight, bias) in reference(checkpoint).items():
        matrix, expected = matrices(model)[name], quantize(weight, block)
        assert matrix.values.dtype == torch.float8_e4m3fn
        assert torch.equal(plain(matrix), expected.dequantize()), name
        assert (matrix.bias is None) == (bias is None)
    assert model.step_bytes < 0.5 * loaded(checkpoint, EXACT).step_bytes


def test_head_and_body_are_chosen_apart(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", tie_word_embeddings=True)
    checkpoint = load_checkpoint(tmp_path)
    exact = loaded(checkpoint, EXACT)
    assert not_int4(exact.head).values is exact.embedding
    body = loaded(checkpoint, replace(FP8, head=Precision.BFLOAT16))
    assert not_int4(body.head).values is body.embedding
    assert body.layers[0].down.scales is not None
    head = loaded(checkpoint, replace(EXACT, head=Precision.FP8))
    assert head.head.scales is not None
    assert head.layers[0].down.scales is None


def test_activations_types(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2")
    checkpoint = load_checkpoint(tmp_path)
    exact = loaded(checkpoint, EXACT)
    model = loaded(checkpoint, WeightFormat())
    ours, theirs = (not_int4(each.layers[0].out).values for each in (model, exact))
    assert model.embedding.dtype == ours.dtype == torch.bfloat16
    assert torch.equal(ours, theirs.bfloat16())
    for values in (model.norm.weight, model.rope.cos, model.layers[0].attention.qkv.bias):
        assert values is not None
        assert values.dtype == torch.float32
    with pytest.raises(ModelError, match="are bfloat16, fp8 or int4, not int8"):
        WeightFormat(Precision.INT8)


def test_positions_turn_as_in_the_reference(tmp_path: Path) -> None:
    rope = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "rope_theta": 1e4,
    }
    save_tiny_model(tmp_path, "llama", rope_scaling=rope)
    checkpoint = load_checkpoint(tmp_path)
    tables = loaded(checkpoint, EXACT).rope
    assert tables.cos.shape == tables.sin.shape == (CONTEXT, checkpoint.config.head_dim // 2)
    factor = checkpoint.config.rope_attention_factor
    assert factor > 1
    torch.testing.assert_close(tables.cos[0], torch.full((8,), factor))
    torch.testing.assert_close(tables.cos**2 + tables.sin**2, torch.full((CONTEXT, 8), factor**2))
    torch.testing.assert_close(tables.sin[1, 0] / factor, torch.tensor(1.0).sin())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_stored_in_eight_bits_stays(layout: str, tmp_path: Path) -> None:
    """Qkv and gate and up of these shapes end inside a block: only they may change."""
    _, stored = save_fp8_model(tmp_path, layout)
    checkpoint = load_checkpoint(tmp_path)
    model = loaded(checkpoint, replace(FP8, head=Precision.BFLOAT16))
    by_block = "block" in layout or "powers" in layout
    raw = load_file(tmp_path / "model.safetensors")
    for name in ("1 out", "1 down"):
        part = {"out": "self_attn.o_proj", "down": "mlp.down_proj"}[name[2:]]
        matrix = matrices(model)[name]
        assert matrix.block == (BLOCK if by_block else (1, matrix.values.shape[1]))
        assert torch.equal(plain(matrix), stored[f"layers.1.{part}.weight"])
        bytes_stored = raw[f"model.layers.1.{part}.weight"].view(torch.uint8)
        assert torch.equal(matrix.values.view(torch.uint8), bytes_stored)
    for name, (weight, _) in reference(checkpoint).items():
        found = matrices(model)[name]
        error = float((plain(found) - weight).norm() / weight.norm())
        is_changed = name == "0 out" or (by_block and name[2:] in ("qkv", "gate_up"))
        assert (error == 0) != is_changed, name
        assert error < 0.04
    as_floats = loaded(checkpoint, EXACT)
    for name, (weight, _) in reference(checkpoint).items():
        assert torch.equal(plain(matrices(as_floats)[name]), weight)


def test_blocks_that_fit_are_fused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    save_fp8_model(tmp_path, "fp8, block", **sizes, num_hidden_layers=1)
    checkpoint = load_checkpoint(tmp_path)
    model = loaded(checkpoint, FP8)
    for name in ("0 qkv", "0 gate_up", "0 down"):
        assert matrices(model)[name].block == BLOCK
        assert torch.equal(plain(matrices(model)[name]), reference(checkpoint)[name][0])


def test_gguf(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "llama")
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path / "model", "Q8_0")
    checkpoint = load_checkpoint(tmp_path / "model.gguf")
    model = loaded(checkpoint, FP8)
    for name, (weight, _) in reference(checkpoint).items():
        assert torch.equal(plain(matrices(model)[name]), quantize(weight).dequantize())


def damage(source: Path, target: Path, name: str, values: Tensor | None) -> Checkpoint:
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    del tensors[name]
    if values is not None:
        tensors[name] = values
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return load_checkpoint(target)


def test_bad_files(tmp_path: Path) -> None:
    whole, fp8 = tmp_path / "whole", tmp_path / "fp8"
    save_tiny_model(whole, "llama")
    save_fp8_model(fp8, "fp8, tensor")
    down = "model.layers.2.mlp.down_proj.weight"
    for name, values, message in (
        ("missing", None, r"down_proj\.weight' is missing"),
        ("shape", torch.ones(64, 95), r"down_proj\.weight' has shape \(64, 95\)"),
        ("nan", torch.full((64, 96), torch.nan), r"down_proj\.weight' is damaged"),
    ):
        checkpoint = damage(whole, tmp_path / name, down, values)
        for weight_format in (EXACT, FP8):
            with pytest.raises(ModelError, match=message):
                loaded(checkpoint, weight_format)
    values = torch.full((160, 200), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    checkpoint = damage(fp8, tmp_path / "eight", down, values)
    for weight_format in (EXACT, FP8):
        with pytest.raises(ModelError, match=r"down_proj\.weight' is damaged: it holds NaN"):
            loaded(checkpoint, weight_format)


TINY = ModelConfig(
    architecture="qwen2",
    num_layers=2,
    hidden_size=48,
    intermediate_size=80,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=200,
    context_length=64,
    norm_eps=1e-5,
    rope_theta=1e4,
    sliding_windows=(None, 8),
)


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FP8])
def test_random_models(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(config: ModelConfig, seed: int) -> DeviceModel:
        return random_model(config, WeightFormat(precision), "cpu", seed=seed, context_length=20)

    model, again, other = made(TINY, 1), made(TINY, 1), made(TINY, 2)
    for name, matrix in matrices(model).items():
        assert torch.equal(plain(matrix), plain(matrices(again)[name]))
        assert not torch.equal(plain(matrix), plain(matrices(other)[name]))
        assert (matrix.scales is not None) == (precision is Precision.FP8)
        added = not name.endswith(("out", "down"))
        variance = float(plain(matrix).var()) * matrix.values.shape[1]
        assert variance == pytest.approx(1 if added else 1 / 4, rel=0.2)
    shapes = {name: tuple(matrix.values.shape) for name, matrix in matrices(model).items()}
    assert shapes["0 qkv"] == (128, 48)
    assert shapes["1 out"] == (48, 64)
    assert shapes["1 gate_up"] == (160, 48)
    assert shapes["1 down"] == (48, 80)
    assert shapes["head"] == tuple(model.embedding.shape) == (200, 48)
    assert model.layers[0].attention.qkv.bias is not None
    assert [layer.attention.window for layer in model.layers] == [None, 8]
    monkeypatch.setattr("benchmarks.llm.gpu.random_weights._PIECE", 48 * 64)
    in_pieces = made(replace(TINY, architecture="qwen3"), 1)
    assert in_pieces.layers[1].attention.q_norm is not None
    assert float(in_pieces.embedding.float().var()) == pytest.approx(1, rel=0.1)


def test_named_shapes_have_the_sizes_of_their_models() -> None:
    """Billions of numbers that a step reads: embedding aside, as published."""
    sizes = {"1b": 1.236, "3b": 3.213, "8b": 7.505, "70b": 69.5, "qwen2-7b": 7.07, "qwen3-8b": 7.57}
    for name, expected in sizes.items():
        config = SHAPES[name]
        attention = 2 * config.hidden_size * config.head_dim
        attention *= config.num_heads + config.num_kv_heads
        layer = attention + 3 * config.hidden_size * config.intermediate_size
        total = config.num_layers * layer + config.vocab_size * config.hidden_size
        assert total / 1e9 == pytest.approx(expected, rel=2e-3)
