"""Actions against a turn that is about to miss its budget.

They are ordered by what a caller may notice: nothing, a reply that begins with fewer words, a word
in front of it, a smaller model behind it. An action taken for one turn is part of that turn's
record; a refused call belongs to no turn and is counted by the service.
"""

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """One action. The names are used in the store, metrics, JSON and traces."""

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
    """A prepared phrase is played in front of the reply."""
    SMALL_MODEL = "small_model"
    """A smaller model generates the call's next replies."""


@dataclass(frozen=True, slots=True)
class ActionTaken:
    """One action that was taken for one turn."""

    action: Action
    predicted_ms: float
    """Predicted saving of the wait for the reply, at the time of the decision, in ms."""
    saved_ms: float | None = None
    """Measured saving in ms. An opener's is exact: until the reply's own first sound. Those of the
    others come from the latest comparisons with turns without the action (`action_effect.py`);
    negative where the turn took longer. None: not measured yet."""
    left_out: bool = False
    """True where the action was due and left out on purpose, to measure what it saves."""
