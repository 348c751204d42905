"""4-bit linear layers on ONNX Runtime: products, batch invariance, calibrated rounding, cache."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from llm_engine.backends import onnx_calibration
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.backends.onnx_graph import (
    PAIRED,
    PAIRED_SAMPLED,
    UNPAIRED,
    block_format,
    decoder_graph,
    linear_attributes,
    make_model,
)
from llm_engine.backends.onnx_int4 import (
    CPU_GROUPS,
    affine_arrays,
    nearest,
    packed_arrays,
    rounded_arrays,
)
from llm_engine.backends.onnx_weights import convert
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.int4 import AffineInt4, Int4Matrix
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.checkpoints.packed_cache import Array, stored_weights
from llm_engine.config import EngineConfig, Precision
from llm_engine.errors import ModelError
from llm_engine.models.calibration_text import DEFAULT_TEXTS, read_text
from llm_engine.models.compensated_rounding import Compensation
from llm_engine.models.int4_rounding import nearest as nearest_in_torch
from llm_engine.models.int4_rounding import rounded
from tests.llm_engine.backends.test_onnx_cpu import in_pieces
from tests.support.fakes.int4_models import save_int4_model
from tests.support.fakes.llm_decoding import all_logits
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model

INT4 = EngineConfig(precision=Precision.INT4, num_threads=1)
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""Rows that super-blocks of 256 divide."""
PROMPT = tuple((11 * index + 5) % 310 + 3 for index in range(100))


def products(arrays: Mapping[str, Array], rows: Array) -> Array:
    """Rows times the matrix `m` of these arrays."""
    nibbles = arrays["m.nibbles"]
    node = helper.make_node(
        "MatMulNBits",
        ["rows", "m.nibbles", "m.scales", "m.zeros"],
        ["products"],
        domain="com.microsoft",
        **linear_attributes(rows.shape[1], len(nibbles), block_format("nibbles", nibbles.shape)),
    )
    info = helper.make_tensor_value_info
    model = make_model(
        [node],
        [info("rows", TensorProto.FLOAT, ["M", rows.shape[1]])],
        [info("products", TensorProto.FLOAT, ["M", len(nibbles)])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"rows": rows})[0])


@pytest.mark.parametrize("num_inputs", [128, 384, 640])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_products(group: int, num_inputs: int) -> None:
    """Activations that 8 bits hold exactly: the products are exact, but for the order of sums."""
    rng = np.random.default_rng(1)
    num_groups = num_inputs // group
    matrix = Int4Matrix(
        torch.from_numpy(rng.integers(0, 16, (30, num_inputs), dtype=np.uint8)),
        torch.from_numpy(rng.uniform(0.01, 0.1, (30, num_groups)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, 16, (30, num_groups), dtype=np.uint8)),
        group,
    )
    rows = rng.integers(-127, 128, (5, num_inputs)).astype(np.float32)
    rows[:, ::group] = 127  # so that each block's scale is 1
    expected = rows @ matrix.dequantize().numpy().T
    got = products(dict(packed_arrays("m", matrix)), rows)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("num_inputs", [32, 256, 1536])
def test_products_with_any_offset(num_inputs: int) -> None:
    """What is left of an offset multiplies the block's sum. Without that the error is 20 times
    as large; offsets far from what codes reach are held as well."""
    rng = np.random.default_rng(1)
    shape = 40, num_inputs // 32
    codes = rng.integers(0, 16, (40, num_inputs), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    offsets = (-scales * rng.uniform(0, 15, shape)).astype(np.float32)
    scales[3], offsets[3] = 0, -0.5
    offsets[4] = 1
    weight = (codes.reshape(*shape, 32) * scales[..., None] + offsets[..., None]).reshape(40, -1)
    rows = rng.integers(-127, 128, (5, num_inputs)).astype(np.float32)
    rows[:, ::32] = 127  # so that each block's scale is 1, and what is left is not the inputs'
    expected = rows @ weight.T
    arrays = dict(affine_arrays("m", AffineInt4(codes, scales, offsets)))
    sums = rows.reshape(5, -1, 32).sum(axis=2)
    got = products(arrays, np.concatenate([rows, sums], axis=1))
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    arrays["m.scales"][:, num_inputs // 32 :] = 0
    without = products(arrays, np.concatenate([rows, sums], axis=1))
    assert error < 0.01
    assert np.linalg.norm(without - expected) > 5 * error * np.linalg.norm(expected)


def test_offsets_that_zero_points_hold_take_no_sums() -> None:
    """As in Q4_0."""
    scales = np.full((6, 2), 0.25, np.float32)
    codes = np.arange(6 * 64, dtype=np.uint8).reshape(6, 64) % 16
    arrays = dict(affine_arrays("m", AffineInt4(codes, scales, -8 * scales)))
    assert arrays["m.nibbles"].shape == (6, 2, 16)
    assert np.array_equal(arrays["m.zeros"], np.full((6, 1), 0x88))


def stored(codes: Array, scales: Array, zeros: Array) -> Int4Matrix:
    tensors = [torch.from_numpy(each) for each in (codes, scales, zeros)]
    return Int4Matrix(tensors[0], tensors[1], tensors[2], 32)


def test_the_nearest_codes_are_those_of_the_search_on_a_gpu() -> None:
    """Two implementations: one without torch for the CPU's conversion, one on a tensor's device."""
    weight = torch.randn(300, 200, generator=torch.Generator().manual_seed(7))
    weight[:, :32] *= 0.01
    weight[5] = 0
    codes, scales, zeros = nearest(weight.numpy(), 32)
    expected = nearest_in_torch(weight, 32)
    assert np.array_equal(zeros, expected.zeros.numpy())
    np.testing.assert_allclose(scales, expected.scales.numpy(), rtol=1e-6)
    assert np.mean(codes != expected.codes.numpy()) < 1e-3  # ties
    blocks = weight.numpy()[:, :192].reshape(300, 6, 32)
    width = np.maximum(blocks.max(axis=2), 0) - np.minimum(blocks.min(axis=2), 0)
    found = stored(codes, scales, zeros).dequantize().numpy()
    error = np.abs(found[:, :192].reshape(300, 6, 32) - blocks)
    assert np.all(error.mean(axis=2) <= width / 15 / 2 + 1e-6)
    assert not found[5].any()


def test_nearest_codes_multiply_as_their_numbers_do() -> None:
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(8)).numpy()
    matrix = stored(*nearest(weight, 32))
    rows = np.random.default_rng(9).standard_normal((4, 96)).astype(np.float32)
    expected = rows @ matrix.dequantize().numpy().T
    got = products(dict(rounded_arrays("m", weight, 32)), rows)
    assert np.linalg.norm(got - expected) < 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize("num_inputs", [64, 72, 96])
def test_inputs_that_fill_no_block_are_padded(num_inputs: int) -> None:
    weight = torch.randn(20, num_inputs, generator=torch.Generator().manual_seed(2))
    matrix = rounded(weight, Compensation(torch.eye(num_inputs)), 64)
    rows = np.random.default_rng(3).standard_normal((4, num_inputs)).astype(np.float32)
    expected = rows @ matrix.dequantize().numpy().T
    got = products(dict(packed_arrays("m", matrix)), rows)
    assert np.linalg.norm(got - expected) < 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize("group", [32, 128])
def test_errors_are_compensated(group: int) -> None:
    """On inputs that were not seen, too."""
    generator = torch.Generator().manual_seed(3)
    mixing = torch.randn(64, 256, generator=generator)
    noise = 0.1 * torch.randn(4000, 256, generator=generator)
    inputs = torch.randn(4000, 64, generator=generator) @ mixing + noise
    seen, unseen = inputs[:3000], inputs[3000:]
    weight = torch.randn(150, 256, generator=generator) * 0.1

    def error(moments: Tensor) -> float:
        found = rounded(weight, Compensation(moments), group).dequantize()
        return float(((found - weight) @ unseen.T).norm())

    assert error(seen.T @ seen / len(seen)) < 0.6 * error(torch.eye(256))


def test_what_four_bits_hold_stays_as_it_is() -> None:
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 16, (40, 128), generator=generator, dtype=torch.uint8)
    codes[:, ::32], codes[:, 1::32] = 0, 15
    zeros = torch.randint(0, 16, (40, 4), generator=generator, dtype=torch.uint8)
    scales = torch.rand(40, 4, generator=generator) + 0.5
    weight = Int4Matrix(codes, scales, zeros, 32).dequantize()
    found = rounded(weight, Compensation(torch.eye(128)), 32).dequantize()
    torch.testing.assert_close(found, weight)
    nothing = torch.zeros(3, 70)
    assert torch.equal(rounded(nothing, Compensation(torch.eye(70)), 32).dequantize(), nothing)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("max_batch", [1, 3])
def test_a_row_does_not_depend_on_its_neighbours(
    group: int, max_batch: int, tmp_path: Path
) -> None:
    save_int4_model(tmp_path, "awq", group)
    config = replace(INT4, max_batch=max_batch)
    backend = OnnxBackend(load_checkpoint(tmp_path), config, 200)
    expected = in_pieces(backend, PROMPT, len(PROMPT))
    for size in (*range(1, 20), 31, 33, 63, 64, 65):
        assert torch.equal(in_pieces(backend, PROMPT, size), expected), size


@pytest.mark.parametrize(("kind", "changes"), [("Q4_1", {}), ("Q4_K", WIDE)])
def test_nor_where_sums_of_blocks_are_inputs(
    kind: str, changes: dict[str, int], tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, "qwen2", **changes)
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path, kind)
    checkpoint = load_checkpoint(tmp_path / "model.gguf")
    backend = OnnxBackend(checkpoint, replace(INT4, max_batch=3), 200)
    expected = in_pieces(backend, PROMPT, len(PROMPT))
    for size in (*range(1, 20), 31, 33, 63, 64, 65):
        assert torch.equal(in_pieces(backend, PROMPT, size), expected), size


def test_a_part_in_another_type_makes_its_matrix_one_of_eight_bits(tmp_path: Path) -> None:
    """As llama.cpp's mixtures have it: the values in Q6_K beside queries and keys in Q4_K; what has
    no codes to keep is rounded like that of any other file."""
    save_tiny_model(tmp_path, "qwen2", **WIDE)
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path, "Q4_K")
    whole = load_checkpoint(tmp_path / "model.gguf")
    other = {"layers.1.self_attn.v_proj.weight", "layers.2.mlp.down_proj.weight", "lm_head.weight"}
    mixed = replace(whole, affine_int4_names=whole.affine_int4_names - other)
    arrays = dict(convert(mixed, lambda share: None, keeps_int4=True, int4_groups=CPU_GROUPS))
    blocks = {name: array.shape[1] for name, array in arrays.items() if name.endswith(".nibbles")}
    assert "layers.1.qkv.codes" in arrays
    assert blocks["layers.0.qkv.nibbles"] == 9  # 256 inputs and the sums of 8 blocks
    assert blocks["layers.1.down.nibbles"] == 17
    assert blocks["layers.2.down.nibbles"] == 16
    assert blocks["head.nibbles"] == 8
    exact = all_logits(whole, PROMPT)
    anew = replace(whole, affine_int4_names=frozenset(), int4_names=frozenset())
    errors = [(all_logits(each, PROMPT, Precision.INT4) - exact).norm() for each in (mixed, anew)]
    assert errors[0] < errors[1]


def arrays_of(checkpoint: Checkpoint) -> dict[str, Array]:
    text = read_text(checkpoint, None)
    calibration = onnx_calibration.CpuCalibration(checkpoint, text, num_threads=1)
    shares: list[float] = []
    with torch.inference_mode():
        arrays = dict(convert(checkpoint, shares.append, keeps_int4=True, calibration=calibration))
    assert shares == sorted(shares)
    assert shares[-1] == 1
    return arrays


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 16}),
        ("mistral", {"sliding_window": 24, "head_dim": 16}),
    ],
)
def test_calibrated_rounding_is_nearer_than_rounding_to_the_nearest(
    family: str, changes: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the text that it is calibrated with, and behind one layer: the outputs of a deeper model
    of random weights have nothing in common after the smallest change."""
    save_tiny_model(tmp_path, family, num_hidden_layers=1, **changes)
    checkpoint = load_checkpoint(tmp_path)
    text = read_text(checkpoint, None).sequences[0][:400]
    exact = all_logits(checkpoint, text)
    file = tmp_path / "said.txt"
    file.write_text("".join(path.read_text() for path in DEFAULT_TEXTS))
    calibrated = all_logits(checkpoint, text, Precision.INT4, calibration=file)

    class Nearest(Compensation):
        def __init__(self, moments: Tensor) -> None:
            super().__init__(torch.eye(len(moments)))

    monkeypatch.setattr(onnx_calibration, "Compensation", Nearest)
    uncompensated = all_logits(checkpoint, text, Precision.INT4, calibration=file)
    assert (calibrated - exact).norm() < (uncompensated - exact).norm() < exact.norm()


@pytest.mark.parametrize("is_calibrated", [True, False])
def test_which_matrices_have_four_bits(is_calibrated: bool, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2")
    checkpoint = load_checkpoint(tmp_path)
    arrays = (
        arrays_of(checkpoint)
        if is_calibrated
        else dict(convert(checkpoint, lambda share: None, int4_groups=CPU_GROUPS))
    )
    names = {name.removeprefix("layers.0.").rpartition(".")[0] for name in arrays}
    names &= {"qkv", "out", "gate_up", "down", "head"}
    for name in names:
        prefix = name if name == "head" else f"layers.0.{name}"
        kind = "nibbles" if name in CPU_GROUPS else "codes"
        assert f"{prefix}.{kind}" in arrays
        assert (f"{prefix}.zeros" in arrays) == (kind == "nibbles")
        if kind == "nibbles":
            assert arrays[f"{prefix}.nibbles"].shape[2] * 2 == CPU_GROUPS[name]


def test_only_matrices_of_large_blocks_multiply_rows_in_pairs(tmp_path: Path) -> None:
    """A model of mixed formats runs single rows through all other matrices."""
    save_tiny_model(tmp_path, "qwen2")
    checkpoint = load_checkpoint(tmp_path)
    groups = {"down": 128, "out": 32, "head": 64}
    with stored_weights(
        tmp_path / "converted",
        tmp_path,
        "mixed",
        lambda: convert(checkpoint, lambda share: None, int4_groups=groups),
    ) as weights:
        model = onnx.load_from_string(decoder_graph(checkpoint.config, weights, 64))
    in_pairs = set()
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[1] in (PAIRED, PAIRED_SAMPLED):
            (product,) = (each for each in model.graph.node if each.input[:1] == [node.output[0]])
            in_pairs.add(product.input[1].rpartition(".")[0].rpartition(".")[2])
    assert in_pairs == {"down", "head"}
    assert {each.name for each in model.graph.input} >= {PAIRED, UNPAIRED, PAIRED_SAMPLED}


@pytest.mark.parametrize("head_dim", [20, 16])
def test_padded_heads_have_eight_bits(head_dim: int, tmp_path: Path) -> None:
    """Padding would stand inside the groups of the output matrix."""
    save_tiny_model(tmp_path, "llama", head_dim=head_dim)
    save_tiny_gguf(tmp_path / "model.gguf", tmp_path, "F32" if head_dim == 20 else "Q4_0")
    for path in (tmp_path, tmp_path / "model.gguf"):
        checkpoint = load_checkpoint(path)
        exact = all_logits(checkpoint, PROMPT)
        found = all_logits(checkpoint, PROMPT, Precision.INT4)
        assert (found - exact).norm() < exact.norm()


def test_another_text_makes_other_weights(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "qwen2", num_hidden_layers=1)
    checkpoint = load_checkpoint(tmp_path / "model")
    text = tmp_path / "said.txt"
    text.write_text("what time is it? the cat sat on the mat. " * 40)
    config = replace(INT4, cache_dir=tmp_path / "converted")
    num_files = []
    for calibration in (None, text, text, None):
        OnnxBackend(checkpoint, replace(config, calibration=calibration), 64)
        num_files.append(len(list((tmp_path / "converted").glob("*.weights"))))
    assert num_files == [1, 2, 2, 2]
    OnnxBackend(checkpoint, replace(config, precision=Precision.INT8), 64)
    assert len(list((tmp_path / "converted").glob("*.weights"))) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read as the calibration's text"), ("", "no text to calibrate with")],
)
def test_a_text_that_does_not_serve(content: str | None, message: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2", num_hidden_layers=1)
    text = tmp_path / "said.txt"
    if content is not None:
        text.write_text(content)
    with pytest.raises(ModelError, match=message) as caught:
        OnnxBackend(load_checkpoint(tmp_path), replace(INT4, calibration=text), 64)
    assert str(text) in str(caught.value)
