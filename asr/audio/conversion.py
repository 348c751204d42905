"""Conversion of incoming audio: any rate and type of sample to 16 kHz mono float32 without offset.

Theory of operation
-------------------
*Rate.* A resampler's delay is added to every answer, so it decides the choice. libsoxr's
fixed-ratio engine filters by FFT in blocks and, fed 20 ms at a time, holds back up to 117 ms at
8 kHz and 39 ms at 48 kHz (quality HQ). Its variable-rate engine, held at one ratio, filters in the
time domain: 12 ms at 48 kHz, with images and aliases below -75 dB. So that one does the work,
except for telephones: 8 kHz is exactly half, where a half-band filter of 32 taps needs 2 ms against
soxr's 30.

Neither depends on how the input is cut: every output sample is the same sum, whatever the pieces.

*Offset.* Cheap sound cards and lines add a constant. A voice of 0.03 on an offset of 0.3 is no
voice to the detector, and silence with an offset measures as loud as the voice. So the running mean
of the last half second is subtracted: a first-order high-pass at 0.3 Hz, far below any voice.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asr.errors import AudioError

from .samples import RATE_HZ, Pcm

MIN_RATE_HZ: Final = 4_000
"""Below telephone quality there is no speech to recognize; such a rate is a client's mistake."""

MAX_RATE_HZ: Final = 192_000

_HALF_TAPS: Final = 16
"""Input samples that the half-band filter looks to each side: 2 ms. With 12 the images of telephone
speech (above 4.6 kHz for a tone at 3.4) rise from -60 to -45 dB; with 24 nothing audible is won."""

_KAISER_BETA: Final = 6.0


DECAY: Final = 1 - 2 / RATE_HZ
"""Factor by which the running mean decays each sample."""

_DC_BLOCK: Final = 512
"""Samples computed at a time: the powers of the decay stay near 1."""

_POWERS: Final = np.array([DECAY**n for n in range(1, _DC_BLOCK + 1)])


def to_mono(pcm: npt.NDArray[Any]) -> Pcm:
    """Convert int16, int32 or float [n] or [n, channels] to float32 [n] within -4..4, all finite.

    Channels are averaged: a caller who is on one channel only must be heard whichever it is.
    Raises AudioError for another shape or type of sample.
    """
    if pcm.ndim not in (1, 2) or (pcm.ndim == 2 and not 1 <= pcm.shape[1] <= 64):
        raise AudioError(f"audio is an array [n] or [n, channels], got shape {list(pcm.shape)}")
    if pcm.dtype == np.int16:
        samples = pcm.astype(np.float32) / np.float32(32768)
    elif pcm.dtype == np.int32:
        samples = (pcm / 2147483648.0).astype(np.float32)
    elif pcm.dtype in (np.float32, np.float64):
        # Clipped before the mean, so that no sum overflows; 12 dB above full scale is still speech.
        samples = np.clip(finite(pcm), -4.0, 4.0).astype(np.float32)
    else:
        raise AudioError(f"audio samples are int16, int32, float32 or float64, got {pcm.dtype}")
    if samples.ndim == 2:
        samples = samples.mean(axis=1, dtype=np.float32)
    return np.ascontiguousarray(samples)


def finite(pcm: Pcm) -> Pcm:
    """Replace NaN and infinities by 0: in a copy where there are any, else the same array."""
    if np.isfinite(pcm).all():
        return pcm
    return np.nan_to_num(pcm, nan=0.0, posinf=0.0, neginf=0.0)


class Resampler:
    """One stream of audio. Not thread-safe.

    Order of calls: `push` any number of times, `flush` once at the end. Then it is used up.
    Raises AudioError for a rate that no speech has.
    """

    def __init__(self, rate_hz: int) -> None:
        if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
            raise AudioError(
                f"a sample rate of {rate_hz} Hz is not supported, use {MIN_RATE_HZ}..{MAX_RATE_HZ}"
            )
        self.rate_hz = rate_hz
        self._stream: _Doubler | _Soxr | None = None
        if rate_hz * 2 == RATE_HZ:
            self._stream = _Doubler()
        elif rate_hz != RATE_HZ:
            self._stream = _Soxr(rate_hz)

    @property
    def delay_ms(self) -> float:
        """Largest delay in ms. `flush` returns the audio held back."""
        return 0.0 if self._stream is None else self._stream.delay_ms

    def push(self, pcm: npt.NDArray[Any]) -> Pcm:
        """Convert int16 or float [n] or [n, channels] to float32 [m] at 16 kHz."""
        mono = to_mono(pcm)
        return mono if self._stream is None else self._stream.push(mono)

    def flush(self) -> Pcm:
        """The samples still held back, float32 [m] at 16 kHz."""
        return np.zeros(0, np.float32) if self._stream is None else self._stream.flush()


class DcBlocker:
    """One stream, in pieces of any length. Not thread-safe."""

    def __init__(self) -> None:
        self._mean: float | None = None
        """Running mean; None before the first sample, which initializes it: calls begin in
        silence."""

    def push(self, pcm: Pcm) -> Pcm:
        """Filter float32 [n] at 16 kHz; returns as many samples."""
        if not len(pcm):
            return pcm
        if self._mean is None:
            self._mean = float(pcm[0])
        out = np.empty_like(pcm)
        for start in range(0, len(pcm), _DC_BLOCK):
            block = pcm[start : start + _DC_BLOCK].astype(np.float64)
            powers = _POWERS[: len(block)]
            # m[n] = DECAY m[n-1] + (1 - DECAY) x[n], for the whole block at once.
            means = powers * (self._mean + (1 - DECAY) * np.cumsum(block / powers))
            out[start : start + _DC_BLOCK] = block - means
            self._mean = float(means[-1])
        return out


def _half_band_taps() -> Pcm:
    """Taps for the samples between two input samples, float32 [2 * _HALF_TAPS], with sum 1."""
    distance = np.arange(-_HALF_TAPS, _HALF_TAPS) + 0.5
    window = np.i0(_KAISER_BETA * np.sqrt(1 - (distance / _HALF_TAPS) ** 2))
    taps = np.sinc(distance) * window
    normalized: Pcm = (taps / taps.sum()).astype(np.float32)
    return normalized


class _Doubler:
    """Half-band filter from 8 to 16 kHz: the input samples, and one interpolated between two."""

    delay_ms = _HALF_TAPS * 1000 / 8000

    def __init__(self) -> None:
        self._taps = _half_band_taps()
        self._history = np.zeros(_HALF_TAPS - 1, np.float32)
        """Input from `_HALF_TAPS - 1` samples before the next one to return."""

    def push(self, pcm: Pcm) -> Pcm:
        samples = np.concatenate([self._history, pcm])
        count = max(0, len(samples) - 2 * _HALF_TAPS + 1)
        out = np.empty(2 * count, np.float32)
        out[0::2] = samples[_HALF_TAPS - 1 : _HALF_TAPS - 1 + count]
        between = np.zeros(count, np.float32)
        for offset, tap in enumerate(self._taps):
            between += tap * samples[offset : offset + count]
        out[1::2] = between
        self._history = samples[count:]
        return out

    def flush(self) -> Pcm:
        return self.push(np.zeros(_HALF_TAPS, np.float32))


class _Soxr:
    """libsoxr's variable-rate engine at a constant ratio."""

    def __init__(self, rate_hz: int) -> None:
        import soxr

        self._stream = soxr.ResampleStream(rate_hz, RATE_HZ, 1, "float32", quality="HQ", vr=True)
        # Measured over 14 rates, fed 20 ms at a time: at most 15.05 ms above 16 kHz, and 240 input
        # samples below.
        self.delay_ms = 16.0 if rate_hz > RATE_HZ else 241_000 / rate_hz

    def push(self, pcm: Pcm) -> Pcm:
        out: Pcm = self._stream.resample_chunk(pcm)
        return out

    def flush(self) -> Pcm:
        out: Pcm = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        return out
