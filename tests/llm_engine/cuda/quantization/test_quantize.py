"""FP8 quantization: distance from the weights, all shapes, joining without a change."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from llm_engine.checkpoints.fp8 import Fp8Matrix
from llm_engine.cuda.quantization.quantize import BLOCK, LARGEST, ONE_A_ROW, check, join, quantize
from llm_engine.errors import ModelError

GRIDS = {"row": ONE_A_ROW, "block": BLOCK}


def normal(*shape: int, seed: int = 1) -> Tensor:
    """With rows of very different size."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(shape[0], 1, generator=generator).exp()
    return torch.randn(shape, generator=generator) * rows * 0.02


def spread(matrix: Fp8Matrix) -> Tensor:
    """Each weight's scale, found one by one."""
    num_rows, num_columns = matrix.values.shape
    rows, columns = matrix.block
    return torch.stack(
        [
            torch.stack([matrix.scales[row // rows, col // columns] for col in range(num_columns)])
            for row in range(num_rows)
        ]
    )


def half_steps(numbers: Tensor) -> Tensor:
    """Half the distance between E4M3's neighbours of each number: 3 bits behind the first, and
    2^-9 below 2^-6."""
    exponents = numbers.abs().log2().floor().clamp(min=-6, max=8)
    return torch.exp2(exponents - 4)


@given(
    rows=st.integers(1, 150),
    columns=st.integers(1, 150),
    grid=st.sampled_from(list(GRIDS.values())),
    seed=st.integers(0, 1000),
)
def test_no_weight_is_further_than_half_a_step(
    rows: int, columns: int, grid: tuple[int, int], seed: int
) -> None:
    weight = normal(rows, columns, seed=seed)
    matrix = quantize(weight, grid)
    across = math.ceil(columns / (grid[1] or columns))
    assert matrix.scales.shape == (math.ceil(rows / grid[0]), across)
    scales = spread(matrix)
    bound = half_steps(weight / scales) * scales * (1 + 1e-5)
    assert bool(((matrix.dequantize() - weight).abs() <= bound).all())
    # The scale is no larger than it must be: each block has a weight at the upper end.
    for down in range(matrix.scales.shape[0]):
        for right in range(across):
            part = matrix.values.float()[
                down * grid[0] : (down + 1) * grid[0],
                right * matrix.block[1] : (right + 1) * matrix.block[1],
            ]
            assert part.abs().max() == LARGEST


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pieces_and_repetitions_are_the_same(
    grid: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = normal(700, 200).to(dtype)
    whole = quantize(weight, grid)
    monkeypatch.setattr("llm_engine.cuda.quantization.quantize._PIECE", 200 * 256)
    assert same(quantize(weight, grid), whole)
    assert same(quantize(weight.float(), grid), whole)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_zeros_and_tiny_numbers(grid: tuple[int, int]) -> None:
    weight = torch.zeros(200, 130)
    weight[5] = 1e-38
    matrix = quantize(weight, grid)
    assert bool(matrix.scales.isfinite().all())
    assert bool((matrix.scales > 0).all())
    assert float(matrix.dequantize().abs().max()) < 1e-12
    weight[7, 3] = 0.5
    assert quantize(weight, grid).dequantize()[7, 3] == 0.5


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_what_is_no_number_is_refused(grid: tuple[int, int], number: float) -> None:
    weight = normal(150, 140)
    weight[149, 139] = number
    with pytest.raises(ModelError, match="NaN or infinite"):
        quantize(weight, grid)


def test_stored_numbers_are_checked() -> None:
    matrix = quantize(normal(3, 5))
    assert check(matrix)
    for byte in (0x7F, 0xFF):
        values = matrix.values.view(torch.uint8).clone()
        values[2, 4] = byte
        assert not check(Fp8Matrix(values.view(torch.float8_e4m3fn), matrix.scales, matrix.block))


def same(left: Fp8Matrix, right: Fp8Matrix) -> bool:
    return (
        left.block == right.block
        and torch.equal(left.values.view(torch.uint8), right.values.view(torch.uint8))
        and torch.equal(left.scales, right.scales)
    )


def whole(weight: Tensor) -> Fp8Matrix:
    """One scale, not the one that quantizing would choose."""
    values = (weight / weight.abs().max() * 300).to(torch.float8_e4m3fn)
    return Fp8Matrix(values, (weight.abs().max() / 300).reshape(1, 1), tuple(weight.shape))  # type: ignore[arg-type]


def by_row(weight: Tensor) -> Fp8Matrix:
    found = quantize(weight * 0.7)
    return Fp8Matrix(found.values, found.scales / 0.7, found.block)


def by_block(weight: Tensor) -> Fp8Matrix:
    found = quantize(weight, BLOCK)
    return Fp8Matrix(found.values, found.scales * 1.1, found.block)


@pytest.mark.parametrize("kinds", [(whole, whole), (whole, by_row), (by_row, by_row), (whole,)])
@pytest.mark.parametrize("block", GRIDS.values(), ids=GRIDS)
def test_scales_of_rows_and_of_wholes_join_exactly(kinds: object, block: tuple[int, int]) -> None:
    assert isinstance(kinds, tuple)
    parts = [kind(normal(40 + index, 130, seed=index)) for index, kind in enumerate(kinds)]
    joined = join(parts, block)
    assert joined.block == (1, 130)
    assert joined.scales.shape == (len(joined.values), 1)
    assert torch.equal(joined.dequantize(), torch.cat([part.dequantize() for part in parts]))
    stored = torch.cat([part.values.view(torch.uint8) for part in parts])
    assert torch.equal(joined.values.view(torch.uint8), stored)


@pytest.mark.parametrize("rows", [(256, 128, 128), (128, 200), (77,)])
def test_blocks_that_fit_together_stay(rows: tuple[int, ...]) -> None:
    parts = [by_block(normal(size, 300, seed=size)) for size in rows]
    joined = join(parts, ONE_A_ROW)
    assert joined.block == BLOCK
    assert torch.equal(joined.dequantize(), torch.cat([part.dequantize() for part in parts]))


@pytest.mark.parametrize("block", GRIDS.values(), ids=GRIDS)
def test_what_fits_no_grid_is_quantized_anew(block: tuple[int, int]) -> None:
    cut = [by_block(normal(200, 130)), by_block(normal(128, 130))]
    mixed = [by_row(normal(128, 130)), by_block(normal(128, 130))]
    foreign = quantize(normal(64, 128))
    odd = [Fp8Matrix(foreign.values, foreign.scales.repeat(1, 2), (1, 64))]
    for parts in (cut, mixed, odd):
        expected = torch.cat([part.dequantize() for part in parts])
        joined = join(parts, block)
        assert same(joined, quantize(expected, block))
        error = (joined.dequantize() - expected).norm() / expected.norm()
        assert error < 0.04


def test_floats_take_the_grid_of_their_neighbours() -> None:
    weight = normal(128, 130)
    assert same(join([weight], BLOCK), quantize(weight, BLOCK))
    assert same(join([weight, weight], ONE_A_ROW), quantize(torch.cat([weight, weight])))
    assert join([weight, by_block(weight)], ONE_A_ROW).block == BLOCK
    rows = join([by_row(weight), weight], BLOCK)
    assert rows.block == (1, 130)
    assert torch.equal(rows.dequantize()[:128], by_row(weight).dequantize())
