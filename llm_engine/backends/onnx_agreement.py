"""Whether rows agree: the same tokens give the same bits however they are run.

Reusing a prefix, previewing, chunking and batching all rely on it. Which kernels ONNX Runtime takes
for which number of rows depends on the CPU, so the loaded model itself is asked.
"""

from collections.abc import Sequence

import numpy as np

from llm_engine.backends.onnx_session import DecoderSession, LaneRows, SequenceBuffers
from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError
from llm_engine.weight_cache import Array

_NUM_TOKENS = 4
"""Run together, in pairs, alone, and beside another sequence: a dozen passes, 0.15 s for a 135 M
model. A kernel that adds in another order shows in nearly every row."""


def make_rows_agree(sessions: Sequence[DecoderSession], config: ModelConfig) -> None:
    """Check, and let lone rows run in pairs where that helps. Raises ModelError if it does not."""
    if rows_agree(sessions, config):
        return
    for session in sessions:
        session.pair_lone_rows()
    if not rows_agree(sessions, config):
        raise ModelError(
            "on this CPU the quick kernels' results depend on how a prompt is cut; "
            "use backend torch"
        )


def rows_agree(sessions: Sequence[DecoderSession], config: ModelConfig) -> bool:
    """`sessions` begin with the one for a single sequence."""
    together = _outcome(sessions[0], config, 1, _NUM_TOKENS)
    return all(
        np.array_equal(together, _outcome(session, config, num_sequences, size), equal_nan=True)
        for session in sessions
        for num_sequences in range(1, min(session.num_lanes, 2) + 1)
        for size in (1, 2)
    )


def _outcome(session: DecoderSession, config: ModelConfig, num_sequences: int, size: int) -> Array:
    """Logits `[_NUM_TOKENS, vocab]` of the last of several equal sequences, `size` rows a run."""
    step = config.vocab_size // _NUM_TOKENS
    token_ids = range(0, step * _NUM_TOKENS, step)
    sequences = [SequenceBuffers(config, _NUM_TOKENS + 1) for _ in range(num_sequences)]
    parts = []
    for first in range(0, _NUM_TOKENS, size):
        ids = token_ids[first : first + size]
        work = [LaneRows(buffers, ids, first, size) for buffers in sequences]
        parts.append(session.run(work)[-1].copy())
    for buffers in sequences:
        session.forget(buffers)
    return np.concatenate(parts)
