"""Profile of a spoken language: what a call says, hears and reads aloud in it.

A language is one module with one `LanguageProfile`: data, and a handful of small functions for what
data can't say, such as the case of an ordinal. `tts/text/localized.py` makes rules of the
normalizer of it, `agent/turn_taking/` asks its words, a session speaks its sentences. Nothing in
here imports a model or another package.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences that the service itself says. Every field is needed in every complete language."""

    apology: str
    """Where a reply failed."""
    idle_prompt: str
    """To a silent caller."""
    tool_wait: str
    """While a server tool takes long, and in front of a reply that is late because a model is in
    trouble. Empty: nothing."""
    openers: tuple[str, ...]
    """In front of a reply that would come late. Each ends with a comma. Empty: late replies get
    none."""
    limit_notice: str
    """Half a minute before a telephone call is ended."""
    announcement: str
    """Before a call that is recorded."""
    transfer_unanswered: str
    """To a caller whose transfer nobody answered."""
    calibration: str
    """By which a voice's level is measured."""


@dataclass(frozen=True, slots=True)
class TurnWords:
    """Words that turn-taking knows, in lower case."""

    backchannels: tuple[tuple[str, ...], ...] = ()
    """Whole utterances, or parts of one, that do not take the turn."""
    interruptions: frozenset[str] = frozenset()
    """Words of which one is enough, in a partial transcript, to take the turn."""
    requests: frozenset[str] = frozenset()
    """Words that ask for something where they are all that is said, however short: questions,
    commands, greetings, days and numbers. Without them the length of an utterance is no evidence of
    a backchannel; and `languages/sounds_alike.py` knows English spellings only."""
    asking_back: frozenset[str] = frozenset()
    """Backchannels that are a request with a question mark: "Okay?". Others are surprise:
    "Really?"."""
    dangling: frozenset[str] = frozenset()
    """No turn ends with these, and no piece of a reply is cut behind them."""
    digits: frozenset[str] = frozenset()
    """Words of numbers that are read out digit by digit."""


@dataclass(frozen=True, slots=True)
class Keypad:
    """Names of a telephone's keys, and the words beside them, as alternatives of a regular
    expression."""

    star: str
    pound: str
    verbs: str
    """In front of a key that is asked for: "press"."""
    links: str
    """In front of one that is named: "followed by #"."""
    nouns: str = r"(?!)"
    """Behind one: "the # key"."""


class Numbers(Protocol):
    """Number words of one language."""

    def cardinal(self, value: int) -> str:
        """ "twelve"."""
        ...

    def ordinal(self, value: int) -> str:
        """ "twelfth", in its dictionary form."""
        ...

    def year(self, value: int) -> str:
        """The number of a year."""
        ...


Speak = Callable[[re.Match[str], Numbers], str | None]
"""Spoken words of a match; None: another rule decides."""


@dataclass(frozen=True, slots=True)
class SpokenRule:
    """A rule of the language's own, tried before those that are made of the tables."""

    pattern: str
    """Begins at a digit or a letter."""
    speak: Speak


@dataclass(frozen=True, slots=True)
class Currency:
    """Names of a currency."""

    one: str
    """With its article: "ein Euro"."""
    many: str
    cent: str
    """One hundredth, with its article."""
    cents: str
    feminine: bool = False
    """Numbers in front of it take the feminine form."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Names of a unit of measure."""

    one: str
    """With its article: "eine Stunde"."""
    many: str
    feminine: bool = False


@dataclass(frozen=True, slots=True)
class Writing:
    """How numbers, dates and short forms are written and read."""

    number_words: str
    """Code of the language for num2words."""
    groups: str
    """Characters between the thousands, as a regular expression's class."""
    decimal: str
    """Word of the decimal comma."""
    minus: str
    percent: str
    range: str
    """Word between the ends of a range."""
    per: str
    """Word of the stroke in "5 €/kg"."""
    out_of: str
    """Word of the stroke in "4,5/5"."""
    ratio: str
    """Word of the colon in "2:1"."""
    months: tuple[str, ...]
    weekdays: Mapping[str, str]
    """Short forms without a dot, and what they stand for: where a date, a time or another weekday
    stands beside them. Many are words of their own too ("mer.", "So.")."""
    weekday_articles: str
    """Words in front of a weekday alone, as alternatives of a regular expression."""
    weekday_links: str
    """Words between a weekday and a time, likewise."""
    weekday_joints: str
    """Words and marks between two weekdays, likewise."""
    month_abbreviations: Mapping[str, int]
    """Short forms without a dot, and the number of the month."""
    date: Callable[[Numbers, int, int, int | None, str], str]
    """Words of a day, a month and a year (None: not said), given the text before."""
    time: Callable[[Numbers, int, int], str]
    """Words of an hour and a minute."""
    currencies: Mapping[str, Currency]
    """By symbol and by code."""
    sum_joint: str
    """Word between the amount and its hundredths; empty: none."""
    scales: str
    """Millions and more, between an amount and its currency, as alternatives of a regular
    expression."""
    half: tuple[str, str]
    """Words of 1/2 in front of a masculine and of a feminine noun."""
    and_half: Callable[[Numbers, int, str, bool], str]
    """Words of a number and a half, given the noun that is counted (empty: none), and whether it is
    feminine."""
    times: Unit
    """Names of what the x counts in "3x"."""
    fractions: Mapping[int, tuple[str, str]]
    """By denominator: words of one part, with its article, and of many."""
    units: Mapping[str, Unit]
    """By symbol; each stands behind a number."""
    abbreviations: Mapping[str, str]
    """With their dots. None of them ends a sentence unless the text goes on in another one."""
    titles: Mapping[str, str]
    """Such short forms in front of a capitalized word only."""
    symbols: Mapping[str, str]
    """Single characters."""
    words: Mapping[str, str]
    """Whole words that are said otherwise than they are written."""
    acronyms_said: frozenset[str]
    """Capitals that are said as a word; others of two to five letters are spelled."""
    code_labels: str
    """Words after which a number is read digit by digit, as alternatives of a regular
    expression."""
    address: Mapping[str, str]
    """Words of the marks in e-mail and web addresses."""
    rules: tuple[SpokenRule, ...] = ()
    ordinal_nouns: frozenset[str] = frozenset()
    """Nouns in front of which a number with a dot is an ordinal without an article: "2. Stock"."""
    unfinished: str = r"(?!)"
    """Text whose last dot ends no sentence, as a regular expression that ends there."""
    corrected_cardinal: Callable[[str], str] = lambda words: words
    """Words of num2words for a cardinal, without its mistakes."""
    feminine: Callable[[str], str] = lambda words: words
    """Number words in front of a feminine noun."""
    before_noun: Callable[[str], str] = lambda words: words
    """Number words in front of a masculine noun."""
    feminine_behind: str = r"(?!)"
    """Text behind a number that counts a feminine noun, as a regular expression without case that
    begins at the blank."""
    masculine_behind: str = r"(?!)"
    """Likewise for a masculine or neuter noun, with case."""
    number_labels: str = r"(?!)"
    """Words after which a number counts nothing ("platform 1"), as alternatives of a regular
    expression."""
    after_millions: Callable[[str], str] = lambda noun: noun
    """The noun behind whole millions, "d'euros"."""


@dataclass(frozen=True, slots=True)
class LanguageProfile:
    """All that halfsec knows of one language."""

    code: str
    """ISO 639-1, like "de"."""
    name: str
    """English name."""
    sentences: Sentences
    answer_in: str
    """Instruction for the model to answer in this language; empty: none is needed."""
    turn_words: TurnWords
    voice: str
    """Voice of halfsec's list for this language."""
    keypad: Keypad
    spoken_openers: frozenset[str] = frozenset()
    """Words that people say with a pause after them, in lower case."""
    phrase_starts: frozenset[str] = frozenset()
    """Words in front of which a long piece of a reply may be cut."""
    writing: Writing | None = None
    """None: `tts/text/normalize.py` has the rules (English)."""
    has_word_features: bool = False
    """The end-of-turn model was fitted on words of this language."""


def phrases(text: str) -> tuple[tuple[str, ...], ...]:
    """Read phrases from a block of text, separated by semicolons; one may stand on two lines."""
    parts = (tuple(part.split()) for part in text.split(";"))
    return tuple(part for part in parts if part)


def word_set(text: str) -> frozenset[str]:
    """Read words from a block of text, separated by blanks."""
    return frozenset(text.split())


def phrase_set(text: str) -> frozenset[str]:
    """Read phrases from a block of text, separated by commas."""
    return frozenset(" ".join(part.split()) for part in text.split(",") if part.strip())
