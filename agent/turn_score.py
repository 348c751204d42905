"""Is the caller's turn over: one probability from all that is known, scored anew as silence grows.

Theory of operation
-------------------
A pause is asked about every 32 ms. What is known of it comes bit by bit (silence counts from the
detector's first silent frame, times are of two cores):

    at once    the newest partial transcript; how long this caller's earlier pauses were
    ~140 ms    the turn model's probability (`asr.turn_model`), asked when the pause was noticed
    ~280 ms    the final pass's words, asked at the same time
    ~310 ms    the language model's probability that the message ends there

What is there decides which of a few small logistic regressions is used (`stage_of`), so an answer
that is late or never comes costs certainty and nothing else. Each says how likely the turn is over
*given that the caller has been silent this long*: every 32 ms without a word are evidence, too.

The turn is over when the log-odds reach a threshold, which is all that eagerness changes. With
nothing but an old partial nothing is decided, because only sound and words of its end can show
that a turn is over. After MAX_MS it is over whatever the score, because a dead line is worse than a
wrong guess; a caller who is plainly in the middle of a number or of spelling gets longer.

The turn model is asked once, as early as it can be: what it knows lies in the speech, and the
longer the silence behind that, the less it tells ends from pauses.

Weights and thresholds are data (`turn_score.json`); `python -m agent.fit_turns` makes them and
prints what they are worth on the half that they were not fitted on.

Pure, but for reading that file.
"""

import json
import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from .settings import Eagerness

MAX_MS: Final[dict[Eagerness, int]] = {"high": 800, "auto": 1000, "medium": 1200, "low": 1500}
"""Silence after which a turn is over in any case, unless its last word cannot be one. Pauses of
thought are up to 900 ms long; above 1500 callers ask whether anybody is there."""

MAX_DANGLING_MS: Final = 1300
"""The same, at least, after "and", "the", "um": a caller who lost the thread wants help."""

MAX_NUMBER_MS: Final = 2500
"""The same in the middle of a number or of spelling, where callers look things up."""

LOGIT_LIMIT: Final = 4.0
"""Probabilities count up to 0.982: the turn model's answer has 8 bits, and no single witness is to
outvote all others."""

NEUTRAL_MS: Final = 300
"""Silences and pauses count as multiples of this: about the median pause inside a sentence."""

Stage = Literal["partial", "sound", "words", "sound words", "words llm", "sound words llm"]

FRESH_MS: Final = 200
"""Speech that a partial transcript may lack and still say how the turn ends: less than a word."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a pause at one moment. None: not yet, or not at all."""

    silence_ms: int
    """Since the detector's first silent frame."""
    sound: float | None = None
    """The turn model's newest probability that the turn is over, 0..1."""
    partial: str | None = None
    """Newest partial transcript."""
    partial_lag_ms: int = 0
    """Speech between the end of the audio behind it and the pause."""
    final: str | None = None
    """The final pass's words. Empty: nothing was said."""
    llm: float | None = None
    """The language model's probability that the message ends after the final's words, 0..1: that
    after them, without their last punctuation, comes the end or ".", "?" or "!"."""
    own_pause_ms: int | None = None
    """This caller's long pauses: see `OwnPauses`."""


class OwnPauses:
    """How long this caller's pauses inside turns are: a running quantile over the newest ones.

    Belongs to one call. The owner adds a pause when the caller goes on after it, and when a turn
    that was taken to be over is reopened.
    """

    QUANTILE: Final = 0.75
    """Higher is one bad pause's whim, lower is passed by every other pause."""
    NEWEST: Final = 16
    PRIOR_MS: Final = (NEUTRAL_MS, NEUTRAL_MS)
    """As if every caller had paused like this before: one long pause makes no hesitant caller."""

    def __init__(self) -> None:
        self._pauses: deque[int] = deque(maxlen=self.NEWEST)

    def add(self, silence_ms: int) -> None:
        self._pauses.append(silence_ms)

    @property
    def quantile_ms(self) -> int:
        ordered = sorted((*self.PRIOR_MS, *self._pauses))
        return ordered[min(len(ordered) - 1, int(self.QUANTILE * len(ordered)))]


def word_class(text: str) -> WordClass:
    """How the newest words end."""
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


def is_mid_number(text: str) -> bool:
    """Whether the words stop in the middle of digits or letters: the last two are such, and nothing
    closes them."""
    words = re.findall(r"[\w.,-]*\w", text.casefold())
    return word_class(text) == "spelled" and len(words) > 1 and bool(_SPELLED.match(words[-2]))


def stage_of(evidence: Evidence) -> Stage:
    """What is known, and so which regression is used."""
    if evidence.final is None:
        return "partial" if evidence.sound is None else "sound"
    if evidence.llm is None:
        return "words" if evidence.sound is None else "sound words"
    return "words llm" if evidence.sound is None else "sound words llm"


def features(evidence: Evidence) -> dict[str, float]:
    """Names and values of what the regression sees; what is not named is 0."""
    found = {"one": 1.0, "log_silence": math.log(max(evidence.silence_ms, 32) / NEUTRAL_MS)}
    if evidence.sound is not None:
        found["sound"] = _logit(evidence.sound)
    if evidence.final is not None:
        found[word_class(evidence.final)] = 1.0
    elif evidence.partial and evidence.partial_lag_ms <= FRESH_MS:
        found[word_class(evidence.partial)] = 1.0
    if evidence.llm is not None:
        found["llm"] = _logit(evidence.llm)
    if evidence.own_pause_ms is not None:
        found["own_pause"] = math.log(max(evidence.own_pause_ms, 64) / NEUTRAL_MS)
    return found


@dataclass(frozen=True, slots=True)
class TurnScore:
    """The fitted decision. Immutable; any thread."""

    weights: Mapping[Stage, Mapping[str, float]]
    """For each stage, by the names of `features`."""
    thresholds: Mapping[Eagerness, float]
    """Log-odds from which a turn is over."""

    @classmethod
    def load(cls, path: Path | None = None) -> "TurnScore":
        """From a file of `agent.fit_turns`, by default the one that ships."""
        path = path or Path(__file__).with_name("turn_score.json")
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(data["weights"], data["thresholds"])

    def log_odds(self, evidence: Evidence) -> float:
        """That the turn is over; 0 is even."""
        weights = self.weights[stage_of(evidence)]
        return sum(weights.get(name, 0.0) * value for name, value in features(evidence).items())

    def probability(self, evidence: Evidence) -> float:
        """That the turn is over, 0..1."""
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, self.log_odds(evidence)))))

    def is_over(self, evidence: Evidence, eagerness: Eagerness = "auto") -> bool:
        """Whether to commit the turn at this moment."""
        if evidence.silence_ms >= longest_ms(evidence, eagerness):
            return True
        if stage_of(evidence) == "partial":
            return False
        return self.log_odds(evidence) >= self.thresholds[eagerness]


def longest_ms(evidence: Evidence, eagerness: Eagerness) -> int:
    """Silence after which the turn is over whatever its score."""
    words = evidence.final if evidence.final is not None else evidence.partial or ""
    if is_mid_number(words):
        return MAX_NUMBER_MS
    if word_class(words) == "dangling":
        return max(MAX_DANGLING_MS, MAX_MS[eagerness])
    return MAX_MS[eagerness]


def _logit(probability: float) -> float:
    inside = min(max(probability, 1e-6), 1 - 1e-6)
    return max(-LOGIT_LIMIT, min(LOGIT_LIMIT, math.log(inside / (1 - inside))))
