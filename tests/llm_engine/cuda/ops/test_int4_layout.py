"""Layout of 4-bit weights on the device."""

from dataclasses import replace

import pytest
import torch

from llm_engine.checkpoints.int4 import ZERO, Int4Matrix
from llm_engine.cuda.memory import Int4Storage, int4_unit_bytes
from llm_engine.cuda.ops.int4_layout import pack, unpack
from llm_engine.cuda.ops.reference_ops import dense
from tests.support.llm.int4_cases import Int4Kind, int4_matrix

GROUPS = (32, 64, 128)
each_group = pytest.mark.parametrize("group", GROUPS)
each_width = pytest.mark.parametrize("num_in", [96, 128, 320, 384])


def drawn(num_in: int, group: int, *, has_zeros: bool = True) -> Int4Matrix:
    return int4_matrix(5, num_in, Int4Kind(group, has_zeros), torch.Generator().manual_seed(1))


@each_group
@each_width
@pytest.mark.parametrize("has_zeros", [True, False])
def test_what_is_unpacked_is_what_was_packed(num_in: int, group: int, has_zeros: bool) -> None:
    matrix = drawn(num_in, group, has_zeros=has_zeros)
    weight = pack(matrix, torch.ones(5))
    found = unpack(weight)
    for name in ("codes", "scales", "zeros"):
        assert torch.equal(getattr(found, name), getattr(matrix, name)), name
    assert found.group == group
    assert (weight.num_out, weight.num_in, weight.bits) == (5, num_in, 4)
    assert (weight.offsets is None) == (not has_zeros)
    assert torch.equal(dense(weight), matrix.dequantize())


@each_group
def test_a_byte_has_columns_that_are_half_a_unit_apart(group: int) -> None:
    matrix, unit = drawn(512, group), int4_unit_bytes(group)
    packed = pack(matrix).codes
    for byte in (0, unit - 1, unit, 3 * unit + 5):
        column = byte // unit * 2 * unit + byte % unit
        assert torch.equal(packed[:, byte] & 15, matrix.codes[:, column])
        assert torch.equal(packed[:, byte] >> 4, matrix.codes[:, column + unit])
    assert packed.shape[1] % 16 == 0, "rows that loads of 16 bytes can't divide"


@each_group
@each_width
def test_the_memory_plan_counts_what_is_there(num_in: int, group: int) -> None:
    for has_zeros, group_bytes in ((True, 4), (False, 2)):
        weight = pack(drawn(num_in, group, has_zeros=has_zeros))
        counted = Int4Storage((), group=group, group_bytes=group_bytes).matrix_bytes(5, num_in)
        assert weight.num_bytes == counted


def test_scales_keep_all_of_their_digits() -> None:
    matrix = drawn(128, 32)
    assert pack(matrix).scales.dtype == torch.float16
    third = replace(matrix, scales=matrix.scales / 3)
    packed = pack(third)
    assert packed.scales.dtype == torch.float32
    assert torch.equal(unpack(packed).scales, third.scales)


def test_a_single_zero_point_needs_offsets() -> None:
    matrix = drawn(128, 32, has_zeros=False)
    matrix.zeros[3, 2] = 0
    offsets = pack(matrix).offsets
    assert offsets is not None
    assert offsets[2, 3] == -ZERO
    assert int(offsets.count_nonzero()) == 1
