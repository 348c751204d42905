"""Classifies words spoken over the agent: backchannel, echo of the agent, answer, or a turn.

People who listen say so ("mm-hmm", "right"), and mean "go on". A pipeline that stops for that has
stopped for nothing. Only a whole utterance of such words counts, and only where they are no answer:
after a question the same "yeah" is one. What the agent itself has just said comes back through
loudspeaker and microphone and is recognized as words: echo.

A sound of a third of a second without a sentence around it is recognized as anything: "Mama" for
"mm-hmm", "Write." for "right", "You do." So where the agent has asked nothing, the length of the
voice counts beside the words (`_is_brief`): a very short one is a backchannel whatever its words
are, a short one if it is a single word or sounds like a backchannel; unless a word of it interrupts
or asks for something, which people do as briefly ("stop", "who?").

Pure functions of texts and lengths. The recognizer writes capitals and punctuation; a question mark
of its own asks for the floor, except behind a surprise ("oh, really?").
"""

import re
from difflib import SequenceMatcher
from functools import cache
from typing import Final, Literal

from languages import ENGLISH, TurnWords
from languages.sounds_alike import sound_key

from .thresholds import (
    ANSWER_WITHIN_WORDS,
    BRIEF_MS,
    BRIEF_WORD_MS,
    ECHO_SHARE,
    ECHO_WINDOW_WORDS,
    FLOOR_AFTER_MS,
    MAX_BACKCHANNEL_PARTS,
    MIN_ECHO_WORDS,
    SOUNDS_ALIKE_MS,
)

Meaning = Literal["nothing", "echo", "listening", "brief", "words"]
"""`nothing`: no words. `echo`: the agent's own words. `listening`: a backchannel. `brief`: most
likely one, by its length. `words`: a turn or an answer."""

INTERRUPTIONS: Final = ENGLISH.turn_words.interruptions
"""Words of which one is enough in a partial transcript. Any other single word may be recognized as
another one with the next 200 ms of audio."""


_HUMS: Final = frozenset({"", "m"})
"""Keys of sounds without a word: "oh", "mm". Any other single consonant is that of many words:
"see" and "Sue", "okay" and "Kay"."""


_WORD: Final = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_SENTENCE_END: Final = re.compile(r"(?<![.?!])[.?!]+(?=\s|$)")
"""Looked for at the first of several marks only: at each of them, the time would grow with the
square of their number."""


def meaning(
    text: str,
    heard: str,
    left: str,
    known: TurnWords = ENGLISH.turn_words,
    voice_ms: int | None = None,
) -> Meaning:
    """Classify a whole utterance. `heard`: response text played so far; `left`: the rest of it;
    `known`: words of the call's language; `voice_ms`: from its first voiced sample to its last,
    None: the words alone decide, as they do in languages without `requests`."""
    words = words_of(text)
    voice_ms = voice_ms if known.requests else None
    if not words:
        return "nothing"
    if _is_echo(text, words, heard, left):
        return "echo"
    if asks(heard, left):
        return "words"
    if _is_listening(words, known) and not _asks_back(text, words, known, voice_ms):
        return "listening"
    return "brief" if voice_ms is not None and _is_brief(words, known, voice_ms) else "words"


def takes_floor(
    text: str,
    heard: str,
    left: str,
    known: TurnWords = ENGLISH.turn_words,
    voice_ms: int | None = None,
) -> bool:
    """True if a partial transcript is certain to become a turn, whatever follows. `voice_ms`: the
    voice has lasted so long; None: the words alone decide."""
    words = words_of(text)
    voice_ms = voice_ms if known.requests else None
    if not words or _is_echo(text, words, heard, left) or _may_be_listening(words, known):
        return False
    if len(words) > 1 and words[0] in known.interruptions:
        return True
    if voice_ms is not None and voice_ms < FLOOR_AFTER_MS:
        return False
    if voice_ms is not None and voice_ms < SOUNDS_ALIKE_MS and _may_be_brief(words, known):
        return False
    return len(words) > 1 or words[0] in known.interruptions


def asks(heard: str, left: str) -> bool:
    """True if the agent asks a question at this point, or has just asked one."""
    past, tail = _split_last(heard)
    end = _SENTENCE_END.search(left)
    whole = tail + (left[: end.end()] if end else left)
    if tail.strip() and whole.rstrip().endswith("?"):
        return True
    return past.rstrip().endswith("?") and len(words_of(tail)) <= ANSWER_WITHIN_WORDS


def with_begun_sentence(heard: str, left: str) -> str:
    """The words heard with the rest of the sentence that they stop in: a caller who answers before
    a question's end has understood it."""
    _, tail = _split_last(heard)
    end = _SENTENCE_END.search(left)
    return heard + (left[: end.end()] if end and tail.strip() else "")


def _asks_back(text: str, words: list[str], known: TurnWords, voice_ms: int | None) -> bool:
    """True if the question mark is a request ("Okay?") and no surprise ("Oh, really?")."""
    return "?" in text and (voice_ms is None or known.asking_back.issuperset(words))


def _is_brief(words: list[str], known: TurnWords, voice_ms: int) -> bool:
    """True for a voice so short that it is a backchannel, although its words are none."""
    if any(word in known.interruptions or word in known.requests for word in words):
        return False
    key = sound_key(words)
    is_telling = len(key) > 1 or key in _HUMS
    longest_ms = SOUNDS_ALIKE_MS if is_telling else BRIEF_WORD_MS
    if voice_ms <= longest_ms and key in _keys_of(known.backchannels):
        return True
    if sound_key(words[:1])[:2] in _beginnings_of(known.interruptions):
        return False
    return voice_ms <= BRIEF_MS or (len(set(words)) == 1 and voice_ms <= BRIEF_WORD_MS)


def _may_be_brief(words: list[str], known: TurnWords) -> bool:
    """True for a partial transcript of one word that could be the first half of a misheard
    backchannel ("What" of "wow")."""
    if len(words) > 1:
        return False
    begun = sound_key(words)[:1]
    return any(key[:1] == begun for key in _keys_of(known.backchannels))


@cache
def _keys_of(parts: tuple[tuple[str, ...], ...]) -> frozenset[str]:
    return frozenset(sound_key(part) for part in parts)


@cache
def _beginnings_of(interruptions: frozenset[str]) -> frozenset[str]:
    """First two consonants of words that interrupt: "start" is a misheard "stop"."""
    keys = (sound_key((word,)) for word in interruptions)
    return frozenset(key[:2] for key in keys if len(key) > 1)


def _split_last(text: str) -> tuple[str, str]:
    """Split into complete sentences and the beginning of the next one."""
    ends = list(_SENTENCE_END.finditer(text))
    at = ends[-1].end() if ends else 0
    return text[:at], text[at:]


def words_of(text: str) -> list[str]:
    """Words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower().replace("’", "'"))


def _is_listening(words: list[str], known: TurnWords) -> bool:
    """True for one to `MAX_BACKCHANNEL_PARTS` backchannels and nothing else."""
    return _fewest_parts(words, known, whole=True) <= MAX_BACKCHANNEL_PARTS


def _may_be_listening(words: list[str], known: TurnWords) -> bool:
    """True for a partial transcript that may still become only backchannels."""
    return _fewest_parts(words, known, whole=False) <= MAX_BACKCHANNEL_PARTS


def _fewest_parts(words: list[str], known: TurnWords, *, whole: bool) -> int:
    """Fewest backchannels that the words consist of; above `MAX_BACKCHANNEL_PARTS`: they do not."""
    if len(words) > MAX_BACKCHANNEL_PARTS * max(map(len, known.backchannels), default=0):
        return MAX_BACKCHANNEL_PARTS + 1  # at once: the time grows with the square of their number
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
    said = words_of(heard)
    said = said[-ECHO_WINDOW_WORDS:] + words_of(left)[:ECHO_WINDOW_WORDS]
    blocks = SequenceMatcher(None, said, words, autojunk=False).get_matching_blocks()
    matched = sum(block.size for block in blocks)
    longest = max(block.size for block in blocks)
    if longest < MIN_ECHO_WORDS:
        return False
    first = min(block.a for block in blocks if block.size)
    last = max(block.a + block.size for block in blocks if block.size)
    return matched >= ECHO_SHARE * len(words) and last - first <= 2 * len(words)
