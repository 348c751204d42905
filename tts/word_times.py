"""When each word is heard.

After a barge-in the history must hold the words that were heard, no more. Both engines predict how
long every phoneme lasts on the way to the audio; `onnx_session` makes that tensor visible, the
engine groups it by the blanks between words, and where the groups match the words one to one the
times are exact. Where they do not (Piper's phonemizer contracts "of the" into one group), or an
engine cannot tell, the voiced part is shared out by the length of the words, which is off by
0.1-0.2 s in a long sentence: such times say that they are estimated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tts.normalize import SpokenWord
from tts.trim import Voiced


@dataclass(frozen=True, slots=True)
class WordTime:
    """A token of the reply and when it is heard."""

    text_span: tuple[int, int]
    """Characters of the reply as generated. A token that is several words ("$5") has one time."""
    start_sample: int
    """From the beginning of the chunk."""
    end_sample: int
    is_estimated: bool


@dataclass(frozen=True, slots=True)
class PhonemeGroup:
    """The phonemes between two blanks."""

    start: int
    """First sample, before trimming."""
    end: int


def time_words(
    words: Sequence[SpokenWord],
    groups: Sequence[PhonemeGroup],
    voiced: Voiced,
    *,
    cut_off: int,
    first_char: int,
) -> tuple[WordTime, ...]:
    """Times of the tokens of one sentence.

    `voiced` and `groups` are in samples before trimming, `cut_off` is what trimming removed in
    front, `first_char` moves spans from the piece to the reply.
    """
    if len(groups) == len(words):
        bounds = [(group.start, group.end) for group in groups]
        # A consonant sounds before its nominal place, and a vowel rings on after it.
        bounds[0] = (voiced.start, bounds[0][1])
        bounds[-1] = (bounds[-1][0], max(voiced.end, bounds[-1][0]))
        is_estimated = False
    else:
        bounds = _share_out(words, voiced)
        is_estimated = True
    times: list[WordTime] = []
    for word, (start, end) in zip(words, bounds, strict=True):
        span = (first_char + word.start, first_char + word.end)
        first = max(0, min(start, voiced.end) - cut_off)
        last = max(first, min(end, voiced.end) - cut_off)
        if times and times[-1].text_span == span:
            first = times.pop().start_sample
        times.append(WordTime(span, first, last, is_estimated))
    return tuple(times)


_PER_WORD = 1.0
"""Letters' worth of time that every word takes besides its letters."""
_PER_MARK = {",": 3.0, ";": 4.0, ":": 4.0}
"""The pause of a mark inside a sentence, in letters (60-70 ms each)."""


def _share_out(words: Sequence[SpokenWord], voiced: Voiced) -> list[tuple[int, int]]:
    weights = [len(word.text) + _PER_WORD for word in words]
    pauses = [_PER_MARK.get(word.mark, 0.0) for word in words[:-1]] + [0.0]
    scale = (voiced.end - voiced.start) / (sum(weights) + sum(pauses))
    bounds: list[tuple[int, int]] = []
    at = float(voiced.start)
    for weight, pause in zip(weights, pauses, strict=True):
        bounds.append((round(at), round(at + weight * scale)))
        at += (weight + pause) * scale
    return bounds
