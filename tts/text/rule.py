"""Rules of the text normalizer: a pattern and its spoken form.

The normalizer scans a text once, left to right. At every place where a token begins it asks the
rules of that token's kind, in order; the first that matches and answers decides how the token is
spoken. One pass, because passes that rewrite one another's output are where normalizers go wrong
("$1.5M" becomes "$1.5 meters" when units run before money), and because a rule that answers for
a stretch of the source also gives the characters that its words speak.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_BLANK_GROUPS = r"(?:[1-9]\d{0,2}(?: \d{3}){0,4} 000|[1-9]\d?(?: \d{3}){2,5})(?! ?\d)"
"""Thousands parted by blanks, where they can be nothing else: "10 000", "1 234 567"."""
NUMBER = (
    rf"(?:{_BLANK_GROUPS}|\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?"
    r"|\d{1,2}(?:,\d\d){1,7},\d{3}(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
)
"""A written number without its sign: "5", "1,234.50", ".5", "10 000", the Indian "1,00,000"."""

DASH = r"[-‐‑‒–—]"
"""Marks between the ends of a range."""

_DIGITS = r"\d[\d.,]{0,15}"
_UNIT_BEHIND = r"\s?(?:[^\W\d_]{1,3}|[%€$£])"


def _difference(term: str, result: str) -> str:
    return rf"\s{term}(?:\s?[-−–+*×·/÷]\s?{term}){{0,3}}\s?=\s?[-−–]?{result}"


_WITH_UNIT = _difference(rf"{_DIGITS}{_UNIT_BEHIND}", _DIGITS)
_WITH_SIGN = _difference(rf"[$£€¥]{_DIGITS}", rf"[$£€¥]{_DIGITS}")
_BARE = _difference(_DIGITS, rf"{_DIGITS}(?!\d|{_UNIT_BEHIND}(?!\w))")
DIFFERENCE = rf"(?:{_BARE}|{_WITH_UNIT}|{_WITH_SIGN})"
"""Behind a dash that is a minus: the rest of a sum, " 3 = 7", with its result. In a legend, as
"ages 3 - 12 = $10", what is behind the equals sign is of another kind than what is before it."""
RANGE_DASH = rf"{DASH}(?!{DIFFERENCE})"
"""A dash between the ends of a range."""
CODE_PAIR = r"(?:(?:19|20)\d\d-\d{3}|(?:19|20)\d\d-\d{5,9}|\d{3,9}-0\d{2,8})(?![\w-]|[.,:]\d)"
"""Two numbers with a dash that are one code, no range: "2024-123", "2024-47110", "4711-0815".
"2024-4711" may be either."""

Speak = Callable[[re.Match[str]], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """`speak` gives the spoken words, "" to say nothing, None to let the next rule try."""

    pattern: re.Pattern[str]
    speak: Speak


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules of one language, by the kind of the token's first character."""

    words: tuple[Rule, ...]
    numbers: tuple[Rule, ...]
    symbols: tuple[Rule, ...]
    cardinal: Callable[[int], str] = str
    """Number words of digits in other scripts."""


def rule(pattern: str, speak: Speak, flags: int = 0) -> Rule:
    return Rule(re.compile(pattern, flags), speak)


def const(words: str) -> Speak:
    """Make a rule's answer that does not depend on the match."""
    return lambda _: words


def alternatives(names: Iterable[str]) -> str:
    """Names as alternatives of a regular expression, longest first."""
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


CONTEXT_CHARS = 48
"""Characters beside a match that a rule looks at."""


def before(match: re.Match[str], num_chars: int = CONTEXT_CHARS) -> str:
    """The source text just before a match."""
    return match.string[max(0, match.start() - num_chars) : match.start()]


def after(match: re.Match[str], num_chars: int = CONTEXT_CHARS) -> str:
    """The source text just after a match."""
    return match.string[match.end() : match.end() + num_chars]
