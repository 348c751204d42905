"""Energy endpointing: the last loud sample of a frame, which is sooner than the detector's word.

Theory of operation
-------------------
The voice detector is sure that speech is over only when its network has forgotten it: its first
silent frame comes 116 ms (median) after the last voiced 20 ms, and up to 240 ms after. Nothing is
won by that wait: what lies 25 dB below an utterance's loudest frames is no voice, by the same rule
that says where reported latencies start (`samples.last_voiced_sample`). So within an utterance a
frame counts as speech only as far as it is loud.

The reference is the 99th percentile of the utterance's half frames in which the detector heard
speech. A bang at the beginning would put it out of the caller's reach: so when the detector insists
on speech for `MAX_DISAGREED` frames that are not loud, the reference is forgotten.

*Noise.* Where other people talk or a street roars, nothing is 25 dB below the caller's voice, and
of other voices the detector is as sure as of the caller's. So what is no louder than the noise is
no voice either. The noise is the lowest tenth of the last four seconds, in which every speaker has
stopped for a "t" or a breath, and what lies up to `NOISE_RANGE_DB` above it. But that is never so
high that it comes within `NOISE_BELOW_DB` of the voice: at 5 dB above a fan, weak syllables would
be pauses. In a quiet room nothing changes. `halfsec bench noise` measures it; of 48 turns of unseen
speakers in the babble of 3 to 8 others, 10 dB below, the detector alone finds the end of 16 within
three seconds, and 47 with this. Other values of the three numbers, on the same turns: two fifths
of a second of silence within turns were found 24 times in that babble, 23 times without noise, and
more often with a smaller distance to the voice.
"""

import math
from collections import deque
from typing import Final

import numpy as np

from asr.audio.samples import VOICED_RANGE_DB, Pcm

HALF: Final = 256
"""Samples: 16 ms, two periods of a low voice."""

MAX_DISAGREED: Final = 12
"""Frames of 32 ms. The detector's lag is shorter; a longer deafness is noticed by callers."""

NOISE_RANGE_DB: Final = 9
"""Range of the noise above its quietest tenth. Of babble a tenth of the frames is louder."""

NOISE_BELOW_DB: Final = 11
"""Least distance in dB from the voice's loudest frames to the noise."""

NOISE_HALVES: Final = 250
"""Half frames by which the noise is known: 4 s. In less a caller may not have stopped."""

LEAST_HALVES: Final = 125
"""Half frames before it is known: a caller may begin to speak as soon as the call begins."""

EXPLAINED_SHARE: Final = 0.2
"""How much a frame disagrees whose level the noise explains: speech of others goes on in the
caller's pause."""

_QUANTILE: Final = 0.99
_NOISE_QUANTILE: Final = 0.1

_FLOOR_DB: Final = -120
"""Levels are counted in bins of 1 dB from here to full scale, and a little above."""
_NUM_BINS: Final = 140


class LevelHistogram:
    """Counts of levels in dB. Not thread-safe."""

    def __init__(self) -> None:
        self._counts = [0] * _NUM_BINS
        self.num_levels = 0

    def add(self, level_db: int) -> None:
        self._counts[_bin_of(level_db)] += 1
        self.num_levels += 1

    def remove(self, level_db: int) -> None:
        """Remove a level that was added."""
        self._counts[_bin_of(level_db)] -= 1
        self.num_levels -= 1

    def from_top(self, share: float) -> int:
        """Level in dB that this share of the levels reaches, one at least; the floor where there is
        none."""
        above, wanted = 0, max(1, round(share * self.num_levels))
        for index in range(_NUM_BINS - 1, -1, -1):
            above += self._counts[index]
            if above >= wanted:
                return index + _FLOOR_DB
        return _FLOOR_DB


class RecentNoise:
    """Level of the noise in the last seconds of a call. Not thread-safe."""

    def __init__(self) -> None:
        self._levels: deque[int] = deque()
        self._histogram = LevelHistogram()

    def add(self, level_db: int) -> None:
        """Take in the next half frame."""
        self._levels.append(level_db)
        self._histogram.add(level_db)
        if len(self._levels) > NOISE_HALVES:
            self._histogram.remove(self._levels.popleft())

    @property
    def top_db(self) -> int:
        """Level in dB up to which there is noise; the floor while too little was heard."""
        if len(self._levels) < LEAST_HALVES:
            return _FLOOR_DB
        return self._histogram.from_top(1 - _NOISE_QUANTILE) + NOISE_RANGE_DB


class EnergyEndpoint:
    """Levels of one call: of the utterance, and of the noise. Not thread-safe."""

    def __init__(self) -> None:
        self._voice = LevelHistogram()
        self._noise = RecentNoise()
        self._disagreed = 0.0

    def reset(self) -> None:
        """Forget the voice: the next frame belongs to another utterance."""
        if not self._voice.num_levels:
            return
        self._voice = LevelHistogram()
        self._disagreed = 0.0

    def loud_samples(self, frame: Pcm, is_speech: bool) -> int:
        """Samples up to the end of the last loud half of a frame of 512 samples: 0, 256 or 512.

        `is_speech`: the detector's probability is not below its silence threshold.
        """
        halves = frame.reshape(2, HALF)
        energy = np.einsum("ij,ij->i", halves, halves) / HALF
        first, second = (_level_db(float(each)) for each in energy)
        for level_db in (first, second):
            self._noise.add(level_db)
            if is_speech:
                self._voice.add(level_db)
        reference_db, noise_db = self._voice.from_top(1 - _QUANTILE), self._noise.top_db
        limit = max(reference_db - VOICED_RANGE_DB, min(noise_db, reference_db - NOISE_BELOW_DB))
        loud = 2 * HALF if second >= limit else HALF if first >= limit else 0
        if loud or not is_speech:
            self._disagreed = 0.0
        else:
            self._disagreed += EXPLAINED_SHARE if max(first, second) < noise_db else 1
        if self._disagreed >= MAX_DISAGREED:
            self.reset()
            return 2 * HALF
        return loud


def _bin_of(level_db: int) -> int:
    return min(_NUM_BINS - 1, max(0, level_db - _FLOOR_DB))


def _level_db(energy: float) -> int:
    return math.floor(10 * math.log10(energy)) if energy > 1e-12 else _FLOOR_DB
