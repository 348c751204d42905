"""Shards of a model's matrices on several GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import ModelConfig
from llm_engine.cuda.ops.int4_layout import pack
from llm_engine.cuda.ops.interface import Int4Weight, Matrix, Weight
from llm_engine.cuda.ops.reference_ops import dense
from llm_engine.cuda.quantization.quantize import BLOCK, ONE_A_ROW, quantize
from llm_engine.cuda.tensor_parallel.sharding import Shard
from llm_engine.cuda.weights import as_matrix
from llm_engine.errors import ModelError
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.llm.int4_cases import INT4_KINDS, Int4Kind, int4_matrix


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    path: Path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "qwen2", num_hidden_layers=1)
    return load_checkpoint(path).config


@pytest.mark.parametrize("block", [None, ONE_A_ROW, BLOCK])
@pytest.mark.parametrize("name", ["qkv", "gate_up", "out", "down", "head"])
def test_parts_are_the_whole(config: ModelConfig, name: str, block: tuple[int, int] | None) -> None:
    """Put together again they give the matrix, bit for bit."""
    config = replace(
        config,
        num_heads=8, num_kv_heads=4, head_dim=128, intermediate_size=512, vocab_size=700,
    )  # fmt: skip
    rows = {"qkv": 16 * 128, "gate_up": 1024, "head": 700}.get(name, 300)
    columns = {"out": 1024, "down": 512}.get(name, 200)
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    whole = Matrix(weight) if block is None else as_matrix(quantize(weight, block))
    whole = replace(whole, bias=torch.arange(float(rows)))
    parts = [Shard(rank, 2).cut(name, whole, config) for rank in range(2)]
    if name in ("out", "down"):
        assert torch.equal(torch.cat([dense(part) for part in parts], dim=1), dense(whole))
        assert parts[0].bias is whole.bias
        assert parts[1].bias is None
        return
    sizes = {"qkv": [1024, 512, 512], "gate_up": [512, 512], "head": [700]}[name]
    cut = [torch.split(dense(part), _shares(sizes, part, len(parts))) for part in parts]
    joined = torch.cat([torch.cat(each) for each in zip(*cut, strict=True)])
    assert torch.equal(joined, dense(whole))


def _shares(sizes: list[int], part: Weight, count: int) -> list[int]:
    """How many rows of each part of a matrix a device has; of the head, what it has."""
    return [size // count for size in sizes] if len(sizes) > 1 else [part.num_out]


@pytest.mark.parametrize("kind", INT4_KINDS, ids=str)
@pytest.mark.parametrize("name", ["qkv", "gate_up", "out", "down", "head"])
def test_parts_in_4_bits_are_the_whole(config: ModelConfig, name: str, kind: Int4Kind) -> None:
    config = replace(
        config, num_heads=8, num_kv_heads=4, head_dim=32, intermediate_size=256, vocab_size=300
    )
    rows = {"qkv": 16 * 32, "gate_up": 512, "head": 300}.get(name, 90)
    columns = 256 if name in ("out", "down") else 160
    matrix = int4_matrix(rows, columns, kind, torch.Generator().manual_seed(1))
    whole = pack(matrix, torch.arange(float(rows)))
    parts = [Shard(rank, 2).cut(name, whole, config) for rank in range(2)]
    assert all(isinstance(part, Int4Weight) for part in parts)
    if name in ("out", "down"):
        assert torch.equal(torch.cat([dense(part) for part in parts], dim=1), matrix.dequantize())
        assert parts[0].bias is whole.bias
        assert parts[1].bias is None
        return
    sizes = {"qkv": [256, 128, 128], "gate_up": [256, 256], "head": [300]}[name]
    biases = [part.bias for part in parts if part.bias is not None]
    for cut, expected in (
        ([dense(part) for part in parts], matrix.dequantize()),
        (biases, torch.arange(float(rows))),
    ):
        each_share = zip(cut, parts, strict=True)
        shares = [torch.split(each, _shares(sizes, part, 2)) for each, part in each_share]
        joined = [torch.cat(each) for each in zip(*shares, strict=True)]
        assert torch.equal(torch.cat(joined), expected)


def test_a_cut_through_a_group_is_refused(config: ModelConfig) -> None:
    generator = torch.Generator().manual_seed(1)
    for group in (64, 128):
        weight = pack(int4_matrix(40, 384, Int4Kind(group, False), generator))
        with pytest.raises(ModelError, match=f"groups of {group} can't be cut at 0 to 96"):
            Shard(0, 4).cut("down", weight, config)
        assert Shard(2, 3).cut("down", weight, config).num_in == 128


def test_a_cut_through_a_block_is_refused(config: ModelConfig) -> None:
    config = replace(config, intermediate_size=320)
    matrix = as_matrix(quantize(torch.randn(64, 320), BLOCK))
    with pytest.raises(ModelError, match="can't be cut at 0 to 160"):
        Shard(0, 2).cut("down", matrix, config)
