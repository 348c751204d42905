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
stopped for a "t" or a breath, and a range above it, which is wide where the noise varies as voices
do and narrow for a fan. But it never reaches `NOISE_BELOW_DB` below the voice of the last two
seconds: there weak syllables would be pauses. What is compared with it is the mean of the last
`MEAN_HALVES`: single syllables of others reach up to the caller's voice, and each would begin the
silence anew. In a quiet room nothing changes.

Nor does the next utterance begin with noise, once a caller was heard: what is no louder than it,
and `ONSET_BELOW_DB` below the last voice, is no onset. A caller who becomes quieter is heard as
long as the noise is quieter still.

What it brings, by the detector alone, is in `README.md` beside this file; whole calls in
`halfsec bench noise`.
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

MAX_RANGE_DB: Final = 11
"""Widest range of the noise above its quietest tenth. With 9, among other voices 81 of 96 turns
have a second of silence within three behind their end, with 11 it is 88."""

RANGE_DB: Final = 2
RANGE_BY_SPREAD: Final = 2
"""The range: so much, and so much for each dB from the quietest tenth to the third. With 9 dB for
all, a caller 20 dB above a fan makes 213 pauses in place of 119, each of them a recognizer's pass;
so 153."""

NOISE_BELOW_DB: Final = 8
"""Least distance in dB from the loudest frames of the voice to the noise. With 10, of 96 turns that
other voices 5 dB below accompany 67 have an end in place of 89; with 8 and without the mean over
`MEAN_HALVES` each syllable that is weak is a pause."""

MEAN_HALVES: Final = 12
"""Half frames whose mean is compared with the noise: 192 ms. With 1, in babble 51 of 96 turns have
a second of silence behind their end in place of 88; with 16 pauses are noticed 40 ms later."""

DIP_DB: Final = 6
"""What lies so far below that limit is quiet, whatever was there before it: with 0 each weak
syllable in a loud noise is a pause."""

NEAR_DB: Final = 4
"""Noise that stays so far below its highest limit is no match for the voice: there what lies below
the limit at all is quiet. Else a pause over a fan 20 dB below is noticed 30 ms later."""

VOICE_HALVES: Final = 120
"""Half frames of speech by which the voice is known where there is noise: 2 s. By the whole
utterance, one that becomes quieter would be noise."""

ONSET_BELOW_DB: Final = 9
"""Distance in dB from the loudest frames of the last utterance within which the next one begins,
whatever the noise. With 7 callers in street noise are noticed 50 ms later."""

NOISE_HALVES: Final = 250
"""Half frames by which the noise is known: 4 s. In less a caller may not have stopped."""

LEAST_HALVES: Final = 125
"""Half frames before it is known: a caller may begin to speak as soon as the call begins."""

EXPLAINED_SHARE: Final = 0.3
"""How much a frame disagrees whose level the noise explains: speech of others goes on in the
caller's pause. So a deafness lasts 1.3 s at most, which is longer than a turn's end needs."""

_QUANTILE: Final = 0.99
_NOISE_QUANTILE: Final = 0.1
_SPREAD_QUANTILE: Final = 0.3

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


class RecentLevels:
    """Levels of the newest half frames. Not thread-safe."""

    def __init__(self, num_halves: int) -> None:
        self._num_halves = num_halves
        self._levels: deque[int] = deque()
        self._histogram = LevelHistogram()

    def __len__(self) -> int:
        return len(self._levels)

    def add(self, level_db: int) -> None:
        """Take in the next half frame."""
        self._levels.append(level_db)
        self._histogram.add(level_db)
        if len(self._levels) > self._num_halves:
            self._histogram.remove(self._levels.popleft())

    def from_top(self, share: float) -> int:
        """Level in dB that this share of them reaches; the floor where there is none."""
        return self._histogram.from_top(share)


class EnergyEndpoint:
    """Levels of one call: of the utterance, and of the noise. Not thread-safe."""

    def __init__(self) -> None:
        self._voice = LevelHistogram()
        self._recent_voice = RecentLevels(VOICE_HALVES)
        self._recent = RecentLevels(NOISE_HALVES)
        self._energies: deque[float] = deque(maxlen=MEAN_HALVES)
        self._disagreed = 0.0
        self._last_voice_db: int | None = None
        self.is_noise = False
        """The last frame was no louder than the noise, and far less so than the last utterance."""

    def note_end(self) -> None:
        """The utterance is over, and was the caller's; the next frame belongs to another."""
        if self._voice.num_levels:
            self._last_voice_db = self._voice.from_top(1 - _QUANTILE)
        self.reset()

    def reset(self) -> None:
        """Forget the voice: the next frame belongs to another utterance."""
        if not self._voice.num_levels:
            return
        self._voice = LevelHistogram()
        self._recent_voice = RecentLevels(VOICE_HALVES)
        self._disagreed = 0.0

    def loud_samples(self, frame: Pcm, is_speech: bool) -> int:
        """Samples up to the end of the last loud half of a frame of 512 samples: 0, 256 or 512.

        `is_speech`: the detector's probability is not below its silence threshold.
        """
        halves = frame.reshape(2, HALF)
        energies = (np.einsum("ij,ij->i", halves, halves) / HALF).tolist()
        levels_db = [_level_db(each) for each in energies]
        for level_db in levels_db:
            self._recent.add(level_db)
            if is_speech:
                self._voice.add(level_db)
                self._recent_voice.add(level_db)
        noise_db = self._noise_db()
        loudest_db = max(levels_db)
        self.is_noise = self._last_voice_db is not None and loudest_db < min(
            noise_db, self._last_voice_db - ONSET_BELOW_DB
        )
        voiced_db = self._voice.from_top(1 - _QUANTILE) - VOICED_RANGE_DB
        highest_db = self._recent_voice.from_top(1 - _QUANTILE) - NOISE_BELOW_DB
        limit_db = min(noise_db, highest_db)
        dip_db = DIP_DB if noise_db >= highest_db - NEAR_DB else 0
        loud = 0
        for number, (energy, level_db) in enumerate(zip(energies, levels_db, strict=True)):
            self._energies.append(energy)
            mean_db = _level_db(sum(self._energies) / len(self._energies))
            if level_db >= max(voiced_db, limit_db - dip_db) and mean_db >= limit_db:
                loud = (number + 1) * HALF
        if loud or not is_speech:
            self._disagreed = 0.0
        else:
            self._disagreed += EXPLAINED_SHARE if loudest_db < noise_db else 1
        if self._disagreed >= MAX_DISAGREED:
            self.reset()
            return 2 * HALF
        return loud

    def _noise_db(self) -> int:
        """Level in dB up to which there is noise; the floor while too little was heard."""
        if len(self._recent) < LEAST_HALVES:
            return _FLOOR_DB
        lowest_db = self._recent.from_top(1 - _NOISE_QUANTILE)
        spread_db = self._recent.from_top(1 - _SPREAD_QUANTILE) - lowest_db
        return lowest_db + min(MAX_RANGE_DB, RANGE_DB + RANGE_BY_SPREAD * spread_db)


def _bin_of(level_db: int) -> int:
    return min(_NUM_BINS - 1, max(0, level_db - _FLOOR_DB))


def _level_db(energy: float) -> int:
    return math.floor(10 * math.log10(energy)) if energy > 1e-12 else _FLOOR_DB
