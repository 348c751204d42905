"""End-of-turn rules: the silence that ends the caller's turn.

An explicit `server_vad` silence is taken literally. `semantic_vad` uses the fitted probability
(`end_of_turn_model.py`: 416 to 1000 ms, 1200 after a dangling word, at most 2000 within a number),
evaluated again with every new piece of evidence about the pause. What the agent has just asked
makes it shorter after a whole answer and longer after a part of one (`dialogue/`).

The probability was fitted on English words. In calls of other languages the sound and the silence
decide alone, with waits of their own (`sound_rule.py`).
"""

from dataclasses import dataclass, field, replace
from typing import Final

import languages
from agent.session.api.settings import Eagerness, ServerVad, SessionSettings, TurnDetection

from .end_of_turn_model import Evidence, shipped_score
from .sound_rule import wait_by_sound_ms

IN_OLDER_TRACES: Final = "in_older_traces"
"""Key of a field's metadata: its value in traces that were written before there was the field."""


@dataclass(frozen=True, slots=True)
class IdleRules:
    """Rules for a caller who stays silent after a response."""

    idle_after_ms: int = 0
    """Silence before a prompt, ms; 0: never."""
    idle_commits: bool = False
    """True: commit the silence and let the model answer. False: a fixed sentence."""
    idle_hangup_ms: int = 0
    """Silence before the call ends, once no prompt is left, ms; 0: never."""


NOT_IDLE: Final = IdleRules()
"""No prompt, no hang-up."""


@dataclass(frozen=True, slots=True)
class TurnRules:
    """Turn detection of a session, in the machine's terms."""

    enabled: bool = True
    """False: push-to-talk; the client commits."""
    silence_ms: int | None = None
    """Explicit silence, ms; None: by the end-of-turn model."""
    eagerness: Eagerness = "auto"
    replies: bool = True
    """A finished turn starts a response by itself."""
    interrupts: bool = True
    """The caller's speech interrupts a response."""
    ducks: bool = False
    """The client lowers the volume while overlapping speech is checked. Other clients stop playing,
    and the rest is sent as a new response where there were no words."""
    language: str = languages.ENGLISH.code
    """Language of the caller's words."""
    idle: IdleRules = NOT_IDLE
    uses_questions: bool = field(default=True, metadata={IN_OLDER_TRACES: False})
    """What the agent has just asked is evidence about the end of the turn."""
    opens_early: bool = field(default=False, metadata={IN_OLDER_TRACES: False})
    """An opener may be spoken at a lower certainty than the answer, where `semantic_vad` decides,
    a reply follows, and speech interrupts it."""

    weighs_length: bool = field(default=True, metadata={IN_OLDER_TRACES: False})
    """How long the caller's voice lasts over the agent's is evidence that it is a backchannel."""

    @property
    def words(self) -> languages.TurnWords:
        """Words that turn-taking knows of the caller's language."""
        return languages.turn_words(self.language)


def asked_wait_ms(detection: TurnDetection | None) -> int:
    """Explicit silence of `server_vad`, ms, by which the turn's budget is widened; else 0."""
    return detection.silence_duration_ms if isinstance(detection, ServerVad) else 0


def rules_for(
    detection: TurnDetection | None, idle: IdleRules = NOT_IDLE, *, ducks: bool = False
) -> TurnRules:
    """Rules for a turn detection. `idle`: the operator's. With `server_vad` the client decides
    about prompts itself; with push-to-talk silence means nothing."""
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


def rules_of(
    settings: SessionSettings, idle: IdleRules, *, ducks: bool = False, has_openers: bool = False
) -> TurnRules:
    """Rules for a session's settings. `has_openers`: the operator wants early openers, and there
    are some in the call's language."""
    rules = rules_for(settings.turn_detection, idle, ducks=ducks)
    opens_early = has_openers and settings.speaks
    rules = replace(rules, language=settings.language, opens_early=opens_early)
    return replace(rules, replies=False, idle=NOT_IDLE) if settings.transcribes_only else rules


def required_silence_ms(rules: TurnRules, evidence: Evidence) -> int:
    """Silence that ends the turn, given this evidence, ms."""
    if rules.silence_ms is not None:
        return rules.silence_ms
    profile = languages.profile_of(rules.language)
    if profile is None or not profile.has_word_features:
        return wait_by_sound_ms(evidence, rules.eagerness, rules.words)
    return shipped_score().wait_ms(evidence, rules.eagerness)


def opener_silence_ms(rules: TurnRules, evidence: Evidence) -> int | None:
    """Silence after which an opener may be spoken, given this evidence, ms. None: only the end of
    the turn allows one."""
    if not (rules.opens_early and rules.replies and rules.interrupts):
        return None
    profile = languages.profile_of(rules.language)
    is_fitted = profile is not None and profile.has_word_features
    if rules.silence_ms is not None or not is_fitted:
        return None
    return shipped_score().opener_wait_ms(evidence, rules.eagerness)
