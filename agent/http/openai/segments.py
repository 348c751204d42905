"""Segments of a transcript with their times, from recognized passages. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from asr.recognition.word_times import TimedWord

MAX_SEGMENT_CHARS: Final = 84
"""Two lines of subtitles."""

_SENTENCE_ENDS: Final = (".", "?", "!", "。", "？", "！")


@dataclass(frozen=True, slots=True)
class Passage:
    """Transcript of one stretch of a recording. Samples count from its start, at 16 kHz."""

    text: str
    first_sample: int
    end_sample: int
    tokens: tuple[int, ...]
    avg_logprob: float
    no_speech_prob: float
    words: tuple[TimedWord, ...] = ()
    """Words with their times, if the request asked for them."""


def shifted(words: Sequence[TimedWord], by_samples: int) -> tuple[TimedWord, ...]:
    """Words with their times put off by a number of samples."""
    return tuple(
        replace(
            word,
            first_sample=word.first_sample + by_samples,
            end_sample=word.end_sample + by_samples,
        )
        for word in words
    )


def segments_of(passage: Passage) -> Iterator[Passage]:
    """Its sentences, long ones divided; the whole of it where the times of its words are not
    known."""
    if not passage.words:
        yield passage
        return
    held: list[TimedWord] = []
    for word in passage.words:
        if held and len(_text(held)) + len(word.text) > MAX_SEGMENT_CHARS:
            yield _segment(passage, held)
            held = []
        held.append(word)
        if word.text.rstrip().endswith(_SENTENCE_ENDS):
            yield _segment(passage, held)
            held = []
    if held:
        yield _segment(passage, held)


def _segment(passage: Passage, words: Sequence[TimedWord]) -> Passage:
    return replace(
        passage,
        text=_text(words),
        first_sample=words[0].first_sample,
        end_sample=words[-1].end_sample,
        tokens=tuple(token for word in words for token in word.tokens),
        words=tuple(words),
    )


def _text(words: Sequence[TimedWord]) -> str:
    return "".join(word.text for word in words).strip()
