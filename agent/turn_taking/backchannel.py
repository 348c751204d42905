"""Classifies words spoken over the agent: backchannel, echo of the agent, answer, or a turn.

People who listen say so ("mm-hmm", "right"), and mean "go on". A pipeline that stops for that has
stopped for nothing. Only a whole utterance of such words counts, and only where they are no answer:
after a question the same "yeah" is one. What the agent itself has just said comes back through
loudspeaker and microphone and is recognized as words: echo.

Pure functions of texts. The recognizer writes capitals and punctuation; a question mark of its own
makes anything a question, which asks for the floor.
"""

import re
from difflib import SequenceMatcher
from typing import Final, Literal

from languages import ENGLISH, TurnWords

from .thresholds import (
    ANSWER_WITHIN_WORDS,
    ECHO_SHARE,
    ECHO_WINDOW_WORDS,
    MAX_BACKCHANNEL_PARTS,
    MIN_ECHO_WORDS,
)

Meaning = Literal["nothing", "echo", "listening", "words"]
"""`nothing`: no words. `echo`: the agent's own words. `listening`: a backchannel. `words`: a turn
or an answer."""

BACKCHANNELS: Final = ENGLISH.turn_words.backchannels
"""Whole utterances, or parts of one ("yeah yeah, okay"). Not "no", "wait", "well", "but": they
begin something. "You" and "thank you" are what Whisper writes for noise. Those of other languages
stand in `languages/`."""


INTERRUPTIONS: Final = ENGLISH.turn_words.interruptions
"""Words of which one is enough in a partial transcript. Any other single word may be recognized as
another one with the next 200 ms of audio."""


_WORD: Final = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_SENTENCE_END: Final = re.compile(r"[.?!]+(?=\s|$)")


def meaning(text: str, heard: str, left: str, known: TurnWords = ENGLISH.turn_words) -> Meaning:
    """Classify a whole utterance. `heard`: response text played so far; `left`: the rest of it;
    `known`: words of the call's language."""
    words = _words(text)
    if not words:
        return "nothing"
    if _is_echo(text, words, heard, left):
        return "echo"
    if "?" not in text and _is_listening(words, known) and not asks(heard, left):
        return "listening"
    return "words"


def takes_floor(text: str, heard: str, left: str, known: TurnWords = ENGLISH.turn_words) -> bool:
    """True if a partial transcript is certain to become a turn, whatever follows."""
    words = _words(text)
    if not words or _is_echo(text, words, heard, left) or _may_be_listening(words, known):
        return False
    return len(words) > 1 or words[0] in known.interruptions


def asks(heard: str, left: str) -> bool:
    """True if the agent asks a question at this point, or has just asked one."""
    past, tail = _split_last(heard)
    end = _SENTENCE_END.search(left)
    whole = tail + (left[: end.end()] if end else left)
    if tail.strip() and whole.rstrip().endswith("?"):
        return True
    return past.rstrip().endswith("?") and len(_words(tail)) <= ANSWER_WITHIN_WORDS


def with_begun_sentence(heard: str, left: str) -> str:
    """The words heard with the rest of the sentence that they stop in: a caller who answers before
    a question's end has understood it."""
    _, tail = _split_last(heard)
    end = _SENTENCE_END.search(left)
    return heard + (left[: end.end()] if end and tail.strip() else "")


def _split_last(text: str) -> tuple[str, str]:
    """Split into complete sentences and the beginning of the next one."""
    ends = list(_SENTENCE_END.finditer(text))
    at = ends[-1].end() if ends else 0
    return text[:at], text[at:]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("’", "'"))


def _is_listening(words: list[str], known: TurnWords) -> bool:
    """True for one to `MAX_BACKCHANNEL_PARTS` backchannels and nothing else."""
    return _fewest_parts(words, known, whole=True) <= MAX_BACKCHANNEL_PARTS


def _may_be_listening(words: list[str], known: TurnWords) -> bool:
    """True for a partial transcript that may still become only backchannels."""
    return _fewest_parts(words, known, whole=False) <= MAX_BACKCHANNEL_PARTS


def _fewest_parts(words: list[str], known: TurnWords, *, whole: bool) -> int:
    """Fewest backchannels that the words consist of; above `MAX_BACKCHANNEL_PARTS`: they do not."""
    fewest = [0] + [MAX_BACKCHANNEL_PARTS + 1] * len(words)
    for end in range(1, len(words) + 1):
        for part in known.backchannels:
            start = end - len(part)
            if start >= 0 and tuple(words[start:end]) == part:
                fewest[end] = min(fewest[end], fewest[start] + 1)
        if not whole and end == len(words):
            begun = [
                s
                for s in range(end)
                if any(_begins(part, words[s:]) for part in known.backchannels)
            ]
            fewest[end] = min([fewest[end], *(fewest[s] + 1 for s in begun)])
    return fewest[-1]


def _begins(part: tuple[str, ...], words: list[str]) -> bool:
    return len(words) < len(part) and part[: len(words)] == tuple(words)


def _is_echo(text: str, words: list[str], heard: str, left: str) -> bool:
    if len(words) < MIN_ECHO_WORDS or ("?" in text and "?" not in heard + left):
        return False
    said = _words(heard)
    said = said[-ECHO_WINDOW_WORDS:] + _words(left)[:ECHO_WINDOW_WORDS]
    blocks = SequenceMatcher(None, said, words, autojunk=False).get_matching_blocks()
    matched = sum(block.size for block in blocks)
    longest = max(block.size for block in blocks)
    if longest < MIN_ECHO_WORDS:
        return False
    first = min(block.a for block in blocks if block.size)
    last = max(block.a + block.size for block in blocks if block.size)
    return matched >= ECHO_SHARE * len(words) and last - first <= 2 * len(words)
