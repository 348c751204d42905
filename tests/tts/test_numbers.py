"""Numbers as words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts.text.numbers import (
    MAX_CARDINAL,
    cardinal,
    digit_words,
    fraction_words,
    number_words,
    ordinal,
    plural,
    year,
)

_SCALES = ("thousand", "million", "billion", "trillion", "quadrillion", "quintillion", "sextillion")
_SMALL = {cardinal(value): value for value in range(100)}


def _value(words: str) -> int:
    """The reverse of `cardinal`, written differently: word by word, as a listener adds up."""
    total = group = 0
    for word in words.split():
        if word == "hundred":
            group *= 100
        elif word in _SCALES:
            total += group * 1000 ** (_SCALES.index(word) + 1)
            group = 0
        else:
            group += _SMALL[word]
    return total + group


@given(st.integers(min_value=0, max_value=MAX_CARDINAL - 1))
def test_a_listener_gets_the_number_back(value: int) -> None:
    assert _value(cardinal(value)) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (105, "one hundred five"),
        (1_000_001, "one million one"),
        (-7, "minus seven"),
    ],
)
def test_cardinal(value: int, words: str) -> None:
    assert cardinal(value) == words


def test_numbers_without_a_name_are_read_by_digits() -> None:
    assert cardinal(MAX_CARDINAL) == "one" + " zero" * 24


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1, "first"),
        (2, "second"),
        (3, "third"),
        (5, "fifth"),
        (8, "eighth"),
        (9, "ninth"),
        (12, "twelfth"),
        (20, "twentieth"),
        (21, "twenty-first"),
        (100, "one hundredth"),
        (1112, "one thousand one hundred twelfth"),
    ],
)
def test_ordinal(value: int, words: str) -> None:
    assert ordinal(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1066, "ten sixty-six"),
        (1900, "nineteen hundred"),
        (1905, "nineteen oh five"),
        (1999, "nineteen ninety-nine"),
        (2000, "two thousand"),
        (2009, "two thousand nine"),
        (2010, "twenty ten"),
        (2024, "twenty twenty-four"),
        (3000, "three thousand"),
    ],
)
def test_year(value: int, words: str) -> None:
    assert year(value) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,234.50", "one thousand two hundred thirty-four point five zero"),
        (".5", "point five"),
        ("0.5", "zero point five"),
        ("007", "zero zero seven"),
        ("5551234", "five five five one two three four"),
        ("5000000", "five million"),
        ("5,551,234", "five million five hundred fifty-one thousand two hundred thirty-four"),
        ("9" * 30, "nine" + " nine" * 29),
        ("٣", "three"),
    ],
)
def test_written_numbers(text: str, words: str) -> None:
    assert number_words(text) == words


def test_small_words() -> None:
    assert digit_words("1-0a2") == "one zero two"
    assert [plural(word) for word in ("ninety", "six", "hundred")] == [
        "nineties",
        "sixes",
        "hundreds",
    ]
    assert fraction_words(1, 2) == "one half"
    assert fraction_words(3, 2) == "three halves"
    assert fraction_words(3, 4) == "three quarters"
    assert fraction_words(2, 3) == "two thirds"
    assert fraction_words(7, 64) == "seven over sixty-four"
