"""Every kernel on small shapes, for `compute-sanitizer`, which makes them a hundred times slower.

    compute-sanitizer --tool memcheck --error-exitcode 9 python -m tests.gpu.sanitize
    compute-sanitizer --tool racecheck --error-exitcode 9 python -m tests.gpu.sanitize

Nothing is compared here: the sanitizer sees what is read or written where it should not be, and who
does not wait for whom.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.llm.gpu.random_weights import SHAPES, random_model
from llm_engine.backends.base import PageId, Plan, SequenceRows, Slot, SubBatch
from llm_engine.config import SamplingParams
from llm_engine.cuda.backend import PAGE_SIZE, CudaBackend
from llm_engine.cuda.steps.graph_runner import EagerGraphs
from tests.gpu import ground

CONTEXT = 256
_SMALL = replace(
    SHAPES["1b"],
    num_layers=1,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    vocab_size=4099,
)
"""Nothing divides evenly: not into blocks of 128, nor among the multiprocessors."""
_SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=0.7, top_p=0.9),
)


def main() -> int:
    """Returns 0; 2 where there is no GPU."""
    if ground.WHY_NOT:
        print(f"sanitize: {ground.WHY_NOT}", file=sys.stderr)
        return 2
    for weights in ground.FORMATS:
        device, kind = ground.ground().device, ground.FORMATS[weights]
        model = random_model(_SMALL, kind, device, seed=1, context_length=CONTEXT)
        backend = ground.backend(model, graphs=EagerGraphs(), num_pages=160)
        _talk(backend, _SMALL.vocab_size)
        print(f"{weights}: all steps ran", flush=True)
    if not ground.ground().is_rehearsal:
        torch.cuda.synchronize()
    return 0


def _talk(backend: CudaBackend, vocab_size: int) -> None:
    """Prompts of all sizes, drafts, and sequences side by side."""
    chance = random.Random(1)
    for sampling in _SAMPLINGS:
        for length in (1, 5, 8, 9, 33, 70, 200):
            prompt = tuple(chance.randrange(vocab_size) for _ in range(length))
            _run(backend, [_rows(0, prompt, 0, 1, sampling)])
            for num_drafted in (0, 1, 3, 7):
                draft = tuple(chance.randrange(vocab_size) for _ in range(1 + num_drafted))
                _run(backend, [_rows(0, draft, length, len(draft), sampling)])
        for num_seqs in (2, 3, 8):
            lanes = range(num_seqs)
            _run(backend, [_rows(lane, (lane + 1,), lane, 1, sampling) for lane in lanes])


def _rows(
    lane: int, token_ids: tuple[int, ...], position: int, num_sampled: int, sampling: SamplingParams
) -> SequenceRows:
    size = CONTEXT // PAGE_SIZE
    pages = [PageId(lane * size + index) for index in range(size)]
    return SequenceRows(
        Slot(lane), token_ids, position, num_sampled, sampling, seed=lane, pages=pages
    )


def _run(backend: CudaBackend, rows: Sequence[SequenceRows]) -> None:
    backend.collect(backend.launch(Plan((SubBatch(tuple(rows)),))))


if __name__ == "__main__":
    sys.exit(main())
