"""What words mean that are said while the agent speaks: listening, an answer, an echo, or a turn.

People who listen say so ("mm-hmm", "right"), and mean "go on". A pipeline that stops for that has
stopped for nothing. Only a whole utterance of such words counts, and only where they are no answer:
after a question the same "yeah" is one. What the agent itself has just said comes back through
loudspeaker and microphone, and is recognized as words: those are nobody's.

Pure functions of texts. The recognizer writes capitals and punctuation; a question mark of its own
makes anything a question, which asks for the floor.
"""

import re
from difflib import SequenceMatcher
from typing import Final, Literal

Meaning = Literal["nothing", "echo", "listening", "words"]
"""`nothing`: no words. `echo`: the agent's own. `listening`: go on. `words`: the caller wants the
floor."""

BACKCHANNELS: Final = tuple(
    tuple(line.split())
    for line in """
    mm; mm hmm; mhm; mmhmm; mmm; hm; hmm; uh huh; aha; ah; oh; ooh; yeah; yep; yup; yes; okay; ok; k
    alright; all right; right; i see; sure; got it; of course; exactly; indeed; true; good; great
    cool; nice; fine; wow; really; oh really; oh i see; oh okay; oh yeah; thanks; thank you; you
    """.replace("\n", ";").split(";")
    if line.strip()
)
"""Whole utterances, or parts of one ("yeah yeah, okay"). Not "no", "wait", "well", "but": they
begin something. "You" and "thank you" are what Whisper writes for noise."""

MAX_PARTS: Final = 3
""""Yeah, yeah, okay" is listening; somebody who says more has something to say."""

INTERRUPTIONS: Final = {
    "stop", "wait", "no", "nope", "hold", "hang", "but", "actually", "what", "sorry", "pardon",
    "hey", "excuse", "listen",
}  # fmt: skip
"""One such word is enough while the rest is still being spoken. Of any other single word the
recognizer may make something else with the next 200 ms."""

MIN_ECHO_WORDS: Final = 2
"""One word that the agent has said as well proves nothing."""

ECHO_SHARE: Final = 0.75
"""Of the words stand in the same order in what the agent said: echo is recognized badly."""

ECHO_WINDOW: Final = 40
"""Words of the agent's, the newest, that may come back: 15 s. A room answers within half a second,
but the caller's own stretch of audio goes back as far as it is long."""

AFTER_QUESTION: Final = 3
"""Words that the agent may have gone on with before the answer to its question comes."""

_WORD: Final = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_SENTENCE_END: Final = re.compile(r"[.?!]+(?=\s|$)")


def meaning(text: str, heard: str, left: str) -> Meaning:
    """Of a whole utterance, said while the agent had said `heard` and was to go on with `left`."""
    words = _words(text)
    if not words:
        return "nothing"
    if _is_echo(text, words, heard, left):
        return "echo"
    if "?" not in text and _is_listening(words) and not asks(heard, left):
        return "listening"
    return "words"


def takes_floor(text: str, heard: str, left: str) -> bool:
    """Whether the beginning of an utterance shows already that it will be words."""
    words = _words(text)
    if not words or _is_echo(text, words, heard, left) or _may_be_listening(words):
        return False
    return len(words) > 1 or words[0] in INTERRUPTIONS


def asks(heard: str, left: str) -> bool:
    """Whether the agent is asking a question at this point, or just has."""
    past, tail = _split_last(heard)
    end = _SENTENCE_END.search(left)
    whole = tail + (left[: end.end()] if end else left)
    if tail.strip() and whole.rstrip().endswith("?"):
        return True
    return past.rstrip().endswith("?") and len(_words(tail)) <= AFTER_QUESTION


def _split_last(text: str) -> tuple[str, str]:
    """Whole sentences, and what was said of the next one."""
    ends = list(_SENTENCE_END.finditer(text))
    at = ends[-1].end() if ends else 0
    return text[:at], text[at:]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("’", "'"))


def _is_listening(words: list[str]) -> bool:
    """Whether the words are one to `MAX_PARTS` backchannels and nothing else."""
    return _fewest_parts(words, whole=True) <= MAX_PARTS


def _may_be_listening(words: list[str]) -> bool:
    """The same of a beginning, whose last word may lack the rest of its part."""
    return _fewest_parts(words, whole=False) <= MAX_PARTS


def _fewest_parts(words: list[str], *, whole: bool) -> int:
    """Parts that the words can be cut into; more than `MAX_PARTS` where they can't be."""
    fewest = [0] + [MAX_PARTS + 1] * len(words)
    for end in range(1, len(words) + 1):
        for part in BACKCHANNELS:
            start = end - len(part)
            if start >= 0 and tuple(words[start:end]) == part:
                fewest[end] = min(fewest[end], fewest[start] + 1)
        if not whole and end == len(words):
            begun = [
                s for s in range(end) if any(_begins(part, words[s:]) for part in BACKCHANNELS)
            ]
            fewest[end] = min([fewest[end], *(fewest[s] + 1 for s in begun)])
    return fewest[-1]


def _begins(part: tuple[str, ...], words: list[str]) -> bool:
    return len(words) < len(part) and part[: len(words)] == tuple(words)


def _is_echo(text: str, words: list[str], heard: str, left: str) -> bool:
    if len(words) < MIN_ECHO_WORDS or ("?" in text and "?" not in heard + left):
        return False
    said = _words(heard)
    said = said[-ECHO_WINDOW:] + _words(left)[:ECHO_WINDOW]
    blocks = SequenceMatcher(None, said, words, autojunk=False).get_matching_blocks()
    matched = sum(block.size for block in blocks)
    longest = max(block.size for block in blocks)
    if longest < MIN_ECHO_WORDS:
        return False
    first = min(block.a for block in blocks if block.size)
    last = max(block.a + block.size for block in blocks if block.size)
    return matched >= ECHO_SHARE * len(words) and last - first <= 2 * len(words)
