"""Rules for dates, years and times of day, in American English."""

import re

from .identifiers import spell
from .numbers import cardinal, ordinal, plural, year
from .rule import DASH, RANGE_DASH, Rule, after, before, rule

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_MONTH_BY_PREFIX = {month[:3].lower(): month for month in MONTHS}
_WEEKDAY_BY_PREFIX = {day[:3].lower(): day for day in WEEKDAYS}
# "May", "March" and "Sun" are words too: month names count only when capitalized.
MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)"
)
_WEEKDAY_ABBREVIATION = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)"
_WEEKDAY_NAME = rf"(?:{'|'.join(WEEKDAYS)}|{_WEEKDAY_ABBREVIATION})"
_DAY = r"(?:3[01]|[12]\d|0?[1-9])(?!\d)"
_YEAR = r"(?:1[1-9]|20)\d\d(?!\d)"
_MERIDIEM = r"(?:\s?(?P<{0}>[AaPp])\.?[Mm](?![A-Za-z])\.?)"
_CLOCK = r"(?P<{0}h>[01]?\d|2[0-4]):(?P<{0}m>[0-5]\d)(?::(?P<{0}s>[0-5]\d))?(?![\d:])"


def _month_name(text: str) -> str:
    return _MONTH_BY_PREFIX[text[:3].lower()]


def _iso_date(match: re.Match[str]) -> str | None:
    words = _date(int(match["y"]), int(match["m"]), int(match["d"]))
    return f"{words} at" if words and match["at"] else words


def _slash_date(match: re.Match[str]) -> str | None:
    first, second, year_text = int(match["a"]), int(match["b"]), match["y"]
    month, day = (first, second) if first <= 12 else (second, first)
    full_year = int(year_text)
    if len(year_text) == 2:
        # Two digits: a birthday more often than a plan, so only a few years reach ahead.
        full_year += 2000 if full_year <= 40 else 1900
    return _date(full_year, month, day)


def _date(year_number: int, month: int, day: int) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{MONTHS[month - 1]} {ordinal(day)}, {year(year_number)}"


def _month_day(match: re.Match[str]) -> str:
    words = f"{_month_name(match['month'])} {ordinal(int(match['d']))}"
    if match["d2"]:
        words += f" to {ordinal(int(match['d2']))}"
    return words + (f", {year(int(match['y']))}" if match["y"] else "")


def _day_month(match: re.Match[str]) -> str:
    article = "" if re.search(r"\bthe\s$", before(match), re.IGNORECASE) else "the "
    words = f"{article}{ordinal(int(match['d']))} of {_month_name(match['month'])}"
    return words + (f", {year(int(match['y']))}" if match["y"] else "")


def _month_year(match: re.Match[str]) -> str:
    """A card's "12/2027"."""
    return f"{MONTHS[int(match['m']) - 1]} {year(int(match['y']))}"


def _months(match: re.Match[str]) -> str:
    return f"{_month_name(match['a'])} to {_month_name(match['b'])}"


def _month_alone(match: re.Match[str]) -> str:
    return _month_name(match[0])


def _weekday(match: re.Match[str]) -> str:
    words = _WEEKDAY_BY_PREFIX[match["d"][:3].lower()]
    if match["e"]:
        words += f" to {_WEEKDAY_BY_PREFIX[match['e'][:3].lower()]}"
    return words


def _decade(match: re.Match[str]) -> str | None:
    digits = match["decade"]
    if len(digits) == 2:
        if re.search(r"\d\s?m(?:in(?:ute)?s?)?\.?,?\s?$", before(match)):
            return None  # seconds: "5m 30s"
        return plural(cardinal(int(digits))) if digits != "00" else None
    if digits.endswith("000"):
        return plural(cardinal(int(digits)))
    return plural(year(int(digits)))


def _year_range(match: re.Match[str]) -> str | None:
    start, end = int(match["a"]), int(match["b"])
    if len(match["b"]) == 2:
        end += start // 100 * 100
    return f"{year(start)} to {year(end)}" if start < end else None


def _plain_year(match: re.Match[str]) -> str:
    return year(int(match[0]))


def _clock_words(hour: int, minute: int, second: int, meridiem: str) -> str:
    if hour == 0 and minute == 0 and not meridiem:
        return "midnight"
    words = cardinal(hour)
    if 0 < minute < 10:
        words += f" oh {cardinal(minute)}"
    elif minute:
        words += f" {cardinal(minute)}"
    elif not meridiem:
        words += " o'clock" if hour <= 12 else " hundred hours"
    if second:
        words += f" and {cardinal(second)} second" + ("s" if second > 1 else "")
    return f"{words} {meridiem}".rstrip()


def _meridiem(letter: str | None) -> str:
    # Both phonemizers spell "A.M" and read a spaced "A M" as the article.
    return f"{letter.upper()}.M" if letter else ""


def _time(match: re.Match[str]) -> str:
    groups = match.groupdict()
    end = ""
    if groups["bh"]:
        seconds = int(groups["bs"] or 0)
        end = _clock_words(int(groups["bh"]), int(groups["bm"]), seconds, _meridiem(groups["bap"]))
    start = _clock_words(
        int(groups["ah"]), int(groups["am"]), int(groups["as"] or 0), _meridiem(groups["aap"])
    )
    if end:
        # "ten thirty to eleven o'clock", not "ten o'clock to eleven o'clock".
        start = start.removesuffix(" o'clock")
        return f"{start} to {end}{_final_stop(match)}"
    return start + _final_stop(match)


def _hour(match: re.Match[str]) -> str:
    words = f"{cardinal(int(match['h']))} {_meridiem(match['ap'])}"
    if match["h0"]:
        first = f"{cardinal(int(match['h0']))} {_meridiem(match['ap0'])}".rstrip()
        words = f"{first} to {words}"
    return words + _final_stop(match)


def _final_stop(match: re.Match[str]) -> str:
    """The dot of "a.m." also ends the sentence when nothing, or a new sentence, follows."""
    if not match[0].endswith("."):
        return ""
    following = after(match).lstrip("\"')]” ")
    if not following or following[0] == "\n":
        return "."
    starts_sentence = following[0].isupper() and not following.startswith((*MONTHS, *WEEKDAYS))
    # Time zones and the like go on with the time: "9 a.m. EST".
    return "." if starts_sentence and not re.match(r"[A-Z]{2,4}\b", following) else ""


def _zone(match: re.Match[str]) -> str:
    """ "UTC-5": the sign of the hours."""
    return f"{spell(match['zone'])} {'plus' if match['sign'] == '+' else 'minus'}"


def _joint(match: re.Match[str]) -> str | None:
    """The dash of "Dec 24 - Jan 2"."""
    return "to" if _MONTH_DAY_BEFORE.search(before(match)) else None


def _time_joint(match: re.Match[str]) -> str | None:
    """The dash of "9am-5:30pm" and "5:30pm - 9pm"."""
    left = before(match)
    is_hour = not match[0][-1:].isspace() and _HOUR_BEFORE.search(left)
    if is_hour and _MONTH_DAY_BEFORE.search(left):
        return None
    return "to" if is_hour or _TIME_BEFORE.search(left) else None


_TIME_BEFORE = re.compile(
    r"(?<![\w.,:/-])\d{1,2}(?::[0-5]\d(?:\s?[AaPp]\.?[Mm]\.?)?|\s?[AaPp]\.?[Mm]\.?)\s?$"
)
_HOUR_BEFORE = re.compile(r"(?<![\w.,:/-])(?:1?\d|2[0-4])$")
"""A bare hour: "9-5:30pm". With blanks around the dash the number may be of a day, a room or a
model: "May 12 - 9:30", "Pier 39 - 10am"."""
_MONTH_DAY_BEFORE = re.compile(rf"\b{MONTH} {_DAY}(?:st|nd|rd|th)?(?:,? {_YEAR})?\s?$")
SYMBOL_RULES: tuple[Rule, ...] = (
    rule(rf"{DASH}\s?(?={MONTH} {_DAY})", _joint),
    rule(
        rf"{DASH}\s?(?=(?:[01]?\d|2[0-4])(?::[0-5]\d(?!\d)|\s?[AaPp]\.?[Mm](?![A-Za-z])))",
        _time_joint,
    ),
)

WORD_RULES: tuple[Rule, ...] = (
    rule(r"(?P<zone>UTC|GMT)(?P<sign>[-−–+])(?=\d)", _zone),
    rule(rf"(?P<a>{MONTH}){DASH}(?P<b>{MONTH})(?![\w-]| \d)", _months),
    rule(
        rf"(?P<month>{MONTH}) (?P<d>{_DAY})(?:st|nd|rd|th)?(?![:%.]\d|\d)"
        rf"(?:{DASH}(?P<d2>{_DAY})(?:st|nd|rd|th)?)?(?:,? (?P<y>{_YEAR}))?",
        _month_day,
    ),
    rule(rf"(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?(?= {_YEAR})", _month_alone),
    rule(
        rf"(?P<d>{_WEEKDAY_NAME})\b\.?\s?{DASH}\s?(?P<e>{_WEEKDAY_NAME})\b"
        r"(?:\.(?=\s[a-z\d]|,))?",
        _weekday,
    ),
    rule(
        rf"(?P<d>{_WEEKDAY_ABBREVIATION})(?P<e>\b)?\.?(?=,? (?:{MONTH} \d|\d))",
        lambda m: _WEEKDAY_BY_PREFIX[m["d"][:3].lower()],
    ),
)

NUMBER_RULES: tuple[Rule, ...] = (
    rule(
        r"(?P<y>(?:1[1-9]|20)\d\d)-(?P<m>\d\d)-(?P<d>\d\d)(?:(?P<at>T)(?=\d\d:)|(?![\d-]))",
        _iso_date,
    ),
    rule(r"(?P<y>(?:19|20)\d\d)/(?P<m>\d\d)/(?P<d>\d\d)(?P<at>)(?![\d/])", _iso_date),
    rule(r"(?P<m>0?[1-9]|1[0-2])/(?P<y>20\d\d)(?![\d/])", _month_year),
    rule(r"(?P<a>\d{1,2})/(?P<b>\d{1,2})/(?P<y>(?:1[1-9]|20)\d\d|\d\d)(?![\d/])", _slash_date),
    rule(r"(?P<a>\d{1,2})-(?P<b>\d{1,2})-(?P<y>(?:19|20)\d\d)(?![\d-])", _slash_date),
    rule(
        rf"(?P<d>{_DAY})(?:st|nd|rd|th)? (?:of )?(?P<month>{MONTH})(?![a-z])(?:,? (?P<y>{_YEAR}))?",
        _day_month,
    ),
    rule(
        _CLOCK.format("a")
        + _MERIDIEM.format("aap")
        + rf"?(?:\s?{DASH}\s?"
        + _CLOCK.format("b")
        + _MERIDIEM.format("bap")
        + "?)?",
        _time,
    ),
    rule(
        rf"(?:(?P<h0>1[0-2]|0?[1-9]){_MERIDIEM.format('ap0')}?\s?{DASH}\s?)?"
        rf"(?P<h>1[0-2]|0?[1-9]){_MERIDIEM.format('ap')}",
        _hour,
    ),
    rule(r"['’]?(?P<decade>(?:1[1-9]|20)\d0)['’]?s\b", _decade),
    rule(r"['’](?P<decade>[1-9]0)['’]?s\b", _decade),
    rule(r"(?P<decade>[2-9]0)['’]?s\b", _decade),
    rule(
        rf"(?P<a>(?:1[1-9]|20)\d\d)\s?{RANGE_DASH}\s?(?P<b>(?:1[1-9]|20)?\d\d)(?![\w-]|[.,]\d)",
        _year_range,
    ),
)

YEAR_RULE = rule(r"(?:1[1-9]\d\d|20\d\d)(?![\d\w]|[.,]\d)", _plain_year)
"""Last of all: four digits that no other rule took."""
