"""Dates and days of the week that a message names."""

import datetime
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Final

from .message import MAX_ANSWER_WORDS, MessageWords
from .number_words import Group
from .words import WEEKDAYS, word_at, word_list, words_of

MAX_DAYS: Final = 3660
"""Days ahead that name a date."""
_MONTHS: Final = {
    name: number
    for names in (
        "january february march april may june july august september october november december",
        "jan feb mar apr may jun jul aug sep oct nov dec",
    )
    for number, name in enumerate(names.split(), start=1)
}
_DAYS: Final = {"day": 1, "week": 7, "fortnight": 14, "month": None, "year": None}
"""Days of a unit; None where it has no fixed number of them."""


@dataclass(frozen=True, slots=True)
class Today:
    """Today as the instructions give it."""

    date: datetime.date | None = None
    weekday: int | None = None
    """0 is Monday."""

    @classmethod
    def of(cls, text: str) -> "Today":
        """Read a date, or the day after the words "today is", from a text."""
        return _today_of(text)


class DateReader:
    """Reads the dates of one message: "tomorrow", "a week from Monday", "March the third". Without
    today's date it reads the weekdays alone."""

    def __init__(
        self,
        message: MessageWords,
        today: Today,
        dates: dict[datetime.date, None],
        weekdays: dict[int, None],
    ) -> None:
        """`dates` and `weekdays` are added to."""
        self._message = message
        self._words = message.words
        self._today = today
        self._dates = dates
        self._weekdays = weekdays
        self._counted: set[int] = set()
        """Words of days that others are counted from, as in "a week from Monday"."""

    def read(self) -> None:
        """Read all dates; marks their words as used."""
        message, words = self._message, self._words
        for found in _full_dates(words, message.used):
            self._add_date(found)
        for index, word in enumerate(words):
            unit = word.removesuffix("'s").removesuffix("s")
            if unit in _DAYS:
                self._read_counted_days(index, _DAYS[unit])
        for index, word in enumerate(words):
            if index in self._counted:
                continue
            if word in _MONTHS:
                self._read_month(index, _MONTHS[word])
            elif word.removesuffix("s") in WEEKDAYS:
                self._read_weekday(index, WEEKDAYS.index(word.removesuffix("s")))
            elif (days := self._relative_day(index)) is not None:
                self._add_day(days)
                if message.is_excluded(index):
                    message.unclear |= {"dates", "weekdays"}
        self._read_days_of_month()

    def _read_counted_days(self, index: int, num_days: int | None) -> None:
        """Read "in two weeks", "a week from Monday" and "the day after tomorrow" at their unit."""
        words = self._words
        count, first = self._count_before(index)
        before, after = word_at(words, first - 1), word_at(words, index + 1)
        bases: list[int] = []
        end = index + 1
        if after in ("from", "after", "before"):
            bases, end = self._base_days(index + 2)
        elif num_days in (7, 14) and first < index and before not in ("twice", "once", "times"):
            bases, end = self._base_days(index + 1 + (after == "on"))
        if bases and count and num_days and words[first] != "this":
            sign = -1 if after == "before" else 1
            for base in bases:
                self._add_day(base + sign * count * num_days)
            if (before, after) != ("for", "from"):  # three days from Monday may begin on Monday
                self._counted.update(range(first, end))
        elif before == "in" and words[first] != "the" and count and num_days:
            self._add_day(count * num_days)
        elif after == "ago" and count and num_days:
            self._add_day(-count * num_days)
        elif after in word_list("from after before later earlier sooner ago hence prior"):
            self._message.unclear |= {"dates", "weekdays"}

    def _count_before(self, index: int) -> tuple[int, int]:
        """Number before a unit, 0 for none that is understood, and its first word."""
        words = self._words
        group = self._message.ending.get(index)
        if group:
            is_whole = group.value == int(group.value) and not group.is_ordinal
            return (int(group.value) if is_whole else 0), group.first
        of = index - 1 if word_at(words, index - 1) == "of" else index
        if word_at(words, of - 1) == "couple":
            return 2, of - 1 - (word_at(words, of - 2) == "a")
        if word_at(words, index - 1) in ("a", "an", "the", "one"):
            return 1, index - 1
        return int(not words[index].endswith("s")), index

    def _base_days(self, index: int) -> tuple[list[int], int]:
        """Days from today of the day that others are counted from, and the end of its words."""
        words = self._words
        modifier = word_at(words, index)
        index += modifier in ("next", "this", "the")
        word = word_at(words, index)
        if word == "now":
            return [0], index + 1
        days = self._relative_day(index) if word else None
        if days is not None:
            return [days], index + 1
        if word not in WEEKDAYS or self._today.weekday is None:
            return [], index
        return self._days_ahead(WEEKDAYS.index(word), self._today.weekday, modifier), index + 1

    def _days_ahead(self, weekday: int, today: int, modifier: str) -> list[int]:
        ahead = (weekday - today - 1) % 7 + 1
        if modifier == "next":
            return [ahead, ahead + 7]
        return [0, 7] if modifier == "this" and ahead == 7 else [ahead]

    def _relative_day(self, index: int) -> int | None:
        """Days from today of a word such as "tomorrow"; None for any other word."""
        word, before = self._words[index], word_at(self._words, index - 1)
        if word in ("morning", "afternoon", "evening") and before == "this":
            return 0
        return {"today": 0, "tonight": 0, "tomorrow": 1, "yesterday": -1}.get(word)

    def _read_month(self, index: int, month: int) -> None:
        message, words = self._message, self._words
        beside = (
            message.ending.get(index - (word_at(words, index - 1) == "of")),
            message.starting.get(index + 1 + (word_at(words, index + 1) == "the")),
        )
        if words[index] in ("may", "march") and not self._ends_day(beside[1]):
            beside = (beside[0], None)
        for group in beside:
            if group and 1 <= group.value <= 31 and not message.is_used(group):
                message.used.update(range(group.first, group.end))
                end = max(index + 1, group.end)
                if message.is_excluded(min(index, group.first)):
                    message.unclear |= {"dates", "weekdays"}
                if not self._read_year(end, month, int(group.value)):
                    self._add_day_of_month(int(group.value), month)
                    self._read_more_days(end, month)
                return
            if group and message.is_used(group):
                return
        is_name = word_at(words, index) not in ("may", "march") and len(words[index]) > 3
        if is_name or word_at(words, index - 1) in word_list("in of next this last until by since"):
            message.unclear.add("dates")

    def _ends_day(self, group: Group | None) -> bool:
        """True unless a number counts the noun behind it: "may five people come"."""
        message = self._message
        return group is None or (
            group.is_ordinal
            or message.is_closed(group.end)
            or group.end in message.starting
            or word_at(self._words, group.end) in ("at", "from", "through", "until", "till")
        )

    def _read_year(self, index: int, month: int, day: int) -> bool:
        """Read the year behind a day; False where there is none."""
        message = self._message
        first = end = index + (word_at(self._words, index) == ",")
        digits = ""
        while len(digits) < 4 and (group := message.starting.get(end)) and group.digits:
            digits += group.digits
            end = group.end
        if not re.fullmatch(r"(?:19|20)\d\d", digits):
            return False
        message.used.update(range(first, end))
        try:
            self._add_date(datetime.date(int(digits), month, day))
        except ValueError:
            message.unclear |= {"dates", "weekdays"}
        return True

    def _read_more_days(self, index: int, month: int) -> None:
        """Read the other days of "March the third to the fifth"."""
        message, words = self._message, self._words
        while word_at(words, index) in ("to", "until", "till", "through", "or", "and", "-", "–"):
            group = message.starting.get(index + 1 + (word_at(words, index + 1) == "the"))
            if group is None or not 1 <= group.value <= 31 or not message.is_closed(group.end):
                return
            message.used.update(range(group.first, group.end))
            self._add_day_of_month(int(group.value), month)
            index = group.end

    def _read_weekday(self, index: int, weekday: int) -> None:
        message, words = self._message, self._words
        unclear = message.unclear
        before, after = word_at(words, index - 1), word_at(words, index + 1)
        self._weekdays[weekday] = None
        if message.is_excluded(index) or before in ("after", "before", "than"):
            unclear |= {"dates", "weekdays"}
        number = message.ending.get(index)
        is_counted = number is not None and number.is_ordinal
        is_then = after in ("before", "after") and not message.starting.get(index + 2)
        is_vague = before in word_list("last past previous following every each other since")
        if self._today.date is None or is_counted or is_then or is_vague or after == "of":
            unclear.add("dates")
        if self._today.date is not None:
            for ahead in self._days_ahead(weekday, self._today.date.weekday(), before):
                self._add_date(_after(self._today.date, ahead + 7 * (after == "week")))

    def _read_days_of_month(self) -> None:
        """Read ordinals without a month, also as days of the months that the message names."""
        message, words = self._message, self._words
        months = {_MONTHS[word] for word in words if word in _MONTHS}
        for group in message.groups:
            is_day = group.is_ordinal and 1 <= group.value <= 31
            month_at = group.end + 2 if word_at(words, group.end) == "of" else -1
            if is_day and month_at in message.starting and message.starting[month_at].is_ordinal:
                message.unclear |= {"dates", "weekdays"}  # the third of the fourth
            if is_day and not message.is_used(group) and self._is_day_of_month(group):
                for month in (None, *months):
                    self._add_day_of_month(int(group.value), month)
                self._check_weekday(group)

    def _is_day_of_month(self, group: Group) -> bool:
        """True if an ordinal without a month can be a date: "the third floor" can't."""
        words = self._words
        before, after = word_at(words, group.first - 1), word_at(words, group.end)
        is_led = before in word_list("the on by until till from to and or") or before in WEEKDAYS
        ends = after in ("of", "at") or self._message.is_closed(group.end)
        return ends and (is_led or len(words) <= MAX_ANSWER_WORDS)

    def _check_weekday(self, group: Group) -> None:
        """Mark dates as unclear where "Friday the thirteenth" is not the next thirteenth."""
        at = group.first - 1 - (word_at(self._words, group.first - 1) == "the")
        word = word_at(self._words, at)
        if word in WEEKDAYS and self._today.date is not None:
            found = _next(self._today.date, int(group.value))
            if found is None or found.weekday() != WEEKDAYS.index(word):
                self._message.unclear.add("dates")

    def _add_day_of_month(self, day: int, month: int | None) -> None:
        if self._today.date is None:
            self._message.unclear |= {"dates", "weekdays"}
        else:
            self._add_date(_next(self._today.date, day, month))

    def _add_day(self, days: int) -> None:
        if abs(days) > MAX_DAYS:
            self._message.unclear |= {"dates", "weekdays"}
        elif self._today.date is not None:
            self._add_date(_after(self._today.date, days))
        else:
            self._message.unclear.add("dates")
            if self._today.weekday is not None:
                self._weekdays[(self._today.weekday + days) % 7] = None
            else:
                self._message.unclear.add("weekdays")

    def _add_date(self, found: datetime.date | None) -> None:
        if found is not None:
            self._dates[found] = None
            self._weekdays[found.weekday()] = None


@lru_cache(maxsize=64)
def _today_of(text: str) -> Today:
    """Instructions are long, and read before each reply."""
    found = next(_full_dates(words_of(text)), None)
    if found is not None:
        return Today(found, found.weekday())
    named = re.search(rf"\btoday is (?:a )?({'|'.join(WEEKDAYS)})\b", text.casefold())
    return Today(None, WEEKDAYS.index(named[1]) if named else None)


def _full_dates(words: Sequence[str], used: set[int] | None = None) -> Iterator[datetime.date]:
    """Dates with their year; adds their words to `used`."""
    for index, word in enumerate(words):
        if re.fullmatch(r"\d{4}-\d\d-\d\d", word):
            spans = [(word, index, index + 1)]
        elif word in _MONTHS:
            month = _MONTHS[word]
            spans = []
            around = [(index - 1, index + 1), (index - 2, index + 1), (index + 1, index + 2)]
            for day_at, year_at in around:
                year_at += words[year_at : year_at + 1] == [","]
                day = re.fullmatch(r"(\d{1,2})(?:st|nd|rd|th)?", word_at(words, day_at))
                year = re.fullmatch(r"\d{4}", word_at(words, year_at))
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
