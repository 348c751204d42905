"""Numbers that words spell: "two hundred and six", "double five", "2.5 million"."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .words import word_at, word_list

_SMALL: Final = word_list(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_UNITS: Final = {word: value for value, word in enumerate(_SMALL) if value < 10}
_TEENS: Final = {word: value for value, word in enumerate(_SMALL) if value >= 10}
_TENS: Final = {
    word: 10 * value
    for value, word in enumerate(
        word_list("twenty thirty forty fifty sixty seventy eighty ninety"), start=2
    )
}
MAX_NUMBER: Final = 1e15
"""Numbers from here on are no quantities, though their digits may be those of an account: floats
hold smaller ones exactly."""
_SCALES: Final = {"thousand": 1000, "million": 1_000_000, "billion": 1_000_000_000}
_ORDINALS: Final = {
    **{
        word: value
        for value, word in enumerate(
            word_list(
                "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
                "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
            ),
            start=1,
        )
    },
    "twentieth": 20,
    "thirtieth": 30,
}
MULTIPLES: Final = {"hundred": 100, "dozen": 12, "k": 1000, "grand": 1000, **_SCALES}
"""What a number before a word is multiplied by."""
_FEW: Final = frozenset(("few", "several", "some", "many"))
_DIGITS: Final = {**_UNITS, "oh": 0, "o": 0}
"""Digits as they are spelled in a string of them."""
_REPEATS: Final = {"double": 2, "triple": 3, "treble": 3}
_NUMBER_STARTS: Final = frozenset(
    (
        *word_list("a hundred dozen half couple point"),
        *(*_DIGITS, *_TEENS, *_TENS, *_ORDINALS, *_SCALES, *_REPEATS),
    )
)
"""Words that a number can begin with."""
_FRACTIONS: Final = (
    (["and", "a", "half"], 0.5),
    (["and", "a", "quarter"], 0.25),
    (["and", "three", "quarters"], 0.75),
)
_KINDS: Final = (
    ("unit", _UNITS, ("", "tens", "hundred", "scale", "and")),
    ("teen", _TEENS, ("", "hundred", "scale", "and")),
    ("tens", _TENS, ("", "hundred", "scale", "and")),
    ("ordinal", _ORDINALS, ("", "tens", "hundred", "scale", "and")),
    ("hundred", {"hundred": 100}, ("unit", "teen", "tens")),
    ("scale", _SCALES, ("unit", "teen", "tens", "hundred")),
)
"""Kinds of words in a spelled number, their values, and the kinds that may stand before each."""
_NO_NUMBER_BEFORE: Final = word_list(
    "that this the which another no any some each every last next first"
)
"""Words before "one" that make it a pronoun."""
_NO_NUMBER_AFTER: Final = word_list("of moment second sec thing question")
"""Words after "one" that make it a pronoun or part of an idiom."""


@dataclass(frozen=True, slots=True)
class Group:
    """A number in a text: words `first` to `end`."""

    value: float
    first: int
    end: int
    digits: str
    """As it stands in a string of digits; "" for a number that can't."""
    is_ordinal: bool = False


def groups_of(words: Sequence[str]) -> Iterator[Group]:
    """The numbers of a text."""
    index = 0
    while index < len(words):
        if words[index] not in _NUMBER_STARTS and not words[index][0].isdecimal():
            index += 1
            continue
        repeated = word_at(words, index + 1)
        digit = str(_DIGITS.get(repeated, repeated))
        if words[index] in _REPEATS and digit.isdecimal() and len(digit) == 1:
            digits = digit * _REPEATS[words[index]]
            yield Group(float(digits), index, index + 2, digits)
            index += 2
            continue
        found = _number(words, index)
        if found is None:
            index += 1
            continue
        value, end, digits, is_ordinal = found
        yield Group(value, index, end, digits, is_ordinal)
        index = end


def _number(words: Sequence[str], first: int) -> tuple[float, int, str, bool] | None:
    """The number that begins at a word: value, end, its digits, and whether it is an ordinal."""
    word = words[first]
    if match := re.fullmatch(r"(\d{1,4})(?:st|nd|rd|th)", word):
        return float(match[1]), first + 1, match[1], True
    if re.fullmatch(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?", word):
        plain = word.replace(",", "")
        end = first + 1
        scale = 1
        while word_at(words, end) in MULTIPLES and scale < MAX_NUMBER:
            scale *= MULTIPLES[words[end]]
            end += 1
        value, end = _multiplied(words, min(float(plain) * scale, MAX_NUMBER), end)
        if end > first + 1:
            is_whole = value < MAX_NUMBER and value.is_integer()
            return value, end, str(int(value)) if is_whole else "", False
        return value, end, plain if plain.isdecimal() else "", False
    before, after = word_at(words, first - 1), word_at(words, first + 1)
    if word == "one" and (before in _NO_NUMBER_BEFORE or after in _NO_NUMBER_AFTER):
        return None
    if word == "second" and before in word_list("a one per split every each this"):
        return None
    is_all = words[first + 1 : first + 3] == ["of", "all"]
    if word == "first" and (before == "at" or is_all or after in word_list(", name time thing")):
        return None
    if word in ("oh", "o"):
        return (0.0, first + 1, "0", False) if _is_zero(words, first) else None
    if word in ("half", "couple"):
        share, at = (0.5, "a") if word == "half" else (2.0, "of")
        end = first + 1 + (after == at)
        multiple = MULTIPLES.get(word_at(words, end))
        return (share * multiple, end + 1, "", False) if multiple else None
    if word == "dozen":
        return None if before in _FEW else (12.0, first + 1, "", False)
    return _spelled_number(words, first)


def _spelled_number(words: Sequence[str], first: int) -> tuple[float, int, str, bool] | None:
    total = part = 0
    last = ""
    index = end = first
    scales = ("hundred", *_SCALES)
    if words[first] == "a" and word_at(words, first + 1) in scales:
        part, last, index = 1, "unit", first + 1
    elif words[first] in scales and word_at(words, first - 1) not in _FEW:
        part, last = 1, "unit"
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
    is_decimal = word_at(words, end) == "point" and word_at(words, end - 1) not in _NO_NUMBER_BEFORE
    if end == first and not is_decimal:
        return None
    whole = total + part
    if last == "ordinal":
        return float(whole), end, str(whole), True
    decimals, after = _decimals(words, end + 1) if is_decimal else ("", end)
    if end == first and not decimals:
        return None
    number, at = _multiplied(words, float(f"{whole}.{decimals}0"), after if decimals else end)
    return number, at, "" if decimals or at > end else str(whole), False


def _decimals(words: Sequence[str], index: int) -> tuple[str, int]:
    """Digits after "point", and the end of their words: "two five" or "twenty five"."""
    decimals = ""
    while (word := word_at(words, index)) in _DIGITS:
        decimals += str(_DIGITS[word])
        index += 1
    if decimals or word == "":
        return decimals, index
    if word.isdecimal():
        return word, index + 1
    if word in _TEENS or word in _TENS:
        found = _spelled_number(words, index)
        if found and found[2]:
            return found[2], found[1]
    return "", index


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


def _is_zero(words: Sequence[str], index: int) -> bool:
    """True if "oh" stands beside digits."""
    before = [word for word in words[max(0, index - 3) : index] if word not in ("oh", "o")][-1:]
    after = [word for word in words[index + 1 : index + 4] if word not in ("oh", "o")][:1]
    digits = (*_UNITS, *_REPEATS)
    return any(word in (*digits, *_TENS) or word.isdecimal() for word in before) or any(
        word in digits or word.isdecimal() for word in after
    )


def fraction_at(words: Sequence[str], index: int) -> tuple[float, int]:
    """The fraction whose words begin at `index`, 0 for none, and their end."""
    said = words[index : index + 3]
    for fraction, value in _FRACTIONS:
        if said == fraction:
            return value, index + 3
    return 0.0, index


def _multiplied(words: Sequence[str], value: float, end: int) -> tuple[float, int]:
    """A number with what multiplies it: "two and a half million", "three dozen"."""
    part, at = fraction_at(words, end)
    multiple = MULTIPLES.get(word_at(words, at))
    if multiple is None or (word_at(words, at) == "grand" and not _is_sum(words, at + 1)):
        return value, end
    return min(round((value + part) * multiple, 6), MAX_NUMBER), at + 1


def _is_sum(words: Sequence[str], index: int) -> bool:
    """True if "grand" before `index` is money, and no piano."""
    after = word_at(words, index)
    return not after[:1].isalpha() or after in ("to", "from", "in", "into", "for", "on", "please")
