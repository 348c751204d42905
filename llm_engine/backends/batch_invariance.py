"""Whether rows agree: the same tokens give the same bits however they are run.

Reusing a prefix, previewing, chunking and batching all rely on it. Which kernels ONNX Runtime takes
for which number of rows depends on the CPU, so the loaded model itself is asked.
"""

from collections.abc import Sequence

import numpy as np

from llm_engine.checkpoints.packed_cache import Array
from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError

from .onnx_session import DecoderSession, SequenceBuffers, SequenceInput

_NUM_TOKENS = 40
"""More than kernels take at a time. A dozen runs in all, 0.3 s for a 135 M model. A kernel that
adds in another order shows in nearly every row that it touches."""


def make_rows_agree(sessions: Sequence[DecoderSession], config: ModelConfig) -> None:
    """Check, and let lone rows run in pairs where that helps. Raises ModelError if it does not."""
    if rows_agree(sessions, config):
        return
    for session in sessions:
        session.pair_lone_rows()
    if not rows_agree(sessions, config):
        raise ModelError(
            "on this CPU the quick kernels' results depend on how a prompt is cut; "
            "use precision float32"
        )


def rows_agree(sessions: Sequence[DecoderSession], config: ModelConfig) -> bool:
    """`sessions` begin with the one for a single sequence."""
    num_tokens = min(_NUM_TOKENS, sessions[0].max_rows)
    rest = num_tokens - 3
    together = _outcome(sessions[0], config, 1, (num_tokens,))
    return all(
        np.array_equal(together, _outcome(session, config, num_sequences, sizes), equal_nan=True)
        for session in sessions
        for num_sequences in range(1, min(session.num_seqs, 2) + 1)
        for sizes in ((rest, 1, 2), (1, 2, rest))
    )


def _outcome(
    session: DecoderSession, config: ModelConfig, num_sequences: int, sizes: tuple[int, ...]
) -> Array:
    """Logits of all rows of the last of several equal sequences, run in pieces of `sizes`."""
    num_tokens = sum(sizes)
    token_ids = [index * config.vocab_size // num_tokens for index in range(num_tokens)]
    sequences = [SequenceBuffers(config, num_tokens + 1) for _ in range(num_sequences)]
    parts = []
    first = 0
    for size in sizes:
        ids = token_ids[first : first + size]
        work = [SequenceInput(buffers, ids, first, size) for buffers in sequences]
        parts.append(session.run(work)[-1].copy())
        first += size
    for buffers in sequences:
        session.forget(buffers)
    return np.concatenate(parts)
