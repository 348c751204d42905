"""Draft heads inside the captured step: replies are unchanged, and the next step, its draft
included, is launched before the host has seen a token."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import PageId, Plan, SequenceRows, SubBatch
from llm_engine.backends.cpu import CpuBackend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.request import Request
from llm_engine.cuda.backend import CudaBackend
from llm_engine.cuda.ops.interface import Ops
from llm_engine.cuda.ops.reference_ops import ReferenceOps
from llm_engine.cuda.steps.draft_heads import DeviceHeads
from llm_engine.cuda.weights import WeightFormat, load_model
from llm_engine.models.medusa_heads import draft, shared_parts
from llm_engine.speculative.head_drafter import BackendDrafter
from tests.support.fakes.draft_heads import random_heads, shape_for
from tests.support.fakes.llm_cuda import CountingGraphs, on_cpu
from tests.support.fakes.llm_models import save_tiny_model

PROMPT = tuple(3 + index * index % 290 for index in range(20))
COUNT = 60
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9)
PAGES = [PageId(page) for page in range(40)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path: Path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "llama", num_hidden_layers=2)
    return load_checkpoint(path)


def alone(checkpoint: Checkpoint, sampling: SamplingParams) -> list[int]:
    """What the reference says, token by token."""
    backend = CpuBackend(checkpoint, EngineConfig(), 640)
    slot, tokens, num_cached = backend.open_slot(), list(PROMPT), 0
    while len(tokens) < len(PROMPT) + COUNT:
        fresh = tuple(tokens[num_cached:])
        rows = SequenceRows(slot, fresh, num_cached, 1, sampling, 5, pages=PAGES)
        num_cached = len(tokens)
        tokens += backend.collect(backend.launch(Plan((SubBatch((rows,)),)))).tokens[slot]
    return tokens


class Oracle:
    """In the place of heads: knows how the reply goes on behind a row, from an earlier run."""

    def __init__(self, expected: list[int]) -> None:
        self.expected = expected
        self.place_of: dict[bytes, int] = {}
        """Of the token that was chosen behind a row."""
        self.right = 0

    def draft(self, hidden: Tensor, out: Tensor) -> None:
        """So many tokens that are right, then wrong ones."""
        place = self.place_of.setdefault(hidden.numpy().tobytes(), len(PROMPT) + len(self.place_of))
        following = self.expected[place + 1 : place + 1 + self.right]
        out[:] = torch.tensor([*following, 1, 1, 1][: out.shape[1]])


def led(backend: CudaBackend, sampling: SamplingParams) -> tuple[list[int], int]:
    """A reply through an engine's core, and how many steps it asked for."""
    core = EngineCore(
        backend,
        (b"x",) * 320,
        context_length=640,
        prefill_chunk=64,
        max_sequences=4,
        clock=ManualClock(),
        drafters=[BackendDrafter(backend)],
    )
    sampling = SamplingParams(
        temperature=sampling.temperature, top_p=sampling.top_p, seed=5, max_tokens=COUNT
    )
    core.add(Request(PROMPT, sampling, frozenset(), COUNT, core.open_sequence()))
    tokens, num_steps = list(PROMPT), 0
    while core.has_work:
        num_steps += 1
        for output in core.step():
            assert output.error is None
            tokens += output.token_ids
    core.cache.check()
    return tokens, num_steps


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_replies_are_what_they_are_without(
    checkpoint: Checkpoint, sampling: SamplingParams
) -> None:
    heads = random_heads(shape_for(checkpoint))
    assert led(on_cpu(checkpoint, heads=heads), sampling)[0] == alone(checkpoint, sampling)


def test_a_reply_with_heads_goes_on_to_the_end_of_the_context(checkpoint: Checkpoint) -> None:
    """There are pages for drafts behind it that no table has room for."""
    context_length = 96
    backend = on_cpu(
        checkpoint, context_length=context_length, heads=random_heads(shape_for(checkpoint))
    )
    core = EngineCore(
        backend,
        (b"x",) * 320,
        context_length=context_length,
        prefill_chunk=64,
        max_sequences=2,
        clock=ManualClock(),
        drafters=[BackendDrafter(backend)],
    )
    core.add(Request(PROMPT, SamplingParams(), frozenset(), 200, core.open_sequence()))
    tokens: list[int] = []
    while core.has_work:
        for output in core.step():
            assert output.error is None
            tokens += output.token_ids
    assert len(PROMPT) + len(tokens) >= context_length


def test_drafts_are_those_of_the_heads(checkpoint: Checkpoint) -> None:
    heads = random_heads(shape_for(checkpoint))
    model = load_model(checkpoint, WeightFormat(dtype=torch.float32), "cpu", context_length=64)
    shared = shared_parts(checkpoint, heads.tokens)
    out = torch.zeros(1, heads.shape.num_heads, dtype=torch.int32)
    for seed in range(20):
        hidden = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            token = torch.tensor([seed + 3], dtype=torch.int32)
            DeviceHeads(heads, model).draft(ReferenceOps(), hidden, token, out)
            state = torch.nn.functional.rms_norm(hidden, (64,), model.norm.weight, model.norm.eps)[
                0
            ]
        assert out[0].tolist() == draft(heads, shared, state, seed + 3, 3)


def stepped(
    backend: CudaBackend, graphs: CountingGraphs, sampling: SamplingParams
) -> tuple[list[int], list[int]]:
    """Say 40 tokens and more, checking every draft in full; how many graphs each step ran, and the
    tokens."""
    slot, tokens, num_cached = backend.open_slot(), list(PROMPT), 0
    drafted: tuple[int, ...] = ()
    replays = []
    while len(tokens) < len(PROMPT) + 40:
        fresh = (*tokens[num_cached:], *drafted)
        count = len(drafted) + 1
        rows = SequenceRows(slot, fresh, num_cached, count, sampling, 5, pages=PAGES)
        before = graphs.num_replays
        chosen = backend.collect(backend.launch(Plan((SubBatch((rows,)),)))).tokens[slot]
        replays.append(graphs.num_replays - before)
        kept = next((at for at, each in enumerate(drafted) if chosen[at] != each), len(drafted))
        tokens += chosen[: kept + 1]
        num_cached = len(tokens) - 1
        drafted = backend.drafted(slot, num_cached)
        assert backend.drafted(slot, num_cached - 1) == ()
    return replays, tokens


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_right_or_wrong_the_next_step_is_under_way(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, sampling: SamplingParams
) -> None:
    oracle = Oracle(alone(checkpoint, sampling))

    def stand_in(self: DeviceHeads, ops: Ops, hidden: Tensor, token: Tensor, out: Tensor) -> None:
        oracle.draft(hidden, out)

    graphs = CountingGraphs()
    backend = on_cpu(checkpoint, graphs, heads=random_heads(shape_for(checkpoint)))
    monkeypatch.setattr(DeviceHeads, "draft", stand_in)
    for right in range(4):
        oracle.right = right
        replays, tokens = stepped(backend, graphs, sampling)
        num_steps = 1 + -(-39 // (right + 1))
        assert tokens == oracle.expected[: len(tokens)]
        # A prompt takes two graphs; the first draft is launched, and from then on one is ahead.
        assert replays == [2, 2, *[1] * (num_steps - 2)]
