"""Dialogue state: what the agent has just asked, and how far the caller's words answer it.

Theory of operation
-------------------
"Yes." is a whole turn after "Shall I book it?", and the beginning of one after "May I have your
number?". "Five five five" is a fifth of a telephone number, and three quarters of a PIN. Sound and
words of the pause are the same; only the question tells them apart. So the agent's last words that
the caller heard are classified once (`question_of`), and in each pause the caller's words are held
against the class (`answer_state`):

    whole     a short answer to a yes/no or choice question; as many digits as the question named;
              a complete e-mail address; a spelled word that was said before it was spelled
    partial   fewer digits than the answer has; a house number without a street; half an address
              of e-mail
    reading   digits or letters are being read out, and nobody knows how many there will be: of an
              order number, an address, or a name that has hardly begun
    unknown   everything else: nothing changes

What each does to the wait stands in `thresholds.py` and `end_of_turn_model.py`. These are rules
beside the fitted score: no corpus of turns says what the speaker was asked.

A question in the form of yes or no may want more than that. "Can I help you?" is answered "Yes,"
and then the request: only "no" is a whole answer. "Is that right?" is answered "No," and then the
correction: only "yes" is. "Could you tell me your name?" asks for the name. In a greeting yes/no
and choice questions are courtesies, and count as none.

Patterns rather than a model: they are run on the agent's own text, which is clean and punctuated,
and what no pattern knows is `none`. English only; in calls of other languages there is no question.

Pure functions of texts.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import languages
from languages.profile import words

QuestionKind = Literal["none", "open", "yes_no", "choice", "number", "spelling"]
AnswerState = Literal["unknown", "whole", "partial", "reading"]
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
    """Of "choice": the question's words, in lower case."""
    num_digits: int | None = None
    """Of "number": digits or characters that the question names; None: it names none."""
    least_digits: int = 0
    """Of "number": fewest that such a number has; 0: any."""
    item: SpelledItem = "word"
    """Of "spelling": what is asked for."""


LEAST_LETTERS: Final = 3
"""Letters of a name that is spelled. With more patience behind the third, spelled names of the data
set were answered 260 to 350 ms later in the mean, and none was cut in on less. Addresses that are
spelled were (half "a": 3 of 19 in place of 5)."""

NO_QUESTION: Final = AgentQuestion()
"""Nothing is known of a question, or there is none."""

_OPEN: Final = AgentQuestion("open")

_NUMBER_WORDS: Final = {
    "zero": 0, "oh": 0, "o": 0, "nought": 0, "naught": 0,
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14,
    "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19,
}  # fmt: skip
_TENS: Final = words("twenty thirty forty fifty sixty seventy eighty ninety")
_SCALES: Final = {"hundred": 2, "thousand": 3}
_REPEATS: Final = {"double": 2, "triple": 3, "treble": 3}

# What the agent asks

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

_COUNT: Final = "|".join((r"\d{1,2}", *(word for word in _NUMBER_WORDS if len(word) > 2)))
_RANGE: Final = re.compile(rf"\b(?:{_COUNT})(?: ?- ?| to | or )(?:{_COUNT})[ -](?:digit|character)")
_NAMED: Final = re.compile(
    rf"\b(?P<n>{_COUNT})[ -](?:digit|character|letter)s?\b|"
    rf"\b(?:last|first) (?P<m>{_COUNT})\b(?: (?:digit|number|character|letter)s?\b| of\b|\W*$)"
)
_NUMBER_ITEMS: Final = (
    (re.compile(r"\bsocial security|\bssn\b"), 9),
    (re.compile(r"\b(?:credit|debit) card(?: number)?\b|\bcard number on\b"), 15),
    (re.compile(r"\b(?:security|cvv|cvc|area) code\b|\bcv[vc]\b"), 3),
    (re.compile(r"\bpin\b"), 4),
    (re.compile(r"\b(?:zip|post ?code|postal code)\b"), 5),
    (re.compile(r"\b(?:date of birth|birth ?da(?:te|y)|(?:you|they|he|she) born)\b"), 5),
    (
        re.compile(
            r"\b(?:(?:tele|cell)?phone|mobile|cell|contact|callback|home|work) number\b|"
            r"\b(?:your|the) (?:tele)?(?:phone|mobile|cell)\W*$|\bbest number\b|"
            r"\bnumber (?:can|should|may|to|where)\b.*\b(?:reach|call)\b|"
            r"\b(?:reach|call) you (?:back )?(?:at|on)\b"
        ),
        7,
    ),
    (re.compile(r"\bnumber\b(?! (?:of|one)\b)|\bcode\b|\bdigits?\b|\b(?:what|which) date\b"), 0),
)
"""What is asked for, and the fewest digits or characters that it has: 7 of a telephone number
without its area, 15 of a card, 5 of "May 5 1980". The first that matches counts."""

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
    return AgentQuestion("yes_no", yes_ends=not _OFFER.search(clause), no_ends=True)


def _of_fragment(sentence: str) -> AgentQuestion:
    """A question without a verb: "Your PIN?", "Tea or coffee?", "Anything else?"."""
    if re.search(r"\bor\b", sentence):
        return _choice(sentence)
    if _OFFER.match(sentence):
        return AgentQuestion("yes_no", no_ends=True)
    return _wanted(sentence) or NO_QUESTION


def _choice(clause: str) -> AgentQuestion:
    return AgentQuestion("choice", options=frozenset(re.findall(r"[a-z]+(?:'[a-z]+)?|\d+", clause)))


def _wanted(clause: str) -> AgentQuestion | None:
    """The number or the spelling that a clause asks for; None: neither."""
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
    count = int(word) if word.isdigit() else _NUMBER_WORDS[word]
    return count if count > 1 else None


# What the caller answers

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
_CHOICES: Final = words("first second last latter former both either neither")
_CHOSEN: Final = _CHOICES | words(
    """
    the a an please thanks i'd i'll i would will like prefer take want go with for on in at think
    let's make it that one any doesn't matter of them it's just
    """
)
"""Words of an answer to a choice besides those of the question."""
_HEADS: Final = words(
    """
    would you like do want is it are was the a an to or and for with your this that prefer should
    shall we i be can could which what
    """
)
"""Words of a choice question that choose nothing."""

_ANSWER_TOKEN: Final = re.compile(r"\d+(?:st|nd|rd|th)?|[^\W\d_]+(?:'[^\W\d_]+)?|@|_")
_LETTER_AS_IN: Final = re.compile(r"\b([a-z]) (?:as in|like in|for) [a-z]+")
_FILLERS: Final = words("um uh er erm and dash hyphen dot point slash space then plus underscore")
_LEADS: Final = words(
    """
    is it's its that's area number pin code yes yeah sure okay ok so well right my the it on
    starts with january february march april may june july august september october november
    december
    """
)
"""Words that digits or letters may follow as an answer."""


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
    """There is nothing else, but for words that lead to them."""


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
    if plain.endswith((",", "?", "-", "—", "…", "..", ":", ";")):
        return False
    words = re.findall(r"[^\W_]+(?:'[^\W_]+)*", plain)
    joined = " ".join(words)
    if question.kind == "yes_no":
        return bool(
            (question.yes_ends and _YES_ANSWER.fullmatch(joined))
            or (question.no_ends and _NO_ANSWER.fullmatch(joined))
        )
    chosen = [word for word in words if word in question.options - _HEADS or word in _CHOICES]
    rest = [word for word in words if word not in question.options and word not in _CHOSEN]
    last = words[-1] if words else ""
    return bool(chosen) and not rest and (last not in _HEADS or last in _CHOICES)


def _number_state(question: AgentQuestion, said: _ReadOut) -> AnswerState:
    if not said.run:
        return "unknown"
    if said.count < question.least_digits:
        return "partial"
    if question.num_digits is not None:
        return "whole" if said.count == question.num_digits else "unknown"
    return "reading" if not question.least_digits and said.is_bare else "unknown"


def _email_state(plain: str) -> AnswerState:
    stripped = plain.rstrip(" .,!?")
    if re.search(r"(?:@|\bat\b).+(?:\.| dot )(?:com|net|org|edu|gov|info|uk|de|us|ca)$", stripped):
        return "whole"
    is_spoken = re.search(r"@|\b(?:dot|underscore|at \w+)$|\b(?:dot|underscore) \w+$", stripped)
    if is_spoken:
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
        token[0].isdigit() or token in _NUMBER_WORDS or token in _TENS or token in _SCALES
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
    is_bare = bool(run) and all(each in _LEADS or each in _FILLERS for each in before)
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
        elif token in _NUMBER_WORDS:
            value = _NUMBER_WORDS[token]
            count += 2 if value > 9 else 0 if after_tens and value else times
        elif _is_letter(token):
            count += times
        times, after_tens = 1, token in _TENS
    return count
