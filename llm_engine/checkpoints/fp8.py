"""Weights stored as 8-bit floats: E4M3 numbers with shared scales.

Checkpoints come with one scale for a whole matrix, one for each output row, or one for each block
of 128 x 128. All three are the same thing here: a grid of scales, each for a block of the matrix;
blocks at the right and lower edge may be smaller. A weight is its number times its scale, also
where a file calls its scales `weight_scale_inv`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_engine.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

SUPPORTED_METHODS = ("compressed-tensors", "fbgemm_fp8", "fp8")
_FORMATS = ("float-quantized", "naive-quantized", "mixed-precision")
"""Names of 8-bit float weights in compressed-tensors: today's, the former, and that of files whose
groups have formats of their own."""


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A weight as stored: 8-bit floats and scales."""

    values: "Tensor"
    """`[out, in]`, float8_e4m3fn."""
    scales: "Tensor"
    """`[ceil(out / block rows), ceil(in / block columns)]`, float32."""
    block: tuple[int, int]
    """Rows and columns that share a scale: (out, in) where there is one for the whole matrix,
    (1, in) where there is one for each output."""

    @property
    def has_nan(self) -> bool:
        """True if a value is NaN. The format has no infinity."""
        import torch

        bits = self.values.view(torch.uint8)
        return bool(((bits & 0x7F) == 0x7F).any())

    def dequantize(self) -> "Tensor":
        """The weight `[out, in]`, float32."""
        num_rows, num_columns = self.values.shape
        rows, columns = self.block
        scales = self.scales.repeat_interleave(rows, dim=0)[:num_rows]
        weight = self.values.float()
        for index, start in enumerate(range(0, num_columns, columns)):
            weight[:, start : start + columns] *= scales[:, index : index + 1]
        return weight


def scaled(values: "Tensor", scales: "Tensor", blocks: tuple[tuple[int, int], ...]) -> Fp8Matrix:
    """Pair a matrix with its scales, `blocks` being the block shapes that the checkpoint declares.

    Raises ValueError with the mismatch.
    """
    if values.dim() != 2:
        raise ValueError(f"is an 8-bit float of shape {tuple(values.shape)}, not a matrix")
    num_rows, num_columns = values.shape
    found = scales.float()
    if not bool((found.isfinite() & (found >= 0)).all()):
        raise ValueError("has scales that are negative or not finite")
    for rows, columns in (num_rows, num_columns), (1, num_columns), *blocks:
        grid = -(-num_rows // rows), -(-num_columns // columns)
        # A single number may stand without dimensions, one number a row without columns.
        shapes = {grid, grid[:1] if grid[1] == 1 else grid, () if grid == (1, 1) else grid}
        if tuple(found.shape) in shapes:
            return Fp8Matrix(values, found.reshape(grid), (rows, columns))
    known = ", ".join(f"{rows} x {columns}" for rows, columns in blocks) or "none"
    raise ValueError(
        f"of shape {tuple(values.shape)} has scales of shape {tuple(scales.shape)}: not one, not "
        f"one a row, and not one for each declared block ({known})"
    )


def declared_blocks(quantization: Any, file: Path) -> tuple[tuple[int, int], ...]:
    """Block shapes declared by a `quantization_config`; empty where its scales are of other kinds.

    Which modules are quantized (`ignore`, `modules_to_not_convert`) is not read: the tensors
    themselves show it. Nor is the format of activations: backends choose their own arithmetic.
    Raises ModelError for every quantization but FP8.
    """
    if quantization is None:
        return ()
    if not isinstance(quantization, dict):
        raise ModelError(f"{file}: 'quantization_config' is {quantization!r} instead of an object")
    method = quantization.get("quant_method")
    if method == "fp8":
        if quantization.get("fmt") not in (None, "e4m3", "float8_e4m3fn"):
            raise ModelError(f"{file}: FP8 format {quantization['fmt']!r} is not supported")
        return _block(quantization.get("weight_block_size"), file)
    if method == "fbgemm_fp8":
        return ()
    if method == "compressed-tensors":
        return _compressed_blocks(quantization, file)
    names = ", ".join(SUPPORTED_METHODS)
    raise ModelError(
        f"{file}: 'quantization_config' names the method {method!r}, which is not supported; FP8 "
        f"is ({names}), and so are GPTQ and AWQ in 4 bits and GGUF files"
    )


def _compressed_blocks(quantization: dict[str, Any], file: Path) -> tuple[tuple[int, int], ...]:
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise ModelError(f"{file}: 'quantization_config' lacks 'config_groups'")
    blocks: tuple[tuple[int, int], ...] = ()
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise ModelError(f"{file}: group {name!r} of the quantization describes no weights")
        what = _unsupported_part(weights, [quantization.get("format"), group.get("format")])
        if quantization.get("transform_config"):
            what = "a transformation of the weights"
        if what:
            raise ModelError(
                f"{file}: compressed-tensors with {what} is not supported; 8-bit floats are"
            )
        if weights.get("strategy") == "block":
            blocks += _block(weights.get("block_structure"), file)
    return blocks


def _unsupported_part(weights: dict[str, Any], formats: list[Any]) -> str | None:
    """First unsupported part of compressed-tensors' description of weights; None: all supported."""
    if (weights.get("type"), weights.get("num_bits")) != ("float", 8):
        return f"{weights.get('num_bits')}-bit {weights.get('type')}"
    for name in formats:
        if name not in (None, *_FORMATS):
            return f"format {name!r}"
    if weights.get("strategy") not in (None, "tensor", "channel", "block"):
        return f"scales by {weights['strategy']!r}"
    return None if weights.get("symmetric", True) else "zero points"


def _block(shape: Any, file: Path) -> tuple[tuple[int, int], ...]:
    if shape is None:
        return ()
    sizes = shape if isinstance(shape, list) else []
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise ModelError(f"{file}: a block of weights cannot have the shape {shape!r}")
    return ((sizes[0], sizes[1]),)
