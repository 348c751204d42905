"""Suggestions of the nearest known name: "Did you mean X?"."""

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

_ALIKE: Final = 0.7
"""Smallest `SequenceMatcher.ratio` of a suggestion: two letters swapped or left out of a short word
still pass; at 0.6 "api_key" looked like "voice" in a longer name, and a wrong hint is worse than
none."""
_PREFIX_CHARS: Final = 3
"""Shortest prefix that stands for a whole name: "llm", "temp"."""


def nearest(wrong: str, known: Iterable[str]) -> str:
    """ " Did you mean X?", to put behind a message; empty where nothing is close."""
    return _question(wrong, [name for name in known if _alike(wrong, name)])


def nearest_setting(wrong: str, known: Iterable[str]) -> str:
    """Question with the nearest setting, as "section.key"; compared by the key alone, because the
    section may be wrong or missing. Empty where none is near."""
    key = _key(wrong)
    return _question(wrong, [path for path in known if _alike(key, _key(path))])


def _key(path: str) -> str:
    return path.rpartition(".")[2]


def _alike(wrong: str, name: str) -> bool:
    if len(wrong) >= _PREFIX_CHARS and name.startswith(wrong):
        return True
    return SequenceMatcher(None, wrong, name).ratio() >= _ALIKE


def _question(wrong: str, candidates: list[str]) -> str:
    if not candidates:
        return ""
    best = max(candidates, key=lambda name: SequenceMatcher(None, wrong, name).ratio())
    return f" Did you mean {best}?"
