"""How long a silence ends the caller's turn.

An explicit `server_vad` silence is taken literally. `semantic_vad` reads the words: a sentence that
is plainly complete needs less silence than one that stops at "and". Whisper's own punctuation is
the feature: it writes a final "." or "?" only where the prosody and the words closed.
"""

import re
from dataclasses import dataclass
from typing import Final

from .settings import Eagerness, ServerVad, TurnDetection

COMPLETE_MS: Final[dict[Eagerness, int]] = {"high": 250, "auto": 350, "medium": 500, "low": 800}
"""Silence after a complete sentence. Below 250 ms the final pass is not back on two cores, so
nothing is won; above 500 ms callers begin to wonder whether they were heard."""

OPEN_MS: Final[dict[Eagerness, int]] = {"high": 500, "auto": 800, "medium": 1000, "low": 1500}
"""Silence after words that do not close a sentence. Hesitations of callers are 200-900 ms long:
lower cuts in on them, higher leaves a dead line."""

DANGLING_MS: Final = 1300
"""Silence after a word that cannot end a sentence ("and", "the", "um"): never longer, because a
caller who lost the thread wants help."""

_DANGLING: Final = re.compile(
    r"\b((an|the|and|or|but|because|if|which|um|uh|er|erm|hmm|my|your|our|their|i'm|than)[^\w?]*"
    r"|(a|so)[^\w.?!]*)$",
    re.IGNORECASE,
)
"""No "to", "from", "is", "that": questions and answers do end with those. "I think so." and
"Option A." are whole as well."""


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


def required_silence_ms(rules: TurnRules, text: str) -> int:
    """Silence after which an utterance with this transcript is a finished turn."""
    if rules.silence_ms is not None:
        return rules.silence_ms
    stripped = text.strip()
    if _DANGLING.search(stripped):
        return max(DANGLING_MS, OPEN_MS[rules.eagerness])
    closed = stripped.endswith((".", "?", "!")) and not stripped.endswith("..")
    return (COMPLETE_MS if closed else OPEN_MS)[rules.eagerness]
