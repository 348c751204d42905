"""Products of prompts with 8-bit weights by our own kernel: what plain torch makes of activations
that were rounded alike.

Activations are float32 here, so that nothing else is rounded: what is left is the order of sums. A
GPU's matrix units add less exactly than the interpreter, and are held to bfloat16's distance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from llm_engine.cuda.kernels.common import EMULATED
from llm_engine.cuda.ops.interface import Heads, Matrix, Norm
from llm_engine.cuda.ops.prefill_gemm import PrefillGemm
from llm_engine.cuda.ops.reference_ops import dense, normalized
from llm_engine.cuda.ops.triton_ops import FUSED_BLOCK_ROWS
from llm_engine.cuda.quantization.quantize import quantize
from tests.support.llm.cuda_ops_cases import Kind, Maker, assert_near, poisoned
from tests.support.llm.cuda_ops_devices import DEVICE, kernels
from tests.support.llm.int4_cases import not_int4

pytestmark = pytest.mark.slow

BLOCKS = Kind("fp8 by block", torch.float32, (128, 128))
ROWS = Kind("fp8 by row", torch.float32, (1, 0))
GUARD = 2
"""Rows behind the last one, which nobody may write."""


@dataclass(frozen=True)
class Shape:
    num_rows: int
    num_out: int
    num_in: int
    kind: Kind = BLOCKS


SHAPES = (
    Shape(65, 128, 256),
    Shape(128, 256, 128),
    Shape(130, 72, 520),  # partial blocks everywhere; pairs whose scales change within a tile
    Shape(65, 384, 1),
    Shape(129, 200, 130),
    Shape(65, 97, 150, ROWS),
    Shape(129, 130, 264, ROWS),
)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def operands(
    shape: Shape, dtype: torch.dtype = torch.float32, *, bias: bool = True, pairs: bool = False
) -> tuple[Tensor, Norm, Matrix]:
    """x, whose rows and groups of columns differ in size, one row all zero."""
    maker = Maker(shape.num_rows + shape.num_in, DEVICE)
    num_out = 2 * shape.num_out if pairs else shape.num_out
    weight = maker.matrix(num_out, shape.num_in, shape.kind, bias=bias)
    x = maker.normal(shape.num_rows, shape.num_in)
    x *= torch.logspace(-1, 1, shape.num_rows, device=DEVICE)[:, None]
    x *= torch.exp2(torch.arange(shape.num_in, device=DEVICE) // 128 % 3 - 1)
    x[shape.num_rows // 2] = 0
    norm = maker.norm(shape.num_in)
    return decided(x.to(dtype), norm), norm, weight


def decided(x: Tensor, norm: Norm) -> Tensor:
    """Zero for what another order of sums, in the norm, might round to the other side."""
    for values in (x.float(), normalized(x, norm)):
        x = x.masked_fill(is_between(values), 0)
    return x


def is_between(x: Tensor) -> Tensor:
    spread = quantize(x, (1, 128)).scales.repeat_interleave(128, 1)[:, : x.shape[1]]
    up, down = (x / spread * factor for factor in (1 + 1e-5, 1 - 1e-5))
    return in_8_bits(up) != in_8_bits(down)


def in_8_bits(x: Tensor) -> Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def rounded(x: Tensor) -> Tensor:
    """To 8 bits and back, 128 columns sharing a scale."""
    return quantize(x, (1, 128)).dequantize()


def product(x: Tensor, weight: Matrix) -> Tensor:
    """`rounded(x)` times the weight, as exactly as float64 has it."""
    biases = 0 if weight.bias is None else weight.bias.double()
    return (rounded(x).double() @ dense(weight).double().T + biases).float()


def guarded(num_rows: int, num_out: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return poisoned(num_rows + GUARD, num_out, dtype=dtype, device=DEVICE)


def assert_same(out: Tensor, expected: Tensor) -> None:
    """Of `guarded`: all there, and nothing behind."""
    assert_near(out[:-GUARD], expected, exact=EMULATED)
    assert out[-GUARD:].isnan().all()


def ours() -> PrefillGemm:
    """Our kernel also where a library would take the product."""
    return replace(kernels()._prompts, scales_in_library=False)


@pytest.mark.parametrize("with_norm", [True, False])
def test_rows_are_rounded_as_weights_are(with_norm: bool) -> None:
    """A scale for each 128 columns, the last of them filled up with zeros; none is too small."""
    x, norm, weight = operands(Shape(65, 72, 300))
    x[1] *= 1e-30
    values, scales = ours()._rounded(x, norm if with_norm else None, weight, 128)
    expected = quantize(normalized(x, norm) if with_norm else x, (1, 128))
    torch.testing.assert_close(scales, expected.scales.T, rtol=1e-6, atol=0)
    assert torch.equal(values[:, :300].float(), expected.values.float())
    assert not values[:, 300:].float().any()


@each_shape
@pytest.mark.parametrize("bias", [True, False])
def test_a_product(shape: Shape, bias: bool) -> None:
    x, _, weight = operands(shape, bias=bias)
    out = guarded(shape.num_rows, shape.num_out)
    ours().product(x, None, weight, out[:-GUARD])
    assert_same(out, product(x, weight))
    again = ours().product(x, None, weight)
    assert torch.equal(again, out[:-GUARD]), "another result for the same numbers"


@each_shape
def test_a_product_of_normalized_rows(shape: Shape) -> None:
    x, norm, weight = operands(shape)
    out = guarded(shape.num_rows, shape.num_out)
    ours().product(x, norm, weight, out[:-GUARD])
    assert_same(out, product(normalized(x, norm), weight))


@each_shape
def test_a_product_that_is_added(shape: Shape) -> None:
    x, _, weight = operands(shape)
    residual = guarded(shape.num_rows, shape.num_out)
    residual[:-GUARD] = Maker(1, DEVICE).normal(shape.num_rows, shape.num_out)
    expected = residual[:-GUARD] + product(x, weight)
    ours().add(x, weight, residual[:-GUARD])
    assert_same(residual, expected)


@each_shape
def test_gate_and_up(shape: Shape) -> None:
    x, norm, weight = operands(shape, pairs=True)
    out = guarded(shape.num_rows, shape.num_out)
    ours().gate_up(x, norm, weight, out[:-GUARD])
    gate, up = product(normalized(x, norm), weight).chunk(2, dim=1)
    assert_same(out, functional.silu(gate) * up)


@pytest.mark.parametrize("shape", SHAPES[-2:], ids=str)
def test_logits_are_not_rounded_to_activations(shape: Shape) -> None:
    """Activations in bfloat16, the result in float32."""
    x, norm, weight = operands(shape, torch.bfloat16)
    out = guarded(shape.num_rows, shape.num_out)
    ours().product(x, norm, weight, out[:-GUARD])
    assert_same(out, product(normalized(x, norm), weight))


@pytest.mark.parametrize("kind", [BLOCKS, ROWS], ids=lambda kind: kind.name)
def test_bfloat16_is_rounded_once(kind: Kind) -> None:
    shape = Shape(70, 136, 300, kind)
    x, _, weight = operands(shape, torch.bfloat16)
    residual = Maker(2, DEVICE).normal(shape.num_rows, shape.num_out, dtype=torch.bfloat16)
    exact = residual.float() + product(x, weight)
    ours().add(x, weight, residual)
    torch.testing.assert_close(residual.float(), exact, rtol=2**-8, atol=1e-5 if EMULATED else 0.03)


def test_a_row_of_zeros_is_the_bias() -> None:
    shape = Shape(65, 128, 256)
    x, _, weight = operands(shape)
    assert weight.bias is not None
    out = ours().product(x, None, weight)
    assert torch.equal(out[32], weight.bias)


@pytest.mark.parametrize("qk_norm", [True, False])
def test_queries_keys_and_values(qk_norm: bool) -> None:
    """What is placed is this product."""
    maker, heads, num_rows = Maker(3, DEVICE), Heads(4, 2, 64), FUSED_BLOCK_ROWS + 1
    layer = maker.attention(200, heads, BLOCKS, qk_norm=qk_norm, bias=True)
    rows = maker.rows([list(range(20, 20 + num_rows))], 16, 12)
    x, rope = decided(maker.normal(num_rows, 200), layer.norm), maker.rope(64)
    pages = maker.pages(heads, 12, 16, torch.float32)
    out = poisoned(num_rows, 4, 64, dtype=torch.float32, device=DEVICE)
    kernels().queries(x, layer, rope, rows, pages, out)

    projected = product(normalized(x, layer.norm), not_int4(layer.qkv)).view(num_rows, 8, 64)
    queries, values = projected[:, :4], projected[:, 6:]
    if layer.q_norm is not None:
        queries = normalized(queries, layer.q_norm)
    first, second = queries.chunk(2, dim=2)
    cos, sin = (table[20 : 20 + num_rows, None] for table in (rope.cos, rope.sin))
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=2)
    assert_near(out, turned, exact=EMULATED)
    at = rows.positions.long()
    page = rows.tables[0, at // 16].long()
    assert_near(pages.values[page, :, at % 16], values, exact=EMULATED)


@pytest.mark.parametrize("call", ["product", "add", "gate_up"])
def test_what_is_not_supported_is_named(call: str) -> None:
    maker, products = Maker(4, DEVICE), ours()
    square = maker.matrix(256, 256, BLOCKS)
    narrow = replace(square, scales=torch.ones(4, 4, device=DEVICE), block=(64, 64))
    calls: dict[str, Callable[[Tensor, Matrix], object]] = {
        "product": lambda x, weight: products.product(x, None, weight),
        "add": lambda x, weight: products.add(x, weight, x.clone()),
        "gate_up": lambda x, weight: products.gate_up(
            x, maker.norm(256), weight, x[:, :128].clone()
        ),
    }
    x = maker.normal(70, 256)
    with pytest.raises(ValueError, match="scales of 64 columns"):
        calls[call](x, narrow)
    wide = maker.normal(70, 512)
    with pytest.raises(ValueError, match="one behind the other"):
        calls[call](wide[:, :256], square)


def test_no_row_is_read_or_written_that_is_not_there() -> None:
    """NaN in the memory around all operands."""
    shape = Shape(65, 200, 300)
    x, norm, weight = operands(shape)
    expected = ours().product(x, norm, weight)

    def within(part: Tensor) -> Tensor:
        around = torch.full((3 * part.numel(),), math.nan, device=DEVICE).to(part.dtype)
        inside = around[part.numel() : 2 * part.numel()].view(part.shape)
        return inside.copy_(part)

    assert weight.scales is not None
    assert weight.bias is not None
    surrounded = replace(
        weight,
        values=within(weight.values),
        scales=within(weight.scales),
        bias=within(weight.bias),
    )
    found = ours().product(within(x), Norm(within(norm.weight), norm.eps), surrounded)
    assert torch.equal(found, expected)
