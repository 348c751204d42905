"""What the agent has just asked: the kind of its question, and how many digits it names.

Theory of operation
-------------------
"Yes." is a whole turn after "Shall I book it?", and the beginning of one after "May I have your
number?". Sound and words of the pause are the same; only the question tells them apart. So the
agent's last words that the caller heard are classified; `answer_state.py` holds the caller's words
against the class.

A question in the form of yes or no may want more than that. "Can I help you?" is answered "Yes,"
and then the request: only "no" is a whole answer, and so it is after "Have you got your order
number?". "Is that right?" is answered "No," and then the correction: only "yes" is. "Could you
tell me your name?" asks for the name. In a greeting yes/no and choice questions are courtesies, and
count as none.

Where a pattern takes a short answer for a part, a caller waits for nothing. So a question counts as
one for a number only where it asks for the digits: "When does your card expire?" is open.

Patterns rather than a model: they are run on the agent's own text, which is clean and punctuated,
and what no pattern knows is `none`. English only; in calls of other languages there is no question.

Pure functions of texts.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

import languages
from languages.profile import word_set

from .open_words import DANGLING, LEANING

QuestionKind = Literal["none", "open", "yes_no", "choice", "number", "spelling"]
SpelledItem = Literal["word", "email", "address"]


@dataclass(frozen=True, slots=True)
class AgentQuestion:
    """What the agent asked last."""

    kind: QuestionKind = "none"
    yes_ends: bool = False
    """Of "yes_no": "Yes." is a whole answer."""
    no_ends: bool = False
    """Of "yes_no": "No." is a whole answer."""
    options: frozenset[str] = frozenset()
    """Of "choice": words that name one of the things to choose, in lower case; empty: not known."""
    num_digits: int | None = None
    """Of "number": digits or characters that the question names; None: it names none."""
    least_digits: int = 0
    """Of "number": fewest that such a number has; 0: any."""
    item: SpelledItem = "word"
    """Of "spelling": what is asked for."""


NO_QUESTION: Final = AgentQuestion()
"""Nothing is known of a question, or there is none."""

_OPEN: Final = AgentQuestion("open")

NUMBER_WORDS: Final = {
    "zero": 0, "oh": 0, "o": 0, "nought": 0, "naught": 0,
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14,
    "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19,
}  # fmt: skip
_ABBREVIATED: Final = r"(?<!\b[A-Za-z]\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bMrs\.)(?<!\bSt\.)"
_SENTENCE_BREAK: Final = re.compile(rf"(?<=[.?!])[\"')\]]*{_ABBREVIATED}\s+")
_CLAUSE_BREAK: Final = re.compile(r"[,;:]\s+|\s+[-–—]+\s+|[–—]")
_LEAD: Final = re.compile(
    r"^(?:(?:and|so|but|okay|ok|then|now|great|well|thanks|thank you|please|alright|all right|"
    r"sure|perfect|also|first|finally|just|sorry|hi|hello)\b[ ,]*)+"
)
_WH: Final = re.compile(r"^(?:what|which|who|whose|when|where|why|how)(?:'s|'re|'d|'ll)?\b")
_AUXILIARY: Final = re.compile(
    r"^(?:is|are|was|were|am|do|does|did|can|could|will|would|shall|should|have|has|had|may|might)"
    r"(?:n't)?\b"
)
_IMPERATIVE: Final = re.compile(
    r"^(?:tell|give|say|spell|enter|read|provide|repeat|confirm|state|share|type|key in|"
    r"let me (?:have|get|take)|(?:i|we)(?:'ll| will|'d| would)?(?: just| also)? (?:need|like)|"
    r"go ahead and)\b"
)
_ASKS_FOR: Final = re.compile(
    r"^(?:can|could|may|might|will|would|do|shall)(?:n't)? (?:i|we|you)\b"
    r"(?: please| just| also| kindly| quickly)*"
    r"(?: (?:like|mind|be able|want)(?: to)?)?(?: please| just)*"
    r" (?:have|get|take|give|giving|tell|telling|say|saying|spell|spelling|provide|providing|read|"
    r"reading|repeat|repeating|enter|confirm|confirming|share|sharing|verify|let|leave|know|"
    r"remember|ask|type|describe|explain)\b"
)
"""A request in the form of a yes/no question: what is asked for is the answer."""

_TAG: Final = re.compile(
    r"(?:\b(?:is|was) (?:that|this|it|everything) (?:right|correct|okay|ok|all right|alright)|"
    r"\bdid i (?:get|hear) (?:that|it|you) (?:right|correctly)|\b(?:right|correct))\s*\?$"
)
"""Asks the caller to confirm what the agent said."""

_OFFER: Final = re.compile(r"\b(?:any\w*|some\w*|else|help|assist|questions?|another)\b")
"""In a yes/no question: who says "yes" goes on to say what."""

_COUNT: Final = "|".join((r"\d{1,2}", *(word for word in NUMBER_WORDS if len(word) > 2)))
_RANGE: Final = re.compile(rf"\b(?:{_COUNT})(?: ?- ?| to | or )(?:{_COUNT})[ -](?:digit|character)")
_NAMED: Final = re.compile(
    rf"\b(?P<n>{_COUNT})[ -](?:digit|character|letter)s?\b|"
    rf"\b(?:last|first) (?P<m>{_COUNT})\b(?: (?:digit|number|character|letter)s?\b| of\b|\W*$)"
)
_NUMBER_ITEMS: Final = (
    (re.compile(r"\bsocial security|\bssn\b"), 9),
    (re.compile(r"\b(?:zip|post ?code|postal code)\b"), 5),
    (re.compile(r"\b(?:security|cvv|cvc|area) code\b|\bcv[vc]\b"), 3),
    (re.compile(r"\bpin\b"), 4),
    (re.compile(r"\bcode\b"), 0),
    (
        re.compile(
            r"\b(?:credit|debit) card number\b|"
            r"\bnumber (?:on|of|for) (?:your|the) (?:credit|debit) card\b"
        ),
        15,
    ),
    (re.compile(r"\b(?:date of birth|birth ?da(?:te|y))\b"), 3),
    (
        re.compile(
            r"\b(?:(?:tele|cell)?phone|mobile|cell|contact|callback|home|work) number\b|"
            r"\b(?:your|the) (?:tele)?(?:phone|mobile|cell)\W*$|\bbest number\b|"
            r"\bnumber (?:can|should|may|to|where)\b.*\b(?:reach|call)\b|"
            r"\b(?:reach|call) you (?:back )?(?:at|on)\b"
        ),
        7,
    ),
    (re.compile(r"\bnumber\b(?! (?:of|one)\b)|\bdigits?\b"), 0),
)
"""What is asked for, and the fewest digits or characters that it has: 7 of a telephone number
without its area, 15 of a card, 3 of "5/4/80", a digit of which the recognizer may lose. The first
that matches counts: "the zip code of your credit card" is a zip code."""

_NO_DIGITS: Final = re.compile(
    r"^(?:when|which)\b|\b(?:tell me|say|know|remember) (?:when|which)\b|"
    r"\bwhat (?:time|year|date|day|month)\b|\bexpir"
)
"""What it asks for is said in few digits or none, though the clause may name a card or a call."""

_OPENS_AN_OPTION: Final = word_set("the a an in on at by with for to your my")
_NAMES_NO_OPTION: Final = (
    word_set(
        """
        would you like want it and this prefer rather shall we i be may might me us them they he
        she did am what who why how better best suit suits get got take let just also out off up
        down over under after before around near through during between something anything else
        another other
        """
    )
    | _OPENS_AN_OPTION
    | DANGLING
    | LEANING
)
MAX_OPTION_WORDS: Final = 3
"""Words of one thing to choose: "the early morning flight". A longer one is a clause."""

_EMAIL: Final = re.compile(r"\be-? ?mail\b")
_ADDRESS: Final = re.compile(r"\baddress\b|\bwhere do you live\b")
_NAME: Final = re.compile(r"\bspell\w*\b|\b(?:your|the|last|first|full|sur|family) ?name\b")


def question_of(text: str, *, is_greeting: bool = False, language: str = "en") -> AgentQuestion:
    """Classify the agent's last words that the caller heard. `is_greeting`: nobody had said
    anything before."""
    if language != languages.ENGLISH.code:
        return NO_QUESTION
    found = _question_of(text.strip())
    return NO_QUESTION if is_greeting and found.kind in ("yes_no", "choice") else found


def after_a_part(question: AgentQuestion) -> AgentQuestion:
    """Question as it stands once a part of the answer has been said: nobody knows how many digits
    are left, and nothing else that is said next can be held against it."""
    if question.kind == "number":
        return replace(question, num_digits=None, least_digits=0)
    return NO_QUESTION


@lru_cache(maxsize=256)
def _question_of(text: str) -> AgentQuestion:
    plain = text.replace("’", "'")
    sentences = [each for each in _SENTENCE_BREAK.split(plain) if re.search(r"\w", each)]
    for sentence in reversed(sentences[-2:]):  # one remark may follow a question
        found = _of_sentence(sentence.casefold().strip())
        if found.kind != "none":
            return found
    return NO_QUESTION


def _of_sentence(sentence: str) -> AgentQuestion:
    asks = sentence.rstrip("\"')] ").endswith("?")
    if asks and _TAG.search(sentence):
        return AgentQuestion("yes_no", yes_ends=True)
    clauses = [0, *(match.end() for match in _CLAUSE_BREAK.finditer(sentence))]
    for start in reversed(clauses):
        clause = _LEAD.sub("", sentence[start:])
        if _IMPERATIVE.match(clause):
            return _wanted(clause) or _OPEN
        if asks and _WH.match(clause):
            return _of_wh(clause)
        if asks and _AUXILIARY.match(clause):
            return _of_auxiliary(clause)
    return _of_fragment(_LEAD.sub("", sentence)) if asks else NO_QUESTION


def _of_wh(clause: str) -> AgentQuestion:
    if re.match(r"(?:why|who)\b|how (?:many|much|long|often|did|come)\b", clause):
        return _OPEN
    if re.search(r"\bor\b(?! (?:so|more|less|not)\b)", clause):
        return _choice(clause)
    return _wanted(clause) or _OPEN


def _of_auxiliary(clause: str) -> AgentQuestion:
    if _ASKS_FOR.match(clause):
        return _wanted(clause) or _OPEN
    if re.search(r"\bor\b(?! (?:so|more|less|not)\b)", clause):
        return _choice(clause)
    if re.search(r"\d", clause) and re.match(r"(?:is|was|are) (?:your|that|this|it|the)\b", clause):
        return AgentQuestion("yes_no", yes_ends=True)
    goes_on = _OFFER.search(clause) or _wanted(clause)  # "Yes," and then what, or the number
    return AgentQuestion("yes_no", yes_ends=not goes_on, no_ends=True)


def _of_fragment(sentence: str) -> AgentQuestion:
    """A question without a verb: "Your PIN?", "Tea or coffee?", "Anything else?"."""
    if re.search(r"\bor\b", sentence):
        return _choice(sentence)
    if _OFFER.match(sentence):
        return AgentQuestion("yes_no", no_ends=True)
    return _wanted(sentence) or NO_QUESTION


def _choice(clause: str) -> AgentQuestion:
    return AgentQuestion("choice", options=_options(clause))


def _options(clause: str) -> frozenset[str]:
    """Words beside "or" that stand on one side of it alone: "card" and "cash" of "Do you want to
    pay by card or cash?". None where what follows "or" is a clause of its own."""
    parts = re.split(r"(,|;|:|\bor\b)", clause)
    sides = [re.findall(r"[a-z]+(?:'[a-z]+)?|\d+", part) for part in parts[::2]]
    items = []
    for side in filter(None, sides[1:]):
        while side and side[0] in _OPENS_AN_OPTION:
            side = side[1:]
        if not 0 < len(side) <= MAX_OPTION_WORDS or _NAMES_NO_OPTION.intersection(side):
            return frozenset()
        items.append(side)
    if not items:
        return frozenset()
    if parts[1] == "or":  # else the first side only leads to the choice
        first = sides[0][-max(map(len, items)) :]
        while _NAMES_NO_OPTION.intersection(first):
            first = first[1:]
        items.extend([first] if first else [])
    shortest = min(map(len, items))  # "a new or existing customer": both are customers
    counts = Counter(word for side in sides for word in set(side))
    return frozenset(word for item in items for word in item[:shortest] if counts[word] == 1)


def _wanted(clause: str) -> AgentQuestion | None:
    """The number or the spelling that a clause asks for; None: neither."""
    if _NO_DIGITS.search(clause):
        return None
    if _EMAIL.search(clause):
        return AgentQuestion("spelling", item="email")
    for pattern, least in _NUMBER_ITEMS:
        if pattern.search(clause):
            named = _named_count(clause)
            return AgentQuestion("number", num_digits=named, least_digits=named or least)
    if named := _named_count(clause):
        return AgentQuestion("number", num_digits=named, least_digits=named)
    if _ADDRESS.search(clause):
        return AgentQuestion("spelling", item="address")
    return AgentQuestion("spelling") if _NAME.search(clause) else None


def _named_count(clause: str) -> int | None:
    """Count of digits that a clause names; None: none, or a range."""
    match = None if _RANGE.search(clause) else _NAMED.search(clause)
    if match is None:
        return None
    word = match["n"] or match["m"]
    count = int(word) if word.isdigit() else NUMBER_WORDS[word]
    return count if count > 1 else None
