"""Detection of a reply that repeats itself without end: "sunscreen, sunscreen, sunscreen, ...".

A small model that has lost its way goes on to the token limit, and the caller would hear all of it.
The reply ends behind the last whole repetition instead, whichever model made it; its history is cut
at the same character, as after an interruption.

People and models repeat with reason, so the limits lie above what was found of that: "no, no, no",
a refrain ("let it be" four times), laughter, an alarm that rings six times. What is said digit by
digit or letter by letter ("five five five five") is held to a limit of its own, above the longest
number that anybody reads out. Of the replies in `benchmarks/results/chat-*` these limits end only
loops.

Pure.
"""

import re
from collections import deque
from typing import Final

import languages
from languages.profile import word_set

MAX_PERIOD: Final = 48
"""Words of the longest phrase that is looked for. A longer one comes four times in 196 words, and
the 256 tokens that a reply has by default are some 190. Lower lets a sentence of 25 words come
until that limit; higher is of use only behind a higher limit."""

MIN_WORDS: Final = 12
"""Words that a loop of a short phrase has at least: one word twelve times, two words six times."""

MIN_TIMES: Final = 5
"""A phrase of three to five words comes so often; a refrain comes four times."""

MIN_TIMES_LONG: Final = 4
"""The same of a longer phrase, about a sentence."""

LONG_WORDS: Final = 6

MIN_SPELLED_WORDS: Final = 40
"""Digits or letters of a loop. An IBAN has 34 of both."""

_DIGIT_WORDS: Final = word_set(
    "zero oh one two three four five six seven eight nine double triple"
).union(*(profile.turn_words.digits for profile in languages.PROFILES.values()))

_WORD_END: Final = re.compile(r"\s")
_EDGES: Final = ".,!?;:…\"'()[]*_-–—“”„‘’«»¿¡"


class RepetitionGuard:
    """Watches one reply as it is generated. Any split into texts gives the same answer."""

    def __init__(self) -> None:
        self._open = ""
        """Beginning of the word that is not complete yet."""
        self._words: deque[str] = deque(maxlen=MAX_PERIOD)
        self._alike = [0] * (MAX_PERIOD + 1)
        """For each period, how many of the latest words equal the one a period before."""

    def push(self, text: str) -> int | None:
        """Take the next text. Returns how many of its characters belong to the reply if a loop was
        found, which then ends; None: none was."""
        begin = 0
        for blank in _WORD_END.finditer(text):
            word = (self._open + text[begin : blank.start()]).strip(_EDGES).casefold()
            self._open, begin = "", blank.end()
            if word and self._closes_loop(word):
                return blank.start()
        self._open += text[begin:]
        return None

    def _closes_loop(self, word: str) -> bool:
        num_words = len(self._words)
        for period in range(1, num_words + 1):
            is_alike = self._words[-period] == word
            self._alike[period] = self._alike[period] + 1 if is_alike else 0
        self._words.append(word)
        return any(
            alike and alike + period >= self._min_words(period)
            for period, alike in enumerate(self._alike)
        )

    def _min_words(self, period: int) -> int:
        """Words of a loop with this period that ends with the newest word."""
        if all(_is_spelled(word) for word in list(self._words)[-period:]):
            return max(MIN_SPELLED_WORDS, MIN_TIMES_LONG * period)
        times = MIN_TIMES_LONG if period >= LONG_WORDS else MIN_TIMES
        return max(MIN_WORDS, times * period)


def _is_spelled(word: str) -> bool:
    """True for a digit, a letter and a word of one, in any language."""
    return len(word) == 1 or word in _DIGIT_WORDS or not any(c.isalpha() for c in word)
