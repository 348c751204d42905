"""4-bit checkpoints: GPTQ, AWQ and GGUF's are read code for code, others are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.int4 import AffineInt4
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import Precision
from llm_engine.errors import ModelError
from tests.support.fakes.int4_models import (
    GPTQ,
    LAYOUTS,
    Made,
    Numbers,
    configure,
    save_int4_model,
)
from tests.support.fakes.llm_decoding import all_logits
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model

NAME = "layers.1.mlp.up_proj.weight"
PROMPT = [3 + 7 * index % 311 for index in range(40)]


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_codes_are_read_as_they_are(layout: str, group: int, tmp_path: Path) -> None:
    matrices = save_int4_model(tmp_path, layout, group)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.int4_names == frozenset(matrices)
    for name, matrix in matrices.items():
        stored = checkpoint.int4(name, *matrix.codes.shape)
        assert stored is not None
        assert stored.group == (128 if group == -1 else group)
        assert np.array_equal(stored.codes.numpy(), matrix.codes)
        assert np.array_equal(stored.dequantize().numpy(), matrix.weight)
        read = checkpoint.tensor(name, *matrix.codes.shape)
        assert np.array_equal(read, matrix.weight)


def nearness(checkpoint: Checkpoint, precision: Precision) -> float:
    exact = all_logits(checkpoint, PROMPT)
    return float((all_logits(checkpoint, PROMPT, precision) - exact).norm() / exact.norm())


@pytest.mark.parametrize("layout", ["gptq, zero points", "awq"])
@pytest.mark.parametrize("group", [32, 128])
def test_four_bits_are_nearer_than_eight_made_of_them(
    layout: str, group: int, tmp_path: Path
) -> None:
    """All that is rounded is the activations; 8-bit weights are rounded as well."""
    save_int4_model(tmp_path, layout, group)
    checkpoint = load_checkpoint(tmp_path)
    assert nearness(checkpoint, Precision.INT4) < 0.05


def test_inputs_in_another_order_become_eight_bits(tmp_path: Path) -> None:
    """`desc_act`: groups are not consecutive inputs."""
    save_int4_model(tmp_path, "gptq", 32)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    key = f"model.{NAME.removesuffix('weight')}"
    tensors[f"{key}g_idx"] = tensors[f"{key}g_idx"][order]
    save_file(tensors, file, metadata={"format": "pt"})
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.int4(NAME, 256, 128) is None
    groups = (torch.arange(128) // 32)[order].numpy()
    weight = checkpoint.tensor(NAME, 256, 128)
    plain = Made(
        _codes(tensors[f"{key}qweight"]), np.full((256, 4), 8),
        tensors[f"{key}scales"].T.numpy(), groups,
    )  # fmt: skip
    assert np.array_equal(weight, plain.weight)
    assert nearness(checkpoint, Precision.INT4) < 0.05


def _codes(qweight: torch.Tensor) -> Numbers:
    packed = qweight.numpy().view(np.uint32)
    return (
        np.stack([packed >> (4 * index) & 15 for index in range(8)], 1)
        .reshape(-1, packed.shape[1])
        .T.astype(np.int64)
    )


def test_a_zero_point_of_16_becomes_eight_bits(tmp_path: Path) -> None:
    """GPTQ's first version stores zero points less one; the largest is one too many for 4 bits."""
    save_int4_model(tmp_path, "gptq", 32)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    key = f"model.{NAME.removesuffix('weight')}"
    tensors[f"{key}qzeros"][0, 0] |= 15
    save_file(tensors, file, metadata={"format": "pt"})
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.int4(NAME, 256, 128) is None
    codes, scale = _codes(tensors[f"{key}qweight"]), tensors[f"{key}scales"].float()
    weight = checkpoint.tensor(NAME, 256, 128)
    assert np.array_equal(weight[0, :32], (codes[0, :32] - 16) * scale[0, 0].numpy())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 8}, "gptq with 8 bits is not supported; 4 bits in the layout gptq or gptq_v2"),
        ({"bits": 3}, "gptq with 3 bits"),
        ({"checkpoint_format": "marlin"}, "gptq with the layout 'marlin'.*unquantized one"),
        ({"is_marlin_format": True}, "the layout 'marlin'"),
        ({"dynamic": {"-:.*down.*": {}}}, "settings of single modules"),
        ({"group_size": 0}, "group_size 0"),
        ({"group_size": "all"}, "group_size 'all'"),
        ({"quant_method": "awq", "version": "gemv"}, "awq with the layout 'gemv'.*gemm are"),
        ({"quant_method": "awq", "version": "GEMV_FAST"}, "the layout 'gemv_fast'"),
        ({"quant_method": "awq", "bits": 2}, "awq with 2 bits"),
        ({"quant_method": "hqq"}, "method 'hqq', which is not supported.*GPTQ and AWQ"),
    ],
)
def test_unknown_layouts(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_int4_model(tmp_path, "gptq", 32)
    configure(tmp_path, {**GPTQ, "group_size": 32, **changes})
    with pytest.raises(ModelError, match=message) as caught:
        load_checkpoint(tmp_path)
    assert "config.json" in str(caught.value)


def _cut(tensors: dict[str, torch.Tensor], key: str) -> None:
    tensors[f"{key}qweight"] = tensors[f"{key}qweight"][:-1].contiguous()


def _fewer_zeros(tensors: dict[str, torch.Tensor], key: str) -> None:
    tensors[f"{key}qzeros"] = tensors[f"{key}qzeros"][:-1].contiguous()


def _no_scales(tensors: dict[str, torch.Tensor], key: str) -> None:
    del tensors[f"{key}scales"]


def _twice(tensors: dict[str, torch.Tensor], key: str) -> None:
    tensors[f"{key}weight"] = torch.zeros(256, 128)


def _floats(tensors: dict[str, torch.Tensor], key: str) -> None:
    tensors[f"{key}qweight"] = tensors[f"{key}qweight"].float()


def _nan(tensors: dict[str, torch.Tensor], key: str) -> None:
    tensors[f"{key}scales"][0, 0] = torch.nan


def _other_index(tensors: dict[str, torch.Tensor], key: str) -> None:
    tensors[f"{key}g_idx"][3] = 9


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "120 inputs, which groups of 32 do not divide; .*fetch both again"),
        (_fewer_zeros, r"qzeros for \(256, 3\) outputs and groups; .*call for \(256, 4\)"),
        (_no_scales, "lacks scales; fetch the model again"),
        (_twice, "stored as floats as well; fetch the model again"),
        (_floats, "qweight of type torch.float32"),
        (_nan, "damaged: it holds NaN or infinity; fetch it again"),
        (_other_index, "g_idx outside of its 4 groups"),
    ],
)
@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.INT8, Precision.INT4])
def test_damaged_matrices(
    damage: Callable[[dict[str, torch.Tensor], str], None],
    message: str,
    precision: Precision,
    tmp_path: Path,
) -> None:
    save_int4_model(tmp_path, "gptq", 32)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    damage(tensors, f"model.{NAME.removesuffix('weight')}")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=message):
        all_logits(load_checkpoint(tmp_path), PROMPT, precision)


def test_a_group_that_does_not_divide(tmp_path: Path) -> None:
    save_int4_model(tmp_path, "gptq", 32)
    configure(tmp_path, {**GPTQ, "group_size": 48})
    with pytest.raises(ModelError, match="128 inputs, which groups of 48 do not divide"):
        all_logits(load_checkpoint(tmp_path), PROMPT, Precision.INT4)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_q4_0_is_kept(family: str, tmp_path: Path) -> None:
    """Llama's queries and keys are in another order of rows in the file."""
    save_tiny_model(tmp_path, family)
    stored = save_tiny_gguf(tmp_path / "model.gguf", tmp_path, "Q4_0")
    checkpoint = load_checkpoint(tmp_path / "model.gguf")
    matrices = {name for name, values in stored.items() if values.dim() == 2}
    assert checkpoint.int4_names == matrices
    for name in matrices:
        matrix = checkpoint.int4(name, *stored[name].shape)
        assert matrix is not None
        assert torch.equal(matrix.dequantize(), stored[name])
    assert nearness(checkpoint, Precision.INT4) < 0.1


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q8_0", "F32"])
def test_other_types_have_no_codes_to_keep(kind: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2")
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path, kind)
    checkpoint = load_checkpoint(tmp_path / "model.gguf")
    assert not checkpoint.int4_names
    assert checkpoint.int4(NAME, 96, 64) is None
    assert bool(checkpoint.affine_int4_names) == (kind == "Q4_1")


WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""Rows that super-blocks of 256 divide."""


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_offsets_are_read_as_they_are(kind: str, family: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family, **(WIDE if kind == "Q4_K" else {}))
    stored = save_tiny_gguf(tmp_path / "model.gguf", tmp_path, kind)
    checkpoint = load_checkpoint(tmp_path / "model.gguf")
    matrices = {name for name, values in stored.items() if values.dim() == 2}
    assert checkpoint.affine_int4_names == matrices
    for name in matrices:
        matrix = checkpoint.affine_int4(name, *stored[name].shape)
        assert matrix is not None
        assert matrix.codes.max() <= 15
        blocks = matrix.codes.reshape(*matrix.scales.shape, 32).astype(np.float32)
        weight = blocks * matrix.scales[..., None] + matrix.offsets[..., None]
        np.testing.assert_allclose(
            weight.reshape(stored[name].shape), stored[name].numpy(), rtol=1e-5, atol=1e-6
        )
    anew = replace(checkpoint, affine_int4_names=frozenset(), int4_names=frozenset())
    assert nearness(checkpoint, Precision.INT4) < 0.7 * nearness(anew, Precision.INT4)


def test_a_damaged_offset_is_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2")
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path, "Q4_1")
    checkpoint = load_checkpoint(tmp_path / "model.gguf")

    def damaged(name: str) -> AffineInt4 | None:
        matrix = checkpoint.read_affine_int4(name)
        if matrix is not None:
            matrix.offsets[0, 0] = np.nan
        return matrix

    broken = replace(checkpoint, read_affine_int4=damaged)
    with pytest.raises(ModelError, match="is damaged: it holds NaN or infinity"):
        all_logits(broken, PROMPT, Precision.INT4)
