"""Is the caller's turn over: how long a silence has to be, from all that is known of a pause.

Theory of operation
-------------------
What is known of a pause comes bit by bit: its silence grows by 32 ms at a time, a tenth of a second
after its begin the turn model has judged the sound of it (`asr.turn_model`), two tenths after it
the final pass has words, and a few hundredths later the language model, which prefills them for the
reply, has said how likely a message ends with them. One logistic regression makes a calibrated
probability of all that: that the turn is over, given that the caller has been silent *for so long*.

    log-odds = weights x features + weight of silence x log(silence / 300 ms)

Silence is evidence like any other: the longer it lasts, the fewer of the pauses are left that go
on. The turn is over when the log-odds pass a threshold that a cut-in's price sets, in ms of every
caller's wait; eagerness chooses among four prices. Solved for the silence, that is

    wait = 300 ms x exp((threshold - weights x features) / weight of silence)

between the least and the most. In the middle of a number a caller may take longer than the most;
one who stops at "and", "the" or "um" gets `DANGLING_MS`, however sure the sound is: no turn ends
there, but recordings of readers, whose words are badly recognized, do not show it.

What the agent has just asked (`dialogue/`) is no feature: no recording says what its
speaker was asked. It acts by rule. A whole answer adds `WHOLE_ANSWER_LOG_ODDS` and is never in the
middle of a number; a part of one gets `PARTIAL_ANSWER_MS`, or the most where it sounds like an end;
digits or letters that are read out may take longer than the most even where punctuation closes
them, because Whisper's does so at random.

An opener (`preemptive.py`) costs less than an answer where the caller goes on, so less certainty
is enough for it: the same formula with `OPENER_COST_SHARE` of the price. Where a rule and not the
probability makes the wait, there is no opener.

The sound may be missing (its thread is busy or broken), and so may the language model's word (it is
remote, or busy, or was asked about other words): there is a regression for each of the four
combinations, fitted on the same pauses, so that each is calibrated.

Weights and thresholds are data (`end_of_turn_model.json`) with a version.
`python -m benchmarks.end_of_turn.fit` makes them, and prints what they are worth for speakers that
they were not fitted on. Another version is refused: then words and silence alone decide, by
`WORDS_RULE`, and `/readyz` says so.

What was tried: speaking rate (words a second) beside these: nothing for unseen speakers. Weights of
silence that depend on the other evidence: nothing either; nor a weight of the sound of its own
within digits and letters (of 93 unseen turns 9 were cut in on with it and without). The
recognizer's own doubts, its mean log-probability and its probability of no speech, do tell: the
log-loss on unseen turns is 0.289 with them and 0.305 without, 0.286 with the probability of a full
stop behind the last word as well. But around the threshold of `auto` it buys 20 ms of the mean wait
at as many cut-ins, less than the interval of either, and every recognizer of another package would
need regressions of its own.

Pure, but for reading that file.
"""

import json
import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, Literal

from agent.session.api.settings import Eagerness

from .dialogue.agent_question import NO_QUESTION, AgentQuestion
from .dialogue.answer_state import AnswerState, answer_state
from .dialogue.open_words import DANGLING, LEANING
from .thresholds import (
    DANGLING_MS,
    ENDED_SOUND_LOG_ODDS,
    MAX_NUMBER_MS,
    MESSAGE_END_LIMIT,
    NEUTRAL_PAUSE_MS,
    OPENER_COST_SHARE,
    PARTIAL_ANSWER_MS,
    SOUND_LIMIT,
    WHOLE_ANSWER_LOG_ODDS,
)

VERSION: Final = 2
"""Version of the weights' features. 1 had a line from a score to a silence."""

EAGERNESS: Final[tuple[Eagerness, ...]] = ("high", "auto", "medium", "low")
"""From the quickest to the most patient."""

WordClass = Literal["closed", "question", "comma", "dangling", "leaning", "spelled", "bare", "none"]

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
    question: AgentQuestion = NO_QUESTION
    """What the agent asked last, as far as the caller heard it."""


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
    if last.strip("'.,-") in DANGLING and stripped[-1] != "?":
        return "dangling"
    if stripped.endswith(("..", "…", "-", "—")):
        return "dangling"
    if _SPELLED.match(last) and not stripped.endswith((".", "?", "!")):
        return "spelled"
    if stripped.endswith(("?", "!")):
        return "question"
    if stripped.endswith("."):
        return "leaning" if last in LEANING else "closed"
    if stripped.endswith((",", ";", ":")):
        return "comma"
    return "leaning" if last in LEANING else "bare"


@lru_cache(maxsize=256)
def is_mid_number(text: str) -> bool:
    """True if the words stop in the middle of digits or letters: the last two are such, and no
    punctuation closes them."""
    words = re.findall(r"[\w.,-]*\w", text.casefold())
    return word_class(text) == "spelled" and len(words) > 1 and bool(_SPELLED.match(words[-2]))


_DIGIT_WORD: Final = re.compile(r"^([a-z]|zero|oh|one|two|three|four|five|six|seven|eight|nine)$")

_WHOLE_NUMBERS: Final = frozenset({7, 10, 11, 12})
"""Digits of a telephone number, without and with codes."""


@lru_cache(maxsize=256)
def num_digits(text: str) -> int:
    """Digits and single letters at the end of the words, read out one after another."""
    count = 0
    for word in reversed(re.findall(r"[\w'.,-]*\w", text.casefold())):
        digits = sum(character.isdigit() for character in word)
        if not digits and not _DIGIT_WORD.match(word):
            break
        count += digits or 1
    return count


Known = Literal["words", "sound", "message_end", "sound, message_end"]
"""Evidence beside words and silence that a regression sees."""

ALL_KNOWN: Final[tuple[Known, ...]] = ("words", "sound", "message_end", "sound, message_end")


def known_of(evidence: Evidence) -> Known:
    """What is known of a pause. What is not a finite number is not known."""
    sound, end = _is_finite(evidence.sound), _is_finite(evidence.message_end)
    if sound:
        return "sound, message_end" if end else "sound"
    return "message_end" if end else "words"


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def features(evidence: Evidence) -> dict[str, float]:
    """Names and values of what the regression sees beside silence; what is not named is 0."""
    text = evidence.words
    found = {"one": 1.0, word_class(text): 1.0}
    found["own_pause"] = math.log(max(evidence.own_pause_ms, 64) / NEUTRAL_PAUSE_MS)
    found["num_words"] = math.log1p(len(text.split()))
    digits = num_digits(text)
    found["digits"] = math.log1p(digits)
    found["whole_number"] = float(digits in _WHOLE_NUMBERS)
    if evidence.sound is not None and math.isfinite(evidence.sound):
        found["sound"] = max(-SOUND_LIMIT, min(SOUND_LIMIT, evidence.sound))
    if evidence.message_end is not None and math.isfinite(evidence.message_end):
        log_prob = max(MESSAGE_END_LIMIT, min(0.0, evidence.message_end))
        found["message_end"] = log_prob
        found["message_end_prob"] = math.exp(log_prob)
    return found


SILENCE: Final = "silence"
"""Name of the weight of silence."""


def silence_feature(silence_ms: float) -> float:
    """Value of the silence as a feature."""
    return math.log(silence_ms / NEUTRAL_PAUSE_MS)


MAX_EXPONENT: Final = 5.0
"""Exponent of a wait that is beyond any bound."""


@dataclass(frozen=True, slots=True)
class Release:
    """When a turn is taken for over."""

    log_odds: float
    """Log-odds that are enough."""
    least_ms: float
    most_ms: float
    """Bounds of the silence, ms."""

    def silence_ms(self, log_odds: float, weight: float, longer_ms: int = 0) -> float:
        """Silence after which the turn is over, ms, where the log-odds are `log_odds` after
        `NEUTRAL_PAUSE_MS` and grow with `weight`. `longer_ms`: may exceed the most up to here."""
        exponent = min((self.log_odds - log_odds) / weight, MAX_EXPONENT)
        wanted_ms = NEUTRAL_PAUSE_MS * math.exp(exponent)
        return max(self.least_ms, min(max(self.most_ms, longer_ms), wanted_ms))

    def cheaper(self, share: float, least_ms: float) -> "Release":
        """The release where a cut-in costs this share (0..1), with a least of its own."""
        return replace(self, log_odds=self.log_odds + math.log(share), least_ms=least_ms)


class ScoreVersionError(ValueError):
    """Weights of another version, or none at all; the message says what to do."""


@dataclass(frozen=True, slots=True)
class TurnScore:
    """The fitted decision. Immutable; any thread."""

    weights: Mapping[Known, Mapping[str, float]]
    """Weights by what is known, then by the names of `features`, and `SILENCE`."""
    releases: Mapping[Eagerness, Release]
    problem: str | None = field(default=None, compare=False)
    """Why this is not the fitted decision; None where it is."""

    @classmethod
    def load(cls, path: Path) -> "TurnScore":
        """Load a file that `benchmarks.end_of_turn.fit` wrote. Raises ScoreVersionError for what
        this version can't use."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            version = data.get("version")
            if version != VERSION:
                raise ScoreVersionError(
                    f"{path.name} has version {version}, this needs {VERSION}: install the file of "
                    "this release, or run `python -m benchmarks.end_of_turn.fit`"
                )
            weights = {known: _weights(data["weights"][known]) for known in ALL_KNOWN}
            releases: dict[Eagerness, Release] = {
                eagerness: Release(**data["releases"][eagerness]) for eagerness in EAGERNESS
            }
        except ScoreVersionError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ScoreVersionError(f"{path.name} can't be read: {error}") from error
        return cls(weights, releases)

    def log_odds(self, evidence: Evidence, silence_ms: float = NEUTRAL_PAUSE_MS) -> float:
        """Log-odds that the turn is over after so long a silence; 0 is even."""
        weights = self.weights[known_of(evidence)]
        values = features(evidence)
        values[SILENCE] = silence_feature(silence_ms)
        return sum(weights.get(name, 0.0) * value for name, value in values.items())

    def wait_ms(self, evidence: Evidence, eagerness: Eagerness) -> int:
        """Silence after which the turn is over."""
        answer = answer_state(evidence.question, evidence.words)
        odds, weight = self._odds_and_weight(evidence, answer)
        longer_ms = MAX_NUMBER_MS if _is_reading(evidence, answer) else 0
        names = EAGERNESS[: EAGERNESS.index(eagerness) + 1]  # the patient never wait less
        waits = [self.releases[name].silence_ms(odds, weight, longer_ms) for name in names]
        if word_class(evidence.words) == "dangling":
            waits.append(DANGLING_MS)
        if answer == "partial":
            sounds_ended = evidence.sound is not None and evidence.sound >= ENDED_SOUND_LOG_ODDS
            most_ms = max(self.releases[name].most_ms for name in names)
            waits.append(min(PARTIAL_ANSWER_MS, most_ms) if sounds_ended else PARTIAL_ANSWER_MS)
        return math.ceil(max(waits))

    def opener_wait_ms(self, evidence: Evidence, eagerness: Eagerness) -> int | None:
        """Silence after which an opener may be spoken, no longer than `wait_ms`. None: only the end
        of the turn allows one, because a rule makes its wait, or the weights are not the fitted
        ones."""
        answer = answer_state(evidence.question, evidence.words)
        is_by_rule = answer == "partial" or _is_reading(evidence, answer)
        is_dangling = word_class(evidence.words) == "dangling"
        if self.problem is not None or is_by_rule or is_dangling:
            return None
        odds, weight = self._odds_and_weight(evidence, answer)
        least_ms = min(release.least_ms for release in self.releases.values())
        names = EAGERNESS[: EAGERNESS.index(eagerness) + 1]
        releases = [self.releases[name].cheaper(OPENER_COST_SHARE, least_ms) for name in names]
        return math.ceil(max(release.silence_ms(odds, weight) for release in releases))

    def _odds_and_weight(self, evidence: Evidence, answer: AnswerState) -> tuple[float, float]:
        """Log-odds that the turn is over after `NEUTRAL_PAUSE_MS`, and the weight of silence."""
        odds = self.log_odds(evidence) + (WHOLE_ANSWER_LOG_ODDS if answer == "whole" else 0.0)
        return odds, self.weights[known_of(evidence)][SILENCE]


def _is_reading(evidence: Evidence, answer: AnswerState) -> bool:
    """True in the middle of digits or letters that are read out."""
    return answer == "reading" or (answer != "whole" and is_mid_number(evidence.words))


def _weights(data: Mapping[str, float]) -> dict[str, float]:
    weights = {str(name): float(value) for name, value in data.items()}
    if not (weights[SILENCE] > 0 and all(map(math.isfinite, weights.values()))):
        raise ValueError("weights are finite, and that of silence is positive")
    return weights


_BY_WORDS: Final[Mapping[str, float]] = {
    "closed": 0.5,
    "question": 0.5,
    "dangling": -0.7,
    "spelled": -0.7,
    SILENCE: 1.0,
}

WORDS_RULE: Final = TurnScore(
    dict.fromkeys(ALL_KNOWN, _BY_WORDS),
    {
        "high": Release(0.7, 300, 800),
        "auto": Release(1.2, 500, 1000),
        "medium": Release(1.4, 600, 1200),
        "low": Release(1.6, 800, 1500),
    },
)
"""Decision by words and silence without fitted weights: after a closed sentence 600 ms by "auto",
after other words 1000. For weights that can't be used; safe rather than quick."""


@cache
def shipped_score() -> TurnScore:
    """The one that belongs to this version; `WORDS_RULE` with a `problem` where it can't be
    used."""
    return score_or_rule(Path(__file__).with_name("end_of_turn_model.json"))


def score_or_rule(path: Path) -> TurnScore:
    """The score in a file, or else `WORDS_RULE`, whose `problem` says why."""
    try:
        return TurnScore.load(path)
    except ScoreVersionError as error:
        problem = f"The end of turn is decided by words and silence alone: {error}"
        return replace(WORDS_RULE, problem=problem)
