r"""Rules for the keys of a telephone: "*9", "1#", "*#06#", "press #".

A star in front of digits is a key where keys are asked for, or where it is all that is said: "Press
*9 or *8", but "*9 apples*", of which a piece of a reply may hold only the beginning, and "*18 and
over". A lone mark is a key behind the words that ask for one, and "#5" behind their verbs only:
elsewhere it is a number's. "\*" is always a star.
"""

import re
from collections.abc import Callable

from languages.profile import Keypad

from .rule import Rule, after, before, rule

_QUOTES = r"[\"'“„‘«(*_`]{0,3}"
_CLOSE = r"[\"'”’»)*_`]{0,3}"
_POUND = r"(?:\\|(?<![\w#\\]))#"
_NO_EMPHASIS = r"(?![^*\n]{0,200}[^\s*\\]\*(?![\w*]))"
_WHOLE = r"(?![\w#%]|[.,:/-]\d)"
_ALONE = r"(?=[\s.,;:!?)\"'”’»`*_-]|$)"


def keypad_rules(keypad: Keypad, digits: Callable[[str], str]) -> tuple[Rule, ...]:
    """Rules of tokens that begin with a digit or a mark. `digits` reads digits one by one."""
    verbs = re.compile(rf"\b(?:{keypad.verbs})\s{_QUOTES}$", re.IGNORECASE)
    asked = re.compile(
        rf"(?:\b(?:{keypad.verbs}|{keypad.links})|[*#]{_CLOSE},)\s{_QUOTES}$", re.IGNORECASE
    )
    other = re.compile(rf"{_CLOSE},?\s(?:{keypad.links})\s{_QUOTES}(?:\\?[*#]|\d{{1,15}}#)")
    noun = re.compile(rf"{_CLOSE}[\s-](?:{keypad.nouns})\b", re.IGNORECASE)

    def keys(match: re.Match[str]) -> str:
        names = {"*": keypad.star, "#": keypad.pound}
        return " ".join(names.get(key) or digits(key) for key in match[0] if key != "\\")

    def asked_keys(match: re.Match[str]) -> str | None:
        is_emphasis = match[0].endswith("*") and "*" in before(match)
        return keys(match) if verbs.search(before(match)) and not is_emphasis else None

    def star_key(match: re.Match[str]) -> str | None:
        left, behind = before(match), after(match)
        is_all = not left.strip() and not re.search(r"\w", behind)
        return keys(match) if is_all or asked.search(left) or other.match(behind) else None

    def lone_key(match: re.Match[str]) -> str | None:
        return keys(match) if asked.search(before(match)) or noun.match(after(match)) else None

    return (
        rule(r"(?:\\|(?<![\w*#\\]))[*#]{1,2}\d{1,15}(?:[*#]\d{1,15}){0,4}#(?![\w*#])", keys),
        rule(rf"\\\*\d{{1,15}}{_WHOLE}", keys),
        rule(rf"(?<![\w*#\\])\*\d{{1,15}}(?!\*){_WHOLE}{_NO_EMPHASIS}", star_key),
        rule(r"(?<![\w.,])\d{1,15}#(?![\w#])", keys),
        rule(rf"{_POUND}\d{{1,15}}{_WHOLE}", asked_keys),
        rule(r"(?<![\w.,])\d{1,15}\*(?![\w*])", asked_keys),
        rule(rf"(?:\\\*|(?<![\w*#\\])\*(?!\*)){_ALONE}", lone_key),
        rule(rf"{_POUND}(?!\s?\d|\s(?:of|de|von)\b){_ALONE}", lone_key),
    )
