"""What the voice detector hears of callers who are hard to hear.

Theory of operation
-------------------
The detector's network sees amplitudes. Down to -40 dB of full scale (root mean square of the voiced
frames) that does not matter. At -45 it loses the weak parts of words, at -50 whole sentences: of 45
telephone prompts 7 were not heard at all. Telephones bring such callers; the recognizer, which
measures everything by its own maximum, understands them well: at -50, of 428 words 50 were wrong,
and 32 are with this, each prompt a call of its own. At -20 nothing changes. The price: in half an
hour of music and noise through a telephone one utterance is opened, of which nothing comes; without
it none was.

So a quiet voice is raised, for the detector and for nothing else: the level by which a pause
begins, the agent's echo and the recording are those that came. How loud the voice is, is learned
from frames in which the detector suspects speech, while the agent is silent: its echo is no caller.
The gain follows the loudest of them, upwards slowly enough that no step sounds like an onset,
downwards at once; it is never below 1, and what would be clipped is. Nothing is delayed: a frame is
raised by what is known from those before it.

What was tried: one gain for all that is heard. Where noise lies 20 dB below the voice, 42 words
are wrong at -40 dB, and 42 with 20 dB more; where the detector had heard the voice, nothing is won.
"""

import math
from typing import Final

import numpy as np

from asr.audio.samples import Pcm

WANTED_DB: Final = -22.0
"""Of the loudest frames of a voice, which lie about 8 dB above its root mean square: that is then
at -30, where nothing is lost. Louder voices are left as they are."""

MAX_GAIN_DB: Final = 12.0
"""With 24 no word more is understood, and more of the music is taken for a voice."""

SUSPECTED: Final = 0.2
"""Probability of speech from which a frame counts. The detector's own thresholds (0.35 and 0.5) are
what quiet voices don't reach; noise and music stay below this one in most frames."""

RISE_DB: Final = 2.0
"""With each frame that counts: 20 dB take a third of a second. Steps of 6 dB are onsets to the
network."""

FALL_DB: Final = 0.02
"""By which the loudest frame is forgotten with each one that counts: half a dB in a second of
speech. A bang is forgotten within sentences, and a voice that falls is followed."""

_FLOOR: Final = 1e-12


class AutomaticGain:
    """Of one call. Not thread-safe."""

    def __init__(self) -> None:
        self.gain_db = 0.0
        self._loudest_db: float | None = None
        self._factor = np.float32(1)

    def apply(self, frame: Pcm) -> Pcm:
        """float32 [n] as the detector is to hear it: the same array where nothing is done."""
        if self.gain_db == 0.0:
            return frame
        raised = frame * self._factor
        return np.clip(raised, -1, 1, out=raised)

    def note(self, frame: Pcm, probability: float) -> None:
        """What the detector made of a frame, as it came, while the agent was silent."""
        if probability < SUSPECTED:
            return
        level_db = 10 * math.log10(max(_FLOOR, float(np.dot(frame, frame)) / len(frame)))
        if self._loudest_db is not None:
            level_db = max(level_db, self._loudest_db - FALL_DB)
        self._loudest_db = level_db
        wanted_db = min(MAX_GAIN_DB, max(0.0, WANTED_DB - level_db))
        self.gain_db = min(wanted_db, self.gain_db + RISE_DB)
        self._factor = np.float32(10 ** (self.gain_db / 20))
