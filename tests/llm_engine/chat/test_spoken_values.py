"""Numbers, digits, times and dates that spoken words name."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.chat.spoken_values.dates import Today
from llm_engine.chat.spoken_values.message import ValueKind
from llm_engine.chat.spoken_values.values import SpokenValues

WEDNESDAY = Today(datetime.date(2026, 3, 11), 2)
FRIDAY = Today(datetime.date(2026, 11, 27), 4)
UNKNOWN = Today()


def read(text: str, today: Today = WEDNESDAY) -> SpokenValues:
    values = SpokenValues()
    values.read(text, today)
    return values


def test_a_message_that_was_read_before_names_the_same() -> None:
    text = "For two more people at seven on Friday, my code is four four seven one."
    first = read(text)
    same = read(text)
    assert same == first
    first.unclear.clear()
    first.numbers.clear()
    first.digits["12"] = None
    assert read(text) == same
    assert read(text, FRIDAY).dates != same.dates


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
        ("in half an hour", {30, 0.5}),
        ("an hour and a half", {90, 1.5}),
        ("two hours", {2, 120}),
        ("room three oh five", {305}),
        ("room two twenty", {220, 2, 20, 2.2}),
        ("a table, please", set()),
        ("from 14 Station Road for two", {2}),
        ("at seven in the evening", set()),
        ("on the twentieth of March", set()),
        ("hundred thousand and", {100_000}),
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
    values = read("tomorrow or on Friday", UNKNOWN)
    assert (list(values.dates), list(values.weekdays)) == ([], [4])
    assert values.unclear == {"dates", "weekdays"}
    values = read("tomorrow", Today(None, 0))
    assert (list(values.weekdays), values.unclear) == ([1], {"dates"})


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("half a dozen people", {6}),
        ("a dozen and a half", {12, 18}),
        ("two dozen roses", {24}),
        ("Hundred and fifty guests.", {150}),
        ("a couple hundred", {200}),
        ("a couple of dozen", {24}),
        ("seven double oh", {700}),
        ("one or two", {1, 2}),
        ("five to ten people", {5, 10}),
        ("change it from ten to fifteen", {10, 15}),
        ("two, no, make that three", {2, 3}),
        ("Make it eight.", {8}),
        ("me and three friends", {4}),
        ("two adults and three kids", {5}),
        ("one adult and one child", {2}),
        ("just me and my wife, at seven", {2}),
        ("twenty twenty", {2020, 20}),
        ("three point five", {3.5}),
        ("three point twenty five", {3.25}),
        ("point five", {0.5}),
        ("one point five million", {1_500_000}),
        ("two and a half million", {2_500_000}),
        ("half a million", {500_000}),
        ("2.5k", {2500}),
        ("two grand", {2000}),
        ("minus five", {-5}),
        ("-5 degrees", {-5}),
        ("five below zero", {-5}),
        ("forty-five dollars and fifty cents", {45.5}),
        ("five dollars fifty", {5.5}),
        ("twelve ninety-nine", {12.99}),
        ("fifty cents", {0.5}),
        ("a quarter of an hour", {15}),
        ("three quarters of an hour", {45}),
        ("an hour and a half", {90}),
        ("an hour and twenty minutes", {80}),
        ("two hours thirty", {150}),
        ("two and a half hours", {150, 2.5}),
        ("for a week", {7}),
    ],
)
def test_the_number_that_is_meant_is_among_those_read(text: str, numbers: set[float]) -> None:
    values = read(text, FRIDAY)
    assert numbers <= set(values.numbers)
    assert "numbers" not in values.unclear


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("half a dozen", [6]),
        ("Hundred and fifty guests.", [150]),
        ("a couple hundred", [200]),
        ("I'd like a table around eight", []),
        ("Just a second.", []),
        ("First of all, hello.", []),
        ("one moment, please", []),
        ("a grand piano", []),
        ("Omar, 27 years old", [27]),
    ],
)
def test_no_other_number_is_read(text: str, numbers: list[float]) -> None:
    assert list(read(text, FRIDAY).numbers) == numbers


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("oh seven nine one two three four", "0791234"),
        ("It's oh five five one.", "0551"),
        ("o five oh one", "0501"),
        ("seven double oh", "700"),
        ("triple zero one", "0001"),
        ("five five five dash zero one nine two", "5550192"),
        ("555 um 0192", "5550192"),
        ("two two, no, sorry, order one one eight zero", "1180"),
    ],
)
def test_the_digits_that_are_meant_are_among_those_read(text: str, digits: str) -> None:
    values = read(text, FRIDAY)
    assert digits in values.digits
    assert "digits" not in values.unclear


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("Book it at quarter past noon.", ["12:15"]),
        ("half past noon", ["12:30"]),
        ("quarter to midnight", ["23:45"]),
        ("ten past midnight", ["00:10"]),
        ("at twelve noon", ["12:00"]),
        ("ten to five", ["04:50", "16:50"]),
        ("at ten to five", ["04:50", "16:50"]),
        ("ten minutes to five", ["04:50", "16:50"]),
        ("ten after seven", ["07:10", "19:10"]),
        ("quarter of seven", ["06:45", "18:45"]),
        ("half seven", ["07:30", "19:30"]),
        ("quarter to twelve p.m.", ["11:45", "23:45"]),
        ("from nine to five", ["09:00", "21:00", "05:00", "17:00"]),
        ("five to ten people", []),
        ("at seven or eight", ["07:00", "19:00", "08:00", "20:00"]),
        ("between seven and eight", ["07:00", "19:00", "08:00", "20:00"]),
        ("between two and three thirty", ["02:00", "14:00", "03:30", "15:30"]),
        ("no later than five, please", ["05:00", "17:00"]),
        ("call me at 555-1234, please", []),
        ("Seven or eight.", ["07:00", "19:00", "08:00", "20:00"]),
        ("seven or eight pm", ["07:00", "19:00", "20:00"]),
        ("Could you make it eight instead?", ["08:00", "20:00"]),
        ("a table at seven for two, no, make that three", ["07:00", "19:00"]),
        ("seven thirty for Petrov, tomorrow", ["07:30", "19:30"]),
        ("room three fifteen, please, thank you", []),
        ("at seven oh five pm", ["19:05"]),
        ("six-thirty pm", ["18:30"]),
        ("twenty twenty", ["20:20"]),
        ("at nineteen hundred hours", ["19:00"]),
        ("at oh eight hundred hours", ["08:00", "20:00"]),
        ("at 7.30", ["07:30", "19:30"]),
        ("it costs 7.30 euros", []),
        ("at 5 past 8", ["08:05", "20:05"]),
        ("Tonight I'm late, wake me up at seven", ["07:00", "19:00"]),
        ("Good morning, a table at seven, please", ["07:00", "19:00"]),
        ("Wake me at seven. I have friends for dinner.", ["07:00", "19:00"]),
        ("two at night, please, for Petrov", ["02:00", "14:00"]),
        ("seven in the evening, please, for Petrov", ["19:00"]),
        ("a table for four in the evening, please", []),
        ("at twelve tonight", ["12:00", "00:00"]),
        ("tonight at five", ["05:00", "17:00"]),
    ],
)
def test_times_beside_other_words(text: str, times: list[str]) -> None:
    values = read(text, FRIDAY)
    assert clocks(values) == times
    assert "times" not in values.unclear


def test_a_short_answer_may_be_a_time_after_another_message_named_one() -> None:
    values = read("at seven pm", FRIDAY)
    values.read("Eight.", FRIDAY)
    assert clocks(values) == ["19:00", "08:00", "20:00"]


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("A week from today.", ["2026-12-04"]),
        ("Two weeks from today.", ["2026-12-11"]),
        ("A week from Monday.", ["2026-12-07"]),
        ("In two weeks.", ["2026-12-11"]),
        ("in a week's time", ["2026-12-04"]),
        ("in a fortnight", ["2026-12-11"]),
        ("two weeks on Monday", ["2026-12-14"]),
        ("a week tomorrow", ["2026-12-05"]),
        ("Monday week", ["2026-12-07"]),
        ("three days after tomorrow", ["2026-12-01"]),
        ("for three days from Monday", ["2026-12-03", "2026-11-30"]),
        ("the day after Monday", ["2026-12-01"]),
        ("for the day after tomorrow", ["2026-11-29"]),
        ("the day before yesterday", ["2026-11-25"]),
        ("tomorrow or the day after tomorrow", ["2026-11-29", "2026-11-28"]),
        ("two days ago", ["2026-11-25"]),
        ("this evening", ["2026-11-27"]),
        ("next Monday", ["2026-11-30", "2026-12-07"]),
        ("this Monday", ["2026-11-30"]),
        ("this Friday", ["2026-11-27", "2026-12-04"]),
        ("the third", ["2026-12-03"]),
        ("the third floor", []),
        ("just a second", []),
        ("March 3rd to the 5th", ["2027-03-03", "2027-03-05"]),
        ("March third twenty twenty-eight", ["2028-03-03"]),
        ("the fifth of May nineteen eighty", ["1980-05-05"]),
        ("27 Nov 2026", ["2026-11-27"]),
        ("may I come", []),
        ("may five people come", []),
        ("the first of December", ["2026-12-01"]),
        ("on the 5th and 6th of May", ["2027-05-06", "2026-12-05", "2027-05-05"]),
    ],
)
def test_dates_beside_other_words(text: str, dates: list[str]) -> None:
    values = read(text, FRIDAY)
    assert [day.isoformat() for day in values.dates] == dates
    assert "dates" not in values.unclear


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("It was last Monday.", {"dates"}),
        ("every other Tuesday", {"dates"}),
        ("the first Monday in March", {"dates"}),
        ("the Monday after next", {"dates"}),
        ("except Monday", {"dates", "weekdays"}),
        ("not on Monday but Tuesday", {"dates", "weekdays"}),
        ("any day but Monday", {"dates", "weekdays"}),
        ("after Monday", {"dates", "weekdays"}),
        ("before Friday", {"dates", "weekdays"}),
        ("the day after", {"dates", "weekdays"}),
        ("two weeks before the wedding", {"dates", "weekdays"}),
        ("end of the month", {"dates", "weekdays"}),
        ("the third of next month", {"dates", "weekdays"}),
        ("in two months", {"dates", "weekdays"}),
        ("next week", {"dates", "weekdays"}),
        ("on the weekend", {"dates", "weekdays"}),
        ("on Christmas Eve", {"dates", "weekdays"}),
        ("12/1", {"dates", "weekdays", "numbers"}),
        ("in March", {"dates"}),
        ("Friday the thirteenth", {"dates"}),
        ("third of the fourth nineteen eighty", {"dates", "weekdays"}),
        ("in two or three days", {"dates", "weekdays"}),
        ("in a few days", {"dates", "weekdays"}),
        ("push it back a day", {"dates", "weekdays"}),
        ("push it back an hour", {"times"}),
        ("on March the third, no, fifth", {"dates", "weekdays"}),
        ("an hour before noon", {"times"}),
        ("in twenty minutes", {"times"}),
        ("a bit later", {"times"}),
        ("not at seven o'clock", {"times"}),
        ("at seven thirty, no, forty-five", {"times"}),
        ("a few hundred", {"numbers"}),
        ("dozens of people", {"numbers"}),
        ("half of that", {"numbers"}),
        ("two thirds", {"numbers"}),
        ("5,50 euros", {"numbers"}),
        ("me and my wife and our son", {"numbers"}),
        ("twice that", {"numbers"}),
        ("two more", {"numbers"}),
        ("another three", {"numbers"}),
        ("my wife and two kids", {"numbers"}),
        ("instead of two", {"numbers", "digits"}),
        ("555 0192, sorry, 0193", {"digits"}),
        ("my code is A B 1 2 3", {"digits"}),
        ("flight LH 442", {"digits"}),
        ("one eight hundred five five five", {"digits"}),
    ],
)
def test_words_that_are_not_understood_make_a_kind_of_values_unclear(
    text: str, kinds: set[ValueKind]
) -> None:
    assert read(text, FRIDAY).unclear == kinds


@pytest.mark.parametrize(
    "text",
    [
        "A table for four on Friday at seven in the evening, please.",
        "My name is Ada Brook and my number is 555 0192.",
        "Set a timer for an hour and a half, please.",
        "I need a cab from 14 Station Road to the airport tomorrow at noon.",
        "One more thing: it's order 1180.",
        "Please remind me in three days.",
        "No, sorry, on Saturday at half past nine.",
    ],
)
def test_plain_words_are_clear(text: str) -> None:
    assert not read(text, FRIDAY).unclear


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
