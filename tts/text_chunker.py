"""Text chunker: cuts a reply, while it is generated, into pieces for synthesis.

Theory of operation. The first piece decides how soon the caller hears something, so it is short: a
finished sentence, a clause, or an opener like "Sure,". Everything after it has time, and sounds
best a sentence at a time. A cut at a comma is inaudible; a cut between two words never is, so it
is the last resort, and is made where a phrase begins.

A cut can lie only in a *gap*: the stretch between one speakable character and the next, when it
holds white space (or a dash that joins nothing). What kind of gap it is depends on the mark in
it and on the first character after it; that character is the look-ahead that keeps "$29." and
"99", "3." and "14" together, and costs one token, because language models emit the blank and the
next word as one. Where a dot may abbreviate ("p.m.", "U.S."), the whole next word is awaited. The
first piece is in a hurry: behind a plain word a comma is a gap whatever follows, so a clause that
may open the reply ends with its comma, and the blank belongs to the next piece.

Where speech is needed at once (`hurry`), the piece under way ends at the best gap that it has, or
at the next one.

Characters are taken one at a time and every decision looks only at the text so far, never at how
it arrived: any split into deltas gives the same pieces, unless one is hurried. Text that is only
markup or white space stays with the piece before it or after it, so the spans of the pieces are
contiguous, cover the reply once, and every piece has something to say; only an empty reply, or the
rest of one that ends with the comma of its first clause, has not.

Fenced code is kept whole, so that the normalizer sees where it ends; a block too long for that is
released in parts, and each part but the first carries the marks of the fence that it begins within.

One chunker serves one reply. No I/O, no clock; any one thread.
"""

import re
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache

import languages
from languages.profile import phrase_set, word_set
from tts.text import abbreviations
from tts.text.markup import TILDE_FENCE
from tts.text.rule import CONTEXT_CHARS


@dataclass(frozen=True, slots=True)
class SpeakablePiece:
    """Part of a reply that is synthesized as a unit."""

    text: str
    """Text as generated, before normalization: exactly the characters of `span`."""
    span: tuple[int, int]
    """First character in the reply and one past the last."""
    index: int
    """Number of the piece in its reply, from 0."""
    is_last: bool = False
    """The reply ends with this piece. False for a first clause that its comma ended, even if it is
    the last."""
    fence: str = ""
    """Marks of the code fence that the text begins within, such as "~~~"; empty: none."""
    before: str = field(default="", compare=False)
    """The end of the reply's text before it: behind "your code is:" a number is read digit by
    digit, also in a piece of its own."""


@dataclass(frozen=True, slots=True)
class CutterConfig:
    """Limits of pieces. The defaults were chosen by ear and by the arithmetic given with each."""

    opening_min_words: int = 3
    opening_min_chars: int = 16
    """A clause of fewer words or characters is no start: "At nine," then a gap sounds lost. 16
    characters are about 1 s of speech, time for the next clause to be generated and synthesized
    even at 10 tokens a second."""
    opening_max_words: int = 12
    """Without any mark after so many words, cut at a phrase: 12 words are 0.2 s of generating at
    60 tokens a second. Fewer would cut ordinary sentences; more would be heard as hesitation."""
    opening_chars: int = 24
    """The opening rules hold until so many characters have been released: after "Sure," alone a
    whole long sentence would come too late (0.4 s of audio is all there is to hide it behind)."""
    long_sentence_chars: int = 160
    """A later sentence longer than this (10 s of speech) is cut at a clause mark, to bound the
    synthesis that a barge-in has to wait for: 0.1 s with hibari, 0.5 s with Piper on one core."""
    max_chars: int = 320
    """Without a clause mark a sentence is cut between words here."""
    max_enclosed_chars: int = 160
    """Quotes and parentheses are kept whole up to this length; a longer one was never closed."""
    max_fenced_chars: int = 4000
    """Fenced code, which is not spoken, is kept whole up to this length, then in parts of it."""
    language: str = languages.ENGLISH.code
    """Language of the reply: which dots abbreviate, and which words belong together."""

    def at_speed(self, speed: float) -> "CutterConfig":
        """These limits for a voice at this speed: slow speech is synthesized for longer, so its
        pieces are shorter by as much."""
        share = min(1.0, speed)
        return replace(
            self,
            long_sentence_chars=round(self.long_sentence_chars * share),
            max_chars=round(self.max_chars * share),
            max_enclosed_chars=round(self.max_enclosed_chars * share),
        )


_OPENERS = phrase_set(
    """
    absolutely, actually, ah, all right, alright, awesome, certainly, definitely, exactly,
    excellent, fantastic, good afternoon, good evening, good idea, good morning, good
    question, got it, great, great question, hello, hello there, hey, hey there, hi, hi there,
    hmm, i see, i think so, i understand, i'm sorry, indeed, it depends, let me check, let me
    see, let me think, let's see, maybe, nice, no, no problem, no worries, nope, not really, of
    course, of course not, oh, oh no, ok, okay, one moment, perfect, right, sorry, sounds good,
    sure, sure thing, thank you, thanks, understood, unfortunately, welcome, well, wonderful,
    wow, yeah, yep, yes, you're right
    """
)
"""Openers that people say with a pause after them. Cutting there starts the voice 60-150 ms sooner
(the tokens of the clause that follows), and the pause is where it would be anyway."""

_PHRASE_STARTS = word_set(
    """
    about after although and as at because before but by for from if in into like of on or
    since so than that then though to unless until when where whether which while who with
    without
    """
)
_NEVER_LAST = _PHRASE_STARTS | word_set(
    """
    a an the my your his her its our their this these those is are was were be been am will
    can could would should may might must do does did have has had not no very mr mrs ms dr
    """
)
"""Words that no piece may end with: it would sound unfinished."""
_CURRENCY = "$£€¥₹₩"
_CLOSERS = "\"'”’»)]}*_`~"
_MARKUP = frozenset("*_`~‘")
"""Marks whose other half may follow a comma."""
_AROUND_WORDS = " \t\n,;:.—–-*_\"'“”"
_BEFORE_WORDS = "([\"'“„«¿¡"
_DASHES = re.compile(r"\s*(?:[—―]|--+)\s*|\s+[-–]+\s+")
_MEASURED = re.compile(r"\d\S{0,15}(?:\s\S{1,9})?$")
"""A number, perhaps with its unit, in front of a dash: the begin of a range."""
_EXPLAINED = re.compile(r"[\"'“‘„«(*_`]{0,3}(?:#|\\?\*(?=[\s.,;:!?\"'”’»)`])|=)")
"""A key of a telephone, a code or the end of a sum: "press #", "10 kg - 3 kg = 7 kg"."""
_NUMBER_BEGIN = re.compile(r"[\d½⅓⅔¼¾⅛⅜⅝⅞]")
_NUMBER_END = re.compile(rf"{_NUMBER_BEGIN.pattern}\.?$")
"""The end of a number, or of an ordinal with its dot."""
_MAX_FENCE_LINE = 80
"""`TILDE_FENCE` is shorter."""
_LIST_MARKER = re.compile(r"(?:^|\n)[ \t]*\d{1,3}$")


class _Gap(IntEnum):
    """Kind of a gap between two words, weakest first."""

    WORDS = 0
    CLAUSE = 1
    SENTENCE = 2


def is_opener(text: str, language: str = languages.ENGLISH.code) -> bool:
    """True for words that people say with a pause after them: "Sure," or "Of course." """
    return text.strip(_AROUND_WORDS).lower().replace("’", "'") in _words_of(language).openers


@dataclass(frozen=True, slots=True)
class _Words:
    """Words of one language that the chunker knows."""

    openers: frozenset[str] = frozenset()
    phrase_starts: frozenset[str] = frozenset()
    never_last: frozenset[str] = frozenset()
    writing: languages.Writing | None = None
    short_forms: frozenset[str] = frozenset()
    """Abbreviations with their dots, and the beginnings of those of two parts."""
    weekdays: frozenset[str] = frozenset()
    counted: frozenset[str] = frozenset()
    """Nouns and months that make an ordinal of a number with a dot."""
    is_english: bool = False

    def may_abbreviate(self, text: str) -> bool:
        """Could the dot at the end of `text` belong to an abbreviation? The next word may tell."""
        if self.is_english:
            return abbreviations.may_abbreviate(text)
        return self._is_short_form(text)

    def is_abbreviation(self, text: str, following: str) -> bool:
        """True where the dot at the end of `text` only abbreviates, given what follows."""
        if self.is_english:
            return abbreviations.is_abbreviation(text, following)
        return self._is_short_form(text) or (
            text[-2:-1].isdigit() and following.strip() in self.counted
        )

    def may_count(self, following: str) -> bool:
        """Could a noun with this beginning make an ordinal of the number with a dot before it?"""
        return any(noun.startswith(following) for noun in self.counted)

    def is_weekday(self, text: str) -> bool:
        """True where the last word may be a weekday's short form, whose dot is not in `text`."""
        last = re.search(r"\w+$", text)
        return last is not None and not {last[0], last[0].lower()}.isdisjoint(self.weekdays)

    def _is_short_form(self, text: str) -> bool:
        if self.writing is None:
            return False
        if re.search(self.writing.unfinished, text, re.IGNORECASE):
            return True
        last = re.search(r"\S+(?:\s\S+)?$", text)
        if last is None:
            return False
        two = last[0].lstrip(_BEFORE_WORDS)
        one = re.split(r"\s", two)[-1].lstrip(_BEFORE_WORDS)
        return one in self.short_forms or two in self.short_forms


@cache
def _words_of(language: str) -> _Words:
    if language == languages.ENGLISH.code:
        weekdays = frozenset(
            ("Mon", "Tue", "Tues", "Wed", "Thu", "Thur", "Thurs", "Fri", "Sat", "Sun")
        )
        return _Words(_OPENERS, _PHRASE_STARTS, _NEVER_LAST, weekdays=weekdays, is_english=True)
    profile = languages.profile_of(language)
    if profile is None:
        return _Words()
    writing = profile.writing
    known = (*writing.abbreviations, *writing.titles) if writing is not None else ()
    begun = (name.split()[0] for name in known)
    return _Words(
        profile.spoken_openers,
        profile.phrase_starts,
        profile.turn_words.dangling,
        writing,
        frozenset((*known, *begun)),
        frozenset(writing.weekdays) if writing is not None else frozenset(),
        frozenset((*writing.ordinal_nouns, *writing.months))
        if writing is not None
        else frozenset(),
    )


class TextChunker:
    """Chunker of one reply: deltas of any size in, complete pieces out."""

    def __init__(self, config: CutterConfig | None = None) -> None:
        self._config = config or CutterConfig()
        self._words = _words_of(self._config.language)
        self._text = ""
        self._before = ""
        self._start = 0
        self._index = 0
        self._finished = False
        self._ready: list[SpeakablePiece] = []
        self._begin_piece()

    def push(self, text_delta: str) -> tuple[SpeakablePiece, ...]:
        """Add text. Raises ValueError after `flush`."""
        if self._finished:
            raise ValueError("this reply was flushed: use a new TextChunker for the next one")
        for character in text_delta:
            self._take(character)
        return self._taken()

    def hurry(self) -> tuple[SpeakablePiece, ...]:
        """End the piece under way as soon as it is long enough to begin a reply with: here, or at
        the next gap. Raises ValueError after `flush`."""
        if self._finished:
            raise ValueError("this reply was flushed: use a new TextChunker for the next one")
        self._is_hurried = True
        if (cut := self._best_word_cut()) is not None and not self._enclosure.is_open:
            self._release(cut)
        return self._taken()

    def flush(self) -> tuple[SpeakablePiece, ...]:
        """End the reply and return the rest. A second call returns nothing."""
        if not self._finished:
            self._finished = True
            if self._text:
                self._release(len(self._text), is_last=True)
        return self._taken()

    def _taken(self) -> tuple[SpeakablePiece, ...]:
        ready = tuple(self._ready)
        self._ready.clear()
        return ready

    def _begin_piece(self, fence: str = "") -> None:
        self._fence = fence
        self._enclosure = _Enclosure(self._config, fence)
        self._last_speakable = -1
        self._gap_is_enclosed = False
        self._gap_has_blank = False
        self._num_words = 0
        self._pending: int | None = None
        self._clause_cut: int | None = None
        self._word_cuts: list[int] = []
        self._is_hurried = False

    def _release(self, end: int, *, is_last: bool = False, fence: str = "") -> None:
        """`fence`: marks of the code fence that the cut lies within."""
        if self._text[:end].rpartition("\n")[2].strip(" \t"):
            # Tildes within a line are no fence; at the start of a piece they would be one.
            while self._text[end : end + 1] == "~":
                end += 1
        piece, rest = self._text[:end], self._text[end:]
        span = (self._start, self._start + end)
        self._ready.append(
            SpeakablePiece(piece, span, self._index, is_last, self._fence, self._before)
        )
        self._before = (self._before + piece)[-CONTEXT_CHARS:]
        self._index += 1
        self._start += end
        self._text = ""
        self._begin_piece(fence)
        # The text after the cut is read again as the beginning of its own piece. It is the look-
        # ahead word, or after a late decision at most one piece's length.
        for character in rest:
            self._take(character)

    def _take(self, character: str) -> None:
        position = len(self._text)
        self._text += character
        speakable = character.isalnum() or character in _CURRENCY
        if self._pending is not None and not speakable and character not in "'’":
            cut, self._pending = self._pending, None
            abbreviates = self._words.is_abbreviation(self._text[:cut].rstrip(), self._text[cut:-1])
            if self._cut_or_note(_Gap.WORDS if abbreviates else _Gap.SENTENCE, cut):
                return
        self._enclosure.take(character)
        if not speakable:
            if character in ",;" and self._ends_opening(position):
                self._release(position + 1)
                return
            if not self._gap_has_blank and (character.isspace() or character in "—―。！？"):
                self._gap_has_blank = True
                self._gap_is_enclosed = self._enclosure.is_open
            self._enforce_bounds()
            return
        if self._gap_has_blank and self._last_speakable >= 0:
            self._close_gap(position)
        self._last_speakable = len(self._text) - 1
        self._gap_has_blank = False
        self._enforce_bounds()

    def _close_gap(self, position: int) -> None:
        """Classify the gap before the word that begins at `position`."""
        region = self._text[self._last_speakable + 1 : position]
        left = self._text[: self._last_speakable + 1]
        self._num_words += 1
        if self._gap_is_enclosed:
            return
        following = self._text[position]
        if self._enclosure.is_fenced:  # the gap ends where the fence begins, in front of the code
            region = region.partition(self._enclosure.fence)[0]
            following = self._enclosure.fence[0]
        kind, offset, may_be_abbreviation = _classify(left, region, following, self._words)
        cut = self._last_speakable + 1 + offset
        if may_be_abbreviation:
            self._pending = cut
        else:
            self._cut_or_note(kind, cut)

    def _cut_or_note(self, kind: _Gap, cut: int) -> bool:
        """Cut here, or at an earlier place, or remember this one.

        True when a piece was released: the characters after it have been taken again.
        """
        end = self._end_of_piece(kind, cut)
        if end is None:
            return False
        self._release(end)
        return True

    def _end_of_piece(self, kind: _Gap, cut: int) -> int | None:
        if kind is _Gap.SENTENCE:
            return cut
        config, is_clause = self._config, kind is _Gap.CLAUSE
        if self._start < config.opening_chars:
            if is_clause and self._is_opening(cut, self._num_words):
                return cut
            limit_reached = self._num_words >= config.opening_max_words
        else:
            is_long = cut >= config.long_sentence_chars
            if is_clause and cut >= config.long_sentence_chars // 4:
                self._clause_cut = cut
            if is_long and self._clause_cut is not None:
                return self._clause_cut
            limit_reached = cut >= config.max_chars
        if is_clause or _may_part(self._text, cut, self._words):
            self._word_cuts.append(cut)
        return self._best_word_cut() if limit_reached or self._is_hurried else None

    def _ends_opening(self, comma: int) -> bool:
        """True where the comma at this place, the last character so far, ends the first clause, and
        no later character could change that: it follows a plain word, outside of markup."""
        if self._start >= self._config.opening_chars or self._enclosure.is_open:
            return False
        word = re.split(r"\s", self._text[:comma])[-1]
        is_plain = word[-1:].isalpha() and all(each.isalpha() or each in "'’-" for each in word)
        if not is_plain or not _MARKUP.isdisjoint(self._text):
            return False
        return self._is_opening(comma, self._num_words + 1)

    def _is_opening(self, cut: int, num_words: int) -> bool:
        return is_opener(self._text[:cut], self._config.language) or self._is_long(cut, num_words)

    def _is_long(self, cut: int, num_words: int) -> bool:
        """True where the piece up to here lasts until the next one can be spoken."""
        num_chars = len(self._text[:cut].strip(_AROUND_WORDS))
        config = self._config
        return num_words >= config.opening_min_words and num_chars >= config.opening_min_chars

    def _best_word_cut(self) -> int | None:
        """Last gap before a phrase in the second half of the piece, else the last gap.

        None when there is no good place yet: the next gap or comma will be one."""
        cuts = [cut for cut in reversed(self._word_cuts) if cut >= len(self._text) // 2]
        if self._is_hurried:
            cuts = [cut for cut in cuts if self._is_long(cut, len(self._text[:cut].split()))]
        for cut in cuts:
            following = re.match(r"[^\W\d_]+(?=\W)", self._text[cut:])
            if following and following[0] in self._words.phrase_starts:
                return cut
        return cuts[0] if cuts else None

    def _enforce_bounds(self) -> None:
        """Cut text without gaps, or with everything enclosed, at the limit; not within the marks
        of a fence, which would be another fence to the next piece."""
        if self._text[-1] in "`~":
            return
        limit = (
            self._config.max_fenced_chars
            if self._enclosure.is_fenced
            else 2 * self._config.max_chars
        )
        if len(self._text) >= limit and self._last_speakable >= 0:
            if self._word_cuts:
                self._release(self._word_cuts[-1])
            else:
                self._release(len(self._text) - 1, fence=self._enclosure.fence)


def _classify(left: str, region: str, following: str, known: _Words) -> tuple[_Gap, int, bool]:
    """Kind of the gap `region` between `left` and the character `following`; offset of the cut in
    the region; and whether only the next word decides if a dot abbreviates."""
    blank = re.search(r"\s+|(?<=[。！？])", region)
    offset = blank.end() if blank else len(region)
    wrapped = following.islower() and region.strip(" \t,;") == "\n"
    if "\n" in region and not wrapped:
        if _LIST_MARKER.search(left) and region[0] in ".)":
            return _Gap.WORDS, offset, False
        after_break = re.search(r"\n\s*", region)
        return _Gap.SENTENCE, after_break.end() if after_break else offset, False
    if dash := _DASHES.search(region):
        is_range = dash[0].strip() in "-–" and (
            known.is_weekday(left)
            or ((following.isdigit() or following in _CURRENCY) and _MEASURED.search(left[-26:]))
        )
        if is_range:
            return _Gap.WORDS, dash.end(), False
        return _Gap.CLAUSE, dash.end(), False
    if blank is None:
        return _Gap.WORDS, offset, False
    marks = region[: blank.start()].rstrip(_CLOSERS)
    if not marks or (_LIST_MARKER.search(left) and marks in (".", ")")):
        return _Gap.WORDS, offset, False
    last = marks[-1]
    if last in ".!?…。！？":
        if last == "." and not following.isupper() and known.is_weekday(left):
            return _Gap.WORDS, offset, False
        is_number = last == "." and left[-1].isdigit()
        if (is_number and known.may_count(following)) or (
            last == "." and known.may_abbreviate(left + ".")
        ):
            return _Gap.SENTENCE, offset, True
        # In lower case the sentence goes on: '"Really?" he said', or an unlisted abbreviation.
        return (_Gap.CLAUSE if following.islower() else _Gap.SENTENCE), offset, False
    if marks.startswith(".,") and known.is_weekday(left):
        return _Gap.WORDS, offset, False
    if last in ",;:、，；：" and not (left[-1].isdigit() and following.isdigit()):
        return _Gap.CLAUSE, offset, False
    return _Gap.WORDS, offset, False


def _may_part(text: str, cut: int, known: _Words) -> bool:
    """True where a gap without a mark may be cut: not beside a number, a title or an initial, and
    not in front of a mark that the words before it explain."""
    if _EXPLAINED.match(text, cut):
        return False
    left, right = text[:cut].rstrip(), text[cut:].lstrip(_CLOSERS + "([“‘")
    last_word = re.search(r"[^\W\d_]*(?:'[^\W\d_]+)*$", left.lower())
    if last_word and last_word[0] in known.never_last:
        return False
    if known.is_weekday(re.sub(r"[.,\s–-]+$", "", left)):
        return False
    beside_number = _NUMBER_END.search(left) or _NUMBER_BEGIN.match(right) or right[:1] in _CURRENCY
    return (
        not beside_number and not known.may_abbreviate(left) and not left.endswith(tuple(_CURRENCY))
    )


class _Enclosure:
    """State of open quotes, brackets and code fences; fences as in `markup.silent_code`."""

    def __init__(self, config: CutterConfig, fence: str = "") -> None:
        self._config = config
        self._depth = 0
        self._in_quotes = False
        self._num_chars = 0
        self.fence = fence
        """Marks of the open code fence; empty: none is open."""
        self._num_backticks = 0
        self._is_opening = False
        """These backticks open a fence, which is as long as they are."""
        self._has_closed = False
        """These backticks have closed a fence: more of them open no other one."""
        self._line = ""
        """Beginning of the line so far."""

    @property
    def is_fenced(self) -> bool:
        return self.fence != ""

    @property
    def is_open(self) -> bool:
        return self.is_fenced or self._in_quotes or self._depth > 0

    def take(self, character: str) -> None:
        if character == "`":
            self._take_backtick()
        else:
            self._num_backticks, self._is_opening, self._has_closed = 0, False, False
        self._take_tilde_or_text(character)
        if self.is_fenced:
            return
        if character == "\n":
            # Quotes and brackets close within their paragraph, or were never meant to.
            self._close()
        elif character in "([{":
            self._depth += 1
        elif character in ")]}":
            self._depth = max(0, self._depth - 1)
        elif character in "“«":
            self._in_quotes = True
        elif character in "”»":
            self._in_quotes = False
        elif character == '"':
            self._in_quotes = not self._in_quotes
        self._num_chars = self._num_chars + 1 if self.is_open else 0
        if self._num_chars > self._config.max_enclosed_chars:
            self._close()

    def _take_backtick(self) -> None:
        self._num_backticks += 1
        if self._is_opening:
            self.fence += "`"
        elif self.fence:
            if self.fence == "`" * self._num_backticks:
                self.fence, self._has_closed = "", True
        elif self._num_backticks == 3 and not self._has_closed:
            self.fence, self._is_opening = "```", True

    def _take_tilde_or_text(self, character: str) -> None:
        if character == "\n":
            line = TILDE_FENCE.fullmatch(self._line)
            if line and not self.fence:
                self.fence = line["marks"]
            self._line = ""
            return
        if len(self._line) < _MAX_FENCE_LINE:
            self._line += character
        if character == "~" and self.fence == self._line.lstrip(" \t"):
            self.fence = ""
            self._line = "-"  # this line opens no other one

    def _close(self) -> None:
        self._depth = 0
        self._in_quotes = False
        self._num_chars = 0
