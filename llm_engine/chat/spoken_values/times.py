"""Times of day that a message names."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from .message import MAX_ANSWER_WORDS, MessageWords
from .number_words import Group
from .words import word_at, word_list

_NIGHT_WORDS: Final = frozenset(("evening", "tonight", "night", "afternoon", "dinner"))
_MORNING_WORDS: Final = frozenset(("morning", "breakfast"))
_PART_OF_DAY: Final = re.compile(r"at night\b|in the (?:morning|afternoon|evening|night)\b")
_NO_DAYPART_BEFORE: Final = frozenset(word_list("good nice great lovely pleasant last"))
"""Words before a part of the day that make it no time: "good morning", "last night"."""
_BEFORE_TIME: Final = frozenset(
    word_list("at by around about until till from after before between")
)
_ROUGHLY: Final = frozenset(("around", "about"))
_IS: Final = frozenset(word_list("be is are it's we're there's was were of for need have"))
"""Words before "about eight" that make it a number, too."""
_NO_CLOCK_BEFORE: Final = frozenset(
    word_list("room number order flight code gate suite apartment extension unit seat line bus car")
)
"""Words before "seven thirty" that make it no time."""
_RESCHEDULED: Final = frozenset(
    word_list("it that time table booking reservation appointment meeting alarm")
)
"""What is moved "to eight"."""
_NO_TIME_AFTER: Final = word_list(
    "percent degrees degree dollars euros pounds people persons guests minutes hours days street "
    "road avenue lane"
)
"""Words after "at" and a number that make it no time."""
_DAY_MINUTES: Final = 24 * 60


class TimeReader:
    """Reads the times of one message, after its dates: "half past nine", "7.30 pm", "at eight". A
    time of no known half of the day is both."""

    def __init__(self, message: MessageWords, times: dict[int, None]) -> None:
        """`times` is added to."""
        self._message = message
        self._words = message.words
        self._times = times
        self._dayparts = list(_dayparts(message.words))
        self._num_times = 0
        """Times that the message names so far."""

    def read(self) -> None:
        """Read all times; marks the words of those that can be nothing else as used."""
        message, words = self._message, self._words
        for index, word in enumerate(words):
            if word in ("noon", "midday", "midnight"):
                self._read_noon(index, 0 if word == "midnight" else 12)
            elif re.fullmatch(r"\d{1,2}[:.]\d\d", word) and index not in message.used:
                self._read_clock(index)
        for place, group in enumerate(message.groups):
            if not message.is_used(group) and group.value == int(group.value):
                self._read_time(place, group)
        is_answer = len(words) <= MAX_ANSWER_WORDS and not self._num_times
        for place, group in enumerate(message.groups if is_answer else ()):
            is_hour = group.value in range(25) and len(group.digits) in (1, 2)
            is_hour = is_hour and not group.is_ordinal
            is_first = group.first not in message.ending
            if is_hour and is_first and not message.is_used(group):
                minute, end = self._minute(place)
                if self._ends_time(end):
                    self._add_time(int(group.value) % 24, minute, end)

    def _read_noon(self, index: int, hour: int) -> None:
        past = self._past_or_to(index)
        minute, first = past or (0, index)
        twelve = self._message.ending.get(index)
        if twelve and twelve.value == 12:
            first = twelve.first
        self._use_for_time(first, index + 1)
        self._num_times += 1
        self._times[(60 * hour + minute) % _DAY_MINUTES] = None

    def _read_clock(self, index: int) -> None:
        hour, minute = map(int, re.split("[:.]", self._words[index]))
        is_clock = ":" in self._words[index] or _half(self._words, index + 1)
        is_placed = word_at(self._words, index - 1) in _BEFORE_TIME and self._ends_time(index + 1)
        if hour < 24 and minute < 60 and (is_clock or is_placed):
            if is_clock:
                self._use_for_time(index, index + 1)
            self._add_time(hour, minute, index + 1)

    def _past_or_to(self, index: int) -> tuple[int, int] | None:
        """Minutes of "ten past" or, below 0, "ten to" before the hour at `index`, and the first
        word; None where there are none."""
        message, words = self._message, self._words
        word, what = word_at(words, index - 1), word_at(words, index - 2)
        is_past = word in ("past", "after")
        is_to = word in ("to", "till", "til", "before") or (what, word) == ("quarter", "of")
        if not (is_past or is_to):
            return None
        sign = 1 if is_past else -1
        if what in ("half", "quarter"):
            message.understood.add(index - 2)
            return sign * (30 if what == "half" else 15), index - 2
        is_named = what in ("minute", "minutes")
        last = message.ending.get(index - 1 - is_named)
        if last is None or last.is_ordinal or last.value not in range(1, 30):
            return None
        # "Nine to five" are two hours.
        is_usual = last.value % 5 == 0 and word_at(words, last.first - 1) not in ("from", "between")
        if not (is_named or word == "past" or is_usual):
            return None
        return sign * int(last.value), last.first

    def _read_time(self, place: int, group: Group) -> None:
        message, words, hour = self._message, self._words, int(group.value)
        before, what = word_at(words, group.first - 1), word_at(words, group.first - 2)
        if self._is_before_hour(group):
            return
        past = self._past_or_to(group.first) if 1 <= hour <= 12 else None
        if past is not None:
            minute, first = past
            is_exact = before == "past" or words[first] in ("half", "quarter")
            is_exact = is_exact or words[group.first - 2].startswith("minute")
            if is_exact or self._ends_time(group.end):
                is_marked = _is_marked(words, group.end) or bool(self._daypart(group.end))
                if is_exact or is_marked or word_at(words, first - 1) in _BEFORE_TIME:
                    self._use_for_time(first, group.end)
                self._add_time(hour, minute, group.end)
                return
        if before == "half" and 1 <= hour <= 12 and self._ends_time(group.end):
            message.understood.add(group.first - 1)
            self._use_for_time(group.first - 1, group.end)
            self._add_time(hour, 30, group.end)
            return
        minute, end = self._minute(place) if hour <= 24 else (0, group.end)
        is_marked = _is_marked(words, end)
        is_hour = hour <= 24 and not group.is_ordinal
        last = message.ending.get(group.first - 1)
        is_next = last is not None and last.first in message.in_times
        is_next = is_next and before in ("or", "and", "to", "-", "until", "till")
        is_placed = (is_next or before in _BEFORE_TIME) and self._ends_time(
            end, is_pair=before == "between"
        )
        if is_hour and (is_marked or is_placed or (minute and self._daypart(end))):
            if message.is_excluded(group.first):
                message.unclear.add("times")
            is_rough = before in _ROUGHLY and what in ("", *_IS, *".,;!?")
            # From ten to fifteen can be degrees, too.
            is_range = before in ("from", "between") and word_at(words, end) in ("to", "and", "-")
            is_range = is_range or (is_next and last is not None and last.first not in message.used)
            message.in_times.update(range(group.first, end))
            if is_marked or self._daypart(end) or not (is_rough or is_range):
                self._use_for_time(group.first, end)
            self._add_time(hour % 24, minute, end)
        elif group.value > 99 and group.digits:
            after = word_at(words, end)
            is_placed = before in _BEFORE_TIME and message.is_closed(end) and after != "-"
            if is_marked or is_placed or (group.value % 100 == 0 and after == "hours"):
                self._read_run_together(group, end)
        elif is_hour and group.digits and self._may_be_time(group, minute, end):
            self._add_time(hour % 24, minute, end)

    def _is_before_hour(self, group: Group) -> bool:
        """True for the minutes of "at ten to five", which are no hour."""
        other = self._message.starting.get(group.end + 1)
        if other is None or not 1 <= other.value <= 12 or not self._ends_time(other.end):
            return False
        past = self._past_or_to(other.first)
        return past is not None and past[1] == group.first

    def _may_be_time(self, group: Group, minute: int, end: int) -> bool:
        """True if a number can be a time as well: "make it eight", "seven thirty"."""
        message, words = self._message, self._words
        before, what = word_at(words, group.first - 1), word_at(words, group.first - 2)
        other = message.starting.get(end + 1)
        if word_at(words, end) in ("or", "to", "-") and other and _is_marked(words, other.end):
            return True
        if not 1 <= group.value <= 12:
            return False
        if _PART_OF_DAY.match(" ".join(words[end : end + 3])):
            return before not in ("for", "of")
        last = message.corrected.get(group.first)
        is_count = last is not None and last.first not in message.in_times
        if is_count or not self._ends_time(end):
            return False
        if minute in (15, 30, 45):
            return before not in _NO_CLOCK_BEFORE
        return before in ("it", "that", "say", "mean", "meant") or (
            (before == "to" and what in _RESCHEDULED)
            or (before == "than" and what in ("later", "earlier", "sooner"))
        )

    def _minute(self, place: int) -> tuple[int, int]:
        """Minutes behind the hour at a place, 0 for none, and the end of their words."""
        group, *others = self._message.groups[place : place + 3]
        is_hyphened = word_at(self._words, group.end) == "-" and self._words[group.first].isalpha()
        if not others or others[0].first != group.end + is_hyphened:
            return 0, group.end
        minute = _minute(others[0], self._words)
        if minute:
            return minute, others[0].end
        is_zero = self._words[others[0].first] in ("oh", "o")
        if is_zero and others[-1].first == others[0].end and len(others[-1].digits) == 1:
            return int(others[-1].digits), others[-1].end
        return 0, group.end

    def _ends_time(self, end: int, *, is_pair: bool = False) -> bool:
        """True if no noun follows that the number before would count; `is_pair`: nor behind the
        other of "between two and three"."""
        message, words = self._message, self._words
        joins = ("to", "or", "-", "and") if is_pair else ("to", "or", "-")
        other = message.starting.get(end + 1)
        if other and word_at(words, end) in joins:
            minutes = message.starting.get(other.end)
            end = minutes.end if minutes else other.end
        return message.is_closed(end) or _is_marked(words, end)

    def _use_for_time(self, first: int, end: int) -> None:
        self._message.used.update(range(first, end))
        self._message.in_times.update(range(first, end))

    def _read_run_together(self, group: Group, end: int) -> None:
        """Read "730 pm" and "at 1930"."""
        hour, minute = divmod(int(group.value), 100)
        if hour < 24 and minute < 60:
            self._add_time(hour, minute, end)

    def _add_time(self, hour: int, minute: int, end: int) -> None:
        """Add a time, `minute` past the hour or, below 0, to it; `end`: the word behind it, which
        may say which half of the day."""
        self._num_times += 1
        half = _half(self._words, end)
        part = self._daypart(end)
        words = self._dayparts[end - 1]
        # Two at night is early, five tonight is not, and twelve is noon or midnight.
        is_early = hour < 6 and bool(words & {"night", "tonight"})
        is_twelve = hour == 12 and "afternoon" not in words
        if hour > 12 or hour == 0:
            hours = [hour]
        elif half and not (hour == 12 and minute < 0):
            hours = [hour % 12 + (12 if half == "pm" else 0)]
        elif part and not half and not is_early and not is_twelve:
            hours = [hour % 12 + (12 if part == "pm" else 0)]
        else:
            hours = [hour, (hour + 12) % 24]
        for each in hours:
            self._times[(60 * each + minute) % _DAY_MINUTES] = None

    def _daypart(self, end: int) -> str:
        """ "am" or "pm" where the sentence of the words before `end` says so."""
        said = self._dayparts[end - 1]
        if said & _NIGHT_WORDS:
            return "" if said & _MORNING_WORDS else "pm"
        return "am" if said & _MORNING_WORDS else ""


def _minute(group: Group, words: Sequence[str]) -> int:
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


def _is_marked(words: Sequence[str], end: int) -> bool:
    """True if the word at `end` makes the number before it a time."""
    return word_at(words, end) in ("o'clock", "noon", "midnight") or bool(_half(words, end))


def _dayparts(words: Sequence[str]) -> Iterator[frozenset[str]]:
    """Parts of the day that each word's sentence names, greetings apart."""
    first = 0
    for index, word in enumerate((*words, ".")):
        if word in (".", "!", "?", ";"):
            said = frozenset(
                words[at]
                for at in range(first, min(index, len(words)))
                if at and words[at - 1] not in _NO_DAYPART_BEFORE
            )
            parts = said & (_NIGHT_WORDS | _MORNING_WORDS)
            if "tonight" in said and not said.isdisjoint(("tomorrow", "wake")):
                parts = frozenset()
            yield from [parts] * (index - first + 1)
            first = index + 1
