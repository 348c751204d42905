"""Sender of the caller's audio: resamples, encodes and frames it."""

import base64
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import soxr

from agent.codec.pcm import encode_audio
from agent.realtime.protocol.session_json import ENCODINGS
from agent.session.api.settings import WIRE_RATE_HZ, AudioEncoding

from .connection import ClientLine

AUDIO_CHUNK_S: Final = 1
"""Longest audio of one frame. Longer recordings are sent in several frames, each well below any
server's limit."""


class AudioSender:
    """Audio input of one call."""

    def __init__(self, line: ClientLine) -> None:
        self._line = line
        self._encoding = input_encoding(line.session, "pcm16")
        self._resampler: tuple[int, int, soxr.ResampleStream] | None = None

    @property
    def rate_hz(self) -> int:
        """Rate of the wire format, in Hz. Audio at this rate is not resampled."""
        return WIRE_RATE_HZ[self._encoding]

    def follow(self, session: Mapping[str, Any]) -> None:
        """Use the input format of these session fields from now on, if they have one."""
        self._encoding = input_encoding(session, self._encoding)

    async def send(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> bool:
        """Send int16 [n], mono. Returns False where it was dropped. Raises ValueError,
        CallEndedError."""
        if pcm.dtype != np.int16 or pcm.ndim != 1:
            raise ValueError(f"audio is int16 [n], not {pcm.dtype} {list(pcm.shape)}")
        wire_hz = self.rate_hz
        if rate_hz != wire_hz:
            if self._resampler is None or self._resampler[:2] != (rate_hz, wire_hz):
                self._resampler = rate_hz, wire_hz, _resample_stream(rate_hz, wire_hz)
            pcm = self._resampler[2].resample_chunk(pcm)
        return await self._append(pcm)

    async def finish(self) -> None:
        """Send the rest of the resampler's delay."""
        if self._resampler is not None:
            _, _, stream = self._resampler
            self._resampler = None
            await self._append(stream.resample_chunk(np.zeros(0, np.int16), last=True))

    async def _append(self, pcm: npt.NDArray[np.int16]) -> bool:
        size = self.rate_hz * AUDIO_CHUNK_S
        for first in range(0, len(pcm), size):
            data = encode_audio(pcm[first : first + size], self._encoding)
            audio = base64.b64encode(data).decode("ascii")
            if not await self._line.send_now({"type": "input_audio_buffer.append", "audio": audio}):
                self._resampler = None  # what comes next does not follow it
                return False
        return True


def _resample_stream(rate_hz: int, wire_hz: int) -> soxr.ResampleStream:
    """A resampler with the variable-rate engine: it delays pieces of 20 ms by 5..30 ms, the other
    engine by 37..157 ms."""
    return soxr.ResampleStream(rate_hz, wire_hz, 1, "int16", quality="HQ", vr=True)


def input_encoding(session: Mapping[str, Any], before: AudioEncoding) -> AudioEncoding:
    """The input format of these session fields; `before` where they have none."""
    wanted = session
    for name in ("audio", "input", "format"):
        inner = wanted.get(name)
        wanted = inner if isinstance(inner, Mapping) else {}
    return ENCODINGS.get(str(wanted.get("type")), before)
