"""FlashInfer attention: when it serves, when our kernel does, and the arguments it gets."""

import logging
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from llm_engine.cuda.ops.interface import MAX_ROWS, Heads, Matrix, Norm, Rows
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from tests.support.llm.cuda_ops_cases import BF16, FP8, Maker, assert_near, shortened
from tests.support.llm.cuda_ops_devices import DEVICE, kernels

from llm_engine.cuda.ops import flashinfer_attention  # isort: skip
from llm_engine.cuda.ops import interface, triton_ops

from llm_engine.cuda.kernels.prefill import lengths_kernel  # isort: skip
from llm_engine.cuda.ops.flashinfer_attention import XqaAttention, xqa_or_none  # isort: skip

HEADS = Heads(num_heads=2, num_kv_heads=1, head_dim=16)
PAGE = 64
NUM_PAGES = 8
Xqa = Callable[..., Tensor]


class FakeXqa:
    """Checks what it is told as FlashInfer 0.6.18 documents it, and computes with the oracle."""

    def __init__(self, error_by_queries: float = 0.0) -> None:
        self.calls: list[dict[str, Any]] = []
        self._error_by_queries = error_by_queries

    def __call__(
        self, query: Tensor, kv_cache: tuple[Tensor, Tensor], workspace_buffer: Tensor,
        block_tables: Tensor, seq_lens: Tensor, max_seq_len: int, **options: Any,
    ) -> Tensor:  # fmt: skip
        self.calls.append({"seq_lens": seq_lens.clone(), "query": query, **options})
        num_seqs, num_queries = len(block_tables), options["q_len_per_req"]
        keys, values = kv_cache
        _, num_kv_heads, page_size, head_dim = keys.shape
        num_heads = query.shape[1]
        assert options["kv_layout"] == "HND"
        assert query.shape == (num_seqs * num_queries, num_heads, head_dim)
        assert keys.shape == values.shape
        assert keys.dtype == values.dtype == query.dtype
        assert page_size in (16, 32, 64, 128)
        assert num_heads % num_kv_heads == 0
        assert workspace_buffer.dtype == torch.uint8
        assert workspace_buffer.numel() > 8 << 20  # the counters' part alone
        assert not workspace_buffer.any()
        assert block_tables.dtype == seq_lens.dtype == torch.int32
        assert seq_lens.shape == (num_seqs,)
        assert (seq_lens >= num_queries).all()
        assert max_seq_len == block_tables.shape[1] * page_size
        assert options["bmm1_scale"] == pytest.approx(1 / math.sqrt(head_dim))
        assert options["bmm2_scale"] == 1.0
        out: Tensor = options["out"]
        if num_queries > 1:
            assert out.shape == (num_seqs, num_queries, num_heads, head_dim)
            self._check_mask(options["mask"], num_seqs, num_queries)
        else:
            assert out.shape == query.shape
            assert options["mask"] is None
        window = None if options["window_left"] < 0 else options["window_left"] + 1
        layer = interface.Attention(
            Norm(query, 0.0), Matrix(query), Heads(num_heads, num_kv_heads, head_dim), window=window
        )
        offsets = torch.arange(num_queries, dtype=torch.int32, device=query.device)
        positions = (seq_lens[:, None] - num_queries + offsets).reshape(-1)
        result = torch.empty_like(query)
        pages = interface.LayerPages(keys, values)
        ReferenceOps().attend(query, layer, Rows(positions, block_tables), pages, result)
        out.copy_((result + self._error_by_queries * (num_queries - 1)).view_as(out))
        return out

    @staticmethod
    def _check_mask(mask: Tensor, num_seqs: int, num_queries: int) -> None:
        """Bits, in words of 16, a multiple of 32 to a row."""
        assert mask.dtype == torch.uint16
        assert mask.shape == (num_seqs, num_queries, 2)
        assert mask.is_contiguous()
        for lane in mask.tolist():
            assert lane == [[2 ** (row + 1) - 1, 0] for row in range(num_queries)]


def install(monkeypatch: pytest.MonkeyPatch, xqa: Xqa | None) -> None:
    """A FlashInfer with this function; None: one that cannot be imported."""
    package, decode = ModuleType("flashinfer"), ModuleType("flashinfer.decode")
    decode.xqa_batch_decode_with_kv_cache = xqa  # type: ignore[attr-defined]
    package.decode = decode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", package if xqa else None)
    monkeypatch.setitem(sys.modules, "flashinfer.decode", decode if xqa else None)


def with_flashinfer(xqa: XqaAttention | None) -> triton_ops.TritonOps:
    return triton_ops.TritonOps(DEVICE, attention=xqa, num_sms=8, num_floats=1 << 18)


def a_step(
    maker: Maker, lanes: list[list[int]], *, window: int | None = None
) -> tuple[Tensor, interface.Attention, Rows, interface.LayerPages]:
    layer = maker.attention(32, HEADS, BF16, window=window)
    rows = maker.rows(lanes, PAGE, NUM_PAGES)
    rows = replace(rows, tables=rows.tables.clamp(max=NUM_PAGES - 1))
    pages = maker.pages(HEADS, NUM_PAGES, PAGE, torch.bfloat16)
    maker.fill(pages, rows)
    queries = maker.normal(len(rows.positions), 2, 16, dtype=torch.bfloat16)
    return queries, layer, rows, pages


def test_a_missing_flashinfer_is_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, None)
    assert xqa_or_none(DEVICE) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "our own kernel" in record.getMessage()
    assert "flashinfer" in record.getMessage()


def test_a_flashinfer_that_breaks_at_import_is_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        """Asks for a GPU when something is taken from it, as several releases do at import."""

        def __getattr__(self, name: str) -> Any:
            raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setitem(sys.modules, "flashinfer", Broken())
    monkeypatch.setitem(sys.modules, "flashinfer.decode", Broken())
    assert xqa_or_none(DEVICE) is None
    assert "Torch not compiled with CUDA" in caplog.text


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(
    "lanes", [[[0]], [[100], [5]], [[62, 63, 64, 65], [200, 201, 202, 203]]], ids=str
)
def test_flashinfer_serves_few_rows(
    lanes: list[list[int]], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeXqa()
    install(monkeypatch, fake)
    queries, layer, rows, pages = a_step(Maker(1, DEVICE), lanes, window=window)
    served = with_flashinfer(xqa_or_none(DEVICE))
    out, expected = (torch.full_like(queries, torch.nan) for _ in range(2))
    served.attend(queries, layer, rows, pages, out)
    num_trials = len(fake.calls)
    assert fake.calls[-1]["query"] is queries
    assert fake.calls[-1]["seq_lens"].tolist() == [lane[-1] + 1 for lane in lanes]
    ReferenceOps().attend(queries, layer, rows, pages, expected)
    assert_near(out, expected)
    served.attend(queries, layer, rows, pages, out)
    assert len(fake.calls) == num_trials + 1, "a kind of layer is tried once"


def test_rows_that_only_fill_up_follow_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer is told of a lane's last row, and takes those before it for consecutive."""
    fake = FakeXqa()
    install(monkeypatch, fake)
    maker = Maker(2, DEVICE)
    queries, layer, rows, pages = a_step(maker, [[60, 61, 62, 63], [10, 11, 12, 13]])
    padded = replace(rows, positions=rows.positions.clone())
    padded.positions[2:4] = -1
    out, expected = torch.empty_like(queries), torch.empty_like(queries)
    served = with_flashinfer(xqa_or_none(DEVICE))
    served.attend(queries, layer, padded, pages, out)
    ReferenceOps().attend(queries, layer, rows, pages, expected)
    assert_near(out[:2], expected[:2])
    assert_near(out[4:], expected[4:])
    nobody = Rows(torch.full_like(padded.positions, -1), rows.tables)
    served.attend(queries, layer, nobody, pages, out)
    assert fake.calls[-1]["seq_lens"].tolist() == [4, 4]


def test_keys_are_counted_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its first layer, which finds positions that have changed since in the same place; and
    anew for other rows that come between."""
    fake = FakeXqa()
    install(monkeypatch, fake)
    maker = Maker(8, DEVICE)
    queries, first, rows, pages = a_step(maker, [[20, 21], [70, 71]])
    layers = [first, *(maker.attention(32, HEADS, BF16) for _ in range(2))]
    others = Rows(rows.positions[2:] + 30, rows.tables[1:])
    served = with_flashinfer(xqa_or_none(DEVICE))
    out = torch.empty_like(queries)
    served.attend(queries, first, rows, pages, out)

    num_counted = 0

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            nonlocal num_counted
            num_counted += 1
            launch: Callable[..., None] = lengths_kernel[grid]
            return launch

    monkeypatch.setattr(flashinfer_attention, "lengths_kernel", Counted())

    def step(rows: Rows) -> list[list[int]]:
        chosen = queries[: len(rows.positions)]
        fake.calls.clear()
        for layer in layers:
            served.attend(chosen, layer, rows, pages, out[: len(chosen)])
        return [call["seq_lens"].tolist() for call in fake.calls]

    assert step(rows) == [[22, 72]] * 3
    rows.positions.add_(2)
    assert step(rows) == [[24, 74]] * 3
    assert num_counted == 2
    assert step(others) == [[102]] * 3
    assert step(rows) == [[24, 74]] * 3
    assert step(Rows(rows.positions, rows.tables)) == [[24, 74]] * 3
    assert num_counted == 5


def test_rows_that_differ_when_drafted_are_served_by_our_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeXqa(error_by_queries=2**-6)
    install(monkeypatch, fake)
    served = with_flashinfer(xqa_or_none(DEVICE))
    queries, layer, rows, pages = a_step(Maker(3, DEVICE), [[30, 31, 32, 33]])
    out, expected = torch.empty_like(queries), torch.empty_like(queries)
    for step in (rows, shortened(rows, 4, 1)):
        num_rows = len(step.positions)
        served.attend(queries[:num_rows], layer, step, pages, out[:num_rows])
        assert not any(call["query"] is queries for call in fake.calls)
        kernels().attend(queries[:num_rows], layer, step, pages, expected[:num_rows])
        assert torch.equal(out[:num_rows], expected[:num_rows])
    (record,) = caplog.records
    assert "rounds drafted rows otherwise" in record.getMessage()


def test_a_flashinfer_that_fails_when_called_is_served_by_our_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler(**options: Any) -> Tensor:
        raise RuntimeError("Ninja build failed")

    install(monkeypatch, no_compiler)
    served = with_flashinfer(xqa_or_none(DEVICE))
    queries, layer, rows, pages = a_step(Maker(4, DEVICE), [[3]])
    out = torch.full_like(queries, torch.nan)
    served.attend(queries, layer, rows, pages, out)
    assert out.isfinite().all()
    (record,) = caplog.records
    assert "Ninja build failed" in record.getMessage()


def test_what_flashinfer_does_not_take_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeXqa()
    install(monkeypatch, fake)
    xqa = XqaAttention(DEVICE, workspace_bytes=9 << 20)
    maker = Maker(5, DEVICE)
    queries, layer, _, pages = a_step(maker, [[3]])
    eight_bits = maker.pages(HEADS, NUM_PAGES, PAGE, FP8)
    small_pages = maker.pages(HEADS, NUM_PAGES, 8, torch.bfloat16)
    assert not xqa.serves(queries, layer, eight_bits)
    assert not xqa.serves(queries, layer, small_pages)
    assert not xqa.serves(queries.float(), layer, pages)
    narrow = replace(layer, heads=replace(HEADS, head_dim=24))
    assert not xqa.serves(queries, narrow, pages)
    assert not fake.calls
    assert xqa.serves(queries, layer, pages)


def test_prompts_stay_with_our_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeXqa()
    install(monkeypatch, fake)
    positions = list(range(MAX_ROWS + 1))
    queries, layer, rows, pages = a_step(Maker(6, DEVICE), [positions])
    out = torch.full_like(queries, torch.nan)
    with_flashinfer(xqa_or_none(DEVICE)).attend(queries, layer, rows, pages, out)
    assert out.isfinite().all()
    assert not fake.calls
