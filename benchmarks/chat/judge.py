"""Judges replies and final states by program. Pure; no model judges.

Beside a dialogue's own checks, every reply must be speakable: what a voice can't read out, or would
read out as signs, fails whatever it says.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .dialogue import DialogueTurn, RequiredCall

MAX_WORDS: Final = 60
"""Most words of a reply: 20 s of speech. No caller listens to more at a time."""

_UNSPEAKABLE: Final = {
    "markdown": re.compile(r"\*\*|__|^#{1,6} |`|^\s*\|.*\|", re.MULTILINE),
    "a list": re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE),
    "an address": re.compile(r"https?://|\bwww\.", re.IGNORECASE),
    "an emoji": re.compile("[\U0001f000-\U0001faff\u2600-\u27bf]"),
    "a tag": re.compile(r"</?\w+>|<\|"),
}
_MADE_BY: Final = re.compile(
    r"\b(?:created|made|developed|built|trained|designed)\s+by\s+"
    r"(?:anthropic|openai|alibaba|google|microsoft|meta|hugging ?face)\b",
    re.IGNORECASE,
)
_REPEATED_WORDS: Final = 6
"""Words of a phrase that a reply must not say twice."""

Call = tuple[str, Mapping[str, Any]]
"""A tool call: name and arguments."""


def problems(
    turn: DialogueTurn, reply: str, calls: Sequence[Call], *, is_interrupted: bool = False
) -> list[str]:
    """List what is wrong with a turn's reply and its calls; empty: it passes. `is_interrupted`:
    `reply` is the part that was heard, which may have no whole word."""
    found = [*speakable_problems(reply), *call_problems(turn, calls)]
    found += [f"lacks {each.pattern}" for each in turn.expect if not each.search(reply)]
    found += [f"says {each.pattern}" for each in turn.reject if each.search(reply)]
    num_words = len(reply.split())
    if turn.max_words is not None and num_words > turn.max_words:
        found.append(f"{num_words} words, at most {turn.max_words}")
    if not reply.strip() and not is_interrupted:
        found.append("says nothing")
    return found


def speakable_problems(reply: str) -> list[str]:
    """List what makes a reply unfit for a voice."""
    found = [f"speaks {name}" for name, pattern in _UNSPEAKABLE.items() if pattern.search(reply)]
    words = reply.split()
    if len(words) > MAX_WORDS:
        found.append(f"{len(words)} words, at most {MAX_WORDS}")
    if _MADE_BY.search(reply):
        found.append("claims a maker")
    if repeats(words):
        found.append("repeats itself")
    return found


def repeats(words: Sequence[str]) -> bool:
    """True if a phrase of `_REPEATED_WORDS` words occurs twice."""
    plain = [word.strip(".,!?;:").casefold() for word in words]
    phrases = [
        tuple(plain[first : first + _REPEATED_WORDS])
        for first in range(len(plain) - _REPEATED_WORDS + 1)
    ]
    return len(set(phrases)) < len(phrases)


def holds(expected: Any, actual: Any) -> bool:
    """True if a value is as expected: tables as subsets; lists of the same length in any order;
    strings as regular expressions of the whole value; numbers exactly."""
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(
            key in actual and holds(value, actual[key]) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(any(holds(value, each) for each in actual) for value in expected)
        )
    if isinstance(expected, str):
        return re.fullmatch(expected, str(actual).strip(), re.IGNORECASE) is not None
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    try:
        return float(actual) == float(expected)
    except (TypeError, ValueError):
        return False


def call_problems(turn: DialogueTurn, calls: Sequence[Call]) -> list[str]:
    """List what is wrong with a turn's calls."""
    found = []
    if turn.no_call and calls:
        found.append(f"calls {calls[0][0]}")
    found += [
        f"does not call {expected.name} {dict(expected.arguments)}"
        for expected in turn.calls
        if not any(is_call(expected, call) for call in calls)
    ]
    return found


def is_call(expected: RequiredCall, call: Call) -> bool:
    """True if a call has the expected name and arguments."""
    name, arguments = call
    return name == expected.name and holds(expected.arguments, arguments)
