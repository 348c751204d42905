"""Draft heads: file format, and replies that are unchanged by drafts."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from latency_budget.account.clock import SystemClock
from llm_engine.backends.base import HiddenStates, PageId, Plan, SequenceRows, SubBatch
from llm_engine.backends.cpu import CpuBackend
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.engine import Engine
from llm_engine.errors import ModelError
from llm_engine.models.medusa_heads import (
    FILE,
    DraftHeads,
    HeadsShape,
    draft,
    load_heads,
    save_heads,
    shared_parts,
)
from llm_engine.speculative.head_drafter import HeadDrafter, load_head_drafter
from llm_engine.training.draft_head_training import TrainingReply, read_rows
from tests.support.fakes.draft_heads import TEXT, VOCABULARY, random_heads, shape_for
from tests.support.fakes.llm_models import save_tiny_gguf, save_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "llama")
    return path


def test_a_file_gives_back_what_was_saved(tiny: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(tiny)
    heads = random_heads(shape_for(checkpoint))
    file = save_heads(tmp_path / "heads", heads)
    assert file.name == FILE
    assert list(file.parent.iterdir()) == [file]
    for path in (file, file.parent):
        found = load_heads(path, checkpoint)
        assert found.shape == heads.shape
        assert torch.equal(found.tokens, heads.tokens)
        for ours, theirs in zip(found.heads, heads.heads, strict=True):
            for values, expected in zip(
                asdict(ours).values(), asdict(theirs).values(), strict=True
            ):
                assert torch.equal(values, expected)


def test_heads_go_with_every_format_of_their_model(tiny: Path, tmp_path: Path) -> None:
    heads = random_heads(shape_for(load_checkpoint(tiny)))
    save_heads(tmp_path, heads)
    save_tiny_gguf(tmp_path / "model.gguf", tiny, "Q8_0")
    assert load_heads(tmp_path, load_checkpoint(tmp_path / "model.gguf")).shape == heads.shape


def damaged(heads: DraftHeads, file: Path, tensors: dict[str, Any], metadata: Any) -> None:
    save_heads(file.parent, heads)
    stored = load_file(file) | tensors
    kept = {name: values for name, values in stored.items() if values is not None}
    save_file(kept, file, metadata=metadata)


def described(shape: HeadsShape, **changes: Any) -> dict[str, str]:
    return {"format": "halfsec-draft-heads-1", "shape": json.dumps(asdict(shape) | changes)}


def test_bad_files(tiny: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(tiny)
    shape = shape_for(checkpoint)
    heads, file = random_heads(shape), tmp_path / FILE
    with pytest.raises(ModelError, match="no such file; `halfsec train-heads` makes one"):
        load_heads(tmp_path, checkpoint)
    file.write_bytes(b"\x09\x00\x00")
    with pytest.raises(ModelError, match="cannot be read as draft heads"):
        load_heads(file, checkpoint)
    good, tokens = described(shape), heads.tokens.int()
    cases: list[tuple[dict[str, Any], Any, str]] = [
        ({}, None, "is no file of draft heads"),
        ({}, {"format": "halfsec-draft-heads-9"}, "'halfsec-draft-heads-9' instead of"),
        ({}, {"format": good["format"]}, "does not say what it is for"),
        ({}, {**good, "shape": "[]"}, "does not say what it is for"),
        ({}, {**good, "shape": '{"num_heads": 3}'}, "does not say what it is for"),
        ({}, described(shape, num_heads=8), "no heads are"),
        ({}, described(shape, inner_size="many"), "no heads are"),
        ({}, described(shape, num_tokens=VOCABULARY + 1), "no heads are"),
        ({}, described(shape, hidden_size=32), "hidden size 32 and 320 tokens; .* has 64 and 320"),
        ({}, described(shape, vocab_size=640), "hidden size 64 and 640 tokens"),
        ({}, described(shape, model="other"), "another model of the same size"),
        ({"1.down": None}, good, r"'1\.down' is missing; heads of this kind have \(64, 32\)"),
        ({"1.down": torch.ones(2, 2)}, good, r"'1\.down' is of shape \(2, 2\)"),
        ({"2.norm": torch.full((64,), torch.nan)}, good, r"'2\.norm' is damaged"),
        ({"tokens": tokens.flip(0)}, good, "'tokens' is damaged"),
        ({"tokens": tokens + VOCABULARY}, good, "'tokens' is damaged"),
        ({"tokens": tokens - 5}, good, "'tokens' is damaged"),
    ]
    for tensors, metadata, message in cases:
        damaged(heads, file, tensors, metadata)
        with pytest.raises(ModelError, match=message):
            load_heads(file, checkpoint)


def test_heads_of_a_model_trained_further_are_refused(tiny: Path, tmp_path: Path) -> None:
    save_heads(tmp_path, random_heads(shape_for(load_checkpoint(tiny))))
    other = tmp_path / "other"
    save_tiny_model(other, "llama")
    weights = load_file(other / "model.safetensors")
    weights["model.layers.1.input_layernorm.weight"][3] += 0.1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="another model of the same size"):
        load_heads(tmp_path, load_checkpoint(other))


def test_the_backend_shows_the_rows_that_it_sampled(tiny: Path) -> None:
    checkpoint = load_checkpoint(tiny)
    backend = CpuBackend(checkpoint, EngineConfig(num_threads=1), context_length=64)
    assert isinstance(backend, HiddenStates)
    slot = backend.open_slot()
    pages = [PageId(page) for page in range(4)]

    def run(tokens: Sequence[int], first: int, num_sampled: int) -> tuple[int, ...]:
        rows = SequenceRows(
            slot, tuple(tokens), first, num_sampled, SamplingParams(), 0, pages=pages
        )
        return backend.collect(backend.launch(Plan((SubBatch((rows,)),)))).tokens[slot]

    assert backend.hidden(slot, 0) is None
    run(TEXT[:10], 0, 0)
    assert backend.hidden(slot, 9) is None
    chosen = run(TEXT[10:14], 10, 3)
    shared = shared_parts(checkpoint, torch.arange(VOCABULARY))
    for position, token in zip((11, 12, 13), chosen, strict=True):
        state = backend.hidden(slot, position)
        assert state is not None
        assert int((shared.rows @ state).argmax()) == token
    model = load_model(checkpoint, WeightFormat(dtype=torch.float32), "cpu", context_length=64)
    rows = read_rows(model, TrainingReply(TEXT[:11], TEXT[11:15]))
    found = torch.stack(
        [state for p in (11, 12, 13) if (state := backend.hidden(slot, p)) is not None]
    )
    torch.testing.assert_close(rows.states[1:], found, rtol=1e-4, atol=1e-4)
    for position in (-1, 10, 14):
        assert backend.hidden(slot, position) is None
    backend.close_slot(slot)
    assert backend.hidden(slot, 13) is None


SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=50, ignore_eos=True),
    "seeded": SamplingParams(temperature=0.9, seed=5, max_tokens=50, ignore_eos=True),
}


async def reply_ids(engine: Engine, sampling: SamplingParams) -> list[int]:
    ids: list[int] = []
    async for chunk in engine.generate(list(TEXT[:12]), sampling):
        ids += chunk.token_ids
    return ids


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_replies_with_heads_are_those_without(
    tiny: Path, tmp_path: Path, sampling: str
) -> None:
    save_heads(tmp_path, random_heads(shape_for(load_checkpoint(tiny))))
    found = []
    for heads in (None, tmp_path):
        config = EngineConfig(num_threads=1, ngram_drafts=False, draft_heads=heads)
        engine = Engine.load(tiny, config, clock=SystemClock())
        try:
            found.append(await reply_ids(engine, SAMPLINGS[sampling]))
            drafts = (await engine.stats()).drafts
        finally:
            engine.close()
    assert found[0] == found[1]
    assert len(found[0]) == 50
    assert drafts["heads"].num_drafted > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("knows", [True, False])
async def test_right_and_wrong_drafts_change_nothing(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampling: str,
    knows: bool,
) -> None:
    """Heads that know the reply, and heads that are never right."""
    save_heads(tmp_path, random_heads(shape_for(load_checkpoint(tiny))))
    engine = Engine.load(tiny, EngineConfig(num_threads=1, ngram_drafts=False))
    try:
        expected = await reply_ids(engine, SAMPLINGS[sampling])
    finally:
        engine.close()
    whole = [*TEXT[:12], *expected]
    config = EngineConfig(num_threads=1, ngram_drafts=False, draft_heads=tmp_path)
    asked: list[int] = []

    def propose(self: Any, tokens: Sequence[int], most: int) -> list[int]:
        assert self._drafter.source.hidden(self._slot, len(tokens) - 2) is not None
        asked.append(len(tokens))
        right = whole[len(tokens) : len(tokens) + most]
        return right if knows else [(token + 1) % VOCABULARY for token in right]

    monkeypatch.setattr("llm_engine.speculative.head_drafter._HeadDraft.propose", propose)
    engine = Engine.load(tiny, config)
    try:
        assert await reply_ids(engine, SAMPLINGS[sampling]) == expected
        counts = (await engine.stats()).drafts["heads"]
    finally:
        engine.close()
    assert asked
    assert counts.num_accepted == (counts.num_drafted if knows else 0)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4])
async def test_heads_need_a_backend_that_shows_its_rows(
    precision: Precision, tiny: Path, tmp_path: Path
) -> None:
    save_heads(tmp_path, random_heads(shape_for(load_checkpoint(tiny))))
    config = EngineConfig(precision=precision, num_threads=1, draft_heads=tmp_path)
    with pytest.raises(ModelError, match="on a CPU any precision but int8 and int4"):
        Engine.load(tiny, config)


def test_the_drafter_asks_for_the_row_that_chose_the_last_token(tiny: Path) -> None:
    checkpoint = load_checkpoint(tiny)
    backend = CpuBackend(checkpoint, EngineConfig(num_threads=1), context_length=64)
    heads = random_heads(shape_for(checkpoint))
    shared = shared_parts(checkpoint, heads.tokens)
    drafter = HeadDrafter(backend, heads, shared)
    slot = backend.open_slot()
    idea = drafter.begin(slot)
    assert list(idea.propose(TEXT[:11], 3)) == []
    rows = SequenceRows(slot, TEXT[:10], 0, 1, SamplingParams(), 0, pages=[PageId(0)])
    (token,) = backend.collect(backend.launch(Plan((SubBatch((rows,)),)))).tokens[slot]
    state = backend.hidden(slot, 9)
    assert state is not None
    proposed = list(idea.propose([*TEXT[:10], token], 2))
    assert proposed == draft(heads, shared, state, token, 2)
    assert len(proposed) == 2
    assert set(proposed) <= set(heads.tokens.tolist())
    idea.close()
    with pytest.raises(ModelError, match="no such file"):
        load_head_drafter(tiny / "nowhere", checkpoint, backend)
