"""Energy endpointing: the last loud sample of a frame, which is sooner than the detector's word.

Theory of operation
-------------------
The voice detector is sure that speech is over only when its network has forgotten it: its first
silent frame comes 116 ms (median) after the last voiced 20 ms, and up to 240 ms after. Nothing is
won by that wait: what lies 25 dB below an utterance's loudest frames is no voice, by the same rule
that says where reported latencies start (`samples.last_voiced_sample`). So within an utterance a
frame counts as speech only as far as it is loud. In a room so noisy that silence is not 25 dB below
the voice everything is loud, and the detector decides alone, as late as before.

The reference is the 99th percentile of the utterance's half frames in which the detector heard
speech. A bang at the beginning would put it out of the caller's reach: so when the detector insists
on speech for `MAX_DISAGREED` frames that are not loud, the reference is forgotten.
"""

import math
from typing import Final

import numpy as np

from asr.audio.samples import VOICED_RANGE_DB, Pcm

HALF: Final = 256
"""Samples: 16 ms, two periods of a low voice."""

MAX_DISAGREED: Final = 12
"""Frames of 32 ms. The detector's lag is shorter; a longer deafness is noticed by callers."""

_QUANTILE: Final = 0.99

_FLOOR_DB: Final = -120
"""Levels are counted in bins of 1 dB from here to full scale, and a little above."""
_NUM_BINS: Final = 140


class EnergyEndpoint:
    """Level histogram of one utterance. Not thread-safe."""

    def __init__(self) -> None:
        self._counts = [0] * _NUM_BINS
        self._num_counted = 0
        self._disagreed = 0

    def reset(self) -> None:
        """Forget the levels: the next frame belongs to another utterance."""
        if not self._num_counted:
            return
        self._counts = [0] * _NUM_BINS
        self._num_counted = 0
        self._disagreed = 0

    def loud_samples(self, frame: Pcm, is_speech: bool) -> int:
        """Samples up to the end of the last loud half of a frame of 512 samples: 0, 256 or 512.

        `is_speech`: the detector's probability is not below its silence threshold.
        """
        halves = frame.reshape(2, HALF)
        energy = np.einsum("ij,ij->i", halves, halves) / HALF
        first, second = (_level_db(float(each)) for each in energy)
        if is_speech:
            self._count(first)
            self._count(second)
        limit = self._reference_db() - VOICED_RANGE_DB
        loud = 2 * HALF if second >= limit else HALF if first >= limit else 0
        self._disagreed = self._disagreed + 1 if is_speech and not loud else 0
        if self._disagreed >= MAX_DISAGREED:
            self.reset()
            return 2 * HALF
        return loud

    def _count(self, level_db: int) -> None:
        self._counts[min(_NUM_BINS - 1, max(0, level_db - _FLOOR_DB))] += 1
        self._num_counted += 1

    def _reference_db(self) -> int:
        """99th percentile of the levels, dB; the floor before anything was counted."""
        above = 0
        wanted = max(1, round((1 - _QUANTILE) * self._num_counted))
        for index in range(_NUM_BINS - 1, -1, -1):
            above += self._counts[index]
            if above >= wanted:
                return index + _FLOOR_DB
        return _FLOOR_DB


def _level_db(energy: float) -> int:
    return math.floor(10 * math.log10(energy)) if energy > 1e-12 else _FLOOR_DB
