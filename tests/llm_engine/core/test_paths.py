"""However a cache came about, what follows is what a cold start gives.

In the reference and in the GPU's steps (here in plain torch), chunks of another size round
differently, so that logits are compared within `TOLERANCE`; tokens must be equal unless the two
likeliest are closer than that. The CPU's quick backend's must be equal to the last bit.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latency_budget.account.clock import ManualClock
from llm_engine.backends.base import Plan, SequenceRows
from llm_engine.backends.cpu import CpuBackend
from llm_engine.backends.factory import make_backend
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.request import Request
from llm_engine.cuda.backend import CudaBackend
from llm_engine.kv_cache.kv_cache import CachedSequence, SequenceId
from llm_engine.speculative.ngram import NgramDrafter
from tests.support.fakes.llm_cuda import on_cpu
from tests.support.fakes.llm_decoding import CPU_PRECISIONS, all_logits
from tests.support.fakes.llm_models import save_tiny_model

TOLERANCE = 2e-4
"""In logits, which reach from -10 to 10 in these models."""
FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    path: Path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, request.param, num_hidden_layers=2)
    return load_checkpoint(path)


AnyBackend = CpuBackend | OnnxBackend | CudaBackend


@pytest.fixture(scope="module", params=[*CPU_PRECISIONS, "cuda"])
def backend(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> AnyBackend:
    if request.param == "cuda":
        return on_cpu(checkpoint, context_length=512, num_pages=40)
    config = EngineConfig(precision=request.param, num_threads=1, kv_cache_mb=1)
    backend = make_backend(checkpoint, config, 512, lambda share: None)
    assert isinstance(backend, AnyBackend)
    return backend


class Walk:
    """A core with a few conversations, led along any path."""

    def __init__(self, backend: AnyBackend, checkpoint: Checkpoint, prefill_chunk: int) -> None:
        self.backend = backend
        self.core = EngineCore(
            backend,
            checkpoint.tokenizer.token_bytes,
            context_length=512,
            prefill_chunk=prefill_chunk,
            max_sequences=4,
            clock=ManualClock(),
            drafters=[NgramDrafter()],
        )
        self.sequences = [self.core.open_sequence() for _ in range(3)]
        self.texts: dict[SequenceId, list[int]] = {each: [1, 7, 9, 7] for each in self.sequences}

    def ask(self, which: int, num_new: int, max_tokens: int, num_steps: int | None) -> None:
        """Prefill some more words, or answer; break off after some steps."""
        sequence = self.sequences[which]
        text = self.texts[sequence]
        start = len(text)
        text += [3 + (start + index) * (which + 2) % 300 for index in range(num_new)]
        del text[200:]
        request = self.core.add(
            Request(
                prompt=tuple(text),
                sampling=SamplingParams(),
                end_ids=frozenset(),
                max_tokens=max_tokens,
                sequence=sequence,
                num_fixed=4,
            )
        )
        while self.core.has_work and num_steps != 0:
            for output in self.core.step():
                if output.request_id == request:
                    text += output.token_ids
            if num_steps is not None:
                num_steps -= 1
        self.core.abort(request)
        self.core.cache.check()

    def forget(self, which: int, num_kept: int) -> None:
        """The caller changed his mind, or did not hear the rest."""
        del self.texts[self.sequences[which]][max(1, num_kept) :]

    def close(self) -> None:
        for sequence in self.sequences:
            self.core.close_sequence(sequence)
        self.core.cache.forget_everything()

    def held(self) -> list[CachedSequence]:
        sequences = [self.core.cache.sequences.get(each) for each in self.sequences]
        return [each for each in sequences if each is not None and each.token_ids]


STEPS: st.SearchStrategy[Callable[[Walk], None]] = st.one_of(
    st.builds(
        lambda which, num, tokens, steps: lambda walk: walk.ask(which, num, tokens, steps),
        st.integers(0, 2),
        st.integers(1, 40),
        st.integers(0, 12),
        st.none() | st.integers(0, 4),
    ),
    st.builds(
        lambda which, kept: lambda walk: walk.forget(which, kept),
        st.integers(0, 2),
        st.integers(0, 60),
    ),
)


def cold_logits(
    backend: AnyBackend, checkpoint: Checkpoint, token_ids: tuple[int, ...]
) -> torch.Tensor:
    """`[vocab]` after the last token, in one pass on a new sequence."""
    if not isinstance(backend, OnnxBackend):
        return all_logits(checkpoint, token_ids)[-1]  # on another one: here, pages are taken
    slot = backend.open_slot()
    rows = SequenceRows(slot, token_ids, 0, 1, SamplingParams(), 0)
    with torch.inference_mode():
        logits = torch.tensor(backend.logits(rows)[-1])
    backend.close_slot(slot)
    return logits


@settings(max_examples=25)
@given(st.lists(STEPS, min_size=1, max_size=8), st.sampled_from([7, 16, 64]))
def test_any_path_equals_a_cold_start(
    backend: AnyBackend,
    checkpoint: Checkpoint,
    steps: list[Callable[[Walk], None]],
    prefill_chunk: int,
) -> None:
    walk = Walk(backend, checkpoint, prefill_chunk)
    for step in steps:
        step(walk)
    is_exact = isinstance(backend, OnnxBackend)
    num_near_ties = 0
    for sequence in walk.held():
        ids = tuple(sequence.token_ids)
        last = len(ids) - 1
        cold = cold_logits(backend, checkpoint, ids)
        rows = Request(ids, SamplingParams(), frozenset(), 1, sequence.id)
        sequence.truncate(last)
        request = walk.core.add(rows)
        active = walk.core._active[request]
        backend.launch(Plan((), sequence.table.reserve(1)))
        with torch.inference_mode():
            warm = torch.as_tensor(backend.logits(active.rows(1, ()))[-1])
        walk.core.abort(request)
        difference = float((warm - cold).abs().max())
        assert difference == 0 if is_exact else difference < TOLERANCE
        first, second = cold.topk(2).values.tolist()
        num_near_ties += first - second < TOLERANCE
        assert first - second < TOLERANCE or warm.argmax() == cold.argmax()
    assert num_near_ties <= 1
    walk.close()
