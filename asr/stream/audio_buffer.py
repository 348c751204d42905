"""Buffer of the part of a call that may still be needed: samples and probabilities of speech."""

from typing import Final

import numpy as np

from asr.audio.samples import Pcm, ms_from_samples
from asr.speech_detection.vad import FRAME

_INITIAL: Final = 32_768
"""Samples of room at first: two seconds, which is what a quiet call needs."""


class AudioBuffer:
    """A growing buffer that forgets its beginning. Positions are samples of the call.

    Memory: at most four times what has been kept at once, because room is doubled when it runs out.
    """

    def __init__(self) -> None:
        self._room = np.zeros(_INITIAL, np.float32)
        self._first = 0
        """Position of the first sample in `_room`."""
        self._end = 0
        self._probabilities: list[float] = []
        self._first_frame = 0

    @property
    def first_sample(self) -> int:
        """Position of the oldest sample kept."""
        return self._first

    @property
    def end_sample(self) -> int:
        """Position after the newest sample."""
        return self._end

    @property
    def end_of_frames(self) -> int:
        """Position after the newest frame that has a probability."""
        return (self._first_frame + len(self._probabilities)) * FRAME

    @property
    def room_bytes(self) -> int:
        return self._room.nbytes

    def append(self, pcm: Pcm) -> None:
        kept = self._end - self._first
        if kept + len(pcm) > len(self._room):
            room = np.zeros(max(2 * len(self._room), kept + len(pcm)), np.float32)
            room[:kept] = self._room[:kept]
            self._room = room
        self._room[kept : kept + len(pcm)] = pcm
        self._end += len(pcm)

    def read(self, first: int, end: int) -> Pcm:
        """A copy of the samples from `first` to before `end`, as far as they are there."""
        return self.view(first, end).copy()

    def view(self, first: int, end: int) -> Pcm:
        """The samples from `first` to before `end`, as far as they are there, without a copy: to be
        read, not written, and only until samples are appended or forgotten."""
        first = max(first, self._first)
        return self._room[first - self._first : max(first, min(end, self._end)) - self._first]

    def next_frame(self) -> Pcm | None:
        """The oldest whole frame without a probability, if there is one."""
        first = self.end_of_frames
        return self.read(first, first + FRAME) if self._end - first >= FRAME else None

    def add_probability(self, probability: float) -> None:
        """Set the probability of speech of `next_frame`."""
        self._probabilities.append(probability)

    def voiced_ms(self, first: int, end: int, threshold: float) -> float:
        """Duration of the frames of a stretch with at least this probability."""
        begin = max(0, first // FRAME - self._first_frame)
        stop = max(begin, -(-end // FRAME) - self._first_frame)
        voiced = sum(p >= threshold for p in self._probabilities[begin:stop])
        return ms_from_samples(voiced * FRAME)

    def certainty(self, first: int, end: int, threshold: float) -> float:
        """Mean probability of speech over the frames of a stretch that have at least this one; 1
        where there are none."""
        begin = max(0, first // FRAME - self._first_frame)
        stop = max(begin, -(-end // FRAME) - self._first_frame)
        voiced = [p for p in self._probabilities[begin:stop] if p >= threshold]
        return sum(voiced) / len(voiced) if voiced else 1.0

    def first_voiced(self, first: int, threshold: float) -> int | None:
        """First sample of the first frame from `first` on with at least this probability."""
        begin = max(0, -(-first // FRAME) - self._first_frame)
        for index, probability in enumerate(self._probabilities[begin:], begin):
            if probability >= threshold:
                return (self._first_frame + index) * FRAME
        return None

    def forget_before(self, sample: int) -> None:
        """Drop older samples; frames in use are kept whole."""
        frame = min(sample, self.end_of_frames) // FRAME
        drop = frame * FRAME - self._first
        # Moving the rest costs time, so it is done when it frees at least half of what is held.
        if drop <= 0 or 2 * drop < self._end - self._first:
            return
        kept = self._room[drop : self._end - self._first]
        room = np.zeros(max(_INITIAL, 2 * len(kept)), np.float32)
        room[: len(kept)] = kept
        self._room = room
        del self._probabilities[: frame - self._first_frame]
        self._first += drop
        self._first_frame = frame
