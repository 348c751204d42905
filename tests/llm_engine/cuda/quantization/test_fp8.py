"""FP8 checkpoints: every layout of scales, read as floats and as stored."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from llm_engine.backends.cpu import CpuBackend
from llm_engine.checkpoints.fp8 import Fp8Matrix, declared_blocks, scaled
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, Precision
from llm_engine.errors import ModelError
from llm_engine.models.tensors import tensor
from tests.support.fakes.fp8_models import (
    BLOCK,
    LAYOUTS,
    by_block,
    compressed,
    save_fp8_model,
    spread_out,
)
from tests.support.fakes.llm_decoding import all_logits, greedy
from tests.support.fakes.llm_models import greedy_oracle

PROMPT = [3 + 7 * index % 311 for index in range(50)]
DOWN = "layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_and_tokens(layout: str, tmp_path: Path) -> None:
    oracle, expected = save_fp8_model(tmp_path, layout)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.names == set(expected)
    for name, values in expected.items():
        assert torch.equal(tensor(checkpoint.tensor(name, *values.shape)), values), name
    with torch.inference_mode():
        logits = oracle(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(all_logits(checkpoint, PROMPT), logits, rtol=1e-4, atol=2e-4)
    assert greedy(checkpoint, PROMPT, 30) == greedy_oracle(oracle, PROMPT, 30)


@pytest.mark.parametrize(
    ("layout", "block", "grid"),
    [
        ("compressed, tensor", (160, 200), (1, 1)),
        ("fp8, tensor", (160, 200), (1, 1)),
        ("compressed, channel", (1, 200), (160, 1)),
        ("fbgemm, flat", (1, 200), (160, 1)),
        ("fp8, block", (BLOCK, BLOCK), (2, 2)),
        ("fp8, powers of two", (BLOCK, BLOCK), (2, 2)),
    ],
)
def test_what_is_stored(
    layout: str, block: tuple[int, int], grid: tuple[int, int], tmp_path: Path
) -> None:
    _, expected = save_fp8_model(tmp_path, layout)
    checkpoint = load_checkpoint(tmp_path)
    matrix = checkpoint.fp8(DOWN, 160, 200)
    assert matrix is not None
    assert matrix.block == block
    assert matrix.values.dtype == torch.float8_e4m3fn
    assert (matrix.scales.dtype, tuple(matrix.scales.shape)) == (torch.float32, grid)
    assert torch.equal(matrix.dequantize(), expected[DOWN])
    raw = load_file(tmp_path / "model.safetensors")[f"model.{DOWN}"]
    assert torch.equal(matrix.values.view(torch.uint8), raw.view(torch.uint8))
    # What the lists of modules leave out is stored, and handed out, as floats.
    assert checkpoint.fp8("layers.0.self_attn.o_proj.weight", 160, 160) is None
    assert checkpoint.fp8("lm_head.weight", 320, 160) is None
    assert checkpoint.fp8("layers.1.mlp.down_proj.bias", 160) is None
    with pytest.raises(ModelError, match=r"shape \(160, 200\); the model's configuration calls"):
        checkpoint.fp8(DOWN, 200, 160)


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_a_weight_that_is_no_number(byte: int, tmp_path: Path) -> None:
    save_fp8_model(tmp_path, "fp8, block")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors[f"model.{DOWN}"].view(torch.uint8)[17, 5] = byte
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"down_proj\.weight' is damaged: it holds NaN"):
        load_checkpoint(tmp_path).fp8(DOWN, 160, 200)


def test_scales_in_another_shard(tmp_path: Path) -> None:
    _, expected = save_fp8_model(tmp_path, "fp8, block", num_hidden_layers=1)
    whole = tmp_path / "model.safetensors"
    weight_map = {
        name: "scales.safetensors" if "scale" in name else "weights.safetensors"
        for name in load_file(whole)
    }
    for shard in set(weight_map.values()):
        tensors = {n: values for n, values in load_file(whole).items() if weight_map[n] == shard}
        save_file(tensors, tmp_path / shard, metadata={"format": "pt"})
    whole.unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = load_checkpoint(tmp_path)
    for name, values in expected.items():
        assert torch.equal(tensor(checkpoint.read(name)), values)


def test_the_quick_backend_reads_them_too(tmp_path: Path) -> None:
    save_fp8_model(tmp_path, "fp8, block")
    checkpoint = load_checkpoint(tmp_path)
    exact = all_logits(checkpoint, PROMPT)
    quick = all_logits(checkpoint, PROMPT, Precision.INT8)
    assert (quick - exact).norm() < 0.12 * exact.norm()


@given(
    rows=st.integers(1, 20), columns=st.integers(1, 20), block=st.tuples(*[st.integers(1, 24)] * 2)
)
def test_blocks_of_any_size(rows: int, columns: int, block: tuple[int, int]) -> None:
    values = torch.ones(rows, columns).to(torch.float8_e4m3fn)
    grid = -(-rows // block[0]), -(-columns // block[1])
    scales = torch.arange(1.0, grid[0] * grid[1] + 1).reshape(grid)
    weight = Fp8Matrix(values, scales, block).dequantize()
    for row in range(rows):
        for column in range(columns):
            assert weight[row, column] == scales[row // block[0], column // block[1]]
    # A grid can look like one scale a row; then it means the same.
    torch.testing.assert_close(scaled(values, scales, (block,)).dequantize(), weight)


def rewrite(model: Path, **changes: Any) -> None:
    """Put tensors in place of others, or away."""
    tensors = load_file(model / "model.safetensors") | changes
    kept = {name: values for name, values in tensors.items() if values is not None}
    save_file(kept, model / "model.safetensors", metadata={"format": "pt"})


SCALE = "model.layers.1.mlp.down_proj.weight_scale_inv"
ODD: list[tuple[dict[str, Any], str]] = [
    ({SCALE: None}, r"down_proj\.weight' is F8_E4M3 and has 0 tensors of scales"),
    ({SCALE.removesuffix("_inv"): torch.ones(1)}, "has 2 tensors of scales"),
    ({SCALE: torch.ones(3, 3)}, r"scales of shape \(3, 3\): .*declared block \(128 x 128\)"),
    ({SCALE: torch.ones(2)}, r"scales of shape \(2,\)"),
    ({SCALE: torch.tensor([[1.0, -1.0], [1.0, 1.0]])}, "scales that are negative or not finite"),
    ({SCALE: torch.full((2, 2), float("nan"))}, "scales that are negative or not finite"),
    ({SCALE: torch.ones(2, 2, dtype=torch.int32)}, "is I32, which scales cannot be"),
    ({f"model.{DOWN}": torch.ones(160, 200)}, "is F32 and has 1 tensors of scales"),
    ({f"model.{DOWN}": torch.ones(160, 200, dtype=torch.float8_e5m2)}, "is F8_E5M2; F64"),
    ({f"model.{DOWN}": torch.ones(160, 200, dtype=torch.int8)}, "is I8; F64, F32, F16"),
    ({"model.norm.weight": torch.ones(160).to(torch.float8_e4m3fn)}, "is F8_E4M3 and has 0"),
]


@pytest.mark.parametrize(("changes", "message"), ODD)
def test_scales_amiss(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_fp8_model(tmp_path, "fp8, block", num_hidden_layers=2)
    rewrite(tmp_path, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        CpuBackend(load_checkpoint(tmp_path), EngineConfig(), 64)
    assert str(tmp_path / "model.safetensors") in str(caught.value)


def test_a_vector_of_8_bit_floats(tmp_path: Path) -> None:
    save_fp8_model(tmp_path, "fp8, block", num_hidden_layers=1)
    vector = torch.ones(160).to(torch.float8_e4m3fn)
    scale = {"model.norm.weight_scale": torch.ones(1)}
    rewrite(tmp_path, **{"model.norm.weight": vector}, **scale)
    with pytest.raises(ModelError, match=r"8-bit float of shape \(160,\), not a matrix"):
        load_checkpoint(tmp_path).tensor("norm.weight", 160)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"bits": 4}, "names the method None, which is not supported; FP8 is"),
        ({"quant_method": "hqq", "bits": 4}, "'hqq', which is not supported; FP8 is"),
        ({"quant_method": "aqlm"}, "'aqlm'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
        ({"quant_method": ["fp8"]}, "the method"),
        ("fp8", "'fp8' instead of an object"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "format 'e5m2' is not supported"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"the shape \[128\]"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, r"the shape \[0, 128\]"),
        ({"quant_method": "fp8", "weight_block_size": "all"}, "the shape 'all'"),
        ({"quant_method": "compressed-tensors"}, "lacks 'config_groups'"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": []}}, "group 'a'"),
        (compressed("channel", num_bits=4, type="int"), "with 4-bit int is not supported"),
        (compressed("channel", type="int"), "with 8-bit int is not supported"),
        (compressed("group", group_size=128), "with scales by 'group' is not"),
        (compressed("channel", symmetric=False), "with zero points is not"),
        (compressed("block", block_structure="2x4"), "the shape '2x4'"),
        ({**compressed("tensor"), "format": "pack-quantized"}, "format 'pack-quantized' is not"),
        ({**compressed("tensor"), "transform_config": {"a": 1}}, "a transformation of the weights"),
    ],
)
def test_other_quantizations(quantization: Any, message: str) -> None:
    file = Path("some/config.json")
    with pytest.raises(ModelError, match=message) as caught:
        declared_blocks(quantization, file)
    assert str(file) in str(caught.value)


def test_the_configuration_is_read_at_load(tmp_path: Path) -> None:
    save_fp8_model(tmp_path, "fp8, block", num_hidden_layers=1)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]["weight_block_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"not one for each declared block \(none\)"):
        load_checkpoint(tmp_path).read("layers.0.mlp.down_proj.weight")
    config["quantization_config"]["quant_method"] = "hqq"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"config\.json: 'quantization_config' names .*'hqq'"):
        load_checkpoint(tmp_path)


def test_scales_are_spread_as_expected() -> None:
    """The tests' own arithmetic: a ragged grid covers every element once."""
    weight = torch.arange(1.0, 160 * 200 + 1).reshape(160, 200)
    spread = spread_out(by_block(weight), weight)
    assert spread[127, 127] == weight[127, 127] / 448
    assert spread[128, 128] == spread[159, 199] == weight[159, 199] / 448
