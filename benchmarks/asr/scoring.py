"""Word error rate: edit distance between transcript and reference, in words.

Words are scored, not their spelling: case, punctuation, "7" or "seven", "log in" or "login" make no
error. The normalization is our own and deliberately small; it serves to compare windows and models
with each other on short prompts, and is no substitute for a leaderboard's.

Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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
    """Sum the word errors of all pairs. Raises ValueError if the numbers of texts differ."""
    words = errors = 0
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        said = normalized(reference)
        words += len(said)
        errors += edit_distance(said, normalized(hypothesis))
    return WordErrors(words, errors)


def edit_distance(said: list[str], heard: list[str]) -> int:
    """Levenshtein distance over words."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            cost = min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
            diagonal, row[j] = row[j], cost
    return row[-1]
