"""Automatic gain control of the voice detector's input, up to +12 dB, for quiet callers.

Theory of operation
-------------------
The detector's network sees amplitudes. Down to -40 dB of full scale (root mean square of the voiced
frames) that does not matter. At -45 it loses the weak parts of words, at -50 whole sentences: of 45
telephone prompts 7 were not detected at all. Telephones bring such callers; the recognizer, which
normalizes by the maximum, understands them well: at -50, of 428 words 50 were wrong, and 32 are
with this gain, each prompt a call of its own. At -20 nothing changes. The price: in half an hour of
music and noise through a telephone one utterance is opened, without consequence; without the gain
none was.

So a quiet voice is raised, for the detector only: energy endpointing, the echo gate and the
recognizer see the audio as received. The level of the voice is learned from frames in which the
detector suspects speech, while the agent is silent: its echo is no caller. The gain follows the
loudest of them, upwards slowly enough that no step looks like an onset, downwards at once; it is
never below 1, and samples beyond full scale are clipped. Nothing is delayed: a frame's gain follows
from the frames before it.

What was tried: one gain for all audio. Where noise lies 20 dB below the voice, 42 words
are wrong at -40 dB, and 42 with 20 dB more; where the detector had found the voice, nothing is won.
"""

import math
from typing import Final

import numpy as np

from asr.audio.samples import Pcm

WANTED_DB: Final = -22.0
"""Target level of the loudest frames of a voice, about 8 dB above its RMS: the RMS is then at -30,
where nothing is lost. Louder voices are not changed."""

MAX_GAIN_DB: Final = 12.0
"""Largest gain. With 24 dB no more words are understood, and more music is taken for a voice."""

SUSPECTED: Final = 0.2
"""Probability of speech from which a frame counts. The detector's own thresholds (0.35 and 0.5) are
what quiet voices don't reach; noise and music stay below this one in most frames."""

RISE_DB: Final = 2.0
"""Largest rise with each frame that counts: 20 dB take a third of a second. Steps of 6 dB are
onsets to the network."""

FALL_DB: Final = 0.02
"""Decay of the loudest level with each frame that counts: half a dB in a second of speech. A bang
is forgotten within sentences, and a falling voice is followed."""

_FLOOR: Final = 1e-12


class AutomaticGain:
    """Gain control of one call. Not thread-safe."""

    def __init__(self) -> None:
        self.gain_db = 0.0
        self._loudest_db: float | None = None
        self._factor = np.float32(1)

    def apply(self, frame: Pcm) -> Pcm:
        """The detector's input for a frame, float32 [n]: the same array where the gain is 0 dB."""
        if self.gain_db == 0.0:
            return frame
        raised = frame * self._factor
        return np.clip(raised, -1, 1, out=raised)

    def note(self, frame: Pcm, probability: float) -> None:
        """Learn from a frame as received and its probability, while the agent is silent."""
        if probability < SUSPECTED:
            return
        level_db = 10 * math.log10(max(_FLOOR, float(np.dot(frame, frame)) / len(frame)))
        if self._loudest_db is not None:
            level_db = max(level_db, self._loudest_db - FALL_DB)
        self._loudest_db = level_db
        wanted_db = min(MAX_GAIN_DB, max(0.0, WANTED_DB - level_db))
        self.gain_db = min(wanted_db, self.gain_db + RISE_DB)
        self._factor = np.float32(10 ** (self.gain_db / 20))
