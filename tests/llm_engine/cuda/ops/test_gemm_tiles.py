"""Tile sizes of matrix products."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.cuda.memory import int4_unit_bytes
from llm_engine.cuda.ops.gemm_tiles import (
    MAX_SPLITS,
    MIN_BLOCKS,
    attention_splits,
    int4_prompt_tiles,
    product_tiles,
    prompt_tiles,
)
from llm_engine.cuda.ops.interface import MAX_ROWS, Int4Weight, Matrix

H200_SMS = 132
SHARED_BYTES = 227 << 10
"""Of one multiprocessor."""

ADA_SHARED_BYTES = 99 << 10

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
    # What kernels require: powers of two, and pieces and tiles that matrix units take.
    for size in (tiles.block_n, tiles.block_k, tiles.pieces):
        assert size & (size - 1) == 0
    assert tiles.block_n >= 16
    assert tiles.block_k // tiles.pieces >= 16
    assert tiles.num_stages >= 3


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
    stage = block + 20 * tiles.block_k
    fitting = SHARED_BYTES // (2 * stage + 1024)
    wanted = min(4, -(-num_programs // H200_SMS), fitting)
    assert tiles.per_sm == wanted, "in one round, where they fit"
    resident = min(num_programs, tiles.per_sm * H200_SMS)
    everything = num_out * num_in * dtype.itemsize
    assert resident * on_their_way >= min(3e6, everything), "what the device needs"
    assert tiles.span >= MIN_BLOCKS * tiles.block_k
    staged = (tiles.num_stages - 1) * stage
    assert tiles.per_sm * (staged + 1024) <= SHARED_BYTES
    if tiles.num_stages > 3:
        one_more = divisible and tiles.span <= 8 * tiles.block_k
        most = H200_SMS * 97 << 10
        assert resident * (staged - one_more * stage) <= most, "the rest is for the next kernel"


@dtypes
@pytest.mark.parametrize(("num_out", "num_in", "divisible"), SHAPES)
def test_more_rows_fit_beside_the_weights(
    num_out: int, num_in: int, divisible: bool, dtype: torch.dtype
) -> None:
    matrix = weight(num_out, num_in, dtype)
    tiles = product_tiles(matrix, H200_SMS, divisible=divisible)
    assert tiles.for_rows(matrix, MAX_ROWS) == tiles, "steps have what was reckoned for them"
    for num_rows in (16, 32, 64):
        chosen = tiles.for_rows(matrix, num_rows)
        assert tiles.span % chosen.block_k == 0
        stage = chosen.block_k * (tiles.block_n * dtype.itemsize + 2 * num_rows + 4)
        assert chosen.num_stages >= 3
        sums = chosen.pieces * tiles.block_n * num_rows * 4
        assert sums <= 32 << 10, "half of the registers that one of four programs has"
        assert chosen.per_sm >= min(2, tiles.per_sm)
        converted = 2 * chosen.block_k * num_rows if chosen.pieces == 1 else 0
        shared = (chosen.num_stages - 1) * stage + converted + 1024
        assert chosen.per_sm * shared <= SHARED_BYTES, "all in one round"


@dtypes
@pytest.mark.parametrize(("num_out", "num_in", "divisible"), SHAPES)
def test_programs_fit_on_an_ada(
    num_out: int, num_in: int, divisible: bool, dtype: torch.dtype
) -> None:
    matrix = weight(num_out, num_in, dtype)
    tiles = product_tiles(matrix, 128, divisible=divisible, shared_bytes=ADA_SHARED_BYTES)
    for num_rows in (MAX_ROWS, 16, 32, 64):
        chosen = tiles.for_rows(matrix, num_rows)
        stage = chosen.block_k * (tiles.block_n * dtype.itemsize + 2 * num_rows + 4)
        converted = 2 * chosen.block_k * num_rows if chosen.pieces == 1 else 0
        shared = (chosen.num_stages - 1) * stage + converted + 1024
        assert chosen.per_sm * shared <= ADA_SHARED_BYTES
        assert chosen.num_stages >= 3


def int4_weight(num_out: int, num_in: int, group: int) -> Int4Weight:
    """Without memory."""
    unit = 2 * int4_unit_bytes(group)
    columns = -(-num_in // unit) * unit
    codes = torch.empty(num_out, columns // 2, dtype=torch.uint8, device="meta")
    scales = torch.empty(columns // group, num_out, dtype=torch.float16, device="meta")
    return Int4Weight(codes, scales, scales, group, num_in)


groups = pytest.mark.parametrize("group", [32, 64, 128])


@groups
@pytest.mark.parametrize(("num_out", "num_in", "divisible"), SHAPES)
@pytest.mark.parametrize("shared_bytes", [SHARED_BYTES, ADA_SHARED_BYTES])
def test_4_bits_are_divided_into_whole_units(
    num_out: int, num_in: int, divisible: bool, group: int, shared_bytes: int
) -> None:
    weight = int4_weight(num_out, num_in, group)
    tiles = product_tiles(weight, H200_SMS, divisible=divisible, shared_bytes=shared_bytes)
    assert tiles.block_k == tiles.pieces * 2 * int4_unit_bytes(group)
    assert tiles.for_rows(weight, MAX_ROWS) == tiles
    assert (tiles.num_splits - 1) * tiles.span < num_in <= tiles.num_splits * tiles.span
    num_programs = -(-num_out // tiles.block_n) * tiles.num_splits
    assert num_programs >= 0.7 * H200_SMS
    resident = min(num_programs, tiles.per_sm * H200_SMS)
    block = tiles.block_n * tiles.block_k // 2
    on_their_way = min(tiles.num_stages - 1, tiles.span // tiles.block_k) * block
    if shared_bytes == SHARED_BYTES:
        assert resident * on_their_way >= min(2e6, num_out * num_in / 2), "half of what it needs"
    staged = (tiles.num_stages - 1) * (block + 20 * tiles.block_k)
    assert tiles.per_sm * (staged + 1024) <= shared_bytes


@groups
@pytest.mark.parametrize("num_rows", [9, 16, 33, 64, 65, 256, 512])
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("shared_bytes", [SHARED_BYTES, ADA_SHARED_BYTES])
def test_prompts_in_4_bits_fit_into_shared_memory(
    group: int, num_rows: int, paired: bool, shared_bytes: int
) -> None:
    weight = int4_weight(28672, 4096, group)
    tiles = int4_prompt_tiles(weight, num_rows, 14336, H200_SMS, shared_bytes, paired=paired)
    assert tiles.block_k == 2 * int4_unit_bytes(group)
    assert tiles.block_m >= min(num_rows, 64)
    codes = tiles.block_n * tiles.block_k // 2 * (2 if paired else 1)
    stage = codes + 2 * tiles.block_m * tiles.block_k
    assert tiles.num_stages >= 2
    assert tiles.num_stages * stage <= shared_bytes
    sums = tiles.block_m * tiles.block_n * (3 if paired else 2)
    assert sums // (32 * tiles.num_warps) <= 128, "of a thread's registers"


def test_scales_of_blocks_do_not_change_within_a_piece() -> None:
    """Nor within a block, where all warps share it."""
    for across in (16, 32, 64, 96, 128, 256):
        matrix = weight(512, 1024, torch.float8_e4m3fn, across)
        tiles = product_tiles(matrix, 8, divisible=True)
        for num_rows in (MAX_ROWS, 16, 32, 64):
            chosen = tiles.for_rows(matrix, num_rows)
            assert across % (chosen.block_k // chosen.pieces) == 0
    whole = product_tiles(weight(512, 100, torch.float8_e4m3fn, 128), 8, divisible=True)
    assert whole.num_splits == 1


@pytest.mark.parametrize("across", [8, 100, 120])
def test_scales_that_fit_no_block_are_refused(across: int) -> None:
    fp8 = weight(512, 1024, torch.float8_e4m3fn, across)
    with pytest.raises(ValueError, match=f"scales of {across} columns"):
        product_tiles(fp8, 8, divisible=True)


@pytest.mark.parametrize("num_rows", [128, 256, 512])
@pytest.mark.parametrize(("num_out", "num_in", "divisible"), SHAPES)
def test_prompts_keep_an_h200_busy(
    num_rows: int, num_out: int, num_in: int, divisible: bool
) -> None:
    """Wide tiles where these are enough, and else twice as many."""
    del num_in, divisible
    tiles = prompt_tiles(num_rows, num_out, H200_SMS, SHARED_BYTES, paired=False)
    num_wide = num_rows // tiles.block_m * -(-num_out // 128)
    assert tiles.block_n == (128 if num_wide >= H200_SMS // 3 else 64)
    stage = tiles.stage_bytes(paired=False)
    assert tiles.num_stages * stage <= SHARED_BYTES
    # What 4.3 TB/s with 0.8 microseconds of latency need, from a third of the multiprocessors on.
    assert num_wide < H200_SMS // 3 or num_wide * (tiles.num_stages - 1) * stage >= 3e6


@pytest.mark.parametrize("num_rows", [65, 128, 129, 512])
def test_pairs_are_as_many_programs_as_fit_at_once(num_rows: int) -> None:
    tiles = prompt_tiles(num_rows, 14336, H200_SMS, SHARED_BYTES, paired=True)
    assert tiles.block_m == (128 if num_rows <= 128 else 256)
    num_resident = 256 // tiles.block_m
    assert num_resident * tiles.num_stages * tiles.stage_bytes(paired=True) <= SHARED_BYTES
    assert tiles.num_stages >= 3


@pytest.mark.parametrize("num_rows", [65, 512])
@pytest.mark.parametrize("paired", [True, False])
def test_prompts_fit_into_the_shared_memory_of_ada(num_rows: int, paired: bool) -> None:
    tiles = prompt_tiles(num_rows, 14336, 142, 99 << 10, paired=paired)
    assert tiles.num_stages == 3
    assert tiles.num_stages * tiles.stage_bytes(paired=paired) <= 99 << 10
    assert tiles.num_warps * 16 == tiles.block_m


def test_attention_of_real_models_has_a_program_for_each_multiprocessor() -> None:
    assert attention_splits(8, H200_SMS) == 16
    assert attention_splits(4, H200_SMS) == 16
    assert attention_splits(32, H200_SMS) == 4
    # Prompts have so many tiles of queries that their keys need not be divided.
    assert attention_splits(8, H200_SMS, num_tiles=4) == 4
    assert attention_splits(8, H200_SMS, num_tiles=32) == 1
