"""Emulation of the GPU's arithmetic on the CPU, and calibrated rounding of weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import Precision
from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops.interface import Matrix, Rope, Weight
from llm_engine.cuda.quantization import emulation
from llm_engine.cuda.quantization.calibrate import compensated
from llm_engine.cuda.quantization.emulation import Arithmetic, Emulation
from llm_engine.cuda.quantization.quantize import BLOCK, ONE_A_ROW, check, quantize
from llm_engine.cuda.tensor_parallel.sharding import Shard
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.errors import ModelError
from tests.support.fakes.fp8_models import save_fp8_model
from tests.support.fakes.llm_decoding import all_logits
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.llm.int4_cases import not_int4

PROMPT = [3 + 7 * index % 311 for index in range(50)]
TEXTS = [[(5 + 11 * index * (index + seed)) % 320 for index in range(90)] for seed in range(6)]
GRIDS = {"row": ONE_A_ROW, "block": BLOCK}
EXACT = WeightFormat(dtype=torch.float32)


def loaded(checkpoint: Checkpoint, weights: WeightFormat, **more: Any) -> DeviceModel:
    return load_model(checkpoint, weights, "cpu", context_length=100, **more)


def logits(model: DeviceModel, arithmetic: Arithmetic | None = None) -> Tensor:
    rows = emulation.hidden(model, torch.tensor(PROMPT), arithmetic or Arithmetic())
    return emulation.logits(model, rows)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("mistral", {"sliding_window": 8, "head_dim": 16}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 32}),
    ],
)
def test_without_rounding_it_is_the_reference(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, family, **changes)
    checkpoint = load_checkpoint(tmp_path)
    expected = all_logits(checkpoint, PROMPT)
    exact = logits(loaded(checkpoint, EXACT))
    torch.testing.assert_close(exact, expected, rtol=1e-4, atol=2e-4)
    rounded = logits(loaded(checkpoint, WeightFormat()))
    assert 1e-4 < float((rounded - expected).norm() / expected.norm()) < 0.05


def test_each_part_in_eight_bits_adds_its_error(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama")
    checkpoint = load_checkpoint(tmp_path)
    exact = logits(loaded(checkpoint, EXACT))
    model = loaded(checkpoint, WeightFormat(Precision.FP8, dtype=torch.float32))

    def error(found: DeviceModel, arithmetic: Arithmetic) -> float:
        return float((logits(found, arithmetic) - exact).norm() / exact.norm())

    weights = error(model, Arithmetic())
    assert 0.005 < weights < 0.3
    cache = error(loaded(checkpoint, EXACT), Arithmetic(cache=True))
    assert 0.005 < cache < 0.3
    assert weights != error(model, Arithmetic(activations=True)) < 0.4
    # Products with floats take their inputs as they are.
    assert error(loaded(checkpoint, EXACT), Arithmetic(activations=True)) < 1e-5


@pytest.mark.parametrize(("grid", "loss"), [(ONE_A_ROW, 1.0), (BLOCK, 0.04)], ids=GRIDS)
def test_activations_share_a_scale_over_as_many_columns_as_weights(
    grid: tuple[int, int], loss: float
) -> None:
    """The second 128 columns are too small for a scale that is the first ones' as well."""
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(40, 256, generator=generator)
    weight[:, :128] = 0
    quantized = quantize(weight, grid)
    down = Matrix(quantized.values, quantized.scales, quantized.block)
    inputs = torch.randn(5, 256, generator=generator)
    inputs[:, 128:] *= 1e-6
    tables = torch.ones(5, 1)
    arithmetic = Emulation(Rope(tables, tables), torch.float32, Arithmetic(activations=True))
    found = arithmetic.added(torch.zeros(5, 40), inputs, down)
    exact = inputs @ quantized.dequantize().T
    assert loss / 2 < float((found - exact).norm() / exact.norm()) <= loss


def correlated(num_rows: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    mixing = torch.randn(width // 4, width, generator=generator)
    few = torch.randn(num_rows, width // 4, generator=generator)
    return few @ mixing + 0.1 * torch.randn(num_rows, width, generator=generator)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_errors_are_made_up_for(grid: tuple[int, int]) -> None:
    """On inputs that were not in view, too."""
    inputs = correlated(4000, 300)
    weight = torch.randn(150, 300, generator=torch.Generator().manual_seed(1)) * 0.1
    seen, unseen = inputs[:3000], inputs[3000:]
    plain = quantize(weight, grid)
    rounded = compensated(weight, seen.T @ seen / len(seen), grid)
    assert check(rounded)
    assert rounded.block == plain.block
    assert torch.equal(rounded.scales, plain.scales)

    def error(found: Tensor) -> float:
        return float(((found - weight) @ unseen.T).norm())

    assert error(rounded.dequantize()) < 0.5 * error(plain.dequantize())
    assert (rounded.dequantize() - weight).norm() < 3 * (plain.dequantize() - weight).norm()


def test_inputs_that_have_nothing_in_common_change_nothing() -> None:
    weight = torch.randn(20, 300, generator=torch.Generator().manual_seed(1))
    plain = quantize(weight)
    for moments in (torch.eye(300), torch.zeros(300, 300)):
        assert torch.equal(compensated(weight, moments, ONE_A_ROW).dequantize(), plain.dequantize())
    weight[3, 3] = torch.nan
    with pytest.raises(ModelError, match="NaN"):
        compensated(weight, torch.eye(300), ONE_A_ROW)


@pytest.mark.parametrize("head", [Precision.FP8, Precision.BFLOAT16])
@pytest.mark.parametrize("tied", [True, False])
def test_a_calibrated_model(head: Precision, tied: bool, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2", tie_word_embeddings=tied)
    checkpoint = load_checkpoint(tmp_path)
    weights = WeightFormat(Precision.FP8, head, dtype=torch.float32)
    plain = loaded(checkpoint, weights)
    model = loaded(checkpoint, weights, calibration=TEXTS)
    exact = loaded(checkpoint, EXACT)
    for index, layer in enumerate(model.layers):
        other = plain.layers[index]
        for ours, theirs in (
            (layer.attention.qkv, other.attention.qkv),
            (layer.out, other.out),
            (layer.gate_up, other.gate_up),
            (layer.down, other.down),
        ):
            assert ours.scales is not None
            assert theirs.scales is not None
            assert torch.equal(ours.scales, theirs.scales)
            assert not torch.equal(numbers(ours), numbers(theirs))
        assert layer.attention.qkv.bias is not None
    assert (model.head.scales is not None) == (head is Precision.FP8)
    assert torch.equal(model.embedding, exact.embedding)
    wanted = logits(exact)
    assert (logits(model) - wanted).norm() < (logits(plain) - wanted).norm()


def numbers(weight: Weight) -> Tensor:
    """Stored values."""
    return not_int4(weight).values.float()


def test_what_needs_no_rounding_is_left_alone(tmp_path: Path) -> None:
    save_fp8_model(tmp_path, "fp8, tensor", num_hidden_layers=2)
    checkpoint = load_checkpoint(tmp_path)
    weights = WeightFormat(Precision.FP8, dtype=torch.float32)
    plain = loaded(checkpoint, weights)
    model = loaded(checkpoint, weights, calibration=TEXTS)
    stored, floats = model.layers[1].down, model.layers[0].out
    assert torch.equal(numbers(stored), numbers(plain.layers[1].down))
    assert not torch.equal(numbers(floats), numbers(plain.layers[0].out))
    # Floats that stay floats; the text passes through them to the head.
    body = replace(EXACT, head=Precision.FP8)
    only_head = loaded(checkpoint, body, calibration=TEXTS)
    exact = loaded(checkpoint, EXACT)
    assert torch.equal(numbers(only_head.layers[1].down), numbers(exact.layers[1].down))
    assert only_head.head.scales is not None
    long = [PROMPT * 5]
    assert loaded(checkpoint, weights, calibration=long).head.scales is not None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_of_a_calibrated_model(rank: int, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2")
    checkpoint = load_checkpoint(tmp_path)
    weights, shard = WeightFormat(Precision.FP8, dtype=torch.float32), Shard(rank, 2)
    whole = loaded(checkpoint, weights, calibration=TEXTS)
    part = loaded(checkpoint, weights, calibration=TEXTS, shard=shard)
    for ours, theirs in zip(part.layers, whole.layers, strict=True):
        assert ours.attention.heads.num_heads == 2
        for name, own, all_of_it in (
            ("qkv", ours.attention.qkv, theirs.attention.qkv),
            ("out", ours.out, theirs.out),
            ("gate_up", ours.gate_up, theirs.gate_up),
            ("down", ours.down, theirs.down),
        ):
            expected = shard.cut(name, all_of_it, checkpoint.config)
            assert torch.equal(numbers(own), numbers(expected))
    expected = shard.cut("head", whole.head, checkpoint.config)
    assert torch.equal(numbers(part.head), numbers(expected))
