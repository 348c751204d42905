"""How products are divided among programs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.cuda.ops import Matrix
from llm_engine.cuda.tiles import MAX_SPLITS, MIN_BLOCKS, attention_splits, product_tiles

H200_SMS = 132
SHARED_BYTES = 227 << 10
"""Of one multiprocessor."""

SHAPES = [  # of Llama's 1B, 3B, 8B and 70B
    *[(hidden, width, True) for hidden, width in ((2048, 8192), (3072, 8192))],
    *[(hidden, width, True) for hidden, width in ((4096, 14336), (8192, 28672))],
    *[(hidden, hidden, True) for hidden in (2048, 3072, 4096, 8192)],
    *[(width, hidden, False) for width, hidden in ((3072, 2048), (16384, 2048))],
    *[(width, hidden, False) for width, hidden in ((5120, 3072), (6144, 4096))],
    *[(width, hidden, False) for width, hidden in ((28672, 4096), (10240, 8192), (57344, 8192))],
    *[(128256, hidden, False) for hidden in (2048, 4096, 8192)],
]
"""Rows, columns, and whether programs may share the columns."""


def weight(num_out: int, num_in: int, dtype: torch.dtype, block: int | None = None) -> Matrix:
    """Without memory."""
    values = torch.empty(num_out, num_in, dtype=dtype, device="meta")
    if block is None:
        return Matrix(values)
    return Matrix(values, torch.empty(1, 1, device="meta"), (block, block))


dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)


@given(
    num_out=st.integers(1, 40_000),
    num_in=st.integers(1, 40_000),
    num_sms=st.integers(1, 200),
    divisible=st.booleans(),
)
def test_every_column_has_one_program(
    num_out: int, num_in: int, num_sms: int, divisible: bool
) -> None:
    tiles = product_tiles(weight(num_out, num_in, torch.bfloat16), num_sms, divisible=divisible)
    assert tiles.span % tiles.block_k == 0
    assert (tiles.num_splits - 1) * tiles.span < num_in <= tiles.num_splits * tiles.span
    assert 1 <= tiles.num_splits <= (MAX_SPLITS if divisible else 1)
    # What kernels require: powers of two, and tiles that matrix units take.
    for size in (tiles.block_n, tiles.block_k, tiles.num_warps):
        assert size & (size - 1) == 0
    assert tiles.block_n == 16 * tiles.num_warps
    assert tiles.block_k >= 32
    assert tiles.num_stages >= 2


@dtypes
@pytest.mark.parametrize(("num_out", "num_in", "divisible"), SHAPES)
def test_real_shapes_keep_an_h200_busy(
    num_out: int, num_in: int, divisible: bool, dtype: torch.dtype
) -> None:
    tiles = product_tiles(weight(num_out, num_in, dtype), H200_SMS, divisible=divisible)
    num_programs = -(-num_out // tiles.block_n) * tiles.num_splits
    block = tiles.block_n * tiles.block_k * dtype.itemsize
    on_their_way = min(tiles.num_stages - 1, tiles.span // tiles.block_k) * block
    assert num_programs >= 0.7 * H200_SMS
    per_sm = min(2 if tiles.block_n == 128 else 4, -(-num_programs // H200_SMS))
    resident = min(num_programs, per_sm * H200_SMS)
    assert resident * on_their_way >= 3e6
    assert tiles.span >= MIN_BLOCKS * tiles.block_k
    staged = (tiles.num_stages - 1) * (block + 36 * tiles.block_k)
    assert per_sm * (staged + 4096) <= SHARED_BYTES


@dtypes
@pytest.mark.parametrize(("num_out", "num_in", "divisible"), SHAPES)
def test_more_rows_fit_beside_the_weights(
    num_out: int, num_in: int, divisible: bool, dtype: torch.dtype
) -> None:
    matrix = weight(num_out, num_in, dtype)
    tiles = product_tiles(matrix, H200_SMS, divisible=divisible)
    assert tiles.stages(matrix, 16) == tiles.num_stages, "steps have what was reckoned for them"
    for num_rows in (32, 64):
        stage = tiles.block_k * (tiles.block_n * dtype.itemsize + 2 * num_rows + 4)
        num_stages = tiles.stages(matrix, num_rows)
        assert 2 <= num_stages <= tiles.num_stages
        sums = tiles.block_n * num_rows * 4
        assert (num_stages - 1) * stage + sums <= SHARED_BYTES


def test_scales_of_blocks_change_between_blocks_of_columns() -> None:
    fp8 = torch.float8_e4m3fn
    for across in (32, 64, 128, 256):
        tiles = product_tiles(weight(512, 1024, fp8, across), 8, divisible=True)
        assert across % tiles.block_k == 0
    whole = product_tiles(weight(512, 100, fp8, 128), 8, divisible=True)
    assert whole.num_splits == 1


@pytest.mark.parametrize("across", [8, 96, 100])
def test_scales_that_fit_no_block_are_refused(across: int) -> None:
    fp8 = weight(512, 1024, torch.float8_e4m3fn, across)
    with pytest.raises(ValueError, match=f"scales of {across} columns"):
        product_tiles(fp8, 8, divisible=True)


def test_attention_of_real_models_has_a_program_for_each_multiprocessor() -> None:
    assert attention_splits(8, H200_SMS) == 16
    assert attention_splits(4, H200_SMS) == 16
    assert attention_splits(32, H200_SMS) == 4
    # Prompts have so many tiles of queries that their keys need not be divided.
    assert attention_splits(8, H200_SMS, num_tiles=4) == 4
    assert attention_splits(8, H200_SMS, num_tiles=32) == 1
