"""Quantizes weights to 8-bit floats (E4M3), and joins such matrices, one below the other.

A scale is the largest weight that shares it, over 448, the largest number of E4M3: nothing is
clipped, and no weight is further from its stored value than half a step of E4M3. Searching 17
scales for the least squared error instead takes 3 to 4 % off it (SmolLM2 135M, every row), 2 % off
the error: the numbers are floating, so that a scale only moves which weights are rounded more. Not
worth its time. Blocks are no better than rows, for the same reason. `halfsec bench quality` gives
the price.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from llm_engine.checkpoints.fp8 import Fp8Matrix
from llm_engine.errors import ModelError

LARGEST = 448.0
"""Largest number of E4M3."""
BLOCK = 128, 128
"""Rows and columns that share a scale: the only block that the kernels support, besides a row."""
ONE_A_ROW = 1, 0
"""One scale for each output, for any number of inputs."""

_SMALLEST_SCALE = 1e-12
"""Smallest scale, for rows of zeros, or nearly: a smaller divisor would overflow float32."""
_PIECE = 1 << 24
"""Weights converted at a time: 64 MB as float32, a few times over."""


def quantize(weight: Tensor, block: tuple[int, int] = ONE_A_ROW) -> Fp8Matrix:
    """Quantize any floating `[out, in]` on its device; the result is the same on all devices.

    `block` is `BLOCK` or `ONE_A_ROW`; of activations, (1, columns). Raises ModelError for NaN and
    infinity.
    """
    num_rows, num_columns = weight.shape
    rows, columns = block[0], block[1] or num_columns
    grid = -(-num_rows // rows), -(-num_columns // columns)
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(grid, device=weight.device)
    piece = max(1, _PIECE // (num_columns * rows)) * rows
    for first in range(0, num_rows, piece):
        part = weight[first : first + piece].float()
        found = _largest(part, rows, columns).div_(LARGEST).clamp_(min=_SMALLEST_SCALE)
        grid_rows = slice(first // rows, first // rows + len(found))
        scales[grid_rows] = found
        spread = found.repeat_interleave(rows, 0)[: len(part)]
        spread = spread.repeat_interleave(columns, 1)[:, :num_columns]
        # A weight divided by its own scale can round to a little more than the largest.
        values[first : first + piece] = (part / spread).clamp_(-LARGEST, LARGEST).to(values.dtype)
    if not bool(scales.isfinite().all()):
        raise ModelError("a weight is NaN or infinite")
    return Fp8Matrix(values, scales, (rows, columns))


def _largest(weight: Tensor, rows: int, columns: int) -> Tensor:
    """Largest magnitude in each block, `[blocks down, blocks across]`; NaN if it contains one."""
    num_rows, num_columns = weight.shape
    padding = 0, -num_columns % columns, 0, -num_rows % rows
    padded = torch.nn.functional.pad(weight.abs(), padding) if any(padding) else weight.abs()
    blocks = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    return blocks.amax(dim=(1, 3))


def join(parts: Sequence[Fp8Matrix | Tensor], block: tuple[int, int]) -> Fp8Matrix:
    """Join matrices, one below the other, each 8-bit already or still floats.

    8-bit parts stay bit for bit what they were wherever one grid of scales can hold them all: one
    scale for a whole matrix is one for each of its rows, and blocks of 128 x 128 fit together when
    no part ends inside one. Otherwise everything is quantized again, by `block`: floats would
    double the bytes of every step, and such checkpoints are rare. Float parts get the grid of the
    quantized ones, or `block`.

    Raises ModelError.
    """
    stored = [part for part in parts if isinstance(part, Fp8Matrix)]
    if stored and all(_has_row_scales(part) for part in stored):
        done = [
            _with_row_scales(part) if isinstance(part, Fp8Matrix) else quantize(part)
            for part in parts
        ]
    elif stored and all(part.block == BLOCK for part in stored) and _ends_with_blocks(parts):
        done = [part if isinstance(part, Fp8Matrix) else quantize(part, BLOCK) for part in parts]
    else:
        floats = [part.dequantize() if isinstance(part, Fp8Matrix) else part for part in parts]
        return quantize(floats[0] if len(floats) == 1 else torch.cat(floats), block)
    if len(done) == 1:
        return done[0]
    values, scales = ([getattr(part, name) for part in done] for name in ("values", "scales"))
    # As bytes, which torch can concatenate on every device.
    joined = torch.cat([each.view(torch.uint8) for each in values]).view(torch.float8_e4m3fn)
    return Fp8Matrix(joined, torch.cat(scales), done[0].block)


def check(matrix: Fp8Matrix) -> bool:
    """True if no stored 8-bit float is NaN. E4M3 has two NaNs and no infinity."""
    return not bool(((matrix.values.view(torch.uint8) & 0x7F) == 0x7F).any())


def _has_row_scales(matrix: Fp8Matrix) -> bool:
    rows, columns = matrix.block
    num_rows, num_columns = matrix.values.shape
    return columns >= num_columns and (rows == 1 or rows >= num_rows)


def _with_row_scales(matrix: Fp8Matrix) -> Fp8Matrix:
    num_rows, num_columns = matrix.values.shape
    scales = matrix.scales.expand(num_rows, 1).contiguous()
    return Fp8Matrix(matrix.values, scales, (1, num_columns))


def _ends_with_blocks(parts: Sequence[Fp8Matrix | Tensor]) -> bool:
    sizes = [len(part.values if isinstance(part, Fp8Matrix) else part) for part in parts]
    return all(size % BLOCK[0] == 0 for size in sizes[:-1])
