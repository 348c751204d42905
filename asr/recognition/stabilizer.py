"""Stable prefix of growing partial transcripts, by local agreement.

Local agreement (Liu, Spanakis, Niehues 2020; LocalAgreement-2 as used for Whisper by Macháček,
Dabre and Bojar 2023): words on which two successive hypotheses agree are stable. Stable words feed
the language model's prefill while the caller is still speaking, so they must not change: text that
was once stable is repeated verbatim, whatever later hypotheses say. The final transcript is decoded
afresh and need not agree.

What was tried: forcing the stable tokens on the decoder, to save their time. With a cut-off word at
the joint Whisper then often starts the sentence again ("It was the worst of It was the best of").

Words are compared without case and punctuation, because Whisper writes "busy." until more follows.
The newest hypothesis' last word is never stable: the audio ends in the middle of it.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Stabilized:
    """A hypothesis, divided at a word boundary into a stable part and a tail."""

    text: str
    stable_chars: int
    """Characters of `text` that will not change."""

    @property
    def stable(self) -> str:
        return self.text[: self.stable_chars]

    @property
    def tail(self) -> str:
        """The rest, with the space before it."""
        return self.text[self.stable_chars :]


class Stabilizer:
    """Local agreement over the hypotheses of one utterance. Not thread-safe."""

    def __init__(self) -> None:
        self._stable: list[str] = []
        self._previous: list[str] = []

    def push(self, hypothesis: str) -> Stabilized:
        """Take in the next hypothesis over the whole utterance so far."""
        words = hypothesis.split()
        begin = _end_of(self._stable, words)
        agreed = max(begin, _num_alike(self._previous, words[:-1]))
        self._stable += words[begin:agreed]
        tail = words[agreed:]
        self._previous = words
        stable = " ".join(self._stable)
        return Stabilized(" ".join([*self._stable, *tail]), len(stable))


_MAX_COMPARED: Final = 24
"""Words at the end of the stable ones that are looked for in a hypothesis that rewrote them. More
are not needed to find the place, and the work grows with the square."""


def _end_of(stable: list[str], words: list[str]) -> int:
    """Number of words of a hypothesis that match the stable ones, by least edit distance.

    It differs from their number only where later audio made Whisper rewrite the beginning.
    """
    if _num_alike(stable, words) == len(stable):
        return len(stable)
    skipped = max(0, len(stable) - _MAX_COMPARED)
    said = [_bare(word) for word in stable[skipped:]]
    begin = max(0, skipped - _MAX_COMPARED // 2)
    heard = [_bare(word) for word in words[begin : len(stable) + _MAX_COMPARED // 2]]
    # Row i: distance of said[:i] to the best stretch that ends after each word of `heard`. Where
    # the beginning was skipped the stretch may begin anywhere, else only at the first word.
    row = [0 if skipped else index for index in range(len(heard) + 1)]
    for word in said:
        above, row = row, [row[0] + 1]
        for index, other in enumerate(heard):
            row.append(min(row[-1] + 1, above[index + 1] + 1, above[index] + (word != other)))
    expected = len(stable) - begin
    return begin + min(range(len(row)), key=lambda end: (row[end], abs(end - expected)))


def _num_alike(some: list[str], other: list[str]) -> int:
    """Number of equal words at the beginning of both."""
    for index, (one, two) in enumerate(zip(some, other, strict=False)):
        if _bare(one) != _bare(two):
            return index
    return min(len(some), len(other))


def _bare(word: str) -> str:
    bare = "".join(char for char in word if char.isalnum()).casefold()
    return bare or word
