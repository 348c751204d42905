"""Number words, the base of the normalizer's rules.

American reading: no "and" after the hundreds, years in pairs, phone numbers and codes digit by
digit. Written here rather than taken from a library, because the whole need is these few
functions: `inflect` takes 1.5 s to import, `num2words` is LGPL, and the small normalizers on PyPI
read telephone numbers as sums.
"""

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_TENS = (
    *("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
)
_SCALES = (
    "",
    "thousand",
    "million",
    "billion",
    "trillion",
    "quadrillion",
    "quintillion",
    "sextillion",
)
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_DENOMINATORS = {2: "half", 4: "quarter"}

MAX_CARDINAL = 1000 ** len(_SCALES)
"""First number without a name in use; digits are read one by one from here on."""


def cardinal(value: int) -> str:
    """`1234` -> "one thousand two hundred thirty-four". Beyond `MAX_CARDINAL`: its digits."""
    if value < 0:
        return "minus " + cardinal(-value)
    if value >= MAX_CARDINAL:
        return digit_words(str(value))
    if value < 1000:
        return _below_thousand(value)
    groups: list[str] = []
    for scale in _SCALES:
        value, group = divmod(value, 1000)
        if group:
            groups.append(f"{_below_thousand(group)} {scale}".rstrip())
    return " ".join(reversed(groups))


def _below_thousand(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    words = [_ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(_TENS[tens] + (f"-{_ONES[ones]}" if ones else ""))
    elif rest or not words:
        words.append(_ONES[rest])
    return " ".join(words)


def ordinal(value: int) -> str:
    """`21` -> "twenty-first"."""
    head, separator, last = _split_last_word(cardinal(value))
    if last in _ORDINALS:
        last = _ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return head + separator + last


def _split_last_word(words: str) -> tuple[str, str, str]:
    cut = max(words.rfind(" "), words.rfind("-"))
    return (words[:cut], words[cut], words[cut + 1 :]) if cut >= 0 else ("", "", words)


def year(value: int) -> str:
    """`1905` -> "nineteen oh five", `2024` -> "twenty twenty-four", `2005` -> "two thousand five".

    For 1000 to 2099; other values are read as cardinals.
    """
    century, rest = divmod(value, 100)
    if not 10 <= century <= 20 or (century in (10, 20) and rest < 10):
        return cardinal(value)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} " + (f"oh {_ONES[rest]}" if rest < 10 else cardinal(rest))


def plural(word: str) -> str:
    """Plural of a number word: "nineties", "twenties", "hundreds", "sixes"."""
    if word.endswith("y"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith("x") else "s")


def digit_words(digits: str) -> str:
    """`"0120"` -> "zero one two zero". Anything that is not a digit is skipped."""
    return " ".join(_ONES[int(digit)] for digit in digits if digit.isdecimal())


def number_words(text: str) -> str:
    """A written number, e.g. "1,234.50", ".5", "007", as it is said.

    Digits after the point are read one by one. A number that starts with a zero, or has so many
    ungrouped digits that it must be an identifier, is read digit by digit.
    """
    whole, point, fraction = text.partition(".")
    grouped = "," in whole or " " in whole
    whole = whole.replace(",", "").replace(" ", "")
    if whole.startswith("0") and len(whole) > 1:
        words = digit_words(whole)
    elif len(whole) >= 7 and not grouped and not whole.endswith("000"):
        # Seven ungrouped digits are an order number or a phone number far more often than a count.
        words = digit_words(whole)
    elif len(whole) > 3 * len(_SCALES):
        words = digit_words(whole)
    else:
        words = cardinal(int(whole)) if whole else ""
    if point and fraction:
        words = f"{words} point {digit_words(fraction)}".lstrip()
    return words


def is_one(text: str) -> bool:
    """Does a written number take the singular? "1" and "1.0" hours: only the first."""
    return text.replace(",", "").lstrip("-") == "1"


def denominator(value: int, numerator: int) -> str:
    """`(4, 3)` -> "quarters", `(5, 1)` -> "fifth"."""
    word = _DENOMINATORS.get(value) or ordinal(value)
    if numerator == 1:
        return word
    return "halves" if value == 2 else word + "s"


def fraction_words(numerator: int, divisor: int) -> str:
    """`(3, 4)` -> "three quarters", `(1, 2)` -> "one half", `(7, 64)` -> "seven over ..."."""
    if 2 <= divisor <= 20:
        return f"{cardinal(numerator)} {denominator(divisor, numerator)}"
    return f"{cardinal(numerator)} over {cardinal(divisor)}"
