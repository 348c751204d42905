"""Simulated microphone: plays recordings in frames of 20 ms, and silence between them. Pure except
for `load_recording`."""

from collections import deque
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import soxr

from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ as VOICED_RATE_HZ
from asr.audio.samples import last_voiced_sample
from asr.errors import AudioError

from .spoken_turn import Int16, SpokenTurn

FRAME_MS: Final = 20

Float32 = npt.NDArray[np.float32]


class RecordingError(ValueError):
    """The file can't be read as a recording. The message has its name and the reason."""


def load_recording(path: Path) -> tuple[Int16, int]:
    """Read WAV, FLAC or OGG of any rate and channel count. Returns int16 [n], mono, and its rate,
    16 kHz: speech recognition uses no more. Raises RecordingError."""
    try:
        return _to_int16(read_file(path)), VOICED_RATE_HZ
    except (AudioError, OSError) as error:
        raise RecordingError(str(error)) from None


class Microphone:
    """Queue of recordings that are spoken one after the other, at the call's rate."""

    def __init__(self, rate_hz: int, *, record: bool = False) -> None:
        """`record` keeps all frames."""
        self.rate_hz = rate_hz
        self.started_ns: int | None = None
        """Start of the first frame; None before it."""
        self._record = record
        self._given: list[Int16] = []
        self._frame = rate_hz * FRAME_MS // 1000
        self._waiting: deque[SpokenTurn] = deque()
        self._speaking: tuple[SpokenTurn, int] | None = None
        """The recording being spoken, and the number of its samples so far."""
        self._count = 0

    @property
    def busy(self) -> bool:
        return self._speaking is not None or bool(self._waiting)

    def add(self, pcm: Int16, rate_hz: int, voiced_s: float | None = None) -> SpokenTurn:
        """Queue int16 [n]. `voiced_s`: end of the speech in it, where that is known better than by
        its level."""
        sound = pcm.astype(np.float32) / np.float32(32768)
        wire = _to_int16(_resample(sound, rate_hz, self.rate_hz))
        heard = _resample(sound, rate_hz, VOICED_RATE_HZ)
        last = last_voiced_sample(heard)
        voiced = None if last is None else (last + 1) * self.rate_hz // VOICED_RATE_HZ
        if voiced_s is not None:
            voiced = round(voiced_s * self.rate_hz)
        first = last_voiced_sample(heard[::-1])  # counted from the end
        onset = 0 if first is None else (len(heard) - 1 - first) * self.rate_hz // VOICED_RATE_HZ
        self._count += 1
        exchange = SpokenTurn(self._count, wire, voiced, onset)
        self._waiting.append(exchange)
        return exchange

    def hush(self) -> None:
        """Stop the recording that is being spoken."""
        self._speaking = None

    def frame(self, at_ns: int) -> tuple[Int16, SpokenTurn | None]:
        """The frame that begins at `at_ns`, and the turn that begins with it, if one does. Each
        frame begins where the one before ends."""
        if self.started_ns is None:
            self.started_ns = at_ns
        frame, begun = self._next(at_ns)
        if self._record:
            self._given.append(frame)
        return frame, begun

    def recording(self) -> Int16:
        """All frames from the first one on. Only with `record`."""
        return np.concatenate([np.zeros(0, np.int16), *self._given])

    def _next(self, at_ns: int) -> tuple[Int16, SpokenTurn | None]:
        begun = None
        if self._speaking is None and self._waiting:
            begun = self._waiting.popleft()
            begun.begin(at_ns, self.rate_hz)
            self._speaking = begun, 0
        if self._speaking is None:
            return np.zeros(self._frame, np.int16), None
        exchange, spoken = self._speaking
        frame = exchange.pcm[spoken : spoken + self._frame]
        spoken += len(frame)
        self._speaking = (exchange, spoken) if spoken < len(exchange.pcm) else None
        return np.pad(frame, (0, self._frame - len(frame))), begun


def _resample(sound: Float32, rate_hz: int, wanted_hz: int) -> Float32:
    """The whole recording at once, so that nothing is held back while it is spoken. As float32:
    soxr's int16 output is dithered, and silence must stay silent."""
    if rate_hz == wanted_hz:
        return sound
    resampled: Float32 = soxr.resample(sound, rate_hz, wanted_hz, quality="HQ")
    return resampled


def _to_int16(sound: Float32) -> Int16:
    return np.clip(np.rint(sound * 32768), -32768, 32767).astype(np.int16)
