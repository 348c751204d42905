"""Echo gate: tells the agent's own voice in the microphone from the caller's, by its level.

Theory of operation
-------------------
While the agent speaks, any sound in the microphone may be its echo. The playback is known, so
two levels can be compared: that of a microphone frame, and the loudest that was played in the
`REACH` before it (buffers, network and room delay the echo by an unknown part of that). While
only the agent speaks their ratio is the gain of the echo; a frame that is not louder than that gain
and a margin allow is no evidence of the caller's voice.

The gain is learned from frames in which the detector hears no speech, and from whole utterances
that turned out to be the agent's own words. From a caller's utterance nothing is learned, nor from
the third of a second before it: a caller must not be learned as an echo. An unknown gain means no
echo, because clients with echo cancellation are the rule. The gain is the 90th percentile of the
newest two seconds, so a door that slams does not mask the caller.

What was tried and left out: comparing the two envelopes. Ten frames, shifted by any of twelve
delays, resemble each other too often by chance when a caller begins to speak.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from asr.audio.samples import RATE_HZ, Pcm

from .vad import FRAME

REACH: Final = RATE_HZ * 2 // 5
"""Samples: an echo comes within 0.4 s. A client's own buffer has 50-200 ms of that."""

MARGIN: Final = 2.0
"""6 dB. An echo's level varies by that much against the loudest that was played; people who speak
over a loudspeaker raise their voice by more."""

MIN_KNOWN: Final = 16
"""Frames of 32 ms before the gain is used: half a second of the agent's voice."""

MAX_KNOWN: Final = 64

DOUBTFUL: Final = 10
"""Frames before an onset that may have its first breath in them: 320 ms."""

QUANTILE: Final = 0.9


def level_of(pcm: Pcm) -> float:
    """RMS level; 0 for an empty array."""
    return float(np.sqrt(np.mean(np.square(pcm)))) if len(pcm) else 0.0


class EchoGate:
    """Echo gain of one call. Positions are samples of the microphone. Not thread-safe."""

    def __init__(self) -> None:
        self._played: deque[tuple[int, float]] = deque(maxlen=4 * REACH // FRAME)
        """First sample and level of each frame; the newest of a second and a half."""
        self._waiting: deque[float] = deque()
        """Ratios too new to be used: an onset may follow."""
        self._doubtful: deque[float] = deque(maxlen=MAX_KNOWN)
        """Ratios of the open utterance."""
        self._known: deque[float] = deque(maxlen=MAX_KNOWN)

    @property
    def gain(self) -> float:
        """Gain of the echo; 0 while it is unknown."""
        if len(self._known) < MIN_KNOWN:
            return 0.0
        return sorted(self._known)[int(QUANTILE * (len(self._known) - 1))]

    def played(self, first_sample: int, levels: Sequence[float]) -> None:
        """Note levels of frames of FRAME samples, played to the caller from `first_sample` on."""
        for number, level in enumerate(levels):
            self._played.append((first_sample + number * FRAME, level))

    def level(self, first_sample: int) -> float:
        """Loudest playback that may echo in a microphone frame; 0 where nothing was played."""
        return max(
            (
                level
                for played, level in self._played
                if first_sample - REACH < played < first_sample + FRAME
            ),
            default=0.0,
        )

    def is_echo(self, frame: Pcm, far: float, *, is_speech: bool) -> bool:
        """True for a frame outside of utterances that is no louder than an echo of `far` may be."""
        gain, ratio = self.gain, level_of(frame) / far
        is_echo = ratio <= MARGIN * gain
        if is_echo or not is_speech:
            # No louder than is known: a quiet caller who is taken for an echo must not add to it.
            self._waiting.append(min(ratio, gain) if is_speech else ratio)
            if len(self._waiting) > DOUBTFUL:
                self._known.append(self._waiting.popleft())
        else:
            self._doubtful.append(ratio)
        return is_echo

    def speech_began(self) -> None:
        """Start an utterance: the frames just before it are not used."""
        self._doubtful.extend(self._waiting)
        self._waiting.clear()

    def speaks(self, frame: Pcm, far: float) -> None:
        """Note a frame of an utterance during the agent's speech."""
        self._doubtful.append(level_of(frame) / far)

    def speech_ended(self, *, was_echo: bool) -> None:
        """End the utterance: its ratios count if it was the agent's echo."""
        if was_echo:
            self._known.extend(self._doubtful)
        self._doubtful.clear()
