"""ONNX backend: batch invariance; sequences that grow, are truncated and copied."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from llm_engine.backends import (
    batch_invariance,
    int8_saturation,
    onnx_cpu,
    onnx_graph,
    onnx_packing,
)
from llm_engine.backends.base import Backend, Plan, ScoredRow, SequenceRows, Slot, SubBatch
from llm_engine.backends.cpu import CpuBackend
from llm_engine.backends.factory import make_backend
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.checkpoints.packed_cache import Array
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.cuda.device import DeviceProbe
from llm_engine.errors import ModelError, RequestError
from tests.llm_engine.checkpoints.test_families import WINDOWED
from tests.support.fakes.llm_decoding import PAGES
from tests.support.fakes.llm_models import save_tiny_model

CONTEXT = 520
MAX_ROWS = 32
"""Of one run with heads of 16."""
INT8 = EngineConfig(precision=Precision.INT8)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "window": ("mistral", {"sliding_window": 24}),
    "windows of some layers": ("qwen2", {**WINDOWED, "max_window_layers": 1}),
    "heads of 20": ("llama", {"head_dim": 20}),
    "heads of 144": ("llama", {"head_dim": 144}),
    "heads of 256": ("qwen3", {"head_dim": 256, "sliding_window": 24}),
    "heads of 512": ("llama", {"head_dim": 512, "num_hidden_layers": 1}),
}
PROMPT = tuple((11 * index + 5) % 310 + 3 for index in range(500))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_model(path, "qwen3", head_dim=16)
    return load_checkpoint(path)


@pytest.fixture(scope="module")
def backend(checkpoint: Checkpoint) -> OnnxBackend:
    return OnnxBackend(checkpoint, INT8, CONTEXT)


def feed(
    backend: OnnxBackend, slot: Slot, token_ids: Sequence[int], first: int, num_sampled: int
) -> Tensor:
    rows = SequenceRows(
        slot, tuple(token_ids), first, num_sampled, SamplingParams(), 0, pages=PAGES
    )
    with torch.inference_mode():
        return torch.tensor(backend.logits(rows))


def in_pieces(backend: OnnxBackend, token_ids: Sequence[int], size: int) -> Tensor:
    """Logits of all rows, run `size` at a time."""
    slot = backend.open_slot()
    parts = [
        feed(backend, slot, token_ids[first : first + size], first, len(token_ids[first:][:size]))
        for first in range(0, len(token_ids), size)
    ]
    backend.close_slot(slot)
    return torch.cat(parts)


@pytest.fixture(scope="module")
def whole(backend: OnnxBackend) -> Tensor:
    return in_pieces(backend, PROMPT, len(PROMPT))


@pytest.mark.parametrize("size", [*range(1, MAX_ROWS + 2), 63, 64, 65, 200])
def test_a_row_does_not_depend_on_its_neighbours(
    backend: OnnxBackend, whole: Tensor, size: int
) -> None:
    assert torch.equal(in_pieces(backend, PROMPT, size), whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_batch", [1, 3])
def test_nor_does_it_where_attention_is_another(kind: str, max_batch: int, tmp_path: Path) -> None:
    """Across the edge of a window, and where the shortest sequences have one key."""
    model_type, changes = KINDS[kind]
    save_tiny_model(tmp_path, model_type, **changes)
    config = replace(INT8, max_batch=max_batch)
    backend = OnnxBackend(load_checkpoint(tmp_path), config, CONTEXT)
    expected = in_pieces(backend, PROMPT, 64)
    for size in (1, 2, 3, 7, 16, 31, 33, 63):
        assert torch.equal(in_pieces(backend, PROMPT, size), expected), size
    if max_batch > 1:
        slots = [backend.open_slot(), backend.open_slot()]
        feed(backend, slots[0], PROMPT[:70], 0, 0)
        work = [
            SequenceRows(slots[0], PROMPT[70:71], 70, 1, SamplingParams(), 0),
            SequenceRows(slots[1], PROMPT[:9], 0, 9, SamplingParams(), 0),
        ]
        outcomes = {rows.slot: torch.tensor(logits) for rows, logits in backend.read(work)}
        assert torch.equal(outcomes[slots[0]], expected[70:71])
        assert torch.equal(outcomes[slots[1]], expected[:9])


def test_nor_on_how_many_rows_are_sampled(backend: OnnxBackend, whole: Tensor) -> None:
    for num_sampled in (0, 1, 2, 5, MAX_ROWS, MAX_ROWS + 1, 200):
        slot = backend.open_slot()
        got = feed(backend, slot, PROMPT[:200], 0, num_sampled)
        assert got.shape == (num_sampled, 320)
        assert torch.equal(got, whole[200 - num_sampled : 200])
        backend.close_slot(slot)


@pytest.mark.parametrize("index", [0, MAX_ROWS - 1, MAX_ROWS, 63, 70, 76, 78, 79])
@pytest.mark.parametrize("num_sampled", [0, 1, 3])
def test_a_scored_row_costs_no_logits_of_the_rows_after_it(
    backend: OnnxBackend, whole: Tensor, index: int, num_sampled: int
) -> None:
    slot = backend.open_slot()
    scored = ScoredRow(index, (5,))
    rows = SequenceRows(
        slot, PROMPT[:80], 0, num_sampled, SamplingParams(), 0, pages=PAGES, scored=scored
    )
    wanted = sorted({index, *range(80 - num_sampled, 80)})
    assert rows.logit_rows == tuple(wanted)
    assert torch.equal(torch.tensor(backend.logits(rows)), whole[wanted])
    result = backend.collect(backend.launch(Plan((SubBatch((rows,)),))))
    assert result.tokens[slot] == tuple(int(row.argmax()) for row in whole[80 - num_sampled : 80])
    expected = whole[index].double().log_softmax(-1)[5]
    assert result.log_probs[slot] == pytest.approx(float(expected), abs=1e-5)
    backend.close_slot(slot)


def test_a_sequence_is_cut_back_by_going_on_from_there(backend: OnnxBackend, whole: Tensor) -> None:
    slot = backend.open_slot()
    feed(backend, slot, PROMPT[:90], 0, 0)
    feed(backend, slot, [7] * 60, 90, 1)
    for kept in (90, 89, 60, 1, 0):
        feed(backend, slot, [9] * 20, kept, 1)
        feed(backend, slot, PROMPT[kept:120], kept, 0)
        assert torch.equal(feed(backend, slot, PROMPT[120:121], 120, 1), whole[120:121])


def test_a_copied_prefix_is_as_good_as_a_cold_one(backend: OnnxBackend, whole: Tensor) -> None:
    source, target = backend.open_slot(), backend.open_slot()
    feed(backend, source, PROMPT, 0, 0)
    feed(backend, target, [4] * 30, 0, 0)
    for num_tokens in (1, 100, 270):
        backend.copy_prefix(source, target, num_tokens)
        feed(backend, source, [8] * 9, num_tokens, 0)  # what the source does next is its own
        rest = feed(backend, target, PROMPT[num_tokens:], num_tokens, 1)
        assert torch.equal(rest, whole[-1:])
        feed(backend, source, PROMPT[num_tokens:], num_tokens, 0)


def test_the_context_can_be_filled_to_its_last_token(backend: OnnxBackend) -> None:
    token_ids = [*PROMPT, *PROMPT[:20]]
    assert len(token_ids) == CONTEXT
    alone = in_pieces(backend, token_ids, 1)
    assert torch.equal(alone, in_pieces(backend, token_ids, MAX_ROWS))
    assert torch.isfinite(alone).all()


@pytest.mark.parametrize("first_capacity", [16, 2048])
def test_memory_is_counted_as_it_is_written(
    first_capacity: int, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_cpu, "_FIRST_CAPACITY", first_capacity)
    backend = OnnxBackend(checkpoint, INT8, 2000)
    slot, other = backend.open_slot(), backend.open_slot()
    assert backend.cache_bytes() == 0
    feed(backend, slot, PROMPT[:1], 0, 1)
    one = backend.cache_bytes() // 2  # a lone row takes a second along
    feed(backend, slot, PROMPT[1:], 1, 1)
    assert backend.cache_bytes() == one * (len(PROMPT) + 1)
    backend.copy_prefix(slot, other, 5)
    assert backend.cache_bytes() == one * (len(PROMPT) + 6)
    feed(backend, slot, PROMPT[:3], 0, 1)  # cut back: what was written stays
    assert backend.cache_bytes() == one * (len(PROMPT) + 6)
    backend.close_slot(slot)
    backend.close_slot(other)
    assert backend.cache_bytes() == 0


def test_pages_follow_from_the_memory_allowed(checkpoint: Checkpoint) -> None:
    config = EngineConfig(precision=Precision.INT8, kv_cache_mb=1)
    layout = OnnxBackend(checkpoint, config, CONTEXT).layout
    token_bytes = 2 * 3 * 2 * 16 * 4  # keys and values, layers, heads, head size, float32
    assert layout.page_size == 16
    assert layout.num_pages == (1 << 20) // (16 * token_bytes)
    assert not layout.shares_pages


def test_where_lone_rows_differ_they_run_in_pairs(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With float activations they do, on every CPU known."""
    monkeypatch.setattr(onnx_graph, "INT8_ACTIVATIONS", 1)
    backend = OnnxBackend(checkpoint, replace(INT8, max_batch=3), CONTEXT)
    pieces = [in_pieces(backend, PROMPT, size) for size in (1, 2, 3)]
    assert torch.equal(pieces[0], pieces[1])
    assert torch.equal(pieces[0], pieces[2])
    slot = backend.open_slot()
    assert torch.equal(feed(backend, slot, PROMPT[:50], 0, 1), pieces[0][49:50])
    other = backend.open_slot()
    work = [
        SequenceRows(slot, PROMPT[50:51], 50, 0, SamplingParams(), 0),
        SequenceRows(other, PROMPT[:1], 0, 1, SamplingParams(), 0),
    ]
    with torch.inference_mode():
        outcomes = {rows.slot: torch.tensor(logits) for rows, logits in backend.read(work)}
    assert torch.equal(outcomes[other], pieces[0][:1])


@pytest.mark.parametrize("level", [onnx_graph.INT8_ACTIVATIONS, 1], ids=["alone", "in pairs"])
def test_how_rows_run_is_checked_once(
    checkpoint: Checkpoint, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked again only where something changed that it may depend on."""
    monkeypatch.setattr(onnx_graph, "INT8_ACTIVATIONS", level)
    checks: list[bool] = []
    check = batch_invariance.is_batch_invariant

    def noted(*arguments: Any) -> bool:
        checks.append(check(*arguments))
        return checks[-1]

    monkeypatch.setattr(batch_invariance, "is_batch_invariant", noted)
    config = replace(INT8, max_batch=3, cache_dir=tmp_path)
    made = OnnxBackend(checkpoint, config, CONTEXT)
    expected = in_pieces(made, PROMPT, 1)
    assert checks == ([True] if level != 1 else [False, True])
    again = OnnxBackend(checkpoint, config, CONTEXT)
    assert len(checks) == (1 if level != 1 else 2)
    assert torch.equal(in_pieces(again, PROMPT, 1), expected)
    assert torch.equal(in_pieces(again, PROMPT, 3), expected)
    for other in (replace(config, max_batch=2), replace(config, num_threads=1)):
        checks.clear()
        OnnxBackend(checkpoint, other, CONTEXT)
        assert checks


def test_a_token_that_does_not_exist_fails_alone(backend: OnnxBackend, whole: Tensor) -> None:
    slot = backend.open_slot()
    feed(backend, slot, PROMPT[:5], 0, 0)
    with pytest.raises(RuntimeError, match="Gather"):
        feed(backend, slot, [5, 320], 5, 1)
    assert torch.equal(feed(backend, slot, PROMPT[5:9], 5, 1), whole[8:9])


def test_a_cpu_whose_rows_never_agree_is_refused(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_invariance, "is_batch_invariant", lambda sessions, config: False)
    with pytest.raises(ModelError, match="use precision float32"):
        OnnxBackend(checkpoint, INT8, CONTEXT)


def test_a_cpu_whose_products_saturate_is_refused(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = int8_saturation._products
    monkeypatch.setattr(
        int8_saturation, "_products", lambda rows, form: products(rows, form).clip(-4096, 4095)
    )
    with pytest.raises(ModelError, match="8-bit products saturate; use precision float32"):
        OnnxBackend(checkpoint, INT8, CONTEXT)


def test_so_is_one_whose_4_bit_products_saturate(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = int8_saturation._products

    def saturated(rows: Array, form: onnx_graph.BlockFormat) -> Array:
        limit = 1 << 15 if form.bits == 8 else 400
        return products(rows, form).clip(-limit, limit)

    monkeypatch.setattr(int8_saturation, "_products", saturated)
    OnnxBackend(checkpoint, INT8, CONTEXT)
    with pytest.raises(ModelError, match="4-bit products saturate; use precision float32"):
        OnnxBackend(checkpoint, replace(INT8, precision=Precision.INT4), CONTEXT)


def run(backend: Backend, *sequences: SequenceRows) -> dict[Slot, tuple[int, ...]]:
    return dict(backend.collect(backend.launch(Plan((SubBatch(sequences),)))).tokens)


def test_a_plan_of_several_sequences_and_drafts(backend: OnnxBackend) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.2)
    one, two = backend.open_slot(), backend.open_slot()

    def rows(slot: Slot, ids: tuple[int, ...], first: int, num_sampled: int) -> SequenceRows:
        chosen = PROMPT[10 : first + len(ids) - num_sampled + 1] if num_sampled else ()
        return SequenceRows(
            slot, ids, first, num_sampled, sampling, seed=5, chosen=chosen, pages=PAGES
        )

    together = run(backend, rows(one, PROMPT[:20], 0, 4), rows(two, PROMPT[:16], 0, 0))
    assert together[two] == ()
    singly = [
        run(backend, rows(two, PROMPT[position : position + 1], position, 1))[two][0]
        for position in range(16, 20)
    ]
    assert together[one] == tuple(singly)


def test_the_precision_decides(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "llm_engine.cuda.device.probe", lambda index: DeviceProbe(torch="2.13.0+cpu")
    )

    def made(**settings: str) -> Backend:
        config = EngineConfig(**settings)  # type: ignore[arg-type]
        return make_backend(checkpoint, config, 64, lambda share: None)

    assert isinstance(made(precision="int8"), OnnxBackend)
    assert isinstance(made(precision="int8", backend="onnx"), OnnxBackend)
    assert isinstance(made(backend="torch"), CpuBackend)
    assert isinstance(made(), CpuBackend)
    with pytest.raises(ModelError, match="built without CUDA"):
        made(precision="fp8")
    with pytest.raises(RequestError, match="for float32 choose torch"):
        made(backend="onnx")
    with pytest.raises(RequestError, match="for int8 choose onnx"):
        made(precision="int8", backend="torch")


def test_converted_weights_are_kept(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = EngineConfig(precision=Precision.INT8, cache_dir=tmp_path / "weights")
    shares: list[float] = []
    first = OnnxBackend(checkpoint, config, CONTEXT, on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    (file,) = (tmp_path / "weights").glob("*.weights")
    shares.clear()
    second = OnnxBackend(checkpoint, config, CONTEXT, on_progress=shares.append)
    assert not shares
    file.unlink()  # mapped, or packed and let go: not needed any more
    assert torch.equal(in_pieces(first, PROMPT, 50), in_pieces(second, PROMPT, 50))


def test_weights_are_kept_as_they_are_without_room_to_pack_them(
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = in_pieces(OnnxBackend(checkpoint, INT8, CONTEXT), PROMPT, 50)

    def full(num_bytes: int) -> NoReturn:
        raise OSError(f"they take about {num_bytes} bytes, and none are free")

    monkeypatch.setattr(onnx_packing, "scratch_directory", full)
    config, shares = replace(INT8, cache_dir=tmp_path), list[float]()
    for _ in ("converted", "mapped"):
        backend = OnnxBackend(checkpoint, config, CONTEXT, on_progress=shares.append)
        assert torch.equal(in_pieces(backend, PROMPT, 50), expected)
    assert shares == sorted(set(shares)), "converted once"
    assert sum("matrices are not packed" in line for line in caplog.messages) == 1


def test_a_model_that_lacks_a_tensor_leaves_nothing_behind(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "llama")
    whole = load_checkpoint(tmp_path / "model")
    names = whole.names - {"layers.2.mlp.down_proj.weight"}
    broken = Checkpoint(whole.path, whole.config, whole.tokenizer, names, whole.read)
    config = EngineConfig(precision=Precision.INT8, cache_dir=tmp_path / "weights")
    with pytest.raises(ModelError, match=r"down_proj\.weight' is missing"):
        OnnxBackend(broken, config, CONTEXT)
    assert not list((tmp_path / "weights").glob("*.weights*"))
