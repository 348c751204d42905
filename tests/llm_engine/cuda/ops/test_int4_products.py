"""Products with 4-bit weights: kernels against plain torch, of steps and of prompts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from llm_engine.cuda.kernels.common import EMULATED
from llm_engine.cuda.ops.int4_layout import pack, unpack
from llm_engine.cuda.ops.interface import MAX_ROWS, Attention, Heads, Int4Weight, PartOps
from llm_engine.cuda.ops.reference_ops import ReferenceOps, normalized
from tests.support.llm.cuda_ops_cases import FLOAT32, Kind, Maker, assert_near, copied, poisoned
from tests.support.llm.cuda_ops_devices import DEVICE, IMPLEMENTATIONS, kernels
from tests.support.llm.int4_cases import INT4_KINDS, Int4Kind, int4_matrix

pytestmark = pytest.mark.slow

Product = Callable[[PartOps, Tensor], Tensor]
each_kind = pytest.mark.parametrize("kind", INT4_KINDS, ids=str)


def weight_of(num_out: int, num_in: int, kind: Int4Kind, *, bias: bool = False) -> Int4Weight:
    generator = torch.Generator().manual_seed(num_out + num_in)
    matrix = int4_matrix(num_out, num_in, kind, generator)
    on_device = replace(
        matrix,
        codes=matrix.codes.to(DEVICE),
        scales=matrix.scales.to(DEVICE),
        zeros=matrix.zeros.to(DEVICE),
    )
    return pack(on_device, torch.randn(num_out, generator=generator).to(DEVICE) if bias else None)


@dataclass(frozen=True)
class Case:
    """A product's operands; calls give `[M, outputs]`."""

    kind: Int4Kind
    num_out: int
    num_in: int
    bias: bool = False

    def add_product(self, ops: PartOps, x: Tensor) -> Tensor:
        # A row has the residual of its own first number, wherever it stands.
        residual = x[:, :1].float() * torch.linspace(-1, 1, self.num_out, device=DEVICE)
        residual = residual.to(x.dtype)
        ops.add_product(x, self._weight(), residual)
        return residual

    def part(self, ops: PartOps, x: Tensor) -> Tensor:
        out = poisoned(len(x), self.num_out, dtype=torch.float32, device=DEVICE)
        ops.part(x, self._weight(), out)
        return out

    def gate_up(self, ops: PartOps, x: Tensor) -> Tensor:
        out = poisoned(len(x), self.num_out // 2, dtype=x.dtype, device=DEVICE)
        ops.gate_up(x, Maker(1, DEVICE).norm(self.num_in), self._weight(), out)
        return out

    def logits(self, ops: PartOps, x: Tensor) -> Tensor:
        out = poisoned(len(x), self.num_out, dtype=torch.float32, device=DEVICE)
        ops.logits(x, Maker(1, DEVICE).norm(self.num_in), self._weight(), out)
        return out

    def _weight(self) -> Int4Weight:
        return weight_of(self.num_out, self.num_in, self.kind, bias=self.bias)


PRODUCTS = ("add_product", "gate_up", "logits")
of_each_kind = pytest.mark.parametrize("name", PRODUCTS)
of_few_rows = pytest.mark.parametrize("name", [*PRODUCTS, "part"])


def rows(num_rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return Maker(num_rows, DEVICE).normal(num_rows, width, dtype=dtype)


@each_kind
@of_few_rows
@pytest.mark.parametrize(
    ("num_out", "num_in", "num_rows"), [(150, 264, 1), (64, 1100, 3), (98, 72, MAX_ROWS)]
)
def test_products_of_awkward_shapes(
    name: str, kind: Int4Kind, num_out: int, num_in: int, num_rows: int
) -> None:
    case = Case(kind, num_out, num_in, bias=num_rows != 3)
    product, x = getattr(case, name), rows(num_rows, num_in)
    assert_near(product(kernels(), x), product(ReferenceOps(), x))


@each_kind
@of_few_rows
def test_products_are_exact_in_float32(name: str, kind: Int4Kind) -> None:
    """Nothing is rounded on the way: what is left is the order of sums."""
    product = getattr(Case(kind, 64, 512), name)
    x = rows(4, 512, torch.float32)
    assert_near(product(kernels(), x), product(ReferenceOps(), x), exact=True)


@pytest.mark.parametrize("ops_name", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "kind", [Int4Kind(32, True), Int4Kind(64, False), Int4Kind(128, True)], ids=str
)
@of_few_rows
def test_a_row_is_the_same_however_many_there_are_and_wherever_it_stands(
    name: str, kind: Int4Kind, ops_name: str
) -> None:
    width = 2 * 1024 + 72  # enough columns to be divided
    # One tile of outputs, whose columns three programs share; those of four tiles two did. A row
    # does not depend on other tiles, of which the shapes above have several.
    product, ops = getattr(Case(kind, 16, width), name), IMPLEMENTATIONS[ops_name]()
    x = rows(MAX_ROWS, width)
    alone = torch.cat([product(ops, x[row : row + 1]) for row in range(MAX_ROWS)])
    for num_rows in (2, 3, 5, MAX_ROWS):  # each size of tile full, and not
        # The others are another choice each time, and in another order.
        chosen = torch.randperm(MAX_ROWS, generator=torch.Generator().manual_seed(num_rows))
        chosen = chosen[:num_rows]
        assert torch.equal(product(ops, x[chosen]), alone[chosen]), num_rows


@each_kind
@of_each_kind
@pytest.mark.parametrize(("num_rows", "num_out", "num_in"), [(9, 72, 264), (70, 130, 128)])
def test_products_of_prompts(
    name: str, kind: Int4Kind, num_rows: int, num_out: int, num_in: int
) -> None:
    product, x = getattr(Case(kind, num_out, num_in, bias=True), name), rows(num_rows, num_in)
    assert_near(product(kernels(), x), product(ReferenceOps(), x))


@each_kind
@of_each_kind
def test_prompts_are_exact_in_float32(name: str, kind: Int4Kind) -> None:
    product, x = getattr(Case(kind, 64, 200), name), rows(20, 200, torch.float32)
    found, expected = product(kernels(), x), product(ReferenceOps(), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(not EMULATED, reason="a GPU's matrix units add in an order of their own")
def test_a_prompts_rows_are_as_exact_as_a_steps() -> None:
    """Neither path rounds weights or activations; only the order of sums differs."""
    case, x = Case(Int4Kind(128, True), 64, 512), rows(9, 512)
    prompt, step = case.add_product(kernels(), x), case.add_product(kernels(), x[:MAX_ROWS])
    torch.testing.assert_close(prompt[:MAX_ROWS], step, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("num_rows", [3, 20])
@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize("kind", [Int4Kind(32, True), Int4Kind(128, False)], ids=str)
def test_queries_keys_and_values(kind: Int4Kind, qk_norm: bool, num_rows: int) -> None:
    maker, heads = Maker(2, DEVICE), Heads(4, 2, 32)
    like = maker.attention(200, heads, Kind("", torch.bfloat16), qk_norm=qk_norm)
    layer: Attention = replace(like, qkv=weight_of(8 * 32, 200, kind, bias=True))
    where = maker.rows([list(range(20, 20 + num_rows))], 16, 6)
    x, rope = rows(num_rows, 200), maker.rope(32)
    pages = maker.pages(heads, 6, 16, torch.bfloat16)
    outcomes = []
    for ops in (kernels(), ReferenceOps()):
        own = copied(pages)
        out = poisoned(num_rows, 4, 32, dtype=torch.bfloat16, device=DEVICE)
        ops.queries(x, layer, rope, where, own, out)
        at = where.positions.long()
        page = where.tables[0, at // 16].long()
        outcomes.append((out, own.keys[page, :, at % 16], own.values[page, :, at % 16]))
    for found, expected in zip(*outcomes, strict=True):
        assert_near(found, expected)


def test_columns_of_another_unit_are_not_read() -> None:
    """NaN in the memory around all operands."""
    kind, x = Int4Kind(32, True), rows(2, 200)
    weight = weight_of(40, 200, kind, bias=True)
    assert weight.offsets is not None

    def within(part: Tensor) -> Tensor:
        fill = 0xFF if part.dtype == torch.uint8 else torch.nan
        around = torch.full((3 * part.numel(),), fill, device=DEVICE, dtype=part.dtype)
        return around[part.numel() : 2 * part.numel()].view(part.shape).copy_(part)

    surrounded = replace(
        weight,
        codes=within(weight.codes),
        scales=within(weight.scales),
        offsets=within(weight.offsets),
    )
    for num_rows in (2, 12):
        x = rows(num_rows, 200)
        outcomes = []
        for each, own in ((weight, x), (surrounded, within(x))):
            residual = torch.zeros(num_rows, 40, device=DEVICE)
            kernels().add_product(own, each, residual)
            outcomes.append(residual)
        assert torch.equal(*outcomes)


def test_rows_that_do_not_lie_together_are_refused() -> None:
    weight = weight_of(64, 64, Int4Kind(32, False))
    for num_rows in (2, 12):
        x = rows(num_rows, 128)[:, :64]
        with pytest.raises(ValueError, match="one behind the other"):
            kernels().add_product(x, weight, x.clone())


def test_the_oracle_is_the_stored_matrix() -> None:
    """Codes less zero points times scales, in float64."""
    weight = weight_of(30, 200, Int4Kind(64, True))
    matrix = unpack(weight)
    spread = partial(torch.repeat_interleave, repeats=64, dim=1)
    zeros, scales = (spread(each)[:, :200].double() for each in (matrix.zeros, matrix.scales))
    x, norm = rows(3, 200, FLOAT32.activations), Maker(1, DEVICE).norm(200)
    expected = normalized(x, norm).double() @ ((matrix.codes.double() - zeros) * scales).T
    out = torch.empty(3, 30, device=DEVICE)
    ReferenceOps().logits(x, norm, weight, out)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
