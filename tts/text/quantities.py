"""Rules for money, measures, percentages, fractions, ranges and arithmetic."""

import re
import unicodedata

from .dates import MONTHS
from .numbers import cardinal, fraction_words, is_one, number_words, ordinal
from .rule import (
    DASH,
    DIFFERENCE,
    NUMBER,
    RANGE_DASH,
    Rule,
    after,
    alternatives,
    before,
    const,
    rule,
)
from .units import PER, PER_WORDS, UNITS, unit_name

_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "jeon", "jeon"),
}
_CURRENCY_CODES = {
    "USD": "$",
    "GBP": "£",
    "EUR": "€",
    "JPY": "¥",
    "INR": "₹",
    "KRW": "₩",
}
_SCALES = {
    "k": "thousand",
    "m": "million",
    "mm": "million",
    "mn": "million",
    "b": "billion",
    "bn": "billion",
    "t": "trillion",
    "tn": "trillion",
}
_SCALE_WORD = r"(?:hundred|thousand|million|billion|trillion)"

# One letter after a space is a word, a name or a grade as often as a unit: "3 m", but not "5 s".
_NEVER_SPACED = frozenset(("s", "h", "V", "W", "pp", "mo", "cal", "pt", "l"))
# Without a space a bare "m" after a large sum means millions; money has its own rule before this.
_VULGAR = {
    "½": (1, 2),
    "⅓": (1, 3),
    "⅔": (2, 3),
    "¼": (1, 4),
    "¾": (3, 4),
    "⅕": (1, 5),
    "⅖": (2, 5),
    "⅗": (3, 5),
    "⅘": (4, 5),
    "⅙": (1, 6),
    "⅛": (1, 8),
    "⅜": (3, 8),
    "⅝": (5, 8),
    "⅞": (7, 8),
}
_SUPERSCRIPTS = {"²": "squared", "³": "cubed"}

SIGN = r"(?P<sign>(?<![\w%°€£¢])[-−+±~≈])?"
"""Behind a number or its unit a dash is not a sign but a range's."""
_SIGN_WORDS = {
    "-": "minus ",
    "−": "minus ",
    "+": "plus ",
    "±": "plus or minus ",
    "~": "about ",
    "≈": "about ",
}
_SYMBOL = r"[$£€¥₹₩]"
_LETTER_SCALE = r"(?:[kKmMbBtT]|[mM][mMnN]|[bt]n)"
_MONEY_SCALE = (
    rf"(?:(?P<scale>\s?{_SCALE_WORD}\b|{_LETTER_SCALE}(?!\w)|\s{_LETTER_SCALE}(?![\w/])))?"
)
_CODES = alternatives(_CURRENCY_CODES)
_COUNTRY = r"(?:US|CA|AU|NZ|HK)"
"""Whose dollar it is; not spoken."""


def signed(match: re.Match[str]) -> str:
    return _SIGN_WORDS.get(match["sign"] or "", "")


def _amount(symbol: str, amount: str) -> str:
    one, many, cent, cents = _CURRENCIES[symbol]
    whole, _, fraction = amount.partition(".")
    if len(fraction) not in (0, 2) or (symbol in "¥₩" and fraction):
        return f"{number_words(amount)} {many}"
    minor = int(fraction or 0)
    minor_words = f"{cardinal(minor)} {cent if minor == 1 else cents}"
    if not whole.strip("0,") and minor:
        return minor_words
    words = f"{_sum(whole)} {one if is_one(whole) else many}"
    return f"{words} and {minor_words}" if minor else words


def _sum(whole: str) -> str:
    # Sums are never identifiers: "$1234567" is a million and some, however it is grouped.
    digits = whole.replace(",", "").replace(" ", "") or "0"
    return cardinal(int(digits)) if len(digits) <= 24 else number_words(whole)


def _money(match: re.Match[str]) -> str:
    amount, upper, scale = match["a"], match["b"], (match["scale"] or "").strip().lower()
    symbol = _CURRENCY_CODES.get(match["symbol"], match["symbol"])
    many = _CURRENCIES[symbol][1]
    if scale:
        scale = _SCALES.get(scale, scale)
        upper_words = f" to {number_words(upper)}" if upper else ""
        return f"{signed(match)}{number_words(amount)}{upper_words} {scale} {many}"
    if upper:
        if "." in amount or "." in upper:
            return f"{_amount(symbol, amount)} to {_amount(symbol, upper)}"
        return f"{signed(match)}{_sum(amount)} to {_sum(upper)} {many}"
    return signed(match) + _amount(symbol, amount)


def _cents(match: re.Match[str]) -> str:
    return f"{number_words(match['a'])} cent" + ("" if is_one(match["a"]) else "s")


def _range(match: re.Match[str]) -> str:
    """The number of a measure, which may be a range: "5", "5-10", "-5"."""
    words = signed(match) + number_words(match["a"])
    return f"{words} to {number_words(match['b'])}" if match["b"] else words


def _percent(match: re.Match[str]) -> str:
    return f"{_range(match)} percent"


def _degrees(match: re.Match[str]) -> str:
    noun = "degree" if is_one(match["a"]) and not match["b"] else "degrees"
    scale = _TEMPERATURES.get((match["scale"] or match["mark"] or "").upper(), "")
    return f"{_range(match)} {noun}{scale}"


_TEMPERATURES = {"C": " Celsius", "℃": " Celsius", "F": " Fahrenheit", "℉": " Fahrenheit"}


def _measure(match: re.Match[str]) -> str | None:
    symbol = match["unit"]
    if match["gap"] and symbol in _NEVER_SPACED:
        return None
    amount = match["b"] or match["a"]
    return f"{_range(match)} {unit_name(symbol, amount)}"


def _hours_minutes(match: re.Match[str]) -> str:
    """ "1h 30m": behind hours an m is minutes."""
    hours, minutes = match["h"], match["m"]
    return (
        f"{number_words(hours)} {unit_name('h', hours)} "
        f"{cardinal(int(minutes))} {unit_name('min', str(int(minutes)))}"
    )


def _minutes_seconds(match: re.Match[str]) -> str:
    """ "5m 30s": in front of seconds an m is minutes."""
    minutes, seconds = str(int(match["m"])), str(int(match["s"]))
    return (
        f"{cardinal(int(minutes))} {unit_name('min', minutes)} "
        f"{cardinal(int(seconds))} {unit_name('s', seconds)}"
    )


def _out_of(match: re.Match[str]) -> str:
    return f"{number_words(match['a'])} out of {cardinal(int(match['b']))}"


def _scaled(match: re.Match[str]) -> str:
    return f"{_range(match)} {_SCALES[match['scale'].lower()]}"


def _feet_inches(match: re.Match[str]) -> str:
    return f"{number_words(match['a'])} foot {number_words(match['b'])}"


def _plain_range(match: re.Match[str]) -> str | None:
    return _range(match)


def _fraction(match: re.Match[str]) -> str | None:
    words = _bare_fraction(match)
    return None if words is None else words + _unit_behind(match)


def _unit_behind(match: re.Match[str]) -> str:
    """The unit of "3/4 tsp" and "1½ lbs"."""
    amount = "2" if match["whole"] else "1"
    return f" {unit_name(match['unit'], amount)}" if match["unit"] else ""


def _bare_fraction(match: re.Match[str]) -> str | None:
    numerator, divisor = int(match["a"]), int(match["b"])
    whole = match["whole"]
    if divisor == 0:
        return f"{cardinal(numerator)} over zero"
    if not whole and (numerator, divisor) in _IDIOMS:
        return _IDIOMS[numerator, divisor]
    if not whole and divisor in (10, 100) and numerator <= divisor:
        return _out_of(match)
    if not whole and numerator >= divisor and re.match(r"\s?=", after(match)):
        return f"{cardinal(numerator)} divided by {cardinal(divisor)}"
    is_dated = _DATE_BEFORE.search(before(match)) is not None
    if not whole and divisor == 5 and not is_dated and (numerator == 5 or _is_rating(match)):
        return _out_of(match)
    is_date = (divisor >= 13 and divisor != 16) or is_dated
    if not whole and numerator <= 12 and divisor <= 31 and is_date:
        return f"{MONTHS[numerator - 1]} {ordinal(divisor)}" if numerator else None
    words = fraction_words(numerator, divisor)
    if not whole:
        return signed(match) + words
    words = words.replace("one ", "a ", 1) if numerator == 1 else words
    return f"{signed(match)}{number_words(whole)} and {words}"


def _is_rating(match: re.Match[str]) -> bool:
    return bool(_RATED.search(before(match)) or re.match(r"\s?(?:stars?|points?)\b", after(match)))


def _vulgar(match: re.Match[str]) -> str:
    words = fraction_words(*_VULGAR[match["v"]])
    if match["whole"]:
        words = f"{number_words(match['whole'])} and " + words.replace("one ", "a ", 1)
    return words + _unit_behind(match)


def _ordinal(match: re.Match[str]) -> str:
    return ordinal(int(match["n"].replace(",", "")))


def _dimensions(match: re.Match[str]) -> str:
    parts = re.findall(NUMBER, match["parts"])
    said = " by ".join(number_words(part) for part in parts)
    return f"{said} {unit_name(match['unit'], parts[-1])}" if match["unit"] else said


def _times(match: re.Match[str]) -> str:
    return f"{_range(match)} times"


def _ratio(match: re.Match[str]) -> str:
    return f"{number_words(match['a'])} to {number_words(match['b'])}"


def _per(match: re.Match[str]) -> str | None:
    # Only after something measured: "$5/mo", "60 km/h", "3%/year"; "her/person" is a choice.
    if not re.search(r"[\d¢%]\s?[A-Za-zµ²³]*(?:/\s?[A-Za-z]{1,12})?$", before(match)):
        return None
    return f"per {PER.get(match['unit'], match['unit'])}"


def _difference(match: re.Match[str]) -> str | None:
    """The dash of "10 kg - 3 kg = 7 kg"; at the start of a line it is a bullet."""
    return "minus" if re.search(r"[\w%$£€°)] $", before(match)) else None


def _joint(match: re.Match[str]) -> str | None:
    """The dash of a range behind a whole quantity: "5%-10%", "5 kg - 10 kg", "$5k–$10k"."""
    begin = _RANGE_BEGIN.search(before(match))
    if not begin:
        return None
    if begin["gap"]:  # between blanks it is a range's where its end is of the same kind
        end = rf"{_SYMBOL}{NUMBER}"
        if begin["unit"]:
            end = rf"{NUMBER}\s?{re.escape(begin['unit'])}(?!\w)"
        elif begin["date"]:
            end = _DATE
        if not re.match(end, after(match)):
            return None
    return "to"


def _power(match: re.Match[str]) -> str:
    exponent = match["e"]
    if exponent in ("2", "3"):
        return _SUPERSCRIPTS["²" if exponent == "2" else "³"]
    return f"to the power of {cardinal(int(exponent))}"


def _superscript(match: re.Match[str]) -> str:
    """ "10⁶"; behind a word the mark of a footnote."""
    if re.search(r"[^\W\d_]{2}$", before(match)):
        return ""
    exponent = unicodedata.normalize("NFKC", match[0]).replace("−", "-")
    return f"to the power of {cardinal(int(exponent))}"


def _division(match: re.Match[str]) -> str | None:
    """The stroke of "10 / 2 = 5"."""
    return "divided by" if re.search(r"[\d)] $", before(match)) else None


def _times_sign(match: re.Match[str]) -> str | None:
    # "3 * 4" and "3*4", but not "**bold**", "*word*" or "3* hotel".
    around = (before(match, 2), after(match, 2))
    spaced = re.search(r"[\w)]\s$", around[0]) and re.match(r"\s[\w(.-]", around[1])
    tight = re.search(r"[\d)]$", around[0]) and re.match(r"[\d(]", around[1])
    return "times" if spaced or tight else None


_RATED = re.compile(r"\b(?:rated|rating|scored?)(?:\s(?:is|was|of|it|at))?\s$", re.IGNORECASE)
_DATE_BEFORE = re.compile(r"\b(?:on|until|since)\s$", re.IGNORECASE)
_IDIOMS = {(24, 7): "twenty-four seven", (9, 11): "nine eleven", (50, 50): "fifty-fifty"}

_OPTIONAL_RANGE = rf"(?P<a>{NUMBER})(?:\s?(?:{RANGE_DASH}|to)\s?(?P<b>{NUMBER}))?"
_UNIT = alternatives(UNITS)
_FRACTION_UNIT = (
    rf"(?:[ -]?(?P<unit>{alternatives(unit for unit in UNITS if len(unit) > 1)})(?![\w²³'’]))?"
)
_DATE = r"\d{1,2}/\d{1,2}(?:/\d{2,4})?|\d{4}-\d\d-\d\d"
_RANGE_BEGIN = re.compile(
    rf"(?<![\w.,-])(?:{_SYMBOL}\s?{NUMBER}(?:[kKmMbBtT]|[mM][mMnN]|[bt]n)?"
    rf"|{NUMBER}\s?(?P<unit>[%€£$¢]|°[CF]?|{_UNIT}|[kK]|[mM]n?|[bB]n?)"
    rf"|(?P<date>{_DATE})|\d{{1,2}}:\d\d)(?P<gap>\s?)$"
)
"""What a range begins with. Of plain numbers, times and their like the rules know the whole."""

NUMBER_RULES: tuple[Rule, ...] = (
    rule(
        r"(?P<h>\d{1,3})\s?h(?:ours?|rs?)?\s?"
        r"(?P<m>[0-5]?\d)\s?m(?:ins?)?(?![\w²³'’/])",
        _hours_minutes,
    ),
    rule(r"(?P<m>\d{1,3})\s?m\s?(?P<s>[0-5]?\d)\s?s(?:ecs?)?(?![\w²'’/])", _minutes_seconds),
    rule(r"(?P<a>\d{1,3}\.\d{1,2})/(?P<b>5|10|100)(?![\w/]|\.\d)", _out_of),
    rule(
        rf"{SIGN}(?P<symbol>{_SYMBOL})\s?(?P<a>{NUMBER})"
        rf"(?:\s?{RANGE_DASH}\s?(?:{_COUNTRY}?{_SYMBOL})?(?P<b>{NUMBER}))?{_MONEY_SCALE}",
        _money,
    ),
    rule(
        rf"{SIGN}{_OPTIONAL_RANGE}{_MONEY_SCALE}\s?(?P<symbol>(?:{_CODES})\b|[$£€](?!\w))", _money
    ),
    rule(rf"(?P<a>{NUMBER})\s?¢", _cents),
    rule(rf"{SIGN}{_OPTIONAL_RANGE}\s?[%٪]", _percent),
    rule(rf"{SIGN}{_OPTIONAL_RANGE}\s?(?:[°º]\s?(?P<scale>[CFcf]\b)?|(?P<mark>[℃℉]))", _degrees),
    rule(r"(?P<a>\d{1,2})\s?['’′]\s?(?P<b>1[01]|\d)\s?[\"”″]", _feet_inches),
    rule(
        rf"(?P<parts>{NUMBER}(?:(?:[x×]|\sx\s){NUMBER}){{1,3}})(?:\s?(?P<unit>{_UNIT}))?(?!\w)",
        _dimensions,
    ),
    rule(
        rf"{SIGN}{_OPTIONAL_RANGE}(?P<gap>[ -])?(?P<unit>{_UNIT})(?![\w²³'’])(?:\.(?=\s[a-z]))?",
        _measure,
    ),
    rule(
        rf"{SIGN}{_OPTIONAL_RANGE}(?P<scale>[kK](?![\w'’])|(?:[mM]n?|[bB]n?)(?![\w/'’]))", _scaled
    ),
    rule(rf"{SIGN}{_OPTIONAL_RANGE}[x×](?!\w)", _times),
    rule(
        rf"{SIGN}(?:(?P<whole>\d+)[ -])?(?P<a>\d{{1,3}})[/⁄](?P<b>\d{{1,3}})(?![\w/]|\.\d)"
        rf"{_FRACTION_UNIT}",
        _fraction,
    ),
    rule(rf"(?:(?P<whole>\d+)\s?)?(?P<v>[{''.join(_VULGAR)}]){_FRACTION_UNIT}", _vulgar),
    rule(r"(?P<n>\d{1,3}(?:,\d{3})+|\d{1,9})(?:st|nd|rd|th)\b", _ordinal, re.IGNORECASE),
    rule(
        rf"{SIGN}(?P<a>{NUMBER})\s?{RANGE_DASH}\s?(?P<b>{NUMBER})(?![\w/]|{DASH}\d|:\d\d)",
        _plain_range,
    ),
    rule(r"(?P<a>\d{1,3}):(?P<b>\d{1,3})(?![\w:])", _ratio),
)

WORD_RULES: tuple[Rule, ...] = (
    rule(
        rf"(?P<sign>)(?P<symbol>{_CODES})\s?(?P<a>{NUMBER})"
        rf"(?:\s?{RANGE_DASH}\s?(?:{_CODES})?\s?(?P<b>{NUMBER}))?{_MONEY_SCALE}(?!\w|\.\d)",
        _money,
    ),
    rule(rf"{_COUNTRY}(?=\$\s?\d)", const("")),
    rule(r"km/h(?!\w)", const("kilometers per hour")),
)

SYMBOL_RULES: tuple[Rule, ...] = (
    rule(rf"{DASH}(?={DIFFERENCE})", _difference),
    rule(rf"{DASH}\s?(?={_COUNTRY}?{_SYMBOL}?\.?\d)", _joint),
    rule(rf"/\s?(?P<unit>{alternatives(PER)}|{PER_WORDS})\b", _per),
    rule(r"\^\s?\(?(?P<e>-?\d{1,4})\)?", _power),
    rule(r"(?:⁻[⁰¹²³⁴-⁹]|[⁰¹⁴-⁹]|[²³](?=[⁰¹²³⁴-⁹]))[⁰¹²³⁴-⁹]{0,3}", _superscript),
    rule(r"[*×·⋅](?![*])", _times_sign),
    rule(rf"/(?={DIFFERENCE})", _division),
)
