"""A message as its readers share it: words, numbers among them, and which are read already."""

from itertools import pairwise
from typing import Final, Literal

from .number_words import Group, groups_of
from .words import WEEKDAYS, word_at, word_list, words_of

ValueKind = Literal["numbers", "digits", "times", "dates", "weekdays"]

MAX_ANSWER_WORDS: Final = 4
"""Words of a message that can be nothing but the answer to a question: its number may be a time. In
longer ones "a table for two" would name two o'clock."""
_AFTER_TIME: Final = (
    *word_list(
        "in on for please today tonight tomorrow if and or to next this sharp with under then"
    ),
    *word_list("is would that noon midnight ish instead until till works"),
    *WEEKDAYS,
)
"""Words that may follow a time after "at". Others, such as a street's name, make it a number."""
_EXCLUDING: Final = frozenset(word_list("not except excluding without nor"))
_EXCLUDING_PAIRS: Final = frozenset(
    (
        ("instead", "of"),
        ("rather", "than"),
        ("other", "than"),
        ("anything", "but"),
        ("day", "but"),
        ("time", "but"),
    )
)
_CORRECTING: Final = frozenset(
    word_list("no sorry wait mean meant actually rather correction scratch oops")
)
_MAX_CORRECTING_WORDS: Final = 6
"""Words between a value and its correction, at most."""


class MessageWords:
    """One message. Its readers mark the words that they read, which later readers leave out."""

    def __init__(self, text: str) -> None:
        self.raw = text
        """As it was said, with its capital letters."""
        self.text = text.casefold().replace("’", "'")
        self.words = words_of(text)
        self.groups = list(groups_of(self.words))
        """Its numbers, in their order."""
        self.starting = {group.first: group for group in self.groups}
        """Numbers by their first words."""
        self.ending = {group.end: group for group in self.groups}
        """Numbers by the words behind them."""
        self.corrected = {
            group.first: last
            for last, group in pairwise(self.groups)
            if group.first - last.end <= _MAX_CORRECTING_WORDS
            and not _CORRECTING.isdisjoint(self.words[last.end : group.first])
        }
        """Numbers that words such as "no, sorry" part from the one before, by the first words of
        those behind."""
        self.used: set[int] = set()
        """Words that belong to a date or to a time."""
        self.in_times: set[int] = set()
        """Words of numbers that are, or can be, times."""
        self.understood: set[int] = set()
        """Words of fractions that are read."""
        self.unclear: set[ValueKind] = set()
        """Kinds of values that it also names in words that are not understood."""

    def is_used(self, group: Group) -> bool:
        """True if a number belongs to a date or to a time."""
        return not self.used.isdisjoint(range(group.first, group.end))

    def is_excluded(self, index: int) -> bool:
        """True if a value is named as the one that is not meant: "not on Monday"."""
        before = index - 1
        while before > index - 4 and word_at(self.words, before) in ("on", "at", "the", "for", "a"):
            before -= 1
        word = word_at(self.words, before)
        pair = (word_at(self.words, before - 1), word)
        return word in _EXCLUDING or word.endswith("n't") or pair in _EXCLUDING_PAIRS

    def is_closed(self, end: int) -> bool:
        """True if no noun follows, at `end`, that the number before would count."""
        after = word_at(self.words, end)
        return not after[:1].isalnum() or after in _AFTER_TIME
