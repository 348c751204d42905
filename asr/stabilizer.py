"""Which words of a growing transcript can be relied on.

Local agreement (Liu, Spanakis, Niehues 2020; LocalAgreement-2 as used for Whisper by Macháček, Dabre
and Bojar 2023): words on which two successive hypotheses agree are stable. Stable words feed the
language model's prefill while the caller is still speaking, so they must not change: text that was
once stable is repeated verbatim, whatever later hypotheses say. The final transcript is decoded
afresh and need not agree.

Words are compared without case and punctuation, because Whisper writes "busy." until more follows.
The newest hypothesis' last word is never stable: the audio ends in the middle of it.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final


@dataclass(frozen=True, slots=True)
class Stabilized:
    """A hypothesis, cut in two at a word's boundary."""

    text: str
    stable_chars: int

    @property
    def stable(self) -> str:
        return self.text[: self.stable_chars]

    @property
    def tail(self) -> str:
        """The rest, with the space before it."""
        return self.text[self.stable_chars :]


class Stabilizer:
    """The hypotheses of one utterance. Not thread-safe."""

    def __init__(self) -> None:
        self._stable: list[str] = []
        self._previous: list[str] = []

    def push(self, hypothesis: str) -> Stabilized:
        """Take in the next hypothesis over the whole utterance so far."""
        words = hypothesis.split()
        agreed = 0
        for old, new in zip(self._previous, words[:-1], strict=False):
            if _bare(old) != _bare(new):
                break
            agreed += 1
        kept = len(self._stable)
        tail = words[self._aligned_from(words) :]
        if agreed > kept and _agree(self._stable, words):
            self._stable += words[kept:agreed]
            tail = words[agreed:]
        self._previous = words
        stable = " ".join(self._stable)
        text = " ".join([*self._stable, *tail])
        return Stabilized(text, len(stable))

    def _aligned_from(self, words: list[str]) -> int:
        """Index of the first word that continues the stable ones.

        Normally their number. Where a hypothesis rewrote them (it dropped or added a word early on),
        the place after the last two stable words, if they occur nearby.
        """
        kept = len(self._stable)
        if kept < 2 or _agree(self._stable, words):
            return kept
        last = (_bare(self._stable[-2]), _bare(self._stable[-1]))
        places = [
            index + 2
            for index, pair in enumerate(pairwise(words))
            if (_bare(pair[0]), _bare(pair[1])) == last and abs(index + 2 - kept) <= _MAX_SHIFT
        ]
        return min(places, key=lambda place: abs(place - kept), default=kept)


_MAX_SHIFT: Final = 3
"""Words by which a rewritten beginning may have shifted; farther off, a repetition is likelier."""


def _agree(stable: list[str], words: list[str]) -> bool:
    return len(words) >= len(stable) and all(
        _bare(a) == _bare(b) for a, b in zip(stable, words, strict=False)
    )


def _bare(word: str) -> str:
    bare = "".join(char for char in word if char.isalnum()).casefold()
    return bare or word
