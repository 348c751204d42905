"""Numbers, lengths of time and strings of digits that a message names."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from .message import MessageWords
from .number_words import MAX_NUMBER, MULTIPLES, Group, fraction_at
from .words import word_at, word_list

MAX_DIGITS: Final = 32
"""Digits of the longest string of them that is kept: an account's has up to 30."""
_MAX_NUMBER_DIGITS: Final = 9
"""Longest string of digits that is a number, too: longer ones are a telephone's or a card's."""
_LARGE: Final = frozenset(("hundred", "thousand"))
_PAUSE: Final = frozenset(",;")
_BETWEEN_DIGITS: Final = frozenset((*_PAUSE, *word_list("- – dash hyphen space um uh er then")))
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600}
_SMALLER_UNITS: Final = {
    "hour": (60,),
    "minute": (),
    "day": (24,),
    "week": (7,),
    "fortnight": (2, 14),
    "year": (12,),
}
"""Smaller units of time that one unit is counted in: a tool may want another than was said."""
_COUNTS: Final = {"couple": 2, "pair": 2, "both": 2, "once": 1, "twice": 2}
"""Words that name a number without being one. "A" is not among them: "a table" names no number of
people."""
COUPLE: Final = re.compile(r"\b(?:me|myself) and my \w+|\bmy \w+ and (?:me|i|myself)\b")
"""The caller and one more."""
_FEW_PEOPLE: Final = (
    (
        re.compile(
            r"\b(?:just|only) (?:me|myself|for me)\b(?!,? (?:and|plus|with)\b)"
            r"|\bby myself\b|\balone\b"
        ),
        1,
    ),
    (COUPLE, 2),
)
_PEOPLE: Final = frozenset(
    word_list(
        "people persons guests adults children kids friends colleagues seniors babies infants "
        "toddlers teenagers men women boys girls person guest adult child kid friend colleague "
        "senior baby infant toddler teenager man woman boy girl"
    )
)
_CURRENCIES: Final = frozenset(word_list("dollar dollars euro euros pound pounds buck bucks quid"))
_CENTS: Final = frozenset(word_list("cent cents pence"))
_STREETS: Final = word_list("street road avenue lane drive square boulevard way st rd ave")
"""Words after a number, at most `_MAX_STREET_WORDS` on, that make it a house's: it is no count."""
_MAX_STREET_WORDS: Final = 3
_MORE_BEFORE: Final = frozenset(word_list("another plus extra additional other"))
_MORE_AFTER: Final = frozenset(word_list("more less fewer extra additional other others"))


class NumberReader:
    """Reads the numbers of one message that its dates and times left, as quantities and as strings
    of digits."""

    def __init__(
        self,
        message: MessageWords,
        numbers: dict[float, None],
        seconds: dict[float, None],
        digits: dict[str, None],
    ) -> None:
        """`numbers`, `seconds` and `digits` are added to."""
        self._message = message
        self._words = message.words
        self._numbers = numbers
        self._seconds = seconds
        self._digits = digits

    def read(self) -> None:
        """Read all numbers; marks the words of their fractions as understood."""
        message, words, numbers = self._message, self._words, self._numbers
        left = [group for group in message.groups if not message.is_used(group)]
        last = ""
        for run in _runs(left, words):
            for part in _within_pauses(run, words):
                joined = "".join(group.digits for group in part)
                if len(part) > 1 and all(group.digits for group in part):
                    self._add_digits(joined)
                    if len(joined) <= _MAX_NUMBER_DIGITS:
                        numbers[float(joined)] = None
                for group in part if len(part) <= 2 else ():
                    self._add_number(group, is_alone=len(part) == 1)
                if len(part) == 2 and len(part[1].digits) == 2 and part[0].value < 1000:
                    numbers[round(part[0].value + part[1].value / 100, 2)] = None
            digits = "".join(group.digits for group in run)
            if all(group.digits for group in run):
                self._add_digits(digits)
            if run[0].first in message.corrected and len(digits) < len(last):
                message.unclear.add("digits")
            last = digits
            spoken = words[run[0].first : run[-1].end]
            if len(run) > 1 and not _LARGE.isdisjoint(spoken):
                message.unclear.add("digits")  # "eight hundred five" is 805 or 8005
        self._read_counts()
        people = [group for group in left if word_at(words, group.end) in _PEOPLE]
        if len(people) > 1:
            numbers[sum(group.value for group in people)] = None

    def _add_number(self, group: Group, *, is_alone: bool) -> None:
        message, words = self._message, self._words
        value = group.value
        before, after = word_at(words, group.first - 1), word_at(words, group.end)
        if before in ("minus", "negative"):
            value = -value
        part, end = fraction_at(words, group.end)
        address = words[group.end : group.end + _MAX_STREET_WORDS]
        if abs(value) >= MAX_NUMBER or any(word in _STREETS for word in address):
            end = group.end
        else:
            message.understood.update(range(group.end, end))
            exact = value + part * MULTIPLES.get(words[group.end - 1], 1)
            self._numbers[exact] = None
            self._numbers[value] = None
            is_age = word_at(words, end + 1) == "old"
            if word_at(words, end).removesuffix("s") in (*_SMALLER_UNITS, "second") and not is_age:
                self._add_duration(exact, end, end + 1)
            self._read_around(group, value)
        if group.digits and is_alone:
            self._add_digits(group.digits)
        behind = word_at(words, group.end + 1)
        is_idiom = after == "more" and behind.removesuffix("s") in ("thing", "question", "time")
        if before in _MORE_BEFORE or (after in _MORE_AFTER and not is_idiom):
            message.unclear.add("numbers")
        if message.is_excluded(group.first):
            message.unclear |= {"numbers", "digits"}

    def _read_around(self, group: Group, value: float) -> None:
        """Read what changes a number: cents, "below zero", and the caller beside others."""
        message, words, numbers = self._message, self._words, self._numbers
        unit = word_at(words, group.end)
        if unit in _CENTS:
            numbers[value / 100] = None
        rest = message.starting.get(group.end + 1 + (word_at(words, group.end + 1) == "and"))
        is_sum = unit in _CURRENCIES and rest is not None and rest.value < 100
        if rest and is_sum and (word_at(words, rest.end) in _CENTS or message.is_closed(rest.end)):
            numbers[round(value + rest.value / 100, 2)] = None
        after = words[group.end : group.end + 3]
        if "below" in after[:2]:
            numbers[-value] = None
        caller = ("me", "myself")
        joined = [word for word in after if word != ","][-2:]
        is_one_more = (
            word_at(words, group.first - 1) in ("and", "plus", "with")
            and word_at(words, group.first - 2) in caller
        ) or (len(joined) == 2 and joined[0] in ("and", "plus") and joined[1] in caller)
        if is_one_more:
            numbers[value + 1] = None

    def _read_counts(self) -> None:
        numbers, words = self._numbers, self._words
        for index, word in enumerate(words):
            if word in _COUNTS and index not in self._message.starting:
                numbers[_COUNTS[word]] = None
            if word in _SMALLER_UNITS and word_at(words, index - 1) in ("a", "an"):
                self._read_unit(index)
        for pattern, number in _FEW_PEOPLE:
            if pattern.search(self._message.text):
                numbers[number] = None

    def _read_unit(self, index: int) -> None:
        """Read "an hour", "half an hour" and "three quarters of an hour" at the unit."""
        words = self._words
        part, end = fraction_at(words, index + 1)
        value = 1 + part
        if word_at(words, index - 2) == "half":
            value = 0.5
        elif words[max(0, index - 3) : index - 1] in (["quarter", "of"], ["quarters", "of"]):
            value = 0.25 if words[index - 3] == "quarter" else 0.75
        elif words[index] not in ("hour", "minute") and word_at(words, index - 2) != "for":
            return
        self._message.understood.update(range(max(0, index - 3), end))
        self._add_duration(value, index, end)

    def _add_duration(self, value: float, index: int, end: int) -> None:
        """Add a length of time in the unit at `index` and in smaller ones; `end`: the word behind
        it."""
        numbers, words = self._numbers, self._words
        unit = words[index].removesuffix("s")
        numbers[value] = None
        for factor in _SMALLER_UNITS.get(unit, ()):
            numbers[factor * value] = None
        seconds = _SECONDS.get(unit, 0)
        if seconds:
            self._seconds[seconds * value] = None
        rest = self._message.starting.get(end + (word_at(words, end) == "and"))
        if rest is None or unit not in ("hour", "minute") or rest.value >= 60:
            return
        after = word_at(words, rest.end)
        if self._message.is_closed(rest.end) or after.startswith(("minute", "second")):
            numbers[60 * value + rest.value] = None
            self._seconds[seconds * (value + rest.value / 60)] = None

    def _add_digits(self, digits: str) -> None:
        if len(digits) <= MAX_DIGITS:
            self._digits[digits] = None


def _runs(groups: Sequence[Group], words: Sequence[str]) -> Iterator[list[Group]]:
    """Numbers with nothing but pauses and hyphens between them."""
    run: list[Group] = []
    for group in groups:
        if run and not all(word in _BETWEEN_DIGITS for word in words[run[-1].end : group.first]):
            yield run
            run = []
        run.append(group)
    if run:
        yield run


def _within_pauses(run: Sequence[Group], words: Sequence[str]) -> Iterator[list[Group]]:
    """Parts of a run between its pauses."""
    part: list[Group] = []
    for group in run:
        between = words[part[-1].end : group.first] if part else ()
        if any(word not in "-–" for word in between):
            yield part
            part = []
        part.append(group)
    yield part
