"""Values that spoken words name: numbers, digit strings, times of day and dates. Pure.

A value is a candidate, not a verdict: "at seven" may be 07:00 or 19:00, and "two twenty" a room or
a time. All readings are returned, and the model chooses among them. The libraries there are
(`dateparser`, `text2num`) decide on one reading.

English words; digits and clock times in figures are read in any language.
"""

import datetime
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Final


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_SMALL: Final = _split(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_UNITS: Final = {word: value for value, word in enumerate(_SMALL) if value < 10}
_TEENS: Final = {word: value for value, word in enumerate(_SMALL) if value >= 10}
_TENS: Final = {
    word: 10 * value
    for value, word in enumerate(
        _split("twenty thirty forty fifty sixty seventy eighty ninety"), start=2
    )
}
MAX_NUMBER: Final = 1e15
"""Numbers from here on are no quantities, though their digits may be those of an account: floats
hold smaller ones exactly."""
MAX_DIGITS: Final = 32
"""Digits of the longest string of them that is kept: an account's has up to 30."""
MAX_DAYS: Final = 3660
"""Days ahead that name a date."""
_SCALES: Final = {"thousand": 1000, "million": 1_000_000}
_ORDINALS: Final = {
    **{
        word: value
        for value, word in enumerate(
            _split(
                "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
                "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
            ),
            start=1,
        )
    },
    "twentieth": 20,
    "thirtieth": 30,
}
_KINDS: Final = (
    ("unit", _UNITS, ("", "tens", "hundred", "scale", "and")),
    ("teen", _TEENS, ("", "hundred", "scale", "and")),
    ("tens", _TENS, ("", "hundred", "scale", "and")),
    ("ordinal", _ORDINALS, ("", "tens", "hundred", "scale", "and")),
    ("hundred", {"hundred": 100}, ("unit", "teen", "tens")),
    ("scale", _SCALES, ("unit", "teen", "tens", "hundred")),
)
"""Kinds of words in a spelled number, their values, and the kinds that may stand before each."""
_COUNTS: Final = {"dozen": 12, "couple": 2, "pair": 2, "both": 2, "once": 1, "twice": 2}
"""Words that name a number without being one. "A" is not among them: "a table" names no number of
people."""
_FEW_PEOPLE: Final = (
    (re.compile(r"\b(?:just|only) (?:me|myself|for me)\b|\bby myself\b|\balone\b"), 1),
    (re.compile(r"\b(?:me|myself) and my \w+|\bmy \w+ and (?:me|i|myself)\b"), 2),
)

WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS: Final = _split(
    "january february march april may june july august september october november december"
)

_NIGHT_WORDS: Final = frozenset(("evening", "tonight", "night", "afternoon", "dinner"))
_MORNING_WORDS: Final = frozenset(("morning", "breakfast"))
_BEFORE_TIME: Final = frozenset(("at", "by", "around", "about", "until", "till", "from", "after"))
_NO_TIME_AFTER: Final = _split(
    "percent degrees degree dollars euros pounds people persons guests minutes hours days street "
    "road avenue lane"
)
"""Words after "at" and a number that make it no time."""
MAX_ANSWER_WORDS: Final = 4
"""Words of a message that can be nothing but the answer to a question: its number may be a time. In
longer ones "a table for two" would name two o'clock."""

_DAY_MINUTES: Final = 24 * 60
_MAX_NUMBER_DIGITS: Final = 9
"""Longest string of digits that is a number, too: longer ones are a telephone's or a card's."""

_WORD: Final = re.compile(
    r"(?<![^\W_])(?:\d{4}-\d\d-\d\d|\d{1,2}[:.]\d\d(?!\d)|\d+(?:,\d{3})+(?:\.\d+)?|\d+\.\d+"
    r"|\d+(?:st|nd|rd|th)\b|\d+)|[ap]\.\s?m\b\.?|[^\W\d_]+(?:['’][^\W\d_]+)*|[-–]|[,.;!?$%]"
)
"""A word, figure or sign. The figures of "LH442" are not a number."""
_STREETS: Final = _split("street road avenue lane drive square boulevard way st rd ave")
"""Words after a number, at most `_MAX_STREET_WORDS` on, that make it a house's: it is no count."""
_MAX_STREET_WORDS: Final = 3
_NO_NUMBER_BEFORE: Final = _split(
    "that this the which another no any some each every last next first"
)
"""Words before "one" that make it a pronoun."""
_PAUSE: Final = frozenset(",;")


@dataclass(slots=True)
class SpokenValues:
    """Values that some messages name, each once, in the order of their first mention."""

    numbers: dict[float, None] = field(default_factory=dict)
    """Numbers that are not part of a time of day or a date."""
    digits: dict[str, None] = field(default_factory=dict)
    """Strings of digits: "four four seven one" is "4471"."""
    times: dict[int, None] = field(default_factory=dict)
    """Times of day, in minutes since midnight."""
    dates: dict[datetime.date, None] = field(default_factory=dict)
    """Dates; relative ones only where today's is known."""
    weekdays: dict[int, None] = field(default_factory=dict)
    """Days of the week, 0 is Monday."""

    def read(self, text: str, today: "Today") -> None:
        """Add the values that a message names."""
        _Reader(text, today, self).read()


@dataclass(frozen=True, slots=True)
class Today:
    """Today as the instructions give it."""

    date: datetime.date | None = None
    weekday: int | None = None
    """0 is Monday."""

    @classmethod
    def of(cls, text: str) -> "Today":
        """Read a date, or the day after the words "today is", from a text."""
        found = next(_full_dates(_words(text)), None)
        if found is not None:
            return cls(found, found.weekday())
        named = re.search(rf"\btoday is (?:a )?({'|'.join(WEEKDAYS)})\b", text.casefold())
        return cls(None, WEEKDAYS.index(named[1]) if named else None)


@dataclass(frozen=True, slots=True)
class _Group:
    """A number in a text: words `first` to `end`."""

    value: float
    first: int
    end: int
    digits: str
    """As it stands in a string of digits; "" for a number that can't."""
    is_ordinal: bool = False


class _Reader:
    """Reads one message."""

    def __init__(self, text: str, today: Today, into: SpokenValues) -> None:
        self._text = text.casefold()
        self._words = _words(text)
        self._today = today
        self._into = into
        self._groups = list(_groups(self._words))
        self._starting = {group.first: group for group in self._groups}
        self._ending = {group.end: group for group in self._groups}
        self._used: set[int] = set()
        """Words that belong to a date or to a time."""

    def read(self) -> None:
        self._read_dates()
        self._read_times()
        self._read_numbers()

    # --- dates ---

    def _read_dates(self) -> None:
        words, today = self._words, self._today
        for found in _full_dates(words, self._used):
            self._add_date(found)
        for index, word in enumerate(words):
            if word in _MONTHS:
                self._read_month(index)
            elif word.removesuffix("s") in WEEKDAYS:
                self._read_weekday(index, WEEKDAYS.index(word.removesuffix("s")))
        for pattern, days in ((r"\btoday\b|\btonight\b", 0), (r"\btomorrow\b", 1)):
            if re.search(pattern, self._text):
                is_later = "day after tomorrow" in self._text and days == 1
                self._add_day(days + is_later)
        for group in self._groups:
            after = words[group.end] if group.end < len(words) else ""
            before = words[group.first - 1] if group.first else ""
            is_day = group.value == int(group.value) and 1 <= group.value <= 31
            if before == "in" and after in ("days", "day"):
                self._add_day(int(group.value))
            elif group.is_ordinal and is_day and today.date and not self._is_used(group):
                self._add_date(_next(today.date, int(group.value)))

    def _read_month(self, index: int) -> None:
        month = _MONTHS.index(self._words[index]) + 1
        beside = (
            self._ending.get(index - (_at(self._words, index - 1) == "of")),
            self._starting.get(index + 1 + (_at(self._words, index + 1) == "the")),
        )
        for group in beside:
            if group and 1 <= group.value <= 31 and not self._is_used(group):
                self._used.update(range(group.first, group.end))
                if self._today.date is not None:
                    self._add_date(_next(self._today.date, int(group.value), month))
                return

    def _read_weekday(self, index: int, weekday: int) -> None:
        self._into.weekdays[weekday] = None
        if self._today.date is not None:
            ahead = (weekday - self._today.date.weekday() - 1) % 7 + 1
            self._add_date(_after(self._today.date, ahead))
            if index and self._words[index - 1] == "next":
                self._add_date(_after(self._today.date, ahead + 7))

    def _add_day(self, days: int) -> None:
        if not 0 <= days <= MAX_DAYS:
            return
        if self._today.date is not None:
            self._add_date(_after(self._today.date, days))
        elif self._today.weekday is not None:
            self._into.weekdays[(self._today.weekday + days) % 7] = None

    def _add_date(self, found: datetime.date | None) -> None:
        if found is not None:
            self._into.dates[found] = None
            self._into.weekdays[found.weekday()] = None

    # --- times ---

    def _read_times(self) -> None:
        words = self._words
        for index, word in enumerate(words):
            if word in ("noon", "midday"):
                self._into.times[12 * 60] = None
            elif word == "midnight":
                self._into.times[0] = None
            elif re.fullmatch(r"\d{1,2}[:.]\d\d", word) and index not in self._used:
                self._read_clock(index)
        for place, group in enumerate(self._groups):
            if not self._is_used(group) and group.value == int(group.value):
                self._read_time(place, group)
        for group in self._groups if len(words) <= MAX_ANSWER_WORDS else ():
            follower = _at(words, group.end)
            is_last = not follower[:1].isalnum() or follower in _AFTER_TIME
            is_hour = group.value in range(25) and not self._into.times
            if is_hour and is_last and not self._is_used(group):
                self._add_time(int(group.value) % 24, 0, group.end)

    def _read_clock(self, index: int) -> None:
        hour, minute = map(int, re.split("[:.]", self._words[index]))
        is_clock = ":" in self._words[index] or _half(self._words, index + 1)
        if hour < 24 and minute < 60 and is_clock:
            self._used.add(index)
            self._add_time(hour, minute, index + 1)

    def _read_time(self, place: int, group: _Group) -> None:
        words, hour = self._words, int(group.value)
        before = words[group.first - 1] if group.first else ""
        before_that = words[group.first - 2] if group.first > 1 else ""
        if before in ("past", "to") and before_that and 1 <= hour <= 12:
            minutes = {"half": 30, "quarter": 15}.get(before_that)
            if minutes is None:
                last = self._ending.get(group.first - 1)
                minutes = int(last.value) if last and 1 <= last.value <= 29 else None
                if last and minutes is not None:
                    self._used.update(range(last.first, last.end))
            if minutes is not None:
                self._used.update(range(group.first - 1, group.end))
                self._add_time(hour, minutes if before == "past" else -minutes, group.end)
                return
        follower = self._groups[place + 1] if place + 1 < len(self._groups) else None
        minute, end = 0, group.end
        if follower and follower.first == group.end and hour <= 24:
            minute = _minute(follower, words)
            if minute:
                end = follower.end
        after = words[end] if end < len(words) else ""
        is_marked = after in ("o'clock", "o’clock") or bool(_half(words, end))
        is_hour = hour <= 24 and not group.is_ordinal
        is_placed = before in _BEFORE_TIME and after not in _NO_TIME_AFTER
        if is_hour and (
            is_marked
            or (is_placed and not after[:1].isalpha())
            or (is_placed and after in _AFTER_TIME)
            or (minute and _daypart(words))
        ):
            self._used.update(range(group.first, end))
            self._add_time(hour % 24, minute, end)
        elif group.value > 99 and group.digits and (is_marked or is_placed):
            self._read_run_together(group, end)

    def _read_run_together(self, group: _Group, end: int) -> None:
        """Read "730 pm" and "at 1930"."""
        hour, minute = divmod(int(group.value), 100)
        if hour < 24 and minute < 60:
            self._add_time(hour, minute, end)

    def _add_time(self, hour: int, minute: int, end: int) -> None:
        """Add a time, `minute` past the hour or, below 0, to it; `end`: the word behind it, which
        may say which half of the day."""
        half = _half(self._words, end) or _daypart(self._words)
        if hour > 12 or hour == 0:
            hours = [hour]
        elif half:
            hours = [hour % 12 + (12 if half == "pm" else 0)]
        else:
            hours = [hour, (hour + 12) % 24]
        for each in hours:
            self._into.times[(60 * each + minute) % _DAY_MINUTES] = None

    # --- numbers ---

    def _read_numbers(self) -> None:
        into = self._into
        left = [group for group in self._groups if not self._is_used(group)]
        for run in _runs(left, self._words):
            for part in _within_pauses(run, self._words):
                joined = "".join(group.digits for group in part)
                if len(part) > 1 and all(group.digits for group in part):
                    self._add_digits(joined)
                    if len(joined) <= _MAX_NUMBER_DIGITS:
                        into.numbers[float(joined)] = None
                for group in part if len(part) <= 2 else ():
                    self._add_number(group, is_alone=len(part) == 1)
            if all(group.digits for group in run):
                self._add_digits("".join(group.digits for group in run))
        self._read_counts()

    def _read_counts(self) -> None:
        numbers = self._into.numbers
        for word in self._words:
            if word in _COUNTS:
                numbers[_COUNTS[word]] = None
        for pattern, number in _FEW_PEOPLE:
            if pattern.search(self._text):
                numbers[number] = None
        if "half an hour" in self._text:
            numbers[30] = None
        elif re.search(r"\ban hour\b", self._text):
            is_longer = "hour and a half" in self._text
            numbers[90 if is_longer else 60] = None
            numbers[1.5 if is_longer else 1] = None

    def _add_number(self, group: _Group, *, is_alone: bool) -> None:
        into, words = self._into, self._words
        value = group.value
        if group.first and words[group.first - 1] in ("minus", "negative"):
            value = -value
        if words[group.end : group.end + 3] == ["and", "a", "half"]:
            into.numbers[value + 0.5] = None
        address = words[group.end : group.end + _MAX_STREET_WORDS]
        if not any(word in _STREETS for word in address) and abs(value) < MAX_NUMBER:
            into.numbers[value] = None
        if group.digits and is_alone:
            self._add_digits(group.digits)
        after = words[group.end] if group.end < len(words) else ""
        if after in ("hour", "hours", "minute", "minutes"):
            into.numbers[60 * value] = None

    def _add_digits(self, digits: str) -> None:
        if len(digits) <= MAX_DIGITS:
            self._into.digits[digits] = None

    def _is_used(self, group: _Group) -> bool:
        return any(index in self._used for index in range(group.first, group.end))


_AFTER_TIME: Final = (
    *_split("in on for please today tonight tomorrow if and or to next this sharp with under then"),
    *_split("is would that"),
    *WEEKDAYS,
)
"""Words that may follow a time after "at". Others, such as a street's name, make it a number."""


def _words(text: str) -> list[str]:
    return [match[0].replace("’", "'") for match in _WORD.finditer(text.casefold())]


def _number(words: Sequence[str], first: int) -> tuple[float, int, str, bool] | None:
    """The number that begins at a word: value, end, its digits, and whether it is an ordinal."""
    word = words[first]
    if match := re.fullmatch(r"(\d{1,4})(?:st|nd|rd|th)", word):
        return float(match[1]), first + 1, match[1], True
    if re.fullmatch(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?", word):
        plain = word.replace(",", "")
        end = first + 1
        scale = 1
        while end < len(words) and words[end] in (*_SCALES, "hundred") and scale < MAX_NUMBER:
            scale *= _SCALES.get(words[end], 100)
            end += 1
        value = min(float(plain) * scale, MAX_NUMBER)
        if scale > 1:
            is_whole = value < MAX_NUMBER and value.is_integer()
            return value, end, str(int(value)) if is_whole else "", False
        return value, end, plain if plain.isdecimal() else "", False
    is_pronoun = _at(words, first - 1) in _NO_NUMBER_BEFORE or _at(words, first + 1) == "of"
    if word == "one" and is_pronoun:
        return None
    if word in ("oh", "o") and first and words[first - 1] in (*_UNITS, *_TENS, "oh"):
        return 0.0, first + 1, "0", False
    return _spelled_number(words, first)


def _spelled_number(words: Sequence[str], first: int) -> tuple[float, int, str, bool] | None:
    total = part = 0
    last = ""
    index = end = first
    if words[first] == "a" and _at(words, first + 1) in ("hundred", *_SCALES):
        part, last, index = 1, "unit", first + 1
    while index < len(words) and last != "ordinal":
        kind, value = _kind(words[index], last)
        if kind in ("and", "hyphen"):
            last = kind if kind == "and" else last
            index += 1
            continue
        if not kind:
            break
        if kind == "hundred":
            part *= value
        elif kind == "scale":
            total, part = total + part * value, 0
        else:
            part += value
        last = kind
        index = end = index + 1
    if end == first:
        return None
    whole = total + part
    if last != "ordinal" and _at(words, end) == "point":
        decimals = ""
        while (word := _at(words, end + 1 + len(decimals))) in _UNITS:
            decimals += str(_UNITS[word])
        if decimals:
            return float(f"{whole}.{decimals}"), end + 1 + len(decimals), "", False
    return float(whole), end, str(whole), last == "ordinal"


def _kind(word: str, last: str) -> tuple[str, int]:
    """Kind and value of a word that continues a number after a word of kind `last`; "" for one that
    does not."""
    if word == "and" and last in ("hundred", "scale"):
        return "and", 0
    if word == "-" and last == "tens":
        return "hyphen", 0
    for kind, values, before in _KINDS:
        if word in values and last in before:
            is_too_large = last == "tens" and kind == "ordinal" and values[word] > 9
            is_nothing = last == "tens" and values[word] == 0
            return ("", 0) if is_too_large or is_nothing else (kind, values[word])
    return "", 0


def _groups(words: Sequence[str]) -> Iterator[_Group]:
    """The numbers of a text."""
    index = 0
    while index < len(words):
        if words[index] in ("double", "triple") and words[index + 1 : index + 2]:
            digit = _UNITS.get(words[index + 1], 10)
            if words[index + 1].isdecimal() and len(words[index + 1]) == 1:
                digit = int(words[index + 1])
            if digit < 10:
                digits = str(digit) * (2 if words[index] == "double" else 3)
                yield _Group(float(digits), index, index + 2, digits)
                index += 2
                continue
        found = _number(words, index)
        if found is None:
            index += 1
            continue
        value, end, digits, is_ordinal = found
        yield _Group(value, index, end, digits, is_ordinal)
        index = end


def _runs(groups: Sequence[_Group], words: Sequence[str]) -> Iterator[list[_Group]]:
    """Numbers with nothing but pauses and hyphens between them."""
    run: list[_Group] = []
    for group in groups:
        if run and not all(
            word in _PAUSE or word in "-–" for word in words[run[-1].end : group.first]
        ):
            yield run
            run = []
        run.append(group)
    if run:
        yield run


def _within_pauses(run: Sequence[_Group], words: Sequence[str]) -> Iterator[list[_Group]]:
    """Parts of a run between its pauses."""
    part: list[_Group] = []
    for group in run:
        if part and any(word in _PAUSE for word in words[part[-1].end : group.first]):
            yield part
            part = []
        part.append(group)
    yield part


def _minute(group: _Group, words: Sequence[str]) -> int:
    """Minutes that a number behind an hour names; 0 for none."""
    value = int(group.value)
    after = words[group.end] if group.end < len(words) else ""
    is_minute = 10 <= value <= 59 and len(group.digits) == 2 and after not in _NO_TIME_AFTER
    return value if is_minute and not group.is_ordinal else 0


def _half(words: Sequence[str], index: int) -> str:
    """ "am" or "pm" where the word at `index` says so."""
    word = words[index] if index < len(words) else ""
    word = re.sub(r"[\s.]", "", word)
    return word if word in ("am", "pm") else ""


def _daypart(words: Iterable[str]) -> str:
    said = set(words)
    if said & _NIGHT_WORDS:
        return "" if said & _MORNING_WORDS else "pm"
    return "am" if said & _MORNING_WORDS else ""


def _full_dates(words: Sequence[str], used: set[int] | None = None) -> Iterator[datetime.date]:
    """Dates with their year; adds their words to `used`."""
    for index, word in enumerate(words):
        if re.fullmatch(r"\d{4}-\d\d-\d\d", word):
            spans = [(word, index, index + 1)]
        elif word in _MONTHS:
            month = _MONTHS.index(word) + 1
            spans = []
            around = [(index - 1, index + 1), (index - 2, index + 1), (index + 1, index + 2)]
            for day_at, year_at in around:
                year_at += words[year_at : year_at + 1] == [","]
                day = re.fullmatch(r"(\d{1,2})(?:st|nd|rd|th)?", _at(words, day_at))
                year = re.fullmatch(r"\d{4}", _at(words, year_at))
                if day and year:
                    text = f"{year[0]}-{month:02}-{int(day[1]):02}"
                    spans.append((text, min(day_at, index), year_at + 1))
        else:
            continue
        for text, first, end in spans[:1]:
            try:
                found = datetime.date.fromisoformat(text)
            except ValueError:
                continue
            if used is not None:
                used.update(range(first, end))
            yield found


def _at(words: Sequence[str], index: int) -> str:
    return words[index] if 0 <= index < len(words) else ""


def _after(today: datetime.date, days: int) -> datetime.date | None:
    """The date so many days later; None beyond the calendar."""
    try:
        return today + timedelta(days)
    except OverflowError:
        return None


@lru_cache(1024)
def _next(today: datetime.date, day: int, month: int | None = None) -> datetime.date | None:
    """The next date with this day, and month where given; None where there is none in a year."""
    for ahead in range(367):
        found = _after(today, ahead)
        if found is not None and found.day == day and month in (None, found.month):
            return found
    return None
