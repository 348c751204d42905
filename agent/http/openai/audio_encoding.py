"""Streaming audio encoders: int16 mono at 24 kHz in, bytes of a file (mp3, opus, wav ...) out.

Many headers state the length of a file; here it is not known yet, and what was sent can't be
changed. So: WAV says "unknown" as programs do that write to a pipe; Ogg Opus and raw PCM state
none. MP3 has a constant bit rate, from which players compute the length; with a variable one they
guess wrongly without a table at the start, and at 56 kbit/s libsndfile writes no table. FLAC may
say "unknown" (RFC 9639, section 8.2), but libsndfile itself then fails at the end of the file, so
FLAC is sent when it is complete.
"""

import struct
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import soundfile

from .speech_request import SpeechFormat

RATE_HZ: Final = 24_000

MEDIA_TYPES: Final[dict[SpeechFormat, str]] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}

_UNKNOWN_BYTES: Final = 0xFFFFFFFF

_PART_BYTES: Final = 1 << 18

_OPUS: Final = {"format": "OGG", "subtype": "OPUS"}
_MP3: Final = {
    "format": "MP3",
    "subtype": "MPEG_LAYER_III",
    "bitrate_mode": "CONSTANT",
    "compression_level": 0.7,  # 56 kbit/s at this rate
}


class Encoder(Protocol):
    """One stream. Any one thread at a time; encoding a sentence takes some milliseconds."""

    def push(self, pcm: npt.NDArray[np.int16]) -> bytes:
        """Encoded bytes that can be sent now; may be empty."""
        ...

    def finish(self) -> Iterator[bytes]:
        """The rest, in parts. Afterwards it is used up."""
        ...

    def close(self) -> None:
        """Let go of what it holds, wherever it stands."""
        ...


def encoder_for(form: SpeechFormat) -> Encoder:
    """A new stream in this format."""
    if form == "pcm":
        return _Pcm(b"")
    if form == "wav":
        return _Pcm(_wav_header())
    return _Flac() if form == "flac" else _Compressed(form)


def _wav_header() -> bytes:
    """Header of a WAV file of 16-bit mono with the largest length."""
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", _UNKNOWN_BYTES, b"WAVE", b"fmt ", 16, 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16),
        *(b"data", _UNKNOWN_BYTES),
    )


class _Pcm:
    def __init__(self, header: bytes) -> None:
        self._header = header

    def push(self, pcm: npt.NDArray[np.int16]) -> bytes:
        header, self._header = self._header, b""
        return header + pcm.astype("<i2").tobytes()

    def finish(self) -> Iterator[bytes]:
        return iter(())

    def close(self) -> None:
        """It holds nothing."""


class _Flac:
    """Kept on disk, as far as it is more than a megabyte."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=1 << 20)  # noqa: SIM115  # see `close`
        self._sound = soundfile.SoundFile(
            self._file, "w", RATE_HZ, 1, format="FLAC", subtype="PCM_16"
        )

    def push(self, pcm: npt.NDArray[np.int16]) -> bytes:
        self._sound.write(pcm)
        return b""

    def finish(self) -> Iterator[bytes]:
        self._sound.close()
        self._file.seek(0)
        while part := self._file.read(_PART_BYTES):
            yield part

    def close(self) -> None:
        self._sound.close()
        self._file.close()


class _Sink:
    """A file that is only ever written at its end."""

    def __init__(self) -> None:
        self._end = 0
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        self._end += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._end  # the library goes where it is already

    def tell(self) -> int:
        return self._end

    def read(self, size: int = -1) -> bytes:
        return b""  # asked for by the library's interface, and never used

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


class _Compressed:
    def __init__(self, form: SpeechFormat) -> None:
        self._sink = _Sink()
        kind = _MP3 if form == "mp3" else _OPUS
        self._sound = soundfile.SoundFile(self._sink, "w", RATE_HZ, 1, **kind)

    def push(self, pcm: npt.NDArray[np.int16]) -> bytes:
        self._sound.write(pcm)
        return self._sink.take()

    def finish(self) -> Iterator[bytes]:
        self._sound.close()
        yield self._sink.take()

    def close(self) -> None:
        self._sound.close()
