"""Numbers, digits, times and dates that spoken words name."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.chat.spoken_values import SpokenValues, Today

WEDNESDAY = Today(datetime.date(2026, 3, 11), 2)
UNKNOWN = Today()


def read(text: str, today: Today = WEDNESDAY) -> SpokenValues:
    values = SpokenValues()
    values.read(text, today)
    return values


def clocks(values: SpokenValues) -> list[str]:
    return [f"{minutes // 60:02}:{minutes % 60:02}" for minutes in values.times]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("a hundred and fifty dollars", {150}),
        ("two thousand five hundred and six", {2506}),
        ("twenty-two degrees", {22}),
        ("minus four", {-4}),
        ("one point two five", {1.25}),
        ("1,250.50 euros", {1250.5}),
        ("3 million", {3_000_000}),
        ("the third floor", {3}),
        ("a dozen eggs", {12}),
        ("two and a half", {2, 2.5}),
        ("for me and my wife", {2}),
        ("just me", {1}),
        ("in half an hour", {30}),
        ("an hour and a half", {90, 1.5}),
        ("two hours", {2, 120}),
        ("room three oh five", {305}),
        ("room two twenty", {220, 2, 20}),
        ("a table, please", set()),
        ("from 14 Station Road for two", {2}),
        ("at seven in the evening", set()),
        ("on the twentieth of March", set()),
        ("hundred thousand and", set()),
    ],
)
def test_numbers(text: str, numbers: set[float]) -> None:
    assert set(read(text).numbers) == numbers


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("it ends in four four seven one", ["4471"]),
        ("double five one two", ["5512"]),
        ("five five five, zero one nine two", ["555", "0192", "5550192"]),
        ("my number is 555 7340", ["5557340"]),
        ("order 1180", ["1180"]),
        ("at nine fifteen p.m.", []),
        ("account " + "7" * 32, ["7" * 32]),
        ("account " + "7" * 33, []),
        ("31st " * 20, []),
    ],
)
def test_digits(text: str, digits: list[str]) -> None:
    assert list(read(text).digits) == digits


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("at 7:30 p.m.", ["19:30"]),
        ("at seven thirty pm", ["19:30"]),
        ("7.30 pm", ["19:30"]),
        ("at 1930", ["19:30"]),
        ("730 pm", ["19:30"]),
        ("20:30", ["20:30"]),
        ("half past nine in the morning", ["09:30"]),
        ("a quarter to seven", ["06:45", "18:45"]),
        ("ten past twelve", ["12:10", "00:10"]),
        ("ten to one in the afternoon", ["12:50"]),
        ("seven o'clock tonight", ["19:00"]),
        ("twelve p.m.", ["12:00"]),
        ("twelve a.m.", ["00:00"]),
        ("noon", ["12:00"]),
        ("midnight", ["00:00"]),
        ("at eight", ["08:00", "20:00"]),
        ("Seven, please.", ["07:00", "19:00"]),
        ("a table for two on Friday, please", []),
        ("at 52 Main Street", []),
        ("at 3 Oak Avenue", []),
        ("thirty percent", []),
    ],
)
def test_times(text: str, times: list[str]) -> None:
    assert clocks(read(text)) == times


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("tomorrow", ["2026-03-12"]),
        ("the day after tomorrow", ["2026-03-13"]),
        ("on Friday", ["2026-03-13"]),
        ("on Wednesday", ["2026-03-18"]),
        ("next Friday", ["2026-03-13", "2026-03-20"]),
        ("on the twentieth of March", ["2026-03-20"]),
        ("March the 3rd", ["2027-03-03"]),
        ("1 x may 2", ["2026-05-02"]),
        ("the 40th of May the 2nd", ["2026-05-02"]),
        ("in 3660 days", ["2036-03-18"]),
        ("in 3661 days", []),
        ("March 3, 2027", ["2027-03-03"]),
        ("on the twenty first", ["2026-03-21"]),
        ("in three days", ["2026-03-14"]),
        ("2026-05-01", ["2026-05-01"]),
        ("2026-13-01", []),
        ("the thirty first of February", []),
    ],
)
def test_dates(text: str, dates: list[str]) -> None:
    assert [day.isoformat() for day in read(text).dates] == dates


def test_without_todays_date_relative_days_are_unknown() -> None:
    assert not read("tomorrow or on Friday", UNKNOWN).dates
    assert set(read("tomorrow or on Friday", UNKNOWN).weekdays) == {4}
    assert set(read("tomorrow", Today(None, 0)).weekdays) == {1}


@pytest.mark.parametrize(
    ("text", "today"),
    [
        ("Today is Monday.", Today(None, 0)),
        ("Today is Wednesday, 2026-03-11.", WEDNESDAY),
        ("It is March 11, 2026.", WEDNESDAY),
        ("It is 11 March 2026.", WEDNESDAY),
        ("We are closed on Monday.", UNKNOWN),
    ],
)
def test_today_is_read_from_the_instructions(text: str, today: Today) -> None:
    assert Today.of(text) == today


@given(hour=st.integers(0, 23), minute=st.integers(0, 59))
def test_every_clock_time_is_read(hour: int, minute: int) -> None:
    clock = f"{hour:02}:{minute:02}"
    assert clock in clocks(read(f"Please come at {clock}."))


@given(number=st.integers(0, 999_999_999))
def test_every_number_in_figures_is_read(number: int) -> None:
    assert number in read(f"I need {number} of them").numbers
    assert number in read(f"I need {number:,} of them").numbers


@given(day=st.dates(datetime.date(2026, 3, 11), datetime.date(2027, 3, 10)))
def test_every_date_of_the_next_year_is_read(day: datetime.date) -> None:
    assert day in read(f"on {day:%B} {day.day}").dates
    assert day in read(f"on the {day.day}th of {day:%B}").dates


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    values = read(text)
    assert all(0 <= minutes < 24 * 60 for minutes in values.times)
    assert all(digits.isdecimal() for digits in values.digits)


WORDS = (
    "a",
    "one",
    "two",
    "hundred",
    "past",
    "half",
    "to",
    "and",
    "point",
    "of",
    "at",
    "march",
    "3",
    "7:30",
    "pm",
    "-",
    ",",
    "oh",
    "double",
)


@given(st.lists(st.sampled_from(WORDS), max_size=12))
def test_any_words_are_read(words: list[str]) -> None:
    values = read(" ".join(words))
    assert all(0 <= minutes < 24 * 60 for minutes in values.times)
    assert all(digits.isdecimal() for digits in values.digits)
