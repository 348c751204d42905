"""Reader of streamed speech: bytes of PCM or WAV, cut anywhere, to samples. Pure.

Servers are asked for PCM, and some send WAV all the same, or say the rate of their PCM in the media
type. WAV is read here and not by a library: its end is not there yet when its beginning is played,
and soundfile wants to seek.
"""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from .event_stream import MalformedStreamError

MIN_RATE_HZ: Final = 8_000
MAX_RATE_HZ: Final = 192_000

MAX_HEADER_BYTES: Final = 1 << 16
"""Longest beginning of a WAV file before its samples. Tags and cover pictures stand behind."""

MAX_SPEECH_S: Final = 120
"""Longest speech of one piece of text, which is a sentence or two. More is a loop of the model."""

_WAV: Final = b"RIFF"
_OTHERS: Final = {b"OggS": "Ogg", b"fLaC": "FLAC", b"ID3\x03": "MP3", b"ID3\x04": "MP3"}
_PCM_FORMATS: Final = (1, 0xFFFE)
_OPEN_ENDED: Final = (0, 0xFFFFFFFF)
"""Lengths that a WAV states which is written into a pipe."""

Int16 = npt.NDArray[np.int16]


class PcmReader:
    """One stream of mono or stereo 16-bit samples. The samples are the same however its bytes are
    cut."""

    def __init__(self, rate_hz: int) -> None:
        """`rate_hz`: rate of PCM; a WAV says its own. Raises MalformedStreamError for one that no
        speech has."""
        self.rate_hz = _checked(rate_hz)
        self._held = b""
        self._channels = 1
        self._is_begun = False
        """It is known what the stream is."""
        self._num_left: int | None = None
        """Bytes of the WAV's samples that are still to come; None: up to the end."""
        self._num_samples = 0

    def push(self, data: bytes) -> Int16:
        """Add bytes; returns int16 [n], the samples that are complete. `rate_hz` is right once
        there are any.

        Raises MalformedStreamError for what is no such audio, and for more than `MAX_SPEECH_S`.
        """
        held = self._held + data
        if not self._is_begun:
            start = self._beginning(held)
            if start is None:
                self._held = held
                return np.zeros(0, np.int16)
            held = held[start:]
            self._is_begun = True
        if self._num_left is not None:
            held = held[: self._num_left]
        num_bytes = len(held) - len(held) % (2 * self._channels)
        self._held = held[num_bytes:]
        if self._num_left is not None:
            self._num_left -= num_bytes
        samples = np.frombuffer(held[:num_bytes], "<i2").astype(np.int16)
        if self._channels == 2:
            pairs = samples.reshape(-1, 2).astype(np.int32)
            samples = (pairs.sum(axis=1) // 2).astype(np.int16)
        self._num_samples += len(samples)
        if self._num_samples > MAX_SPEECH_S * self.rate_hz:
            raise MalformedStreamError(f"sent more than {MAX_SPEECH_S} s of speech for one piece")
        return samples

    def _beginning(self, held: bytes) -> int | None:
        """First byte of the samples; None: more has to come first."""
        if len(held) < 4:
            return None
        other = _OTHERS.get(held[:4])
        if other is not None:
            raise MalformedStreamError(f"sent {other} where PCM was asked for")
        if not held.startswith(_WAV):
            return 0
        at = 12
        while len(held) >= at + 8:
            name, length = held[at : at + 4], struct.unpack_from("<I", held, at + 4)[0]
            at += 8
            if name == b"data":
                self._num_left = None if length in _OPEN_ENDED else length
                return at
            if name == b"fmt " and len(held) >= at + 16:
                self._read_format(*struct.unpack_from("<HHIIHH", held, at))
            at += length + length % 2
            if at > MAX_HEADER_BYTES:
                break
        if max(at, len(held)) > MAX_HEADER_BYTES:
            raise MalformedStreamError("sent a WAV file without samples")
        return None

    def _read_format(
        self, form: int, channels: int, rate_hz: int, _: int, __: int, bits: int
    ) -> None:
        if form not in _PCM_FORMATS or bits != 16 or channels not in (1, 2):
            raise MalformedStreamError("sent a WAV file that is not 16-bit PCM, mono or stereo")
        self.rate_hz, self._channels = _checked(rate_hz), channels


def _checked(rate_hz: int) -> int:
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise MalformedStreamError(f"sent audio of {rate_hz} Hz")
    return rate_hz
