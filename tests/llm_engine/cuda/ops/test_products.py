"""Matrix products of a step: kernels against plain torch."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from llm_engine.cuda.ops.interface import MAX_ROWS, Matrix, PartOps
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from tests.support.llm.cuda_ops_cases import (
    BF16,
    BLOCK_SCALES,
    FLOAT32,
    KINDS,
    ROW_SCALES,
    Kind,
    Maker,
    assert_near,
    poisoned,
)
from tests.support.llm.cuda_ops_devices import DEVICE, IMPLEMENTATIONS, kernels

pytestmark = pytest.mark.slow

Product = Callable[[PartOps, Tensor], Tensor]


def add_product(maker: Maker, kind: Kind, num_out: int, num_in: int, *, bias: bool) -> Product:
    weight = maker.matrix(num_out, num_in, kind, bias=bias)
    old = maker.normal(128, num_out, dtype=kind.activations)

    def call(ops: PartOps, x: Tensor) -> Tensor:
        # A row has the residual of its own first number, wherever it stands.
        chosen = (x[:, 0].float().abs() * 1000).long() % len(old)
        residual = old[chosen]
        ops.add_product(x, weight, residual)
        return residual

    return call


def part(maker: Maker, kind: Kind, num_out: int, num_in: int, *, bias: bool) -> Product:
    weight = maker.matrix(num_out, num_in, kind, bias=bias)

    def call(ops: PartOps, x: Tensor) -> Tensor:
        out = poisoned(len(x), num_out, dtype=torch.float32, device=DEVICE)
        ops.part(x, weight, out)
        return out

    return call


def gate_up(maker: Maker, kind: Kind, num_out: int, num_in: int, *, bias: bool) -> Product:
    norm, weight = maker.norm(num_in), maker.matrix(2 * num_out, num_in, kind, bias=bias)

    def call(ops: PartOps, x: Tensor) -> Tensor:
        out = poisoned(len(x), num_out, dtype=x.dtype, device=DEVICE)
        ops.gate_up(x, norm, weight, out)
        return out

    return call


def logits(maker: Maker, kind: Kind, num_out: int, num_in: int, *, bias: bool) -> Product:
    norm, weight = maker.norm(num_in), maker.matrix(num_out, num_in, kind, bias=bias)

    def call(ops: PartOps, x: Tensor) -> Tensor:
        out = poisoned(len(x), num_out, dtype=torch.float32, device=DEVICE)
        ops.logits(x, norm, weight, out)
        return out

    return call


PRODUCTS = (add_product, gate_up, logits)
ops_of_each_kind = pytest.mark.parametrize("make", PRODUCTS, ids=lambda make: make.__name__)
few_rows_of_each_kind = pytest.mark.parametrize(
    "make", [*PRODUCTS, part], ids=lambda make: make.__name__
)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@each_kind
@few_rows_of_each_kind
@pytest.mark.parametrize(
    ("num_out", "num_in", "num_rows"),
    [(150, 264, 1), (64, 1100, 3), (328, 128, MAX_ROWS), (40, 72, 5)],
)
def test_products_of_awkward_shapes(
    make: Callable[..., Product], kind: Kind, num_out: int, num_in: int, num_rows: int
) -> None:
    maker = Maker(num_out, DEVICE)
    product = make(maker, kind, num_out, num_in, bias=num_rows % 2 == 1)
    x = maker.normal(num_rows, num_in, dtype=kind.activations) * 3
    assert_near(product(kernels(), x), product(ReferenceOps(), x))


@few_rows_of_each_kind
def test_products_are_exact_in_float32(make: Callable[..., Product]) -> None:
    maker = Maker(2, DEVICE)
    product = make(maker, FLOAT32, 100, 1100, bias=True)
    x = maker.normal(4, 1100)
    assert_near(product(kernels(), x), product(ReferenceOps(), x), exact=True)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", [*KINDS, FLOAT32], ids=lambda kind: kind.name)
@few_rows_of_each_kind
def test_a_row_is_the_same_however_many_there_are_and_wherever_it_stands(
    make: Callable[..., Product], kind: Kind, name: str
) -> None:
    maker, ops = Maker(3, DEVICE), IMPLEMENTATIONS[name]()
    width = (
        1030 if make in (add_product, part) else 140
    )  # enough columns to be divided, where they are
    product = make(maker, kind, 72, width, bias=False)
    x = maker.normal(MAX_ROWS, width, dtype=kind.activations)
    expected = torch.cat([product(ops, x[row : row + 1]) for row in range(MAX_ROWS)])
    for num_rows in (2, 3, 5, MAX_ROWS):
        # The others are another choice each time, and in another order.
        chosen = torch.randperm(MAX_ROWS, generator=torch.Generator().manual_seed(num_rows))
        chosen = chosen[:num_rows]
        assert torch.equal(product(ops, x[chosen]), expected[chosen]), num_rows


@few_rows_of_each_kind
def test_large_activations_do_not_become_infinite(make: Callable[..., Product]) -> None:
    """8-bit weights multiply in float16, whose largest number is 65504."""
    maker = Maker(4, DEVICE)
    product = make(maker, ROW_SCALES, 64, 64, bias=False)
    x = maker.normal(2, 64, dtype=torch.bfloat16)
    x[0, 5] = 1e6
    result = product(kernels(), x)
    assert result.isfinite().all()
    assert_near(result[1:], product(ReferenceOps(), x)[1:])


@pytest.mark.parametrize("make", [gate_up, logits])
def test_what_a_norm_makes_small_again_may_be_large_before(make: Callable[..., Product]) -> None:
    """Channels of a residual that are thousands of times as large as others exist."""
    maker = Maker(5, DEVICE)
    product = make(maker, ROW_SCALES, 64, 64, bias=False)
    x = maker.normal(2, 64, dtype=torch.bfloat16)
    x[0, 5] = 3e5
    assert_near(product(kernels(), x), product(ReferenceOps(), x))


@pytest.mark.parametrize(
    ("kind", "num_in", "num_rows"),
    [*[(kind, 160, MAX_ROWS + 1) for kind in KINDS], (BF16, 160, 70)],
    ids=str,
)
@ops_of_each_kind
def test_products_of_prompts(
    make: Callable[..., Product], kind: Kind, num_in: int, num_rows: int
) -> None:
    maker = Maker(5, DEVICE)
    product = make(maker, kind, 96, num_in, bias=True)
    x = maker.normal(num_rows, num_in, dtype=kind.activations)
    assert_near(product(kernels(), x), product(ReferenceOps(), x))


def library_scales_rows() -> bool:
    """Torch 2.11 does that on GPUs only."""
    eights, scales = torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 1)
    try:
        torch._scaled_mm(
            eights, eights.T, scale_a=scales, scale_b=scales.T, out_dtype=torch.bfloat16
        )
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "num_in"),
    [
        pytest.param(
            *(ROW_SCALES, 160),
            marks=pytest.mark.skipif(not library_scales_rows(), reason="this torch can't, here"),
        ),
        (ROW_SCALES, 150),  # a width that torch's product of 8-bit numbers does not take
        (BLOCK_SCALES, 128),
        (BLOCK_SCALES, 300),
    ],
    ids=str,
)
@ops_of_each_kind
def test_prompts_multiply_8_bits_by_8_bits(
    make: Callable[..., Product], kind: Kind, num_in: int
) -> None:
    """As far from the truth as rounding activations to three bits behind the point makes them,
    0.026 of their size, and not further; also where rows differ much in size, or are zero."""
    maker = Maker(10, DEVICE)
    product = make(maker, kind, 96, num_in, bias=True)
    x = maker.normal(70, num_in, dtype=torch.bfloat16)
    x *= torch.logspace(-3, 3, 70, device=DEVICE)[:, None].to(x.dtype)
    x[9] = 0
    actual, expected = (product(ops, x).float() for ops in (kernels(), ReferenceOps()))
    size = expected.square().mean(dim=1).sqrt()
    wrong = (actual - expected).square().mean(dim=1).sqrt() / size
    assert wrong.max() < 0.06
    assert wrong.max() > 0.005, "activations were not rounded: this is not the product meant"


def test_programs_leave_their_counters_as_they_found_them() -> None:
    """The next call counts on zeros: the same operation twice, and other ones between."""
    maker, ops = Maker(6, DEVICE), kernels()
    wide = add_product(maker, BF16, 64, 2048, bias=False)
    narrow = add_product(maker, ROW_SCALES, 200, 1024, bias=False)
    x, y = (maker.normal(2, width, dtype=torch.bfloat16) for width in (2048, 1024))
    first = wide(ops, x), narrow(ops, y)
    second = wide(ops, x), narrow(ops, y)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert_near(first[1], narrow(ReferenceOps(), y))


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_parts_are_added_in_their_order(num_parts: int) -> None:
    maker = Maker(11, DEVICE)
    parts = maker.normal(num_parts, 3, 1030)
    residual = maker.normal(3, 1030, dtype=torch.bfloat16)
    residual[0, 0], parts[0, 0, 0], parts[1:, 0, 0] = -(2.0**27), 2.0**27, 1
    actual, expected = residual.clone(), residual.clone()
    kernels().add_parts(parts, actual)
    ReferenceOps().add_parts(parts, expected)
    assert torch.equal(actual, expected)
    assert actual[0, 0] == num_parts - 1, "in another order the ones would have been lost"


def test_a_workspace_that_is_too_small_is_named() -> None:
    maker, ops = Maker(7, DEVICE), kernels(num_floats=64)
    x = maker.normal(1, 2048, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="64 floats"):
        ops.add_product(x, maker.matrix(64, 2048, BF16), x[:, :64].clone())


def test_rows_that_do_not_lie_together_are_refused() -> None:
    maker = Maker(8, DEVICE)
    x = maker.normal(4, 128, dtype=torch.bfloat16)[:, :64]
    with pytest.raises(ValueError, match="one behind the other"):
        kernels().add_product(x, maker.matrix(64, 64, BF16), x.clone())


def test_one_scale_for_the_whole_matrix() -> None:
    maker = Maker(9, DEVICE)
    weight = maker.matrix(64, 64, ROW_SCALES)
    assert weight.scales is not None
    whole: Matrix = replace(weight, scales=weight.scales[:1, :1].contiguous(), block=(64, 64))
    x = maker.normal(2, 64, dtype=torch.bfloat16)
    actual, expected = x.clone(), x.clone()
    kernels().add_product(x, whole, actual)
    ReferenceOps().add_product(x, whole, expected)
    assert_near(actual, expected)
