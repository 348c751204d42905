"""How long a silence ends the caller's turn.

An explicit `server_vad` silence is taken literally. `semantic_vad` asks the fitted score
(`end_of_turn_model.py`), anew with each thing that becomes known of the pause.
"""

from dataclasses import dataclass, replace
from typing import Final

from agent.session.api.settings import Eagerness, ServerVad, SessionSettings, TurnDetection

from .end_of_turn_model import Evidence, shipped_score


@dataclass(frozen=True, slots=True)
class IdleRules:
    """What is done about a caller who stays silent after a reply."""

    idle_after_ms: int = 0
    """Silence after which the caller is asked for a word; 0: never."""
    idle_commits: bool = False
    """Asked by the model, in answer to a message without words. False: with a fixed sentence."""
    idle_hangup_ms: int = 0
    """Silence after which the call is ended, once nobody is asked any more; 0: never."""


NOT_IDLE: Final = IdleRules()
"""Nothing is done."""


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
    idle: IdleRules = NOT_IDLE


def asked_wait_ms(detection: TurnDetection | None) -> int:
    """Silence that the client wants to be waited for, whatever is known sooner: the budget of a
    turn grows by it. With push-to-talk nothing is waited for."""
    return detection.silence_duration_ms if isinstance(detection, ServerVad) else 0


def rules_for(
    detection: TurnDetection | None, idle: IdleRules = NOT_IDLE, *, ducks: bool = False
) -> TurnRules:
    """`idle`: what the operator wants done about silence. With `server_vad` the client says itself
    whether callers are asked, and with push-to-talk their silence means nothing."""
    if detection is None:
        return TurnRules(enabled=False, ducks=ducks)
    if isinstance(detection, ServerVad):
        return TurnRules(
            silence_ms=detection.silence_duration_ms,
            replies=detection.create_response,
            interrupts=detection.interrupt_response,
            ducks=ducks,
            idle=IdleRules(
                idle_after_ms=detection.idle_timeout_ms or 0,
                idle_commits=detection.idle_timeout_ms is not None,
                idle_hangup_ms=idle.idle_hangup_ms,
            ),
        )
    return TurnRules(
        eagerness=detection.eagerness,
        replies=detection.create_response,
        interrupts=detection.interrupt_response,
        ducks=ducks,
        idle=idle,
    )


def rules_of(settings: SessionSettings, idle: IdleRules, *, ducks: bool = False) -> TurnRules:
    """Those of a session."""
    rules = rules_for(settings.turn_detection, idle, ducks=ducks)
    return replace(rules, replies=False, idle=NOT_IDLE) if settings.transcribes_only else rules


def required_silence_ms(rules: TurnRules, evidence: Evidence) -> int:
    """Silence after which an utterance of which this is known is a finished turn."""
    if rules.silence_ms is not None:
        return rules.silence_ms
    return shipped_score().wait_ms(evidence, rules.eagerness)
