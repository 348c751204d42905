"""A checkpoint run on a backend without an engine."""

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.llm.quality import Scorer
from llm_engine.backends.base import PageId, Plan, SequenceRows, SubBatch
from llm_engine.backends.cpu import CpuBackend
from llm_engine.backends.factory import make_backend
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams

CPU_PRECISIONS = Precision.FLOAT32, Precision.INT8
"""Those for which every machine has a backend."""
PAGES = tuple(PageId(page) for page in reversed(range(40)))
"""Any order will do; 640 tokens of the only sequence."""


def greedy(
    checkpoint: Checkpoint,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    chunk: int = 1000,
) -> list[int]:
    """The likeliest continuation, the prompt taken in chunks."""
    backend = CpuBackend(checkpoint, EngineConfig(num_threads=1), context_length=512)
    slot = backend.open_slot()

    def run(token_ids: Sequence[int], first: int, num_sampled: int) -> tuple[int, ...]:
        rows = SequenceRows(
            slot, tuple(token_ids), first, num_sampled, SamplingParams(), 0, pages=PAGES
        )
        return backend.collect(backend.launch(Plan((SubBatch((rows,)),)))).tokens[slot]

    position = 0
    for start in range(0, len(prompt) - 1, chunk):
        piece = prompt[start : min(start + chunk, len(prompt) - 1)]
        assert run(piece, position, 0) == ()
        position += len(piece)
    ids = [prompt[-1]]
    for _ in range(num_tokens):
        ids += run(ids[-1:], position, 1)
        position += 1
    return ids[1:]


def all_logits(
    checkpoint: Checkpoint,
    prompt: Sequence[int],
    precision: Precision = Precision.FLOAT32,
    *,
    calibration: Path | None = None,
) -> torch.Tensor:
    """`[T, vocab]`: the scores after every token of a prompt, in one pass."""
    config = EngineConfig(precision=precision, num_threads=1, calibration=calibration)
    backend = make_backend(checkpoint, config, 512, lambda share: None)
    assert isinstance(backend, Scorer)
    slot = backend.open_slot()
    rows = SequenceRows(slot, tuple(prompt), 0, len(prompt), SamplingParams(), 0, pages=PAGES)
    with torch.inference_mode():
        return torch.as_tensor(backend.logits(rows))
