"""Training of the turn model's head: it finds what tells, the same each time."""

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.end_of_turn import head_training
from benchmarks.end_of_turn.head_training import trained_head

KINDS = ["halting"] * 500 + ["numbers"] * 100


def pauses(seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Embeddings of which one number tells an end where a second one is positive, and another way
    round where it is negative: no line does. A third one is always the same."""
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(0, 2, (600, 20)).astype(np.float32)
    embeddings[:, 5] = 4.0
    return embeddings, embeddings[:, 0] * embeddings[:, 1] > 0


def test_it_learns_what_no_line_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_training, "EPOCHS", 60)
    monkeypatch.setattr(head_training, "DROPOUT", 0.1)
    monkeypatch.setattr(head_training, "LEARNING_RATE", 1e-2)
    head = trained_head(*pauses(1), KINDS)
    unseen, is_end = pauses(2)
    odds = head.log_odds(unseen)
    assert ((odds > 0) == is_end).mean() > 0.85
    assert np.isfinite(odds).all(), "a number that never changes has no spread"
    again = trained_head(*pauses(1), KINDS)
    assert np.array_equal(again.hidden, head.hidden)
    assert np.array_equal(again.hidden, again.hidden.astype(np.float16)), "as it is stored"
    assert again.bias == head.bias


def test_fewer_pauses_than_a_batch() -> None:
    embeddings, is_end = pauses(3)
    head = trained_head(embeddings[:5], is_end[:5], KINDS[:5])
    assert head.log_odds(embeddings).shape == (600,)
