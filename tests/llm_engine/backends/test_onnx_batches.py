"""Batched sequences get the same result as each alone."""

import gc
import random
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from llm_engine.backends import onnx_cpu
from llm_engine.backends.base import Plan, SequenceRows, Slot, SubBatch
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams
from tests.support.fakes.llm_models import save_tiny_model

CONTEXT = 400
VOCABULARY = 320


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_model(path, request.param, head_dim=16)
    return load_checkpoint(path)


@pytest.fixture(scope="module")
def backend(checkpoint: Checkpoint) -> OnnxBackend:
    return OnnxBackend(checkpoint, EngineConfig(precision=Precision.INT8, max_batch=3), CONTEXT)


def tokens(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)


def expected(backend: OnnxBackend, token_ids: list[int]) -> Tensor:
    """Logits of every row, alone and at once."""
    slot = backend.open_slot()
    rows = SequenceRows(slot, tuple(token_ids), 0, len(token_ids), SamplingParams(), 0)
    logits = torch.tensor(backend.logits(rows))
    backend.close_slot(slot)
    return logits


def read(backend: OnnxBackend, work: list[SequenceRows]) -> dict[Slot, Tensor]:
    return {rows.slot: torch.tensor(logits) for rows, logits in backend.read(work)}


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_equals_each_alone(backend: OnnxBackend, seed: int) -> None:
    """Up to five sequences, more than there are lanes, come, go back, grow and leave."""
    draw = random.Random(seed)
    texts: dict[Slot, list[int]] = {}
    lengths: dict[Slot, int] = {}
    whole: dict[Slot, Tensor] = {}
    for step in range(60):
        if len(texts) < 5 and draw.random() < 0.3:
            slot = backend.open_slot()
            texts[slot] = tokens(seed * 1000 + step, CONTEXT)
            whole[slot], lengths[slot] = expected(backend, texts[slot]), 0
        if texts and draw.random() < 0.1:
            slot = draw.choice(list(texts))
            backend.close_slot(slot)
            del texts[slot]
        work = []
        for slot in draw.sample(list(texts), k=draw.randint(0, len(texts))):
            length = lengths[slot]
            if length and draw.random() < 0.2:
                length = draw.randint(0, length)
            count = min(draw.choice([1, 1, 1, 2, 5, 32, 33, 70]), CONTEXT - length)
            if count:
                ids = tuple(texts[slot][length : length + count])
                num_sampled = draw.choice([0, 1, 1, count])
                work.append(SequenceRows(slot, ids, length, num_sampled, SamplingParams(), 0))
                lengths[slot] = length + count
        outcome = read(backend, work)
        assert outcome.keys() == {rows.slot for rows in work}
        for rows in work:
            end = lengths[rows.slot]
            assert torch.equal(outcome[rows.slot], whole[rows.slot][end - rows.num_sampled : end])
    for slot in texts:
        backend.close_slot(slot)
    assert backend.cache_bytes() == 0


def test_a_plan_chooses_the_same_tokens_together(backend: OnnxBackend) -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.95)
    prompts = [tokens(seed, 20 + 15 * seed) for seed in range(4)]

    def reply(plans: list[list[SequenceRows]]) -> dict[Slot, tuple[int, ...]]:
        chosen: dict[Slot, tuple[int, ...]] = {}
        for work in plans:
            plan = Plan((SubBatch(tuple(work)),))
            chosen |= backend.collect(backend.launch(plan)).tokens
        return chosen

    slots = [backend.open_slot() for _ in prompts]
    work = [
        SequenceRows(slot, tuple(prompt), 0, 2, sampling, seed)
        for seed, (slot, prompt) in enumerate(zip(slots, prompts, strict=True))
    ]
    together = reply([work])
    singly = reply([[rows] for rows in work])
    assert together == singly
    assert len(set(together.values())) == len(slots)
    for slot in slots:
        backend.close_slot(slot)


def test_memory_of_a_closed_or_grown_sequence_is_let_go(
    backend: OnnxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_cpu, "_FIRST_CAPACITY", 256)
    slots = [backend.open_slot() for _ in range(3)]
    work = [SequenceRows(slot, (5,), 0, 1, SamplingParams(), 0) for slot in slots]
    read(backend, work)
    read(backend, work[:1])
    held = [weakref.ref(backend._slots[slot]) for slot in slots]
    read(backend, [replace(work[0], token_ids=tuple(tokens(1, 390)))])
    backend.close_slot(slots[1])
    gc.collect()
    assert [reference() is None for reference in held] == [True, True, False]
    backend.close_slot(slots[0])
    backend.close_slot(slots[2])
    gc.collect()
    assert held[2]() is None


def test_more_than_the_context_is_refused(backend: OnnxBackend) -> None:
    slot = backend.open_slot()
    rows = SequenceRows(slot, (5, 6), CONTEXT - 1, 1, SamplingParams(), 0)
    with pytest.raises(ValueError, match=f"{CONTEXT + 1} tokens are more than the context holds"):
        backend.logits(rows)
    backend.close_slot(slot)
