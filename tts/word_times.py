"""Word times of synthesized speech, from the engine's phoneme durations.

After a barge-in the history must hold the words that were heard, no more. Hibari and Piper predict
how long every phoneme lasts on the way to the audio; `onnx_session` makes that tensor visible, the
engine groups it by the blanks between words, and where the groups match the words one to one the
times are exact: starts lie 0.04 s (median) from those that Whisper finds, which is its own error.

Where they do not match, because Piper's phonemizer contracts "of the" into one group or hibari
reads an unknown name as two, words and groups are aligned by their lengths, and only what is
contracted is divided by length. Where there are no groups, as with Pico, everything is: that is off
by 0.07 s (median) to 0.22 s (90th percentile). Both are marked as estimated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tts.text.normalize import SpokenWord

from .trim import Voiced


@dataclass(frozen=True, slots=True)
class WordTime:
    """Times of one token of the reply."""

    text_span: tuple[int, int]
    """Characters of the reply as generated. A token that is several words ("$5") has one time."""
    start_sample: int
    """First sample, from the beginning of the chunk."""
    end_sample: int
    """Sample after the last one."""
    is_estimated: bool
    """True if the time is not one to one from the engine's own durations."""


@dataclass(frozen=True, slots=True)
class PhonemeGroup:
    """Samples of the phonemes between two blanks."""

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
    """Compute the times of the tokens of one sentence.

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
        bounds = _align(words, groups) if groups else _divide(words, voiced.start, voiced.end)
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
"""Time of a word besides its letters, in letters."""
_PER_MARK = {",": 3.0, ";": 4.0, ":": 4.0}
"""The pause of a mark inside a sentence, in letters (60-70 ms each)."""


def _divide(words: Sequence[SpokenWord], start: int, end: int) -> list[tuple[int, int]]:
    """Divide a stretch among words by their letters, with a pause where a mark asks for one."""
    weights = [len(word.text) + _PER_WORD for word in words]
    pauses = [_PER_MARK.get(word.mark, 0.0) for word in words[:-1]] + [0.0]
    scale = (end - start) / (sum(weights) + sum(pauses))
    bounds: list[tuple[int, int]] = []
    at = float(start)
    for weight, pause in zip(weights, pauses, strict=True):
        bounds.append((round(at), round(at + weight * scale)))
        at += (weight + pause) * scale
    return bounds


_STEPS = ((1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (4, 1), (1, 4))
"""Words and groups that may belong together; contractions are of two words, rarely three."""
_JOINT_COST = 2.0
"""Cost of every word or group beyond one in a step: that of a word which takes four times its
expected time, so that there are no more contractions than the counts demand."""


def _align(words: Sequence[SpokenWord], groups: Sequence[PhonemeGroup]) -> list[tuple[int, int]]:
    """Find the monotonic alignment whose words and groups agree best in length.

    Dynamic programming over (words, groups) taken; a step costs the squared log ratio of its share
    of the letters to its share of the time.
    """
    letters = [len(word.text) + _PER_WORD for word in words]
    times = [max(1, group.end - group.start) for group in groups]
    rate = sum(times) / sum(letters)
    best: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {(0, 0): (0.0, (0, 0))}
    for num_words in range(len(words) + 1):
        for num_groups in range(len(groups) + 1):
            if (num_words, num_groups) not in best:
                continue
            cost = best[num_words, num_groups][0]
            for words_taken, groups_taken in _STEPS:
                to = (num_words + words_taken, num_groups + groups_taken)
                if to[0] > len(words) or to[1] > len(groups):
                    continue
                expected = rate * sum(letters[num_words : to[0]])
                ratio = math.log(sum(times[num_groups : to[1]]) / expected)
                num_joints = max(words_taken, groups_taken) - 1
                total = cost + ratio * ratio + _JOINT_COST * num_joints
                if to not in best or total < best[to][0]:
                    best[to] = (total, (num_words, num_groups))
    return _bounds_of(best, words, groups)


def _bounds_of(
    best: dict[tuple[int, int], tuple[float, tuple[int, int]]],
    words: Sequence[SpokenWord],
    groups: Sequence[PhonemeGroup],
) -> list[tuple[int, int]]:
    at = (len(words), len(groups))
    if at not in best:
        # Too different to belong together.
        return _divide(words, groups[0].start, groups[-1].end)
    bounds: list[tuple[int, int]] = []
    while at != (0, 0):
        before = best[at][1]
        start, end = groups[before[1]].start, groups[at[1] - 1].end
        bounds = _divide(words[before[0] : at[0]], start, end) + bounds
        at = before
    return bounds
