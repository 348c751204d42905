"""End of the turn by sound and silence, for languages whose words the fitted model does not know.

What holds in other languages: the silence; the turn model's score of the sound, which Smart Turn
was trained to give in 23 languages, among them German, Spanish and French; the caller's own pauses.
What does not: the classes of words, their number and the digits, which were fitted on English; and
the language model's word, whose scale was fitted with them. So the wait is a line in the score of
the sound, between bounds that are safer than those of the fitted decision: nothing was measured on
callers of these languages. The few words that no turn ends with, and digits that are read out, are
known for the complete languages, and make the caller's time longer, never shorter.

    wait = 300 ms x exp(1 - sound / 5), and half of what the caller's own pauses are above usual

After a sure end of sound (log-odds 2) 600 ms, after an undecided one 815, after one that goes on
(-2) 1200; without a sound 1000.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

from agent.session.api.settings import Eagerness
from languages import TurnWords

from .end_of_turn_model import Evidence
from .thresholds import DANGLING_MS, NEUTRAL_PAUSE_MS, SOUND_LIMIT

SOUND_SCALE: Final = 5.0
"""Log-odds of the sound that change the wait by a factor of e. Lower: a score of a language that it
was not tuned on decides more than it should. Higher: every caller waits as long."""

NEUTRAL_WAIT_MS: Final = 815.0
"""Wait at even odds."""

UNKNOWN_WAIT_MS: Final = 1000.0
"""Wait where the sound is not known: as long as the fitted decision waits at most."""

BOUNDS_MS: Final[Mapping[Eagerness, tuple[float, float]]] = {
    "high": (450, 1000),
    "auto": (600, 1200),
    "medium": (700, 1400),
    "low": (900, 1800),
}
"""Least and most of a wait. The least lies 180 ms above that of the fitted decision: a cut-in on a
caller whose pauses nobody has measured costs more than a later answer."""

_DIGITS: Final = re.compile(r"\d[\d.,-]*")


def wait_by_sound_ms(evidence: Evidence, eagerness: Eagerness, known: TurnWords) -> int:
    """Silence after which the turn is over, ms. `known`: words of the caller's language."""
    sound = evidence.sound
    if sound is None or not math.isfinite(sound):
        wait_ms = UNKNOWN_WAIT_MS
    else:
        limited = max(-SOUND_LIMIT, min(SOUND_LIMIT, sound))
        wait_ms = NEUTRAL_WAIT_MS * math.exp(-limited / SOUND_SCALE)
    wait_ms += max(0, evidence.own_pause_ms - NEUTRAL_PAUSE_MS) / 2
    least_ms, most_ms = BOUNDS_MS[eagerness]
    wait_ms = max(least_ms, min(most_ms, wait_ms))
    if _goes_on(evidence.words, known):
        wait_ms = max(wait_ms, DANGLING_MS)
    return math.ceil(wait_ms)


def _goes_on(text: str, known: TurnWords) -> bool:
    """True after a word that no turn ends with, and in the middle of digits."""
    stripped = text.strip().casefold()
    found = re.findall(r"[\w.,-]*\w", stripped)
    if not found or stripped.endswith(("?", "!")):
        return False
    if found[-1] in known.dangling or stripped.endswith(("..", "…", "-", "—")):
        return True
    last = [word in known.digits or bool(_DIGITS.fullmatch(word)) for word in found[-2:]]
    return len(last) == 2 and all(last) and not stripped.endswith(".")
