"""Text normalizer: written text to spoken words, with the source characters of each.

A reply is written the way text is: "$29.99", "Dr.", "10:30 a.m.", "**now**", a link, an emoji. The
voices have normalizers of their own, but each covers a different part (Piper voices asterisks and
reads "245" for "2 4 5"; hibari reads "$1.5M" and phone numbers well but not URLs or code), so what
a caller hears would depend on the voice. Here everything becomes plain words, once, and the
voices' own passes find nothing left to do.

One scan from left to right (see `tts/text/rule.py`). The result keeps, for every spoken word, which
characters of the source it speaks: by these "the caller heard 1.4 s" becomes a position in the
reply as it was generated.

The rules here are English; those of German, Spanish and French are made of their profiles
(`localized.py`). Text in other languages and scripts passes through to the voice unchanged.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import languages

from . import abbreviations, dates, identifiers, markup, quantities
from .keypad import keypad_rules
from .localized import NUMBER_START as LOCAL_NUMBER_START
from .localized import localized_rules
from .numbers import digit_words, number_words
from .rule import NUMBER, Rule, RuleSet, rule

END_MARKS = ".!?…"
"""Marks after which a sentence is over."""

_MARK_STRENGTH = {"": 0, ",": 1, ";": 2, ":": 2, "…": 3, ".": 4, "!": 5, "?": 6}


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One word as it is spoken."""

    text: str
    """Without blanks; letters, apostrophes, hyphens, and dots between spelled letters."""
    start: int
    """First character of the source that this word speaks. The words of "$5" share theirs."""
    end: int
    """One past the last such character."""
    mark: str = ""
    """Punctuation that follows: "" or one of `, ; : . ! ? …`. It shapes melody and pause."""
    paragraph: bool = False
    """A line of the source ends after this word."""

    @property
    def ends_sentence(self) -> bool:
        return self.mark != "" and self.mark in END_MARKS


def normalize(text: str, language: str = "en") -> str:
    """Normalize a whole text, e.g. "It's $5." -> "It's five dollars."

    Never fails in English; text with nothing to say gives "". In the languages of `languages` the
    result has no digit and no symbol. Raises ModuleNotFoundError where one of them is asked for
    and the extra `languages` is not installed.
    """
    return join_words(spoken_words(text, language))


def join_words(words: Sequence[SpokenWord]) -> str:
    """Join words and their marks to one line for a phonemizer."""
    return " ".join(word.text + word.mark for word in words)


def spoken_words(
    text: str, language: str = "en", fence: str = "", before: str = ""
) -> tuple[SpokenWord, ...]:
    """Normalize a text to words in spoken order, with the characters that each one speaks.

    Spans are ascending, words of one token share theirs, and no span leaves the text. `fence`:
    marks of the code fence that the text begins within (`SpeakablePiece.fence`). `before`: what
    was said just before (`SpeakablePiece.before`), which decides how some numbers are read.
    """
    return _read(text, rules_of(language), fence, before)


def unnormalized_words(text: str, fence: str = "") -> tuple[SpokenWord, ...]:
    """Split a text to words with its numbers as they are written. Uses no rules of a language, so
    that an error in those can't fail it."""
    return _read(text, _AS_WRITTEN, fence)


def _read(text: str, rules: RuleSet, fence: str, before: str = "") -> tuple[SpokenWord, ...]:
    words, silent = _Words(len(before)), markup.silent_code(text, fence)
    for token in _tokens(before + text, len(before), rules, silent):
        words.add(token)
    return tuple(words.finished)


@dataclass(frozen=True, slots=True)
class _Token:
    """A stretch of the source and its spoken form."""

    spoken: str
    start: int
    end: int
    is_mark: bool = False
    is_line_break: bool = False


_WORD_RULES: tuple[Rule, ...] = (
    *identifiers.WORD_RULES,
    *dates.WORD_RULES,
    *quantities.WORD_RULES,
    *markup.WORD_RULES,
    *abbreviations.WORD_RULES,
)
_SIGNED_NUMBER = rule(
    rf"{quantities.SIGN}(?P<a>{NUMBER})",
    lambda match: quantities.signed(match) + number_words(match["a"]),
)
_KEYPAD_RULES = keypad_rules(languages.ENGLISH.keypad, digit_words)
_NUMBER_RULES: tuple[Rule, ...] = (
    *_KEYPAD_RULES,
    *markup.LINE_NUMBER_RULES,
    *identifiers.NUMBER_RULES,
    *dates.NUMBER_RULES,
    *quantities.NUMBER_RULES,
    dates.YEAR_RULE,
    _SIGNED_NUMBER,
)
_SYMBOL_RULES: tuple[Rule, ...] = (
    *_KEYPAD_RULES,
    *identifiers.SYMBOL_RULES,
    *dates.SYMBOL_RULES,
    *quantities.SYMBOL_RULES,
    *markup.SYMBOL_RULES,
)

_ENGLISH = RuleSet(
    _WORD_RULES, _NUMBER_RULES, _SYMBOL_RULES, lambda value: number_words(str(value))
)
_AS_WRITTEN = RuleSet(
    (),
    (rule(r"[\d$£€¥₹₩½⅓⅔¼¾⅕⅖⅗⅘⅙⅛⅜⅝⅞+−-][\d.,:%]*(?<![.,:])", lambda match: match[0]),),
    markup.MARKUP_RULES,
)
"""Of a language without rules: numbers are the voice's business."""


@cache
def rules_of(language: str) -> RuleSet:
    """Rules of a language by its code. Raises ModuleNotFoundError: see `normalize`."""
    if language == languages.ENGLISH.code:
        return _ENGLISH
    profile = languages.profile_of(language)
    if profile is None or profile.writing is None:
        return _AS_WRITTEN
    return localized_rules(profile.writing, profile.keypad)


# A letter is what `\w` takes, without digits and the numerals that `\d` does not know (², ½, ①).
_LETTER = r"[^\W\d_²³¹¼-¾⁰-₉⅐-↏①-⓿]"
_WORD = re.compile(rf"{_LETTER}(?:{_LETTER}|[\u0300-\u036f]|['’\u00ad\u200d-](?={_LETTER}))*")
_NUMBER_START = re.compile(r"[\d$£€¥₹₩½⅓⅔¼¾⅕⅖⅗⅘⅙⅛⅜⅝⅞]|[-−+±~≈(.#'’](?=[\d$£€¥₹₩(.])")
_BLANK = re.compile(rf"[^\S\n\r\u2028\u2029]+|[{markup.INVISIBLE}]+")
_LINE_BREAK = re.compile(r"[\n\r\u2028\u2029]\s*")
_MARKS = re.compile(r"[.…!?]+|[,;:]|[、。，；：！？]|[(\[{)\]}]|[—–―]+|(?<=\s)-+(?=\s)|--+|\|")
_PLAIN_MARKS = {"、": ",", "。": ".", "，": ",", "；": ";", "：": ":", "！": "!", "？": "?"}


def _tokens(
    text: str, first: int, rules: RuleSet, silent_code: Iterator[tuple[int, int]]
) -> Iterator[_Token]:
    """Tokens from the character `first` on, from where the spans of the code count."""
    code = ((first + start, first + end) for start, end in silent_code)
    silent = next(code, None)
    position = first
    while position < len(text):
        while silent is not None and silent[1] <= position:
            silent = next(code, None)
        if silent is not None and silent[0] <= position:
            token = _Token("", position, silent[1])
        else:
            token = _next_token(text, position, rules)
        yield token
        position = token.end


def _next_token(text: str, position: int, rules: RuleSet) -> _Token:
    if blank := _BLANK.match(text, position):
        return _Token("", position, blank.end())
    if line_break := _LINE_BREAK.match(text, position):
        return _line_break(text, line_break)
    character = text[position]
    if character.isalpha():
        return _first_answer(rules.words, text, position) or _plain_word(text, position)
    begins_number = _NUMBER_START if rules is _ENGLISH else LOCAL_NUMBER_START
    if begins_number.match(text, position) and (
        token := _first_answer(rules.numbers, text, position)
    ):
        return token
    if token := _first_answer(rules.symbols, text, position):
        return token
    if mark := _MARKS.match(text, position):
        return _Token(_mark_of(mark[0]), position, mark.end(), is_mark=True)
    if character.isdigit() or character.isnumeric():
        # Digits of other scripts and the like: what Unicode knows of their value.
        return _Token(_foreign_digit(character, rules), position, position + 1)
    return _Token("", position, position + 1)


def _first_answer(rules: tuple[Rule, ...], text: str, position: int) -> _Token | None:
    for candidate in rules:
        match = candidate.pattern.match(text, position)
        if match and match.end() > position:
            spoken = candidate.speak(match)
            if spoken is not None:
                return _Token(spoken, position, match.end())
    return None


def _plain_word(text: str, position: int) -> _Token:
    match = _WORD.match(text, position)
    end = match.end() if match else position + 1
    word = unicodedata.normalize("NFKC", text[position:end]).replace("’", "'")
    return _Token(
        "".join(c for c in word if c.isalpha() or c in "'-" or unicodedata.combining(c)),
        position,
        end,
    )


def _foreign_digit(character: str, rules: RuleSet) -> str:
    value = unicodedata.numeric(character, -1.0)
    return rules.cardinal(int(value)) if value >= 0 and value == int(value) else ""


def _line_break(text: str, match: re.Match[str]) -> _Token:
    # Wrapped prose goes on in lower case; anything else after a line break is a new item.
    following = text[match.end() : match.end() + 1]
    goes_on = following.islower() and match[0].count("\n") < 2
    return _Token(
        "" if goes_on else ".", match.start(), match.end(), is_mark=True, is_line_break=not goes_on
    )


def _mark_of(text: str) -> str:
    if "?" in text:
        return "?"
    if "!" in text:
        return "!"
    if "…" in text or text.startswith(".."):
        return "…"
    text = _PLAIN_MARKS.get(text, text)
    # Brackets, dashes and table bars are short pauses to the ear.
    return text if text in (".", ",", ";", ":") else ","


class _Words:
    """Collects words and hangs marks on the word before them."""

    def __init__(self, offset: int) -> None:
        """`offset`: place in the tokens' text of the first character that the words' spans
        count."""
        self.finished: list[SpokenWord] = []
        self._offset = offset

    def add(self, token: _Token) -> None:
        if token.is_mark:
            self._mark(token.spoken, token.is_line_break)
            return
        for word in token.spoken.split():
            bare = word.rstrip(".,;:!?…")
            if bare:
                span = token.start - self._offset, token.end - self._offset
                self.finished.append(SpokenWord(bare, *span))
            if mark := word[len(bare) :]:
                self._mark(_mark_of(mark), False)

    def _mark(self, mark: str, is_line_break: bool) -> None:
        if not self.finished:
            return
        last = self.finished[-1]
        if is_line_break and last.mark:
            mark = last.mark
        if _MARK_STRENGTH[mark] < _MARK_STRENGTH[last.mark]:
            mark = last.mark
        self.finished[-1] = SpokenWord(
            last.text, last.start, last.end, mark, last.paragraph or is_line_break
        )
