"""Words of a text."""

import re
from collections.abc import Sequence
from typing import Final


def word_list(text: str) -> tuple[str, ...]:
    """Split a list of words at its spaces."""
    return tuple(text.split())


WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WORD: Final = re.compile(
    r"(?<![^\W_])(?:\d{4}-\d\d-\d\d|\d{1,2}[:.]\d\d(?!\d)|\d+(?:,\d{3})+(?:\.\d+)?|\d+\.\d+"
    r"|\d+(?:st|nd|rd|th)\b|\d+)|[ap]\.\s?m\b\.?|[^\W\d_]+(?:['’][^\W\d_]+)*|[-–]|[,.;!?$%]"
)
"""A word, figure or sign. The figures of "LH442" are not a number."""


def words_of(text: str) -> list[str]:
    """Split a text into its words, figures and signs, in small letters."""
    text = re.sub(r"[-−](?<!\S.)(?<!\d\s.)(?=\d)", "minus ", text.casefold())
    return [match[0].replace("’", "'") for match in _WORD.finditer(text)]


def word_at(words: Sequence[str], index: int) -> str:
    """The word at an index; "" outside the text."""
    return words[index] if 0 <= index < len(words) else ""
