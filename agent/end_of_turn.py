"""How long a silence ends the caller's turn.

An explicit `server_vad` silence is taken literally. `semantic_vad` asks the fitted score
(`turn_score.py`), anew with each thing that becomes known of the pause.
"""

from dataclasses import dataclass

from .settings import Eagerness, ServerVad, TurnDetection
from .turn_score import Evidence, shipped_score


@dataclass(frozen=True, slots=True)
class TurnRules:
    """What turn detection does, in terms of the machine."""

    enabled: bool = True
    """False: push-to-talk; the client commits."""
    silence_ms: int | None = None
    """An explicit silence. None: by the words."""
    eagerness: Eagerness = "auto"
    replies: bool = True
    """Whether a finished turn starts a reply by itself."""
    interrupts: bool = True
    """Whether the caller's speech stops the reply."""
    ducks: bool = False
    """The client turns the reply down while the words of a caller who speaks over it are checked.
    Others stop it, and it is taken up again where the words are none."""


def rules_for(detection: TurnDetection | None, *, ducks: bool = False) -> TurnRules:
    if detection is None:
        return TurnRules(enabled=False, ducks=ducks)
    if isinstance(detection, ServerVad):
        return TurnRules(
            silence_ms=detection.silence_duration_ms,
            replies=detection.create_response,
            interrupts=detection.interrupt_response,
            ducks=ducks,
        )
    return TurnRules(
        eagerness=detection.eagerness,
        replies=detection.create_response,
        interrupts=detection.interrupt_response,
        ducks=ducks,
    )


def required_silence_ms(rules: TurnRules, evidence: Evidence) -> int:
    """Silence after which an utterance of which this is known is a finished turn."""
    if rules.silence_ms is not None:
        return rules.silence_ms
    return shipped_score().wait_ms(evidence, rules.eagerness)
