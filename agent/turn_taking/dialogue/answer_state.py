"""How far the caller's words answer what the agent has just asked.

Theory of operation
-------------------
"Five five five" is a third of a telephone number, and three quarters of a PIN. In each pause the
words are held against the question (`agent_question.py`):

    whole     a short answer to a yes/no or choice question; as many digits as the question named;
              a complete e-mail address; a spelled word that was said before it was spelled
    partial   digits and nothing else, fewer than the answer has; a house number without a street;
              an address of e-mail that stops at "dot", "at" or "underscore"
    reading   digits or letters are being read out, and nobody knows how many there will be: of an
              order number, an address, or a name that has hardly begun; a date without its year
    unknown   everything else: nothing changes

What each does to the wait stands in `end_of_turn_model.py`, the numbers in `thresholds.py`. These
are rules beside the fitted score: no corpus of turns says what the speaker was asked.

Pure functions of texts.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from languages.profile import word_set

from .agent_question import NUMBER_WORDS, AgentQuestion

AnswerState = Literal["unknown", "whole", "partial", "reading"]

LEAST_LETTERS: Final = 3
"""Letters of a name that is spelled. With more patience behind the third, spelled names of the data
set were answered 260 to 350 ms later in the mean, and none was cut in on less. Addresses that are
spelled were (half "a": 3 of 19 in place of 5)."""

_TENS: Final = word_set("twenty thirty forty fifty sixty seventy eighty ninety")
_SCALES: Final = {"hundred": 2, "thousand": 3}
_REPEATS: Final = {"double": 2, "triple": 3, "treble": 3}

_YES: Final = (
    r"yes|yeah|yep|yup|ya|sure|okay|ok|right|correct|exactly|absolutely|definitely|certainly|"
    r"of course|fine|perfect|great|good|alright|all right|sounds (?:good|great|fine)|go ahead|"
    r"(?:that|it|this)(?:'s| is) (?:right|correct|fine|good|great|okay|ok|it|perfect|true|me)|"
    r"(?:that|it|this) (?:works|does)(?: for me)?|i do|i am|i have|i would|i did|i can|i will|"
    r"it is|it was|they are|we do|we are|please do|i think so|i believe so|i guess so"
)
_NO: Final = (
    r"no|nope|nah|never|not really|not yet|not (?:right )?now|not today|not at all|"
    r"of course not|i do not|i don't|i'm not|i am not|i haven't|i have not|i didn't|i wouldn't|"
    r"i can't|i won't|it isn't|it's not|it is not|that's (?:it|all)|that is all|nothing(?: else)?|"
    r"i don't think so|i'm good|i'm fine|we don't|we're not"
)
_COURTESY: Final = r"please|thanks|thank you|thank you very much|sir|ma'am|madam"
_YES_ANSWER: Final = re.compile(rf"(?:{_YES})(?: (?:{_YES}|{_COURTESY})){{0,3}}")
_NO_ANSWER: Final = re.compile(rf"(?:{_NO})(?: (?:{_NO}|{_COURTESY})){{0,3}}")
_BEGINS: Final = re.compile(r"\b(?:i|it|they|we) [a-z]+(?:'t)?$|\b(?:i'm|it's|we're) not$")
"""Answers that are beginnings, too, unless punctuation closes them: "I am", "I don't"."""
_CHOICES: Final = word_set("first second last latter former both either neither")
_CHOSEN: Final = word_set(
    """
    the a an please thanks thank you i'd i'll i would will like prefer take want go for with on in
    at think let's make it that one ones of it's just
    """
)
"""Words of an answer to a choice besides what is chosen."""
_BEHIND_A_CHOICE: Final = word_set("please thanks you one ones")
"""Words that may close such an answer. Behind others, such as prepositions, more is to come."""

_ANSWER_TOKEN: Final = re.compile(r"\d+(?:st|nd|rd|th)?|[^\W\d_]+(?:'[^\W\d_]+)?|@|_")
_LETTER_AS_IN: Final = re.compile(r"\b([a-z]) (?:as in|like in|for) [a-z]+")
_FILLERS: Final = word_set(
    "um uh er erm and dash hyphen dot point slash space then plus underscore"
)
_LEADS: Final = word_set(
    """
    is it's its that's area number pin code yes yeah sure okay ok so well right my the it on
    starts with you can reach call me at
    """
)
_MONTHS: Final = word_set(
    """
    january february march april may june july august september october november december
    """
)
"""These and the leads: words that digits or letters may follow as an answer."""
_IS_EMAIL: Final = re.compile(r"\S+@\S+\.[a-z]{2,}\b|\bat\b.*\S(?:\.| dot )[a-z]{2,}$")


_BEFORE: Final = _LEADS | _MONTHS | _FILLERS
_UNCLOSED: Final = (",", "?", "-", "—", "…", "..", ":", ";")
"""Ends of a text that goes on, or asks back."""


@dataclass(frozen=True, slots=True)
class _ReadOut:
    """Digits and letters of an answer."""

    tokens: tuple[str, ...]
    run: tuple[str, ...]
    """Those read out at its end, one by one; empty: it ends in other words, or in a single digit
    or letter after other words: "I don't have one", "vitamin B"."""
    count: int
    """Digits and letters of the run, or digits of the whole where they are more."""
    is_bare: bool
    """There is nothing else, but for words that lead to them, and months."""


def answer_state(question: AgentQuestion, text: str) -> AnswerState:
    """How far the caller's words answer the agent's question."""
    if question.kind in ("none", "open") or not text.strip():
        return "unknown"
    return _answer_state(question, text)


@lru_cache(maxsize=256)
def _answer_state(question: AgentQuestion, text: str) -> AnswerState:
    plain = text.casefold().replace("’", "'").strip()
    match question.kind:
        case "yes_no" | "choice":
            return "whole" if _is_short_answer(question, plain) else "unknown"
        case "number":
            return _number_state(question, _read_out(plain))
    if question.item == "email":
        return _email_state(plain)
    said = _read_out(plain)
    if question.item == "address" and said.is_bare and not any(map(_is_letter, said.run)):
        return "partial"  # a house number: the street is still to come
    num_letters = sum(map(_is_letter, said.run))
    if not num_letters:
        return "unknown"
    if _spells_a_word(said):
        return "whole"
    goes_on = question.item == "address" or num_letters < LEAST_LETTERS
    return "reading" if goes_on else "unknown"


def _is_short_answer(question: AgentQuestion, plain: str) -> bool:
    if plain.endswith(_UNCLOSED):
        return False
    words = re.findall(r"[^\W_]+(?:'[^\W_]+)*", plain)
    joined = " ".join(words)
    if question.kind == "yes_no":
        if _BEGINS.search(joined) and not plain.endswith((".", "!")):
            return False
        return bool(
            (question.yes_ends and _YES_ANSWER.fullmatch(joined))
            or (question.no_ends and _NO_ANSWER.fullmatch(joined))
        )
    choices = question.options | _CHOICES
    is_chosen = not choices.isdisjoint(words) and words[-1] in choices | _BEHIND_A_CHOICE
    return is_chosen and choices.union(_CHOSEN).issuperset(words)


def _number_state(question: AgentQuestion, said: _ReadOut) -> AnswerState:
    if not said.run:
        return "unknown"
    if said.count < question.least_digits:
        if not said.is_bare:
            return "unknown"  # other words, with digits in them: "the one ending in 42"
        return "partial" if _MONTHS.isdisjoint(said.tokens) else "reading"
    if question.num_digits is not None:
        return "whole" if said.count == question.num_digits else "unknown"
    return "reading" if not question.least_digits and said.is_bare else "unknown"


def _email_state(plain: str) -> AnswerState:
    stripped = plain.rstrip(" .,!?")
    if found := _IS_EMAIL.search(stripped):
        is_last = found.end() == len(stripped)
        is_closed = plain.endswith((".", "!")) or is_last
        return "whole" if is_closed and not plain.endswith(_UNCLOSED) else "unknown"
    if re.search(r"@$|\b(?:dot|at|underscore)$", stripped):
        return "partial"
    said = _read_out(plain)
    return "reading" if any(map(_is_letter, said.run)) else "unknown"


def _spells_a_word(said: _ReadOut) -> bool:
    """True for letters at the end that make a word that was said before them."""
    spelled = "".join(filter(_is_letter, said.run))
    before = said.tokens[: len(said.tokens) - len(said.run)]
    return len(spelled) > 1 and spelled in before


def _is_number(token: str) -> bool:
    return (
        token[0].isdigit() or token in NUMBER_WORDS or token in _TENS or token in _SCALES
    ) and token != "o"


def _is_read_out(token: str) -> bool:
    return _is_number(token) or token in _REPEATS or _is_letter(token)


def _is_letter(token: str) -> bool:
    return len(token) == 1 and token.isalpha()


def _read_out(plain: str) -> _ReadOut:
    tokens = _ANSWER_TOKEN.findall(_LETTER_AS_IN.sub(r"\1", plain))
    start = len(tokens)
    while start and (_is_read_out(tokens[start - 1]) or tokens[start - 1] in _FILLERS):
        start -= 1
    while start < len(tokens) and tokens[start] in _FILLERS:
        start += 1
    run = tokens[start:]
    before = tokens[:start]
    count = max(_count(run), _count([each for each in tokens if len(each) > 1 or _is_number(each)]))
    is_bare = bool(run) and all(each in _BEFORE for each in before)
    if not is_bare and _count(run) < 2:
        run = []
    return _ReadOut(tuple(tokens), tuple(run), count, is_bare)


def _count(tokens: list[str]) -> int:
    """Digits and single letters among tokens: "double five" has two, "twenty five" has two."""
    count, times, after_tens = 0, 1, False
    for token in tokens:
        if token in _REPEATS:
            times = _REPEATS[token]
            continue
        if token[0].isdigit():
            size = sum(character.isdigit() for character in token)
            count += size * (times if size == 1 else 1)
        elif token in _TENS:
            count += 2
        elif token in _SCALES:
            count += _SCALES[token]
        elif token in NUMBER_WORDS:
            value = NUMBER_WORDS[token]
            count += 2 if value > 9 else 0 if after_tens and value else times
        elif _is_letter(token):
            count += times
        times, after_tens = 1, token in _TENS
    return count
