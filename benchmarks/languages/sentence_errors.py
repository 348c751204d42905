"""Sentences of several languages: as written, read and heard, and how many words differ."""

import re
from dataclasses import dataclass
from typing import Final

import tts
from benchmarks.asr.scoring import load_jiwer

_LIGATURES: Final = str.maketrans({"œ": "oe", "æ": "ae"})
"""Spellings of the same words, as "ß" and "ss", which `str.casefold` knows."""


@dataclass(frozen=True, slots=True)
class NormalizedSentence:
    """A sentence as a reply has it, and the words that are read."""

    written: str
    spoken: str


@dataclass(frozen=True, slots=True)
class SentenceResult:
    """One sentence: what was written, heard, and how many words differ."""

    written: str
    heard: str
    words: int
    errors: int


def compared(sentence: NormalizedSentence, heard: str, language: str) -> SentenceResult:
    """Words of a sentence and of what was heard of it, and how many differ. Raises BenchError
    without jiwer."""
    reference, hypothesis = _bare(sentence.spoken), _bare(tts.normalize(heard, language))
    found = load_jiwer().process_words(reference, hypothesis or "-")
    errors = found.substitutions + found.deletions + found.insertions
    return SentenceResult(sentence.written, heard, len(reference.split()), errors)


def _bare(text: str) -> str:
    """Words without case, marks, hyphens and ligatures."""
    return " ".join(re.findall(r"[^\W_]+", text.casefold().translate(_LIGATURES)))
