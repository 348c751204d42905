"""Shards of a model's matrices on several GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import ModelConfig
from llm_engine.cuda.ops.interface import Matrix
from llm_engine.cuda.ops.reference_ops import dense
from llm_engine.cuda.quantization.quantize import BLOCK, ONE_A_ROW, quantize
from llm_engine.cuda.tensor_parallel.sharding import Shard
from llm_engine.cuda.weights import as_matrix
from llm_engine.errors import ModelError
from tests.support.fakes.llm_models import save_tiny_model


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


def _shares(sizes: list[int], part: Matrix, count: int) -> list[int]:
    """How many rows of each part of a matrix a device has; of the head, what it has."""
    return [size // count for size in sizes] if len(sizes) > 1 else [len(part.values)]


def test_a_cut_through_a_block_is_refused(config: ModelConfig) -> None:
    config = replace(config, intermediate_size=320)
    matrix = as_matrix(quantize(torch.randn(64, 320), BLOCK))
    with pytest.raises(ModelError, match="can't be cut at 0 to 160"):
        Shard(0, 2).cut("down", matrix, config)
