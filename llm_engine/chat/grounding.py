"""Grounded tool calls: arguments come from what was said, or the call is not made. Pure.

A small model asked for a name writes "John Doe", and for a time "8:00 PM" where the tool wants
"20:00". So before each reply the schemas of the tools are narrowed to the values that the
conversation grounds, in the form that the schema asks for:

- an integer or a number to the numbers that were said ("a hundred and fifty" is 150);
- a time or a date to those that were said, spelled as the schema's `format`, `pattern` or
  description wants it ("half past nine in the morning" is 09:30, "tomorrow" is a date where the
  instructions give today's);
- a string of digits to what was said, joined ("four four seven one" is 4471);
- a day of the week to the days that were named;
- any other string to words of the caller in their order, or to a value of an earlier result.

Booleans, values of an enum, nested objects and lists are left to the model, and so is an argument
whose value may have been named in words that are not understood ("the end of the month"): what is
narrowed holds the right value. An optional argument without ground is left out. A tool with a
required argument without ground can't be called: it is returned as one about which the reply can
ask. The grammar enforces all of it, so that a value costs no second generation and no token more.

What grounds: the caller's messages and the results of tools, of the whole conversation; numbers,
times and dates also of the assistant's last reply, which may have offered them; digits also of the
instructions, where an agent is given the caller's account.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Final, Protocol

from languages.profile import word_set
from llm_engine.structured_output.grammar import Schema

from .spoken_values.dates import Today
from .spoken_values.message import ValueKind
from .spoken_values.number_words import MAX_NUMBER
from .spoken_values.values import SpokenValues
from .spoken_values.words import WEEKDAYS
from .template import ChatMessage
from .tool_calls import (
    CallingMessage,
    LackingTool,
    Tool,
    ToolUse,
    has_results,
    results_in,
    spoken_words,
)

MAX_UNCLEAR: Final = 2
"""Newest messages of the caller whose words that are not understood leave an argument to the model.
More: "it was off the whole weekend", some turns ago, lets the model invent a date. Fewer: a caller
who named a day in such words, and then only answers a question, is asked for the day again."""

MAX_MESSAGES: Final = 64
"""Newest messages that ground. 20 take 4 ms to read, on two busy cores."""
MAX_CHARS: Final = 4000
"""Last characters of a message that are read: four minutes of speech."""
MAX_ALL_CHARS: Final = 16_000
"""Characters that are read of all messages of a kind, the newest: a quarter of an hour of speech.
Texts made of dates take 0.1 ms a hundred characters."""
MAX_RESULT_CHARS: Final = 65_536
"""A longer result of a tool is read as text: parsing holds the interpreter's lock."""
MAX_WORDS: Final = 80
"""Newest words of the caller that may be copied into an argument. Each can begin a value of up to
`MAX_SPAN` words; grammars of more took longer to compile than a token takes to compute."""
MAX_SPAN: Final = 8
"""Words of a copied value. An argument that holds a text may be a whole sentence, too; offered to
every argument, a whole sentence was taken for both ends of a taxi ride."""
MIN_GIVEN_DIGITS: Final = 3
"""Digits of a number in the instructions that grounds an argument. Shorter ones are counts and
hours; the caller's account has more."""
MAX_VALUES: Final = 400
"""Values of one argument, and strings and numbers of all results; the newest stay."""

_EMPTY: Final = word_set(
    "go goes come a an and are as at be been but by can can't could did do does don't for from get "
    "give going "
    "gonna got had has have hello here hey hi how i i'd i'll i'm i've if in into is it it's its "
    "just know let like made make may me mind mine my need needs no not now of off oh ok okay on "
    "one or our out over please put right say see set she should so some somebody someone sorry "
    "sure tell thank thanks that that's the them then there they thing this time to today tomorrow "
    "tonight too uh um up us very want wanted wants was way we we'd we're well were what what's "
    "when where which who why will with won't would yeah yes you you're your morning afternoon "
    "evening still already again back soon yet much many long take also only really actually maybe "
    "night noon midnight o'clock am pm"
)
"""Words that are no value by themselves: "I'd like to" names no guest."""
_EDGE: Final = word_set(
    "a an the my our your his her to at in on for from of and or please is with"
)
"""Words that no copied value begins or ends with: "to the airport" is "airport"."""
_LEAD: Final = word_set(
    "i i'd i'm i've i'll me we we'd we're you he she it it's this that that's there can could will "
    "would do does did am are was want wanted need like have had got get give let tell how what "
    "what's when where which who why hello hi hey yes no okay so well um uh some just"
)
"""Words that no copied value begins with, beside `_EDGE`."""
_PARTICLES: Final = word_set("de da del den der di du la le of ten van von y")
"""Small words within a person's name."""
_NUMBER_WORDS: Final = word_set(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred thousand million half quarter past"
)
_PLAIN: Final = re.compile(r"[^\W_]+(?:['’.@&+/:-][^\W_]+)*")
_SENTENCE_END: Final = re.compile(
    r"(?<!\b[A-Z])(?<!\b[ap]\.m)(?<!\b(?:Mr|Ms|Dr|St))[.!?;]+(?:\s+|$)|\n+"
)

_DIGITS_MEANT: Final = re.compile(
    r"\b(?:digits?|number|phone|code|pin|zip|postcode|account|id)\b", re.IGNORECASE
)
_NUM_DIGITS: Final = re.compile(
    r"\b([1-9]\d{0,2}|two|three|four|five|six|seven|eight|nine|ten)[- ]digits?\b|"
    r"\b(?:last|first) ([1-9]\d{0,2}|two|three|four|five|six) digits?\b|"
    r"\b([1-9]\d{0,2}|two|three|four|five|six|seven|eight|nine|ten) digits?\b",
    re.IGNORECASE,
)
_COUNT_WORDS: Final = {
    word: count
    for count, word in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 2
    )
}
_TIME_MEANT: Final = re.compile(r"\bHH:MM\b|\b24[- ]hour\b|\bH:MM\b", re.IGNORECASE)
_HALF_DAY_MEANT: Final = re.compile(r"\b\d{1,2}(?::\d\d)? ?[AP]M\b", re.IGNORECASE)
_SECONDS_MEANT: Final = re.compile(
    r"\b(?:secs?|seconds?|duration|length|interval|delay|timeout)\b", re.IGNORECASE
)
_DATE_MEANT: Final = re.compile(r"\bYYYY-MM-DD\b|\bISO(?:[- ]8601)? date\b", re.IGNORECASE)
_TEXT_MEANT: Final = re.compile(
    r"\b(?:message|text|notes?|reason|why|problem|what|details?|comments?|content|body|question|issue"
    r"|description|summary|subject|complaint)\b",
    re.IGNORECASE,
)
_PERSON_MEANT: Final = re.compile(
    r"\b(?:full_?name|name of the (?:guest|caller|customer|patient|person|client)"
    r"|(?:guest|caller|customer|patient|person|client)(?:'s)? name|first and last name)\b"
    r"|^(?:patient|guest|customer|client)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Ground:
    """What a conversation grounds."""

    values: SpokenValues
    said: tuple[str, ...]
    """Messages of the caller, the newest last."""
    results: tuple[str, ...]
    """Strings in results of tools."""
    latest: SpokenValues
    """What the caller's last message names, of `values`."""
    today: Today
    is_cased: bool
    """The caller's messages have capital letters, so that a name can be told by them."""

    @classmethod
    def of(cls, messages: Sequence[ChatMessage | CallingMessage], instructions: str) -> "Ground":
        """Read the newest messages of a conversation, oldest first, in some milliseconds. System
        messages among them count as instructions."""
        said: list[str] = []
        results: list[str] = []
        values = SpokenValues()
        given = [instructions]
        replies: list[str] = []
        for message in (*messages[:1], *messages[1:][-MAX_MESSAGES:]):
            role = message.role if isinstance(message, ChatMessage) else "assistant"
            if role == "user" and has_results(message.text):
                results += results_in(message.text)
            elif role == "user":
                said.append(message.text)
            elif role == "tool":
                results.append(message.text)
            elif role == "system":
                given.append(message.text)
            elif words := spoken_words(message.text):
                replies.append(words)
        results = _all_scalars(results)
        given, said, results, replies = map(_newest, (given, said, results, replies))
        today = Today.of(" ".join(given))
        unclear = _read_said(values, said, today)
        for text in results:
            values.read(text, today)
        values.unclear = unclear  # prose in a result, such as an article, requests nothing
        for text in replies[-1:]:
            values.read(text, today)
        known = SpokenValues()
        known.read("\n".join(given), today)
        for digits in known.digits:
            if len(digits) >= MIN_GIVEN_DIGITS:
                values.digits[digits] = None
                if float(digits) < MAX_NUMBER:
                    values.numbers[float(digits)] = None
        latest = SpokenValues()
        latest.read(said[-1] if said else "", today)
        is_cased = any(each != each.casefold() for each in said)
        return cls(values, tuple(said), tuple(results), latest, today, is_cased)

    @cached_property
    def named_results(self) -> tuple[str, ...]:
        """Results that hold more than empty words."""
        return tuple(each for each in self.results if _plain_words(each) - _EMPTY)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The caller's sentences, the newest last."""
        return tuple(
            part
            for text in self.said
            for part in _SENTENCE_END.split(text)
            if part and part.strip()
        )

    @cached_property
    def mixed(self) -> tuple[str, ...]:
        """Words with both letters and digits, as they were said: "LH442"."""
        return tuple(
            token
            for text in (*self.results, *self.said)
            for token in re.findall(r"[^\W_]+(?:[-/][^\W_]+)*", text)
            if re.search(r"\d", token)
            and re.search(r"[^\W\d]", token)
            and not re.fullmatch(r"\d+(?:st|nd|rd|th|am|pm)", token, re.IGNORECASE)
        )


def grounded(use: ToolUse, ground: Ground) -> ToolUse:
    """The tools with their arguments narrowed to what is grounded. Those that lack ground for a
    required argument can't be called, unless a call must be made. They are in `lacking`, except
    those for which the caller's last message names fewer values than for a tool that can be
    called."""
    callable_tools: list[Tool] = []
    lacking: list[tuple[int, LackingTool]] = []
    most = 0
    latest = replace(ground, values=ground.latest, results=(), said=ground.said[-1:])
    for tool in use.callable:
        narrowed, missing = _narrowed(tool, ground)
        num_named = _num_named(tool, latest)
        if not missing:
            callable_tools.append(narrowed)
            most = max(most, num_named)
        elif use.must_call:
            callable_tools.append(tool)
        else:
            lacking.append((num_named, LackingTool(tool.name, _question(tool, missing[0]))))
    # "Wake me on Monday at seven" names all that an alarm takes and nothing that a timer does.
    asking = tuple(tool for num_named, tool in lacking if num_named >= most)
    return replace(use, callable=tuple(callable_tools), lacking=asking)


def _narrowed(tool: Tool, ground: Ground) -> tuple[Tool, tuple[str, ...]]:
    """The tool with narrowed parameters, and the names of required ones without ground."""
    schema = _parsed(tool.parameters.text)
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return tool, ()
    required = schema.get("required")
    listed = required if isinstance(required, list) else []
    needed = {each for each in listed if isinstance(each, str)}
    own_words = _plain_words(re.sub(r"[_-]", " ", " ".join((tool.name, *properties))))
    kept: dict[str, Any] = {}
    missing: list[str] = []
    copied: list[str] = []
    full_words: set[str] = set()
    for name, value in properties.items():
        kind = _kind(name, value) if isinstance(value, Mapping) else "any"
        fitting = _fitting(kind, name, value, ground, own_words)
        if fitting is None:
            kept[name] = value
        elif fitting:
            kept[name] = {"enum": fitting}
            if kind == "words" and name in needed:
                copied.append(name)
                full_words.update(*map(_plain_words, fitting))
        elif name in needed:
            missing.append(name)
    # "A taxi to the museum" names one of two places.
    num_words = sum(_is_full(word, own_words) for word in full_words)
    missing += copied[num_words:]
    text = json.dumps({**schema, "properties": kept}, ensure_ascii=False)
    return replace(tool, parameters=Schema(tool.parameters.field, text)), tuple(missing)


def _read_said(values: SpokenValues, said: Sequence[str], today: Today) -> set[ValueKind]:
    """Read the caller's messages, oldest first. Returns what is unclear in the newest ones."""
    found: list[set[ValueKind]] = []
    for text in said:
        values.unclear = set()
        values.read(text, today)
        found.append(values.unclear)
    return set().union(*found[-MAX_UNCLEAR:])


def _properties(tool: Tool) -> Mapping[str, Any]:
    found = _parsed(tool.parameters.text).get("properties")
    return found if isinstance(found, Mapping) else {}


def _num_named(tool: Tool, latest: Ground) -> int:
    """Number of the tool's arguments, copied words apart, that the last message has values for,
    understood or not."""
    num_named = 0
    for name, value in _properties(tool).items():
        kind = _kind(name, value) if isinstance(value, Mapping) else "any"
        if kind not in ("any", "words"):
            is_named = bool(_fitting(kind, name, value, latest, frozenset()))
            num_named += is_named or _is_unclear(kind, latest)
    return num_named


def _question(tool: Tool, name: str) -> str:
    """Beginning of a question for an argument."""
    schema = _properties(tool)[name]
    kind = _kind(name, schema)
    words = re.sub(r"[_-]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)).casefold().strip()
    if kind in ("time", "date-time"):
        return "What time"
    if kind in ("date", "day"):
        return "Which day"
    words = re.sub(r"^num(ber)?( of)? (?=.)", "", words)
    is_many = words == "people" or (words.endswith("s") and not words.endswith("ss"))
    if kind == "number" and is_many:
        return f"How many {words}"
    is_numbered = kind in ("number", "digits") and re.search(
        r"\bnumber\b(?! of (?!the\b))", _about("", schema)
    )
    return f"What is the {words}{' number' if is_numbered and 'number' not in words else ''}"


@lru_cache(maxsize=256)
def _parsed(text: str) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = json.loads(text)
    return schema


def _about(name: str, schema: Mapping[str, Any]) -> str:
    return f"{name.replace('_', ' ')} {schema.get('description') or ''}"


def _kind(name: str, schema: Mapping[str, Any]) -> str:
    """What an argument is: "day", "number", "date-time", "date", "time", "digits" or "words"; "any"
    for what is left to the model."""
    if "const" in schema or "$ref" in schema:
        return "any"
    values = schema.get("enum")
    if values is not None:
        days = isinstance(values, list) and {str(each).casefold() for each in values}
        return "day" if days and days <= set(WEEKDAYS) else "any"
    if schema.get("type") in ("integer", "number"):
        return "number"
    if schema.get("type") != "string":
        return "any"
    about, form, pattern = _about(name, schema), schema.get("format"), _pattern(schema)
    if form in ("date-time", "date", "time"):
        return str(form)
    if _DATE_MEANT.search(about):
        return "date"
    if _is_time(name, about, pattern):
        return "time"
    return "digits" if _is_digits(about, pattern) else "words"


def _fitting(
    kind: str, name: str, schema: Any, ground: Ground, own_words: frozenset[str]
) -> list[Any] | None:
    """Values that are grounded, the newest last; None where any value is."""
    if kind == "any" or _is_unclear(kind, ground):
        return None
    if kind == "day":
        return [each for each in schema["enum"] if _weekday(each) in ground.values.weekdays]
    about, pattern = _about(name, schema), _pattern(schema)
    if kind == "number":
        return _fitting_numbers(schema, about, ground)
    values: list[str]
    if kind == "date-time":
        values = [
            f"{day.isoformat()}T{clock}:00"
            for day in ground.values.dates
            for clock in map(_clock, ground.values.times)
        ]
    elif kind == "date":
        if ground.today.date is None and not ground.values.dates:
            return None
        values = [day.isoformat() for day in ground.values.dates]
    elif kind == "time":
        values = _spelled_times(schema.get("format"), about, pattern, ground)
    elif kind == "digits":
        values = _fitting_digits(about, ground)
    else:
        values = _copied(name, about, ground, own_words)
    if pattern is not None:
        values = [each for each in values if pattern.search(each)]
    longest = schema.get("maxLength")
    if isinstance(longest, int):
        values = [each for each in values if len(each) <= longest]
    return list(dict.fromkeys(values))[-MAX_VALUES:]


_VALUE_KINDS: Final[Mapping[str, tuple[ValueKind, ...]]] = {
    "day": ("weekdays",),
    "number": ("numbers",),
    "date-time": ("dates", "times"),
    "date": ("dates",),
    "time": ("times",),
    "digits": ("digits",),
}
"""Kinds of values that fit a kind of argument."""


def _is_unclear(kind: str, ground: Ground) -> bool:
    """True if a value for this kind of argument may have been named without being understood."""
    return not ground.values.unclear.isdisjoint(_VALUE_KINDS.get(kind, ()))


def _weekday(value: Any) -> int:
    return WEEKDAYS.index(str(value).casefold())


def _fitting_numbers(schema: Mapping[str, Any], about: str, ground: Ground) -> list[Any]:
    is_whole = schema["type"] == "integer"
    said = ground.values.numbers
    if _SECONDS_MEANT.search(about):
        said = {**said, **ground.values.seconds}
    numbers: list[float] = [
        int(number) if number == int(number) else number
        for number in said
        if not is_whole or number == int(number)
    ]
    for keyword, holds in _BOUNDS:
        bound = schema.get(keyword)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and abs(bound) < 1e300:
            numbers = [number for number in numbers if holds(number, bound)]
    return numbers


_BOUNDS: Final[tuple[tuple[str, Callable[[float, float], bool]], ...]] = (
    ("minimum", operator.ge),
    ("maximum", operator.le),
    ("exclusiveMinimum", operator.gt),
    ("exclusiveMaximum", operator.lt),
    ("multipleOf", lambda number, bound: bound == 0 or number % bound == 0),
)


class Pattern(Protocol):
    """A compiled regular expression."""

    def search(self, text: str) -> object | None: ...


def _pattern(schema: Mapping[str, Any]) -> Pattern | None:
    """The schema's pattern; None without one, and for one with look-around, which the grammar alone
    enforces. Schemas are the client's: Python's own engine would search for hours in a word, and
    hold the interpreter's lock."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return None
    import re2  # only where a tool has a pattern

    options = re2.Options()
    options.log_errors = False
    try:
        found: Pattern = re2.compile(pattern, options)
    except re2.error:
        return None
    return found


# --- times ---


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _is_time(name: str, about: str, pattern: Pattern | None) -> bool:
    if pattern is not None:
        accepts = pattern.search
        return bool(accepts("19:30") or accepts("19:30:00")) and not accepts("abc")
    return bool(_TIME_MEANT.search(about)) or name == "time" or name.endswith("_time")


def _spelled_times(form: Any, about: str, pattern: Pattern | None, ground: Ground) -> list[str]:
    spelled: list[str] = []
    for minutes in ground.values.times:
        clock = _clock(minutes)
        half = (
            f"{(minutes // 60 + 11) % 12 + 1}:{minutes % 60:02} {'PM' if minutes >= 720 else 'AM'}"
        )
        forms = [clock, f"{clock}:00", half, clock.removeprefix("0"), f"{clock}:00Z"]
        if pattern is not None:
            forms = [each for each in forms if pattern.search(each)]
        elif form == "time":
            forms = [f"{clock}:00"]
        elif _HALF_DAY_MEANT.search(about) and not _TIME_MEANT.search(about):
            forms = [half]
        spelled += forms[:1]
    return spelled


# --- strings of digits ---


def _is_digits(about: str, pattern: Pattern | None) -> bool:
    if pattern is not None:
        return not pattern.search("abcdef") and any(
            pattern.search("1234567890123456"[:length]) for length in range(1, 17)
        )
    return bool(_DIGITS_MEANT.search(about))


def _fitting_digits(about: str, ground: Ground) -> list[str]:
    digits = list(ground.values.digits)
    found = _NUM_DIGITS.search(about)
    if found is not None:
        named = next(filter(None, found.groups())).casefold()
        count = int(named) if named.isdecimal() else _COUNT_WORDS[named]
        digits = [each[len(each) - count :] for each in digits if len(each) >= count]
        return digits
    return [*ground.mixed, *digits]


# --- copied words ---


def _copied(name: str, about: str, ground: Ground, own_words: frozenset[str]) -> list[str]:
    """Words of the caller, and strings of results, that can be a value."""
    is_person = bool(_PERSON_MEANT.search(about) or _PERSON_MEANT.search(name))
    is_text = bool(_TEXT_MEANT.search(about)) and not is_person
    num_words = 0
    kept: list[str] = []
    for fragment in reversed(ground.sentences):
        words = list(_PLAIN.finditer(fragment))
        if num_words + len(words) > MAX_WORDS:
            break
        num_words += len(words)
        spans = list(_spans(fragment, words, own_words, ground, is_person=is_person))
        if spans and is_text:
            spans.append(fragment.strip())
        kept = [*spans, *kept]
    return [*ground.named_results, *kept]


def _spans(
    fragment: str,
    words: Sequence[re.Match[str]],
    own_words: frozenset[str],
    ground: Ground,
    *,
    is_person: bool,
) -> Iterator[str]:
    """Spans of a sentence's words that hold more than empty ones."""
    plain = [word[0].casefold().replace("’", "'") for word in words]
    is_full = [_is_full(word, own_words) for word in plain]
    by_case = is_person and ground.is_cased
    for first in range(len(words)):
        if plain[first] in _EDGE or plain[first] in _LEAD:
            continue
        for last in range(first, min(first + MAX_SPAN, len(words))):
            if (
                is_person
                and last > first
                and "," in fragment[words[last - 1].end() : words[last].start()]
            ):
                break
            is_named = is_full[last] and words[last][0][0].isupper()
            if by_case and not is_named:
                if last > first and plain[last] in _PARTICLES:
                    continue
                break
            if plain[last] not in _EDGE and any(is_full[first : last + 1]):
                yield fragment[words[first].start() : words[last].end()]


def _is_full(word: str, own_words: frozenset[str]) -> bool:
    """True if a word can be a value by itself."""
    return not (
        word in _EMPTY
        or word in _NUMBER_WORDS
        or word.removesuffix("s") in WEEKDAYS
        or _stem(word) in own_words
        or word[0].isdecimal()
        or word in ("a.m", "p.m")
    )


def _plain_words(text: str) -> frozenset[str]:
    return frozenset(_stem(word[0].casefold()) for word in _PLAIN.finditer(text))


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _newest(texts: Sequence[str]) -> list[str]:
    """The ends of the newest texts, oldest first, as far as `MAX_ALL_CHARS` reach."""
    kept: list[str] = []
    left = MAX_ALL_CHARS
    for text in reversed(texts):
        kept.append(text[-min(MAX_CHARS, left) :])
        left -= len(kept[-1])
        if left <= 0:
            break
    return kept[::-1]


def _all_scalars(texts: Sequence[str]) -> list[str]:
    """The newest results' strings and numbers, oldest first, at most `MAX_VALUES`."""
    kept: list[str] = []
    for text in reversed(texts):
        kept = [*islice(_scalars(text), MAX_VALUES - len(kept)), *kept]
        if len(kept) == MAX_VALUES:
            break
    return kept


def _scalars(text: str) -> Iterable[str]:
    """Strings and numbers of a tool's result, each as text."""
    text = text.strip()
    if len(text) > MAX_RESULT_CHARS:
        return [text]
    try:
        return list(islice(_leaves(json.loads(text)), MAX_VALUES))
    except (ValueError, RecursionError):
        return [text]


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, float) and not math.isfinite(value):
        return  # no JSON: "1e400" is read as infinity
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)
