"""QKV, rotation, cache write and paged attention: kernels against plain torch."""

import pytest
import torch
from torch import Tensor

from llm_engine.cuda.ops.interface import MAX_ROWS, Attention, Heads, LayerPages, Ops, Rows
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from tests.support.llm.cuda_ops_cases import (
    BF16,
    FLOAT32,
    FP8,
    KINDS,
    ROW_SCALES,
    Kind,
    Maker,
    assert_near,
    copied,
    lane,
    poisoned,
    shortened,
)
from tests.support.llm.cuda_ops_devices import DEVICE, IMPLEMENTATIONS, kernels
from tests.support.llm.int4_cases import not_int4

pytestmark = pytest.mark.slow

NUM_PAGES = 48
PAGE = 16
GROUPED = Heads(num_heads=6, num_kv_heads=2, head_dim=24)
"""Three heads to a pair of key and value, and a width that fills no tile."""
ALONE = Heads(num_heads=3, num_kv_heads=3, head_dim=16)

LANES = {
    "one row": [[0]],
    "drafts": [[70, 71, 72, 73]],
    "a page's edge, and rows that only fill up": [[14, 15, 16, 17], [300, 301, -1, -1]],
    "lanes": [[3], [200], [64], [63], [-1], [128]],
}
each_lanes = pytest.mark.parametrize("lanes", LANES.values(), ids=list(LANES))


def queries(
    ops: Ops, layer: Attention, x: Tensor, rows: Rows, pages: LayerPages
) -> tuple[Tensor, LayerPages]:
    """Queries, and pages as they are then."""
    heads, stored = layer.heads, copied(pages)
    out = poisoned(len(x), heads.num_heads, heads.head_dim, dtype=x.dtype, device=DEVICE)
    ops.queries(x, layer, Maker(0, DEVICE).rope(heads.head_dim), rows, stored, out)
    return out, stored


def attended(ops: Ops, layer: Attention, x: Tensor, rows: Rows, pages: LayerPages) -> Tensor:
    out = torch.full_like(x, torch.nan)
    ops.attend(x, layer, rows, pages, out)
    return out


def same_pages(actual: LayerPages, expected: LayerPages) -> None:
    """Near where something was stored, untouched elsewhere."""
    for mine, theirs in ((actual.keys, expected.keys), (actual.values, expected.values)):
        mine, theirs = mine.float(), theirs.float()
        assert torch.equal(mine.isnan(), theirs.isnan())
        relative = 2**-2 if actual.keys.dtype == FP8 else 2**-6  # one step of either type
        torch.testing.assert_close(mine, theirs, rtol=relative, atol=0.03, equal_nan=True)


@each_lanes
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("qk_norm", [False, True], ids=["", "head norms"])
def test_queries_keys_and_values(qk_norm: bool, kind: Kind, lanes: list[list[int]]) -> None:
    maker = Maker(1, DEVICE)
    heads = ALONE if len(lanes) == 1 else GROUPED
    layer = maker.attention(136, heads, kind, qk_norm=qk_norm, bias=len(lanes) == 2)
    rows = maker.rows(lanes, PAGE, NUM_PAGES)
    pages = maker.pages(heads, NUM_PAGES, PAGE, FP8 if len(lanes) == 2 else kind.activations)
    x = maker.normal(len(rows.positions), 136, dtype=kind.activations) * 2
    actual, stored = queries(kernels(), layer, x, rows, pages)
    expected, should_be = queries(ReferenceOps(), layer, x, rows, pages)
    assert actual.isfinite().all()
    there = rows.positions >= 0
    assert_near(actual[there], expected[there])
    same_pages(stored, should_be)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", [BF16, ROW_SCALES], ids=lambda kind: kind.name)
@pytest.mark.parametrize("qk_norm", [False, True], ids=["", "head norms"])
def test_row_results_do_not_depend_on_the_batch(qk_norm: bool, kind: Kind, name: str) -> None:
    maker, ops = Maker(2, DEVICE), IMPLEMENTATIONS[name]()
    layer = maker.attention(136, GROUPED, kind, qk_norm=qk_norm)
    rows = maker.rows([[5, 6, 7, 8], [100, 101, 102, 103]], PAGE, NUM_PAGES)
    pages = maker.pages(GROUPED, NUM_PAGES, PAGE, kind.activations)
    x = maker.normal(8, 136, dtype=kind.activations)
    all_queries, all_pages = queries(ops, layer, x, rows, pages)
    for row in range(MAX_ROWS):
        alone = Rows(rows.positions[row : row + 1], rows.tables[row // 4 : row // 4 + 1])
        mine, pages = queries(ops, layer, x[row : row + 1], alone, pages)
        assert torch.equal(mine[0], all_queries[row]), row
    # Stored one after another: the same pages as stored together.
    for one, other in ((pages.keys, all_pages.keys), (pages.values, all_pages.values)):
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_values_beyond_8_bits_are_stored_as_the_largest() -> None:
    maker = Maker(3, DEVICE)
    layer = maker.attention(64, ALONE, BF16)
    not_int4(layer.qkv).values.mul_(1000)
    rows = maker.rows([[4]], PAGE, NUM_PAGES)
    pages = maker.pages(ALONE, NUM_PAGES, PAGE, FP8)
    x = maker.normal(1, 64, dtype=torch.bfloat16)
    for ops in (kernels(), ReferenceOps()):
        stored = queries(ops, layer, x, rows, pages)[1].values.float()
        found = stored[~stored.isnan()]
        assert len(found) == ALONE.num_kv_heads * ALONE.head_dim
        assert found.abs().max() == 448


@each_lanes
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8], ids=["bf16", "fp8"])
def test_attention(kv_dtype: torch.dtype, window: int | None, lanes: list[list[int]]) -> None:
    maker = Maker(4, DEVICE)
    heads = ALONE if len(lanes) == 1 else GROUPED
    layer = maker.attention(64, heads, BF16, window=window)
    rows = maker.rows(lanes, PAGE, NUM_PAGES)
    pages = maker.pages(heads, NUM_PAGES, PAGE, kv_dtype)
    maker.fill(pages, rows)
    shape = len(rows.positions), heads.num_heads, heads.head_dim
    x = maker.normal(*shape, dtype=torch.bfloat16) * 2
    actual = attended(kernels(), layer, x, rows, pages)
    assert actual.isfinite().all()
    there = rows.positions >= 0
    assert_near(actual[there], attended(ReferenceOps(), layer, x, rows, pages)[there])


def test_attention_of_many_rows_of_wide_heads() -> None:
    """So many that their parts are put together in several goes."""
    maker, heads = Maker(8, DEVICE), Heads(num_heads=16, num_kv_heads=2, head_dim=128)
    layer = maker.attention(64, heads, BF16)
    rows = maker.rows([list(range(200, 200 + MAX_ROWS))], PAGE, NUM_PAGES)
    pages = maker.pages(heads, NUM_PAGES, PAGE, torch.bfloat16)
    maker.fill(pages, rows)
    x = maker.normal(MAX_ROWS, heads.num_heads, heads.head_dim, dtype=torch.bfloat16)
    results = [attended(ops, layer, x, rows, pages) for ops in (kernels(), ReferenceOps())]
    assert_near(*results)


def test_attention_is_exact_in_float32() -> None:
    maker = Maker(5, DEVICE)
    layer = maker.attention(64, GROUPED, FLOAT32)
    rows = maker.rows([[250, 251], [66, 67]], PAGE, NUM_PAGES)
    pages = maker.pages(GROUPED, NUM_PAGES, PAGE, torch.float32)
    maker.fill(pages, rows)
    x = maker.normal(4, GROUPED.num_heads, GROUPED.head_dim) * 2
    results = [attended(ops, layer, x, rows, pages) for ops in (kernels(), ReferenceOps())]
    assert_near(*results, exact=True)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("kind", "window"), [(BF16, None), (FLOAT32, 193)], ids=str)
def test_a_rows_attention_is_the_same_drafted_and_batched(
    kind: Kind, window: int | None, name: str
) -> None:
    """Positions beside a chunk's edge: later rows see one that the first rows don't, and don't see
    one that the first rows do. There are more chunks than programs to share them.

    In the interpreter a product of float32 is the processor's library's, which adds up in an order
    that may depend on the place in memory."""
    exact = kind is not FLOAT32 or DEVICE.type == "cuda"
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-6}
    maker, ops = Maker(6, DEVICE), IMPLEMENTATIONS[name]()
    layer = maker.attention(64, GROUPED, kind, window=window)
    rows = maker.rows([[126, 127, 128, 129], [254, 255, 256, 257]], PAGE, NUM_PAGES)
    pages = maker.pages(GROUPED, NUM_PAGES, PAGE, kind.activations)
    maker.fill(pages, rows)
    x = maker.normal(8, GROUPED.num_heads, GROUPED.head_dim, dtype=kind.activations)
    together = attended(ops, layer, x, rows, pages)
    for index in range(2):
        chosen = slice(4 * index, 4 * index + 4)
        drafted = attended(ops, layer, x[chosen], lane(rows, index, 4), pages)
        torch.testing.assert_close(drafted, together[chosen], **tolerance)
    firsts = shortened(rows, 4, 1)
    batched = attended(ops, layer, x[::4].contiguous(), firsts, pages)
    torch.testing.assert_close(batched, together[::4], **tolerance)
    for row in range(MAX_ROWS):
        alone = Rows(rows.positions[row : row + 1], rows.tables[row // 4 : row // 4 + 1])
        mine = attended(ops, layer, x[row : row + 1], alone, pages)
        torch.testing.assert_close(mine[0], together[row], **tolerance)


@pytest.mark.parametrize("qk_norm", [False, True], ids=["", "head norms"])
@pytest.mark.parametrize("num_rows", [20, 66])
def test_prompts(num_rows: int, qk_norm: bool) -> None:
    """Two lanes, one with a history; the other one's last rows only fill up."""
    maker, heads = Maker(7, DEVICE), Heads(num_heads=2, num_kv_heads=1, head_dim=16)
    layer = maker.attention(64, heads, BF16, qk_norm=qk_norm, window=100 if qk_norm else None)
    half = num_rows // 2
    lanes = [list(range(90, 90 + half)), [*range(half - 3), -1, -1, -1]]
    rows = maker.rows(lanes, PAGE, NUM_PAGES)
    pages = maker.pages(heads, NUM_PAGES, PAGE, torch.bfloat16)
    maker.fill(pages, rows)
    x = maker.normal(num_rows, 64, dtype=torch.bfloat16)
    actual, stored = queries(kernels(), layer, x, rows, pages)
    expected, should_be = queries(ReferenceOps(), layer, x, rows, pages)
    there = rows.positions >= 0
    assert_near(actual[there], expected[there])
    same_pages(stored, should_be)
    mixed = attended(kernels(), layer, expected, rows, should_be)
    assert mixed.isfinite().all()
    should_mix = attended(ReferenceOps(), layer, expected, rows, should_be)
    assert_near(mixed[there], should_mix[there])
