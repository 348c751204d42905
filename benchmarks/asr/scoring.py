"""Word error rate: edit distance between transcript and reference, in words, counted by jiwer.

Words are scored, not their spelling: case, punctuation, "7" or "seven", "log in" or "login" make no
error. The normalization is our own and deliberately small; it serves to compare windows and models
with each other on short prompts, and is no substitute for a leaderboard's.

Pure.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from agent.errors import BenchError

_ONES: Final = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
]  # fmt: skip
_TENS: Final = [
    "zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
]  # fmt: skip
_ORDINALS: Final = {
    "1st": "first", "2nd": "second", "3rd": "third", "4th": "fourth", "5th": "fifth",
    "6th": "sixth", "7th": "seventh", "8th": "eighth", "9th": "ninth", "10th": "tenth",
}  # fmt: skip
_SAME: Final = {
    "ok": "okay", "voice mail": "voicemail", "logged off": "loggedoff", "log in": "login",
    "mail box": "mailbox", "e mail": "email", "can not": "cannot", "mister": "mr",
    "doctor": "dr", "i'm": "i am", "it's": "it is", "that's": "that is", "can't": "cannot",
    "you're": "you are", "don't": "do not", "there's": "there is", "i'll": "i will",
    "un mute": "unmute", "un muted": "unmuted", "un identified": "unidentified",
    "call forward": "callforward", "follow me": "followme", "caller id": "callerid",
    "sign up": "signup", "pass code": "passcode", "on going": "ongoing",
}  # fmt: skip
_BRACKETED: Final = re.compile(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>")


@dataclass(frozen=True, slots=True)
class WordErrors:
    """Counts of word errors over one or many transcripts."""

    words: int
    """Number of words in the references."""
    errors: int
    """Words substituted, deleted and inserted."""

    @property
    def rate(self) -> float:
        """Word error rate; 0 without words."""
        return self.errors / self.words if self.words else 0.0


def normalized(text: str) -> list[str]:
    """Normalized words of a text, for comparison."""
    text = _BRACKETED.sub(" ", text.casefold()).replace("’", "'")
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"\b\d+(?:st|nd|rd|th)\b", lambda m: _ORDINALS.get(m[0], m[0]), text)
    text = re.sub(r"\d+", lambda m: f" {_spoken_number(m[0])} ", text)
    text = text.replace("#", " pound ").replace("%", " percent ").replace("&", " and ")
    text = " ".join(re.findall(r"[\w']+", text))
    for spelled, same in _SAME.items():
        text = re.sub(rf"\b{spelled}\b", same, text)
    return [word for word in (raw.strip("'") for raw in text.split()) if word]


def _spoken_number(digits: str) -> str:
    """Spell "42" as "forty two"; long numbers digit by digit, as telephone numbers are read."""
    if len(digits) > 3 or digits.startswith("0"):
        return " ".join(_ONES[int(digit)] for digit in digits)
    value = int(digits)
    words = [_ONES[value // 100], "hundred"] if value >= 100 else []
    rest = value % 100
    if rest >= 20:
        words.append(_TENS[rest // 10])
        rest %= 10
    if rest or not words:
        words.append(_ONES[rest])
    return " ".join(words)


def word_errors(references: Iterable[str], hypotheses: Iterable[str]) -> WordErrors:
    """Sum the word errors of all pairs of texts. Raises BenchError, and ValueError if the numbers
    of texts differ."""
    return errors_in_words(map(normalized, references), map(normalized, hypotheses))


def errors_in_words(
    references: Iterable[Sequence[str]], hypotheses: Iterable[Sequence[str]]
) -> WordErrors:
    """Sum the word errors of all pairs of word lists, normalized by the caller. Raises BenchError,
    and ValueError if the numbers of lists differ."""
    counts = load_jiwer().process_words(
        [" ".join(words) for words in references], [" ".join(words) for words in hypotheses]
    )
    changed = counts.substitutions + counts.deletions
    return WordErrors(counts.hits + changed, changed + counts.insertions)


def load_jiwer() -> ModuleType:
    """Import jiwer, which aligns the words. Raises BenchError if it is not installed."""
    try:
        import jiwer
    except ImportError:
        raise BenchError("No jiwer, which counts word errors: pip install jiwer") from None
    return jiwer
