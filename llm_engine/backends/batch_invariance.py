"""Batch-invariance check of the ONNX backend: a row gives the same bits in any company.

Prefix reuse, previews, chunked prefill and batching all rely on it. Which kernels ONNX Runtime
selects for which number of rows depends on the CPU, so the loaded model itself is tested. The
result is kept for the next start (`verified_files`): the test takes seconds for a large model, and
touches all pages of a session that may have nothing to do until two calls speak at once.
"""

from collections.abc import Sequence

import numpy as np

from llm_engine.checkpoints.packed_cache import Array
from llm_engine.checkpoints.verified_files import VerifiedFiles
from llm_engine.config import ModelConfig
from llm_engine.errors import ModelError

from .onnx_session import DecoderSession, SequenceBuffers, SequenceInput

_NUM_TOKENS = 40
"""Tokens of the test, more than kernels take at a time. A dozen runs in all, 0.3 s for a 135 M
model. A kernel that adds in another order shows in nearly every row that it touches."""

_IN_PAIRS, _ALONE = "in pairs", "alone"
"""Results: how rows are run."""


def ensure_batch_invariance(
    sessions: Sequence[DecoderSession],
    config: ModelConfig,
    verified: VerifiedFiles,
    subject: str,
    state: str,
) -> None:
    """Check invariance; where it fails, run rows in pairs. Raises ModelError if that does not
    help. A result that `verified` has for the subject in this state is taken as it is."""
    known = verified.recall(subject, state)
    if known not in (_IN_PAIRS, _ALONE):
        known = _check(sessions, config)
        verified.keep(subject, state, known)
    elif known == _IN_PAIRS:
        _pair_rows(sessions)


def _check(sessions: Sequence[DecoderSession], config: ModelConfig) -> str:
    if is_batch_invariant(sessions, config):
        return _ALONE
    _pair_rows(sessions)
    if not is_batch_invariant(sessions, config):
        raise ModelError(
            "on this CPU the quick kernels' results depend on how a prompt is cut; "
            "use precision float32"
        )
    return _IN_PAIRS


def _pair_rows(sessions: Sequence[DecoderSession]) -> None:
    for session in sessions:
        session.pair_rows()


def is_batch_invariant(sessions: Sequence[DecoderSession], config: ModelConfig) -> bool:
    """True if all sessions give the same bits. The first session is that for a single sequence."""
    num_tokens = min(_NUM_TOKENS, sessions[0].max_rows)
    rest = num_tokens - 3
    together = _logits(sessions[0], config, 1, (num_tokens,))
    return all(
        np.array_equal(together, _logits(session, config, num_sequences, sizes), equal_nan=True)
        for session in sessions
        for num_sequences in range(1, min(session.num_seqs, 2) + 1)
        for sizes in ((rest, 1, 2), (1, 2, rest))
    )


def _logits(
    session: DecoderSession, config: ModelConfig, num_sequences: int, sizes: tuple[int, ...]
) -> Array:
    """Logits of all rows of the last of several equal sequences, run in chunks of `sizes`."""
    num_tokens = sum(sizes)
    token_ids = [index * config.vocab_size // num_tokens for index in range(num_tokens)]
    sequences = [SequenceBuffers(config, num_tokens + 1) for _ in range(num_sequences)]
    parts = []
    first = 0
    for size in sizes:
        ids = token_ids[first : first + size]
        work = [SequenceInput(buffers, ids, first, tuple(range(size))) for buffers in sequences]
        parts.append(session.run(work)[-1].copy())
        first += size
    for buffers in sequences:
        session.forget(buffers)
    return np.concatenate(parts)
