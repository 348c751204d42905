"""What can be done about a turn that is about to miss its budget: the ladder, and what came of it.

In order of what a caller may notice: nothing, a reply that begins with fewer words, a word in front
of it, a smaller model behind it. What is done for one turn stands in that turn's account; a refusal
belongs to no turn and is counted by the service.
"""

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """A rung. The names stand in the store, metrics, JSON and traces."""

    PAUSE_SOONER = "pause_sooner"
    """A shorter silence counts as a pause, so that a reply is prepared sooner. Pays where the words
    are known before the pause is."""
    SHORT_CLAUSE = "short_clause"
    """The first piece of the reply ends after a few words, without a mark if need be."""
    TAIL_DECODE = "tail_decode"
    """The older part of a long utterance is recognized while it goes on, so that the last pass has
    only the rest."""
    SKIP_PARTIALS = "skip_partials"
    """No partial transcripts while the caller speaks: the recognizer is free at the pause. Where
    its passes are slow, none is begun at a short pause either. (Second tries at doubtful words are
    not skipped: one turn in 230 needs one, and is wrong without.)"""
    OPENER = "opener"
    """Words kept at hand are said in front of the reply."""
    SMALL_MODEL = "small_model"
    """The call's next replies are a smaller model's."""


@dataclass(frozen=True, slots=True)
class ActionTaken:
    """What was done for one turn."""

    action: Action
    predicted_ms: float
    """What it was to save of the wait for the reply, when it was decided."""
    saved_ms: float | None = None
    """What it did save. An opener's is exact: until the reply's own first sound. Of the others it
    is what the latest comparisons with turns without it say (`action_effect.py`); negative where
    it took longer. None: nothing is known of that yet."""
    left_out: bool = False
    """It was called for and not done, to see what it saves."""
