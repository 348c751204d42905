"""Every operation at real shapes against plain torch, on poisoned outputs, and row by row.

Distances are relative, for each row: a number rounded to bfloat16 is off by 0.11 % on average.
Prompts multiply 8-bit weights with activations of 8 bits, which are off by 2 to 3 %.
"""

import importlib.util
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from llm_engine.checkpoints.int4 import ZERO
from llm_engine.cuda.model import DeviceLayer, DeviceModel
from llm_engine.cuda.ops.int4_layout import pack
from llm_engine.cuda.ops.interface import MAX_ROWS, LayerPages, Matrix, Ops, PartOps, Rows
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from llm_engine.models.int4_rounding import nearest
from tests.gpu import ground
from tests.gpu.ground import Draw, distance, poisoned

pytestmark = ground.pytestmark

CONTEXT = 4096
NUM_PAGES = 1024
WIDTH = 128
CLOSE = 6e-3
CLOSE_IN_8_BITS = 6e-2
LARGE = 1e4
"""For a library that multiplies what it does not need by zero, which NaN survives. A cache begins
with zeros, and then holds what others left in it: finite numbers."""
FUSED_ROWS = 16
"""Up to here activations are not quantized, whatever the weight."""

StepInputs = list[list[int]]
STEPS: dict[str, StepInputs] = {
    "one row": [[700]],
    "the first position": [[0]],
    "a draft of 3": [list(range(1021, 1025))],
    "a draft of 7": [list(range(13, 21))],
    "a part of a step": [[5, 6, -1, -1]],
    "8 sequences": [[0], [15], [16], [17], [333], [1023], [1500], [64]],
    "3 of 4 sequences": [[700], [1], [-1], [90]],
}
PROMPTS: dict[str, StepInputs] = {
    "16 rows": [list(range(16))],
    "37 rows of 64": [[*range(400, 437), *[-1] * 27]],
    "65 rows": [list(range(30, 95))],
    "128 rows": [list(range(128))],
    "512 rows": [list(range(900, 1412))],
}
ALL = STEPS | PROMPTS


@pytest.fixture(
    scope="module",
    params=[
        *(("8b", weights) for weights in ground.FORMATS),
        *((shape, "fp8 by row") for shape in ("1b", "3b", "70b", "qwen2-7b", "qwen3-8b")),
        *((shape, "int4") for shape in ("1b", "70b", "qwen2-7b", "qwen3-8b")),
    ],
    ids=lambda param: " ".join(param),
)
def model(request: pytest.FixtureRequest) -> Iterator[DeviceModel]:
    shape, weights = request.param
    yield ground.model(shape, weights, 1, CONTEXT)
    if not ground.ground().is_rehearsal:
        torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def ops() -> Ops:
    """Kernels of our own for everything."""
    return ground.ground().ops(flashinfer=False)


@pytest.fixture(scope="module")
def flashinfer() -> Ops:
    """With FlashInfer's attention for few rows, where it serves."""
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("FlashInfer is not installed")
    return ground.ground().ops()


def bound(model: DeviceModel, num_rows: int) -> float:
    weight = layer_of(model).out
    is_8_bit = isinstance(weight, Matrix) and weight.scales is not None
    return CLOSE_IN_8_BITS if is_8_bit and num_rows > FUSED_ROWS else CLOSE


def in_use(rows: Rows) -> Tensor:
    return (rows.positions >= 0).nonzero().squeeze(1)


def filled(lanes: StepInputs) -> StepInputs:
    """Rows that only fill up need no page, but a table wants to know where a lane ends."""
    return [[max(0, each) for each in lane] for lane in lanes]


def with_gaps(rows: Rows, lanes: StepInputs) -> Rows:
    positions = torch.tensor([each for lane in lanes for each in lane], dtype=torch.int32)
    return replace(rows, positions=positions.to(rows.positions.device))


def layer_of(model: DeviceModel) -> DeviceLayer:
    return model.layers[0]


@pytest.mark.parametrize("name", ALL)
def test_queries_and_what_they_append(model: DeviceModel, ops: Ops, name: str) -> None:
    draw, config, attention = Draw(1), model.config, layer_of(model).attention
    lanes = ALL[name]
    rows = with_gaps(draw.rows(filled(lanes), NUM_PAGES, WIDTH), lanes)
    x = draw.normal(len(rows.positions), config.hidden_size)
    outcomes = []
    for each in (ops, ReferenceOps()):
        pages = draw.pages(config, NUM_PAGES)
        out = poisoned(len(x), config.num_heads, config.head_dim)
        each.queries(x.clone(), attention, model.rope, rows, pages, out)
        outcomes.append((out[in_use(rows)], pages))
    (out, pages), (expected, expected_pages) = outcomes
    assert distance(out, expected) < bound(model, len(x))
    assert_same_places(pages, expected_pages, bound(model, len(x)))


def assert_same_places(pages: LayerPages, expected: LayerPages, limit: float) -> None:
    """Stored where they belong, and nowhere else."""
    for part, right in ((pages.keys, expected.keys), (pages.values, expected.values)):
        assert torch.equal(part.isnan(), right.isnan())
        is_stored = ~right.isnan().any(dim=-1)
        assert distance(part[is_stored], right[is_stored]) < 3 * limit  # of one head each


@pytest.mark.parametrize("name", ALL)
def test_attention(model: DeviceModel, ops: Ops, name: str) -> None:
    assert_attends(model, ops, name)


@pytest.mark.parametrize("name", ALL)
def test_attention_by_flashinfer(model: DeviceModel, flashinfer: Ops, name: str) -> None:
    assert_attends(model, flashinfer, name, poison=LARGE)


def assert_attends(model: DeviceModel, ops: Ops, name: str, poison: float = math.nan) -> None:
    draw, config = Draw(2), model.config
    lanes = ALL[name]
    rows = draw.rows(filled(lanes), NUM_PAGES, WIDTH)
    pages = draw.pages(config, NUM_PAGES, rows, poison)
    rows = with_gaps(rows, lanes)
    queries = draw.normal(len(rows.positions), config.num_heads, config.head_dim)
    for window in (None, 64):
        attention = replace(layer_of(model).attention, window=window)
        outcomes = []
        for each in (ops, ReferenceOps()):
            out = poisoned(*queries.shape)
            each.attend(queries.clone(), attention, rows, pages, out)
            outcomes.append(out[in_use(rows)])
        assert distance(*outcomes) < CLOSE


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8, 16, 37, 64, 65, 128, 512])
@pytest.mark.parametrize("name", ["out", "down"])
def test_products_that_add(model: DeviceModel, ops: Ops, name: str, num_rows: int) -> None:
    draw, weight = Draw(3), getattr(layer_of(model), name)
    x = draw.normal(num_rows, weight.num_in)
    residual = draw.normal(num_rows, weight.num_out)
    found, expected = residual.clone(), residual.clone()
    ops.add_product(x, weight, found)
    ReferenceOps().add_product(x, weight, expected)
    assert distance(found, expected) < bound(model, num_rows)


@pytest.mark.parametrize("num_rows", [1, 3, MAX_ROWS])
@pytest.mark.parametrize("name", ["out", "down"])
def test_parts_that_devices_add(model: DeviceModel, ops: PartOps, name: str, num_rows: int) -> None:
    draw, weight = Draw(7), getattr(layer_of(model), name)
    num_out, num_in = weight.num_out, weight.num_in
    residual = draw.normal(num_rows, num_out)
    inputs = [draw.normal(num_rows, num_in) for _ in range(2)]
    outcomes = []
    for each in (ops, ReferenceOps()):
        parts = poisoned(2, num_rows, num_out, dtype=torch.float32)
        for x, part in zip(inputs, parts, strict=True):
            each.part(x.clone(), weight, part)
        total = residual.clone()
        each.add_parts(parts, total)
        outcomes.append((parts, total))
    for found, expected in zip(*outcomes, strict=True):
        assert distance(found, expected) < CLOSE


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8, 16, 37, 64, 65, 128, 512])
def test_gate_and_up(model: DeviceModel, ops: Ops, num_rows: int) -> None:
    draw, layer = Draw(4), layer_of(model)
    x = draw.normal(num_rows, model.config.hidden_size)
    outcomes = []
    for each in (ops, ReferenceOps()):
        out = poisoned(num_rows, model.config.intermediate_size)
        each.gate_up(x.clone(), layer.mlp_norm, layer.gate_up, out)
        outcomes.append(out)
    assert distance(*outcomes) < 2 * bound(model, num_rows)  # a product of two


def numbers_that_8_bits_hold(draw: Draw, num_rows: int, width: int) -> Tensor:
    """Whose rounding to 8 bits changes nothing, whether rows share a scale or 128 columns do: the
    largest is 448 times a power of two, and no number is far below it."""
    numbers = draw.normal(num_rows, width, dtype=torch.float32).clamp(-3, 3) * 149
    numbers = torch.where(numbers.abs() < 8, 8, numbers)
    numbers[:, ::128] = 448
    power = torch.arange(width, device=numbers.device) // 128 % 3 - 9
    exact = numbers.to(torch.float8_e4m3fn).float() * torch.exp2(power)
    return exact.to(torch.bfloat16)


@pytest.mark.parametrize("num_rows", [65, 128, 512])
@pytest.mark.parametrize("name", ["out", "down"])
def test_prompts_are_exact_but_for_their_rounding(
    model: DeviceModel, ops: Ops, name: str, num_rows: int
) -> None:
    """A wrong scale, a block left out, sums that lose digits: all hidden by 3 % otherwise."""
    draw, weight = Draw(6), getattr(layer_of(model), name)
    x = numbers_that_8_bits_hold(draw, num_rows, weight.num_in)
    residual = draw.normal(num_rows, weight.num_out)
    found, expected = residual.clone(), residual.clone()
    ops.add_product(x, weight, found)
    ReferenceOps().add_product(x, weight, expected)
    assert distance(found, expected) < CLOSE


@pytest.mark.parametrize("num_rows", [1, 3, MAX_ROWS, 16, 64, 128, 512])
@pytest.mark.parametrize("has_zeros", [True, False])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_groups_of_4_bits(ops: Ops, group: int, has_zeros: bool, num_rows: int) -> None:
    """Layouts of files that random models don't have, and columns that fill no unit."""
    draw, num_out, num_in = Draw(8), 4096, 4096 - 96
    made = nearest(draw.normal(num_out, num_in) / num_in**0.5, group, torch.float16)
    zeros = made.zeros if has_zeros else torch.full_like(made.zeros, ZERO)
    weight = pack(replace(made, zeros=zeros))
    x, residual = draw.normal(num_rows, num_in), draw.normal(num_rows, num_out)
    found, expected = residual.clone(), residual.clone()
    ops.add_product(x, weight, found)
    ReferenceOps().add_product(x, weight, expected)
    assert distance(found, expected) < CLOSE


@pytest.mark.parametrize("num_rows", [1, 2, 7, 8])
def test_logits(model: DeviceModel, ops: Ops, num_rows: int) -> None:
    draw = Draw(5)
    x = draw.normal(num_rows, model.config.hidden_size)
    outcomes = []
    for each in (ops, ReferenceOps()):
        out = poisoned(num_rows, model.config.vocab_size, dtype=torch.float32)
        each.logits(x.clone(), model.norm, model.head, out)
        outcomes.append(out)
    assert distance(*outcomes) < CLOSE


# --- a row is the same bits in whatever step it stands ---


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_products_do_not_depend_on_the_others(
    model: DeviceModel, ops: Ops, seed: int
) -> None:
    draw, config, layer = Draw(10 + seed), model.config, layer_of(model)
    hidden = draw.normal(MAX_ROWS, config.hidden_size)
    inner = draw.normal(MAX_ROWS, config.intermediate_size)
    heads = draw.normal(MAX_ROWS, layer.out.num_in)

    def outcome(chosen: list[int]) -> list[Tensor]:
        num_rows = len(chosen)
        x = hidden[chosen].clone()
        gated = poisoned(num_rows, config.intermediate_size)
        ops.gate_up(x, layer.mlp_norm, layer.gate_up, gated)
        logits = poisoned(num_rows, config.vocab_size, dtype=torch.float32)
        ops.logits(x, model.norm, model.head, logits)
        after_out, after_down = x.clone(), x.clone()
        ops.add_product(heads[chosen].clone(), layer.out, after_out)
        ops.add_product(inner[chosen].clone(), layer.down, after_down)
        return [gated, logits, after_out, after_down]

    whole = outcome(list(range(MAX_ROWS)))
    for num_rows in range(1, MAX_ROWS + 1):
        for first in {0, MAX_ROWS - num_rows}:
            chosen = list(range(first, first + num_rows))
            for part, all_rows in zip(outcome(chosen), whole, strict=True):
                assert torch.equal(part, all_rows[chosen]), f"{num_rows} rows from {first}"


@pytest.mark.parametrize("last", [7, 100, 1023, 1500])
def test_rows_of_attention_do_not_depend_on_the_others(
    model: DeviceModel, ops: Ops, last: int
) -> None:
    assert_rows_stand_alone(model, ops, last)


@pytest.mark.parametrize("last", [7, 100, 1023, 1500])
def test_rows_of_flashinfer_do_not_depend_on_the_others(
    model: DeviceModel, flashinfer: Ops, last: int
) -> None:
    assert_rows_stand_alone(model, flashinfer, last, poison=LARGE)


def assert_rows_stand_alone(
    model: DeviceModel, ops: Ops, last: int, poison: float = math.nan
) -> None:
    draw, config, attention = Draw(20), model.config, layer_of(model).attention
    positions = list(range(last - MAX_ROWS + 1, last + 1))
    rows = draw.rows([positions], NUM_PAGES, WIDTH)
    stored = draw.pages(config, NUM_PAGES, rows, poison)
    x = draw.normal(MAX_ROWS, config.hidden_size)

    def outcome(chosen: list[int], num_seqs: int) -> list[Tensor]:
        """Of these rows; with several lanes, each is a sequence of its own in the same pages."""
        where = Rows(rows.positions[chosen].clone(), rows.tables.expand(num_seqs, -1).contiguous())
        pages = LayerPages(stored.keys.clone(), stored.values.clone())
        queries = poisoned(len(chosen), config.num_heads, config.head_dim)
        ops.queries(x[chosen].clone(), attention, model.rope, where, pages, queries)
        # The keys that all rows together would have stored: those before must not depend on M.
        out = poisoned(*queries.shape)
        ops.attend(queries, attention, where, pages, out)
        return [queries, out]

    whole = outcome(list(range(MAX_ROWS)), 1)
    for num_rows in (1, 2, 4):
        chosen = list(range(num_rows))
        for part, all_rows in zip(outcome(chosen, 1), whole, strict=True):
            assert torch.equal(part, all_rows[chosen]), f"{num_rows} rows"
    for each, alone in zip(outcome(list(range(MAX_ROWS)), MAX_ROWS), outcome([0], 1), strict=True):
        assert torch.equal(each[:1], alone), "beside other sequences"


@pytest.mark.parametrize("num_rows", [128, 512])
def test_a_prompt_twice_is_the_same_bits(model: DeviceModel, ops: Ops, num_rows: int) -> None:
    draw, config, layer = Draw(31), model.config, layer_of(model)
    x = draw.normal(num_rows, config.hidden_size)

    def outcome() -> list[Tensor]:
        gated, residual = poisoned(num_rows, config.intermediate_size), x.clone()
        ops.gate_up(x, layer.mlp_norm, layer.gate_up, gated)
        ops.add_product(gated, layer.down, residual)
        return [gated, residual]

    first = outcome()
    for _ in range(ground.ground().count(200)):
        for part, before in zip(outcome(), first, strict=True):
            assert torch.equal(part, before)


def test_the_same_twice_is_the_same_bits(model: DeviceModel, ops: Ops) -> None:
    """A race would show: counters and partial sums are used anew by every call."""
    draw, layer = Draw(30), layer_of(model)
    x = draw.normal(MAX_ROWS, model.config.intermediate_size)
    residual = draw.normal(MAX_ROWS, model.config.hidden_size)
    first = residual.clone()
    ops.add_product(x, layer.down, first)
    for _ in range(ground.ground().count(500)):
        again = residual.clone()
        ops.add_product(x, layer.down, again)
        assert torch.equal(first, again)
