"""Values that spoken words name: numbers, digit strings, times of day and dates. Pure.

A value is a candidate, not a verdict: "at seven" may be 07:00 or 19:00, and "two twenty" a room or
a time. All readings are returned, and the model chooses among them. Where words modify a value in a
way that is not understood ("the Monday after next", "two more", "half of that"), its kind is
`unclear`: the right value may be missing. The libraries there are (`dateparser`, `text2num`) decide
on one reading.

English words; digits and clock times in figures are read in any language.
"""

import datetime
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from .dates import DateReader, Today
from .message import MessageWords, ValueKind
from .numbers import NumberReader
from .times import TimeReader
from .unclear import mark_unclear

MAX_KNOWN: Final = 1024
"""Messages whose values are kept. Each is read again before every reply of its conversation, which
takes 0.2 ms; fewer than the calls at once have messages are of no use. An entry takes some 2 kB."""


@dataclass(slots=True)
class SpokenValues:
    """Values that some messages name, each once, in the order of their first mention."""

    numbers: dict[float, None] = field(default_factory=dict)
    """Numbers that are not part of a time of day or a date."""
    seconds: dict[float, None] = field(default_factory=dict)
    """Lengths of time in seconds, minutes and hours."""
    digits: dict[str, None] = field(default_factory=dict)
    """Strings of digits: "four four seven one" is "4471"."""
    times: dict[int, None] = field(default_factory=dict)
    """Times of day, in minutes since midnight."""
    dates: dict[datetime.date, None] = field(default_factory=dict)
    """Dates; relative ones only where today's is known."""
    weekdays: dict[int, None] = field(default_factory=dict)
    """Days of the week, 0 is Monday."""
    unclear: set[ValueKind] = field(default_factory=set)
    """Kinds of values that are also named in words that are not understood: the right value may be
    missing."""

    def read(self, text: str, today: Today) -> None:
        """Add the values that a message names."""
        named = _named(text, today)
        self.numbers.update(named.numbers)
        self.seconds.update(named.seconds)
        self.digits.update(named.digits)
        self.times.update(named.times)
        self.dates.update(named.dates)
        self.weekdays.update(named.weekdays)
        self.unclear |= named.unclear


@lru_cache(maxsize=MAX_KNOWN)
def _named(text: str, today: Today) -> SpokenValues:
    """Values that one message names; they belong to the cache."""
    message, named = MessageWords(text), SpokenValues()
    DateReader(message, today, named.dates, named.weekdays).read()
    TimeReader(message, named.times).read()
    NumberReader(message, named.numbers, named.seconds, named.digits).read()
    mark_unclear(message)
    named.unclear = message.unclear
    return named
