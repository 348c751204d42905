"""Opus codec: libopus through ctypes, with in-band FEC and DTX in both directions.

The library is the one inside of PyAV's wheel, which aiortc needs anyway, or else the system's. PyAV
itself does less with it: its decoder takes neither the redundant copy of a lost frame (FEC) from
the packet behind it nor makes comfort noise where DTX sends nothing, and a lost packet is a hole.
"""

import ctypes
import ctypes.util
import functools
import importlib.util
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FRAME_MS: Final = 20
"""Length of a frame, as browsers send them."""

MAX_PACKET_BYTES: Final = 1275
"""Longest packet of one frame (RFC 6716, section 3.4)."""

MAX_FRAME_MS: Final = 120
"""Longest audio in one packet (RFC 6716, section 3.1)."""

DTX_BYTES: Final = 2
"""A packet of no more bytes is silence that need not be sent (opus_encode in opus.h)."""

BITRATE: Final = 32_000
"""Bits a second: transparent for speech of one channel. FEC takes its share of them."""

COMPLEXITY: Final = 5
"""Of 10. A frame of speech takes 0.19 ms of the event loop, with the default, 9, 0.21 ms (one core
of a shared Xeon, 2026-11-26)."""

EXPECTED_LOSS_PERCENT: Final = 10
"""Loss that the redundant copies are made for: with 0 the encoder makes none."""

_VOIP: Final = 2048
_SET_BITRATE: Final = 4002
_SET_COMPLEXITY: Final = 4010
_SET_INBAND_FEC: Final = 4012
_SET_PACKET_LOSS_PERC: Final = 4014
_SET_DTX: Final = 4016
"""Constants of opus_defines.h."""

Int16 = npt.NDArray[np.int16]


class OpusError(ValueError):
    """libopus is missing, or refuses a packet."""


@functools.cache
def library() -> ctypes.CDLL:
    """Load libopus. Raises OpusError where there is none."""
    for path in _candidates():
        try:
            return _declared(ctypes.CDLL(path))
        except (OSError, AttributeError):
            continue
    raise OpusError("libopus is neither in PyAV's wheel nor installed on this system")


def _candidates() -> list[str]:
    found: list[str] = []
    spec = importlib.util.find_spec("av")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        for folder in (package.parent / "av.libs", package / ".dylibs"):
            found += map(str, sorted(folder.glob("*opus*")))
    system = ctypes.util.find_library("opus")
    return found if system is None else [*found, system]


def _declared(lib: ctypes.CDLL) -> ctypes.CDLL:
    number, pointer = ctypes.c_int, ctypes.c_void_p
    lib.opus_encoder_create.argtypes = [ctypes.c_int32, number, number, pointer]
    lib.opus_encoder_create.restype = pointer
    lib.opus_encoder_destroy.argtypes = [pointer]
    lib.opus_encoder_ctl.argtypes = [pointer, number]  # variadic: the value follows
    lib.opus_encode.argtypes = [pointer, pointer, number, pointer, ctypes.c_int32]
    lib.opus_encode.restype = ctypes.c_int32
    lib.opus_decoder_create.argtypes = [ctypes.c_int32, number, pointer]
    lib.opus_decoder_create.restype = pointer
    lib.opus_decoder_destroy.argtypes = [pointer]
    lib.opus_decode.argtypes = [
        pointer, ctypes.c_char_p, ctypes.c_int32, pointer, number, number,
    ]  # fmt: skip
    lib.opus_packet_get_nb_samples.argtypes = [ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32]
    return lib


class OpusEncoder:
    """Encoder of one stream, one channel."""

    def __init__(self, rate_hz: int) -> None:
        """`rate_hz`: 8000, 12000, 16000, 24000 or 48000."""
        self._lib = library()
        self._frame = rate_hz * FRAME_MS // 1000
        self._packet = ctypes.create_string_buffer(MAX_PACKET_BYTES)
        self._is_silent = False
        """The last packet was one of DTX."""
        error = ctypes.c_int()
        self._state = self._lib.opus_encoder_create(rate_hz, 1, _VOIP, ctypes.byref(error))
        if error.value or not self._state:
            raise OpusError(f"no encoder at {rate_hz} Hz: error {error.value}")
        for request, value in (
            (_SET_BITRATE, BITRATE),
            (_SET_COMPLEXITY, COMPLEXITY),
            (_SET_INBAND_FEC, 1),
            (_SET_PACKET_LOSS_PERC, EXPECTED_LOSS_PERCENT),
            (_SET_DTX, 1),
        ):
            self._lib.opus_encoder_ctl(self._state, request, ctypes.c_int(value))

    def encode(self, pcm: Int16) -> bytes | None:
        """Packet of one frame, int16 [rate / 50]; None: silence that is not sent (DTX).

        The first packet of a silence is sent, as by browsers: it tells the receiver at once that
        none will follow, where it would have to wait for one.
        """
        assert len(pcm) == self._frame
        samples = np.ascontiguousarray(pcm)
        size = self._lib.opus_encode(
            self._state, samples.ctypes.data, self._frame, self._packet, MAX_PACKET_BYTES
        )
        if size < 0:
            raise OpusError(f"a frame could not be encoded: error {size}")
        was_silent, self._is_silent = self._is_silent, size <= DTX_BYTES
        return None if self._is_silent and was_silent else self._packet.raw[:size]

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._lib.opus_encoder_destroy(self._state)


class OpusDecoder:
    """Decoder of one stream to one channel at `rate_hz`, whatever rate and channels were sent."""

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz: Final = rate_hz
        self._lib = library()
        self._pcm = np.zeros(rate_hz * MAX_FRAME_MS // 1000, np.int16)
        error = ctypes.c_int()
        self._state = self._lib.opus_decoder_create(rate_hz, 1, ctypes.byref(error))
        if error.value or not self._state:
            raise OpusError(f"no decoder at {rate_hz} Hz: error {error.value}")

    def num_samples(self, packet: bytes) -> int:
        """Length of a packet in samples. Raises OpusError for what is no packet."""
        num = self._lib.opus_packet_get_nb_samples(packet, len(packet), self.rate_hz)
        if num <= 0:
            raise OpusError(f"a packet can't be read: error {num}")
        return int(num)

    def decode(self, packet: bytes) -> Int16:
        """Audio of a packet. Raises OpusError for what is no packet."""
        return self._decoded(packet, len(self._pcm), 0)

    def recover(self, behind: bytes, num_samples: int) -> Int16:
        """Audio of a lost frame from the redundant copy in the packet behind it; concealment where
        it has none. `num_samples`: a multiple of 2.5 ms."""
        return self._decoded(behind, num_samples, 1)

    def conceal(self, num_samples: int) -> Int16:
        """Audio where nothing came: the voice fades out, noise of the room goes on.
        `num_samples`: a multiple of 2.5 ms."""
        return self._decoded(None, num_samples, 0)

    def _decoded(self, packet: bytes | None, room: int, fec: int) -> Int16:
        size = 0 if packet is None else len(packet)
        out: Any = self._pcm.ctypes.data
        num = self._lib.opus_decode(self._state, packet, size, out, room, fec)
        if num < 0:
            raise OpusError(f"a packet can't be decoded: error {num}")
        return self._pcm[:num].copy()

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._lib.opus_decoder_destroy(self._state)
