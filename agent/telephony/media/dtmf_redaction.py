"""DTMF redaction: removes the tones of the caller's keys from recordings (card numbers).

Carriers that report keys may still leave their tones, or the beginning of them, in the audio, and
40 ms are enough to recognize a key. So the audio is searched for tones, and is delayed by
`BEHIND_MS`, because a tone is detected shortly after its beginning.
"""

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.session.ports.playback import Outgoing, Playback
from agent.session.ports.stage_ports import RecordingPort

from .dtmf import DtmfDetector

BEHIND_MS: Final = 40
"""Audio that is silenced before a tone and after it. Two blocks of the detector are 26 ms."""

Int16 = npt.NDArray[np.int16]


class RedactedRecording:
    """A `RecordingPort` that passes on everything but tones of keys. The last `BEHIND_MS` of the
    caller's audio are not passed on."""

    def __init__(self, recording: RecordingPort) -> None:
        self._recording = recording
        self._detector: tuple[int, DtmfDetector] | None = None
        self._waiting: deque[tuple[Int16, int, int]] = deque()
        """Audio, its rate in Hz, and its time in ns."""
        self._waiting_ms = 0.0
        """Length of all of it."""
        self._quiet_ms = 0.0
        """Audio still to be silenced after a tone."""

    def caller(self, pcm: Int16, rate_hz: int, at_ns: int) -> None:
        if self._detector is None or self._detector[0] != rate_hz:
            self._detector = rate_hz, DtmfDetector(rate_hz)
        detector = self._detector[1]
        detector.push(pcm)
        self._waiting.append((pcm, rate_hz, at_ns))
        self._waiting_ms += _ms(self._waiting[-1])
        if detector.is_tone:
            self.key_pressed()
        elif self._quiet_ms > 0:
            self._quiet_ms -= _ms(self._waiting[-1])
            self._silence()
        while self._waiting_ms - (first_ms := _ms(self._waiting[0])) >= BEHIND_MS:
            self._waiting_ms -= first_ms
            self._recording.caller(*self._waiting.popleft())

    def key_pressed(self) -> None:
        """Silence the audio around now: a key was detected elsewhere, by the carrier for
        instance."""
        self._quiet_ms = BEHIND_MS
        self._silence()

    def _silence(self) -> None:
        """Silence the delayed audio."""
        self._waiting = deque((np.zeros_like(each[0]), *each[1:]) for each in self._waiting)

    def agent(self, playback: Playback, frame: Outgoing) -> None:
        self._recording.agent(playback, frame)

    def heard(self, playback: Playback, sample: int, at_ns: int) -> None:
        self._recording.heard(playback, sample, at_ns)

    def cut(self, playback: Playback, num_samples: int) -> None:
        self._recording.cut(playback, num_samples)


def _ms(piece: tuple[Int16, int, int]) -> float:
    return 1000 * len(piece[0]) / piece[1]
