"""Is the caller's turn over: how long a silence has to be, from all that is known of a pause.

Theory of operation
-------------------
What is known of a pause comes bit by bit: its silence grows by 32 ms at a time, a tenth of a second
after its begin the turn model has judged the sound of it (`asr.turn_model`), and two tenths after
it the final pass has words. A small logistic regression makes one number of sound, words and this
caller's earlier pauses: the log-odds that the turn is over. The surer it is, the less silence is
waited for:

    wait = between `least_ms` and `most_ms`:  base_ms - slope_ms * log-odds

which is the same as a threshold on the odds that rise with every further moment of silence, but can
be read. Eagerness chooses among four such lines. Without the sound (its thread is busy or broken)
another regression knows the words alone. A caller who stops at "and" or in the middle of a number
gets longer, whatever the score.

Weights and lines are data (`end_of_turn_model.json`). `python -m benchmarks.end_of_turn.fit` makes
them, and prints what they are worth on the half that they were not fitted on.

Pure, but for reading that file.
"""

import json
import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, Literal

from agent.session.api.settings import Eagerness

from .thresholds import MAX_DANGLING_MS, MAX_NUMBER_MS, NEUTRAL_PAUSE_MS, SOUND_LIMIT

EAGERNESS: Final[tuple[Eagerness, ...]] = ("high", "auto", "medium", "low")
"""From the quickest to the most patient."""

WordClass = Literal["closed", "question", "comma", "dangling", "leaning", "spelled", "bare", "none"]

_DANGLING: Final = frozenset({
    "a", "an", "the", "and", "or", "but", "because", "if", "which", "um", "uh", "er", "erm",
    "hmm", "my", "your", "our", "their", "his", "i'm", "i'd", "i'll", "than", "as", "so",
    "while", "when", "where", "whether", "until", "unless", "from", "every", "both", "either",
})  # fmt: skip
"""No turn ends with these, whatever punctuation Whisper puts behind them."""

_LEANING: Final = frozenset({
    "to", "for", "of", "in", "on", "at", "with", "by", "is", "are", "was", "were", "be", "been",
    "will", "would", "can", "could", "should", "must", "have", "has", "had", "do", "does",
    "not", "that", "this", "these", "very", "more", "some", "any", "please", "about", "into",
})  # fmt: skip
"""Most often more follows, but questions and answers do end with them."""

_SPELLED: Final = re.compile(
    r"^(\d[\d.,-]*|[a-z]|zero|oh|one|two|three|four|five|six|seven|eight|nine|ten|double|dash|dot)$"
)
"""Digits and letters: of a number, an account, a name that is spelled."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence about a pause."""

    words: str
    """Words of the utterance before the pause."""
    sound: float | None = None
    """The turn model's log-odds that the turn is over; None: not known."""
    own_pause_ms: int = NEUTRAL_PAUSE_MS
    """This caller's long pauses: see `PauseHistory`."""
    message_end: float | None = None
    """The language model's log-probability that the message ends with these words; None: not
    known."""


class PauseHistory:
    """Length of this caller's pauses inside turns: a running quantile over the newest ones.

    Belongs to one call. The owner adds a pause when the caller goes on after it.
    """

    QUANTILE: Final = 0.75
    """Higher is one bad pause's whim, lower is passed by every other pause."""
    NEWEST: Final = 16
    LEAST_MS: Final = 128
    """Shorter ones are stops inside words."""
    MOST_MS: Final = 5000
    """No pause inside a turn is longer: audio that stopped coming is credited with more."""
    PRIOR_MS: Final = (NEUTRAL_PAUSE_MS, NEUTRAL_PAUSE_MS)
    """Prior: as if every caller had paused like this before. One long pause makes no hesitant
    caller."""

    def __init__(self) -> None:
        self._pauses: deque[int] = deque(maxlen=self.NEWEST)

    def add(self, silence_ms: int) -> None:
        if self.LEAST_MS <= silence_ms <= self.MOST_MS:
            self._pauses.append(silence_ms)

    @property
    def quantile_ms(self) -> int:
        ordered = sorted((*self.PRIOR_MS, *self._pauses))
        return ordered[int(self.QUANTILE * (len(ordered) - 1))]


@lru_cache(maxsize=256)
def word_class(text: str) -> WordClass:
    """Class of the end of the newest words."""
    stripped = text.strip().casefold()
    words = re.findall(r"[\w'.,-]*\w", stripped)
    if not words:
        return "none"
    last = words[-1]
    if last.strip("'.,-") in _DANGLING and stripped[-1] != "?":
        return "dangling"
    if stripped.endswith(("..", "…", "-", "—")):
        return "dangling"
    if _SPELLED.match(last) and not stripped.endswith((".", "?", "!")):
        return "spelled"
    if stripped.endswith(("?", "!")):
        return "question"
    if stripped.endswith("."):
        return "leaning" if last in _LEANING else "closed"
    if stripped.endswith((",", ";", ":")):
        return "comma"
    return "leaning" if last in _LEANING else "bare"


@lru_cache(maxsize=256)
def is_mid_number(text: str) -> bool:
    """True if the words stop in the middle of digits or letters: the last two are such, and no
    punctuation closes them."""
    words = re.findall(r"[\w.,-]*\w", text.casefold())
    return word_class(text) == "spelled" and len(words) > 1 and bool(_SPELLED.match(words[-2]))


def features(evidence: Evidence) -> dict[str, float]:
    """Names and values of what the regression sees; what is not named is 0."""
    found = {"one": 1.0, word_class(evidence.words): 1.0}
    found["own_pause"] = math.log(max(evidence.own_pause_ms, 64) / NEUTRAL_PAUSE_MS)
    if evidence.sound is not None:
        found["sound"] = max(-SOUND_LIMIT, min(SOUND_LIMIT, evidence.sound))
    return found


@dataclass(frozen=True, slots=True)
class Wait:
    """A line from log-odds to silence."""

    base_ms: float
    slope_ms: float
    least_ms: float
    most_ms: float

    def ms(self, log_odds: float) -> float:
        return max(self.least_ms, min(self.most_ms, self.base_ms - self.slope_ms * log_odds))


@dataclass(frozen=True, slots=True)
class TurnScore:
    """The fitted decision. Immutable; any thread."""

    with_sound: Mapping[str, float]
    words_alone: Mapping[str, float]
    """Weights, by the names of `features`."""
    waits: Mapping[Eagerness, Wait]

    @classmethod
    def load(cls, path: Path) -> "TurnScore":
        """Load a file that `benchmarks.end_of_turn.fit` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        waits: dict[Eagerness, Wait] = {name: Wait(**line) for name, line in data["waits"].items()}
        return cls(data["with_sound"], data["words_alone"], waits)

    def log_odds(self, evidence: Evidence) -> float:
        """Log-odds that the turn is over; 0 is even."""
        weights = self.words_alone if evidence.sound is None else self.with_sound
        return sum(weights.get(name, 0.0) * value for name, value in features(evidence).items())

    def wait_ms(self, evidence: Evidence, eagerness: Eagerness) -> int:
        """Silence after which the turn is over."""
        odds = self.log_odds(evidence)
        wait_ms = 0
        for name in EAGERNESS[: EAGERNESS.index(eagerness) + 1]:  # the patient never wait less
            wait_ms = max(wait_ms, math.ceil(self.waits[name].ms(odds)))
        if is_mid_number(evidence.words):
            return max(MAX_NUMBER_MS, wait_ms)
        if word_class(evidence.words) == "dangling":
            return max(MAX_DANGLING_MS, wait_ms)
        return wait_ms


@cache
def shipped_score() -> TurnScore:
    """The one that belongs to this version."""
    return TurnScore.load(Path(__file__).with_name("end_of_turn_model.json"))
