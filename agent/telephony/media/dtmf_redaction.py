"""DTMF redaction: removes the tones of the caller's keys from recordings (card numbers).

Carriers that tell of keys may leave their tones in the sound all the same, or the beginning of
them, and forty milliseconds are enough to know a key by. So the sound is listened to for tones,
and waits for `BEHIND_MS` meanwhile, for a tone is known a little after it has begun.
"""

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.session.ports.playback import Outgoing, Playback
from agent.session.ports.stage_ports import RecordingPort

from .dtmf import DtmfDetector

BEHIND_MS: Final = 40
"""Two blocks of the ear are 26 ms. So much is silenced before a tone, and behind it."""

Int16 = npt.NDArray[np.int16]


class QuietKeys:
    """A `RecordingPort` that hands on all but tones of keys. Of the caller's sound the last
    `BEHIND_MS` of a call stay here."""

    def __init__(self, recording: RecordingPort) -> None:
        self._recording = recording
        self._ear: tuple[int, DtmfDetector] | None = None
        self._waiting: deque[tuple[Int16, int, int]] = deque()
        """Sound, its rate, and when it came."""
        self._quiet_ms = 0.0
        """Of what comes next, behind a tone."""

    def caller(self, pcm: Int16, rate_hz: int, at_ns: int) -> None:
        if self._ear is None or self._ear[0] != rate_hz:
            self._ear = rate_hz, DtmfDetector(rate_hz)
        ear = self._ear[1]
        ear.push(pcm)
        self._waiting.append((pcm, rate_hz, at_ns))
        if ear.is_tone:
            self.key_pressed()
        elif self._quiet_ms > 0:
            self._quiet_ms -= _ms(self._waiting[-1])
            self._silence()
        while sum(map(_ms, self._waiting)) - _ms(self._waiting[0]) >= BEHIND_MS:
            self._recording.caller(*self._waiting.popleft())

    def key_pressed(self) -> None:
        """By the word of somebody else who listens: what comes, and came, is a key's tone."""
        self._quiet_ms = BEHIND_MS
        self._silence()

    def _silence(self) -> None:
        """All that waits."""
        self._waiting = deque((np.zeros_like(each[0]), *each[1:]) for each in self._waiting)

    def agent(self, playback: Playback, frame: Outgoing) -> None:
        self._recording.agent(playback, frame)

    def heard(self, playback: Playback, sample: int, at_ns: int) -> None:
        self._recording.heard(playback, sample, at_ns)

    def cut(self, playback: Playback, num_samples: int) -> None:
        self._recording.cut(playback, num_samples)


def _ms(piece: tuple[Int16, int, int]) -> float:
    return 1000 * len(piece[0]) / piece[1]
