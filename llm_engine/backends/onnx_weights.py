"""Converts a checkpoint to 8-bit or 4-bit blocks for the ONNX backend.

Each row of a matrix is cut into blocks of `BLOCK` inputs with one scale, the largest weight over
127. Codes are unsigned around 128, as MatMulNBits expects them; a last block that the inputs do not
fill is padded with zeros. Heads have the size that attention supports (`onnx_attention`).

With precision int4, matrices that are stored in 4 bits are kept code for code. The others of a
checkpoint in GPTQ, AWQ or Q4_0 become 8-bit, as rounding what its maker has rounded would lose
twice; of any other checkpoint `onnx_int4.CPU_GROUPS` are rounded to the nearest, or by calibration
(`onnx_calibration`), which keeps nothing as it is.

No more than two tensors of the checkpoint are in memory at a time, in their stored type, and one
converted matrix: a model that can be run can be converted. Calibration holds a layer in float32.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llm_engine.checkpoints.checkpoint import Checkpoint, is_finite
from llm_engine.checkpoints.int4 import Int4Matrix
from llm_engine.checkpoints.packed_cache import Array
from llm_engine.checkpoints.packed_weights import FusedMatrix, FusedWeights, joined_bias
from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError

from .onnx_attention import norm_factor, pad_heads, stored_size
from .onnx_int4 import affine_arrays, packed_arrays, rounded_arrays

if TYPE_CHECKING:
    from .onnx_calibration import CpuCalibration

KIND, INT4_KIND = "onnx-int8-3", "onnx-int4-4"
"""Names of the conversions in the cache; must change with every change to them."""

NO_GROUPS: Mapping[str, int] = {}
BLOCK = 64
_PIECE = 1024
"""Rows quantized at a time: 8 MB for 2048 inputs, three times over."""
_ZERO = 128
"""Code of a weight of 0; MatMulNBits' default for 8 bits."""


def convert(
    checkpoint: Checkpoint,
    on_progress: Callable[[float], None],
    *,
    keeps_int4: bool = False,
    int4_groups: Mapping[str, int] = NO_GROUPS,
    calibration: "CpuCalibration | None" = None,
) -> Iterator[tuple[str, Array]]:
    """Yield all weights by their names in the graph, one at a time.

    `keeps_int4`: matrices stored in 4 bits stay as they are. `int4_groups`: those of these names
    are rounded to the nearest of 4 bits, in blocks of so many inputs; `calibration` does so itself.
    `on_progress` is called with the share that is done. Raises ModelError for missing tensors and
    wrong shapes, and for an embedding that 16 bits cannot hold.
    """
    config = checkpoint.config
    weights = FusedWeights(checkpoint)
    # The vocabulary takes about as long as a few layers; the progress is approximate.
    num_parts = config.num_layers + 1
    if calibration is None:
        yield from _vocabulary(weights, keeps_int4, int4_groups)
    yield "norm", weights.final_norm()
    for index in range(config.num_layers):
        on_progress((index + 1) / num_parts)
        if calibration is None:
            yield from _layer(weights, config, index, keeps_int4, int4_groups)
        else:
            yield from _calibrated_layer(weights, config, index, calibration)
    if calibration is not None:
        yield from _vocabulary(weights, keeps_int4=False, calibration=calibration)
    on_progress(1.0)


def _vocabulary(
    weights: FusedWeights,
    keeps_int4: bool,
    int4_groups: Mapping[str, int] = NO_GROUPS,
    calibration: "CpuCalibration | None" = None,
) -> Iterator[tuple[str, Array]]:
    stored = list(_stored("head", weights.head_matrix())) if keeps_int4 else []
    is_stored = bool(stored)
    yield from stored
    del stored
    # The largest tensors by far: never both at once, and none while its codes are packed.
    floats = weights.embedding()
    yield "embedding", _in_float16(floats)
    if is_stored:
        return
    if weights.has_own_head:
        del floats
        floats = weights.head()
    arrays = list(_head(floats, int4_groups, calibration))
    del floats
    yield from arrays


def _in_float16(embedding: Array) -> Array:
    with np.errstate(over="ignore"):
        stored: Array = embedding.astype(np.float16, copy=False)
    if not is_finite(stored):
        raise ModelError("the embedding has numbers beyond float16; use precision float32")
    return stored


def _head(
    head: Array, int4_groups: Mapping[str, int], calibration: "CpuCalibration | None"
) -> Iterator[tuple[str, Array]]:
    rounded = head if calibration is None else calibration.head(head)
    if isinstance(rounded, Int4Matrix):
        return packed_arrays("head", rounded)
    if "head" in int4_groups:
        return rounded_arrays("head", rounded, int4_groups["head"])
    return _matrix("head", [rounded], None)


def _layer(
    weights: FusedWeights,
    config: ModelConfig,
    index: int,
    keeps_int4: bool,
    int4_groups: Mapping[str, int],
) -> Iterator[tuple[str, Array]]:
    yield from _vectors(weights, config, index)
    for matrix in weights.matrices(index):
        name = f"layers.{index}.{matrix.name}"
        is_padded = _has_padding(matrix.name, config)
        stored = list(_stored(name, matrix)) if keeps_int4 and not is_padded else []
        group = None if is_padded else int4_groups.get(matrix.name)
        if stored:
            yield from stored
        elif group is not None:
            values, bias = matrix.joined()
            yield from rounded_arrays(name, values, group)
            if bias is not None:
                yield f"{name}.bias", bias
        else:
            biases: list[Array] = []
            yield from _matrix(name, _rows(matrix, config.head_dim, biases), biases)


def _calibrated_layer(
    weights: FusedWeights, config: ModelConfig, index: int, calibration: "CpuCalibration"
) -> Iterator[tuple[str, Array]]:
    yield from _vectors(weights, config, index)
    for matrix, (values, bias) in calibration.layer(index):
        name = f"layers.{index}.{matrix}"
        if isinstance(values, Int4Matrix) and not _has_padding(matrix, config):
            yield from _int4_matrix(name, values, bias)
            continue
        weight = values.dequantize().numpy() if isinstance(values, Int4Matrix) else values
        if matrix == "qkv":
            weight = pad_heads(weight, config.head_dim, axis=0)
            bias = None if bias is None else pad_heads(bias, config.head_dim, axis=0)
        elif matrix == "out":
            weight = pad_heads(weight, config.head_dim, axis=1)
        yield from _matrix(name, [weight], None if bias is None else [bias])


def _has_padding(matrix: str, config: ModelConfig) -> bool:
    """True for a matrix whose heads are stored larger, which would break its groups."""
    return matrix in ("qkv", "out") and stored_size(config.head_dim) != config.head_dim


def _vectors(weights: FusedWeights, config: ModelConfig, index: int) -> Iterator[tuple[str, Array]]:
    for name, vector in weights.vectors(index):
        if name in ("q_norm", "k_norm"):
            vector = pad_heads(vector, config.head_dim, axis=0)
            vector = vector * np.float32(norm_factor(config.head_dim))
        yield f"layers.{index}.{name}", vector


def _stored(name: str, matrix: FusedMatrix) -> Iterator[tuple[str, Array]]:
    """Arrays of a matrix that is stored in 4 bits; none of any other."""
    affine = matrix.affine_int4()
    if affine is not None:
        values, bias = affine
        yield from affine_arrays(name, values)
        if bias is not None:
            yield f"{name}.bias", bias
        return
    stored = matrix.int4()
    if stored is not None:
        yield from _int4_matrix(name, *stored)


def _int4_matrix(name: str, matrix: Int4Matrix, bias: Array | None) -> Iterator[tuple[str, Array]]:
    yield from packed_arrays(name, matrix)
    if bias is not None:
        yield f"{name}.bias", bias


def _rows(matrix: FusedMatrix, head_dim: int, biases: list[Array]) -> Iterator[Array]:
    """Parts of a matrix in the stored size of heads; appends their biases to the list."""
    for part in matrix.read():
        weight, bias = part.weight, part.bias
        if matrix.name == "qkv":
            weight, bias = (pad_heads(values, head_dim, axis=0) for values in (weight, bias))
        elif matrix.name == "out":
            weight = pad_heads(weight, head_dim, axis=1)
        biases.append(bias)
        yield weight


def _matrix(
    name: str, parts: Iterable[Array], biases: list[Array] | None
) -> Iterator[tuple[str, Array]]:
    """Quantize and join parts, one below the other."""
    quantized = [quantize(part) for part in parts]
    for kind, arrays in zip(("codes", "scales"), zip(*quantized, strict=True), strict=True):
        yield f"{name}.{kind}", arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    bias = joined_bias(biases) if biases else None
    if bias is not None:
        yield f"{name}.bias", bias


def quantize(weight: Array) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantize a floating `[out, in]` to codes `[out, blocks, BLOCK]` uint8 and scales `[out,
    blocks]` float32."""
    num_outputs, num_inputs = weight.shape
    num_blocks = -(-num_inputs // BLOCK)
    codes = np.empty((num_outputs, num_blocks, BLOCK), np.uint8)
    scales = np.empty((num_outputs, num_blocks), np.float32)
    padded = np.zeros((min(_PIECE, num_outputs), num_blocks * BLOCK), np.float32)
    for first in range(0, num_outputs, _PIECE):
        rows = slice(first, first + _PIECE)
        size = len(codes[rows])
        padded[:size, :num_inputs] = weight[rows]
        blocks = padded[:size].reshape(size, num_blocks, BLOCK)
        largest = np.maximum(blocks.max(axis=2), -blocks.min(axis=2))
        scales[rows] = np.maximum(largest, np.float32(1e-12)) / np.float32(127)
        np.divide(blocks, scales[rows, :, None], out=blocks)
        np.rint(blocks, out=blocks)
        np.add(blocks, np.float32(_ZERO), out=blocks)
        codes[rows] = blocks
    return codes, scales


def dequantize(
    codes: NDArray[np.uint8], scales: NDArray[np.float32], num_inputs: int
) -> NDArray[np.float32]:
    """Matrix `[out, in]` from codes and scales."""
    blocks = (codes.astype(np.float32) - np.float32(_ZERO)) * scales[..., None]
    return blocks.reshape(len(codes), -1)[:, :num_inputs]
