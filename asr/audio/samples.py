"""Types and arithmetic of the internal audio format: 16 kHz mono float32, counted in samples.

Pure: arithmetic on arrays, nothing else.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from asr.errors import AudioError

Pcm = npt.NDArray[np.float32]
"""float32 [n], nominally within -1..1."""

RATE_HZ: Final = 16_000
"""Sample rate of Whisper, silero and Smart Turn. All audio is converted to it on arrival."""

VOICED_FRAME: Final = RATE_HZ // 50
"""20 ms: long enough for two periods of the lowest voice, short enough to place a word's end."""

VOICED_RANGE_DB: Final = 25.0
"""A frame this far below the utterance's loudest frames still counts as voiced. Part of the
definition of the latency that is reported (see ARCHITECTURE.md), not a knob."""

_INT16_SCALE: Final = 32768.0


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """A stretch of one caller's microphone."""

    first_sample: int
    """16 kHz samples since the call began."""
    pcm: Pcm
    """float32 [n], 16 kHz mono."""


def samples_from_ms(ms: float) -> int:
    """16 kHz samples in `ms` milliseconds, rounded to the nearest."""
    return round(ms * RATE_HZ / 1000)


def ms_from_samples(samples: int) -> float:
    """Milliseconds that `samples` samples last at 16 kHz."""
    return samples * 1000 / RATE_HZ


def pcm16_to_float32(data: bytes) -> Pcm:
    """Convert little-endian PCM16 to float32 [n]. Raises AudioError for an odd number of bytes."""
    if len(data) % 2:
        raise AudioError(f"PCM16 audio has two bytes a sample, got {len(data)} bytes")
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / np.float32(_INT16_SCALE)


def float32_to_pcm16(pcm: Pcm) -> bytes:
    """Convert float32 [n] to little-endian PCM16; what lies outside -1..1 is clipped."""
    finite = np.nan_to_num(pcm, nan=0.0, posinf=0.0, neginf=0.0)
    scaled = np.rint(np.clip(finite, -1.0, 1.0) * _INT16_SCALE)
    data: bytes = np.minimum(scaled, 32767).astype("<i2").tobytes()
    return data


def frame_rms(pcm: Pcm, frame: int = VOICED_FRAME) -> npt.NDArray[np.float64]:
    """RMS of each whole frame, float64 [len(pcm) // frame], after the mean (DC) is taken off."""
    count = len(pcm) // frame
    if count == 0:
        return np.zeros(0)
    samples = pcm[: count * frame].astype(np.float64)
    samples -= samples.mean()
    rms: npt.NDArray[np.float64] = np.sqrt((samples.reshape(count, frame) ** 2).mean(axis=1))
    return rms


def last_voiced_sample(pcm: Pcm, first_sample: int = 0) -> int | None:
    """The last sample of the last voiced frame of an utterance; None when nothing is voiced.

    `pcm` is the utterance with the silence around it, and `first_sample` its position in the call.
    A frame of 20 ms is voiced when its RMS lies within 25 dB of the utterance's 99th percentile.
    This rule, not the voice detector, is where reported latencies start.
    """
    rms = frame_rms(pcm)
    voiced = _voiced(rms, rms)
    if voiced is None:
        return None
    # Silence is no part of it: the longer it lasted, the lower a percentile of all would be.
    voiced = _voiced(rms, rms[voiced[0] : voiced[-1] + 1])
    assert voiced is not None  # its percentile is higher than the one before, not its maximum
    return first_sample + (int(voiced[-1]) + 1) * VOICED_FRAME - 1


def voiced_rms(pcm: Pcm) -> float:
    """Root mean square of the voiced frames, of full scale: how loud a voice is, whatever pauses it
    makes. 0 where nothing is voiced."""
    rms = frame_rms(pcm)
    voiced = _voiced(rms, rms)
    return 0.0 if voiced is None else float(np.sqrt(np.mean(rms[voiced] ** 2)))


def _voiced(
    rms: npt.NDArray[np.float64], utterance: npt.NDArray[np.float64]
) -> npt.NDArray[np.intp] | None:
    """Indices of the voiced frames of `rms`, relative to the loudness of `utterance`; None:
    silent."""
    if len(utterance) == 0:
        return None
    reference = float(np.quantile(utterance, 0.99))
    if reference < 1e-6:
        return None
    return np.flatnonzero(rms >= reference * math.pow(10, -VOICED_RANGE_DB / 20))


def quietest_sample(pcm: Pcm, first: int, last: int) -> int:
    """Sample to cut at, from `first` to `last`: the middle of the quietest 200 ms.

    Of equally quiet places the latest. `first` when there is no room to choose.
    """
    frame = VOICED_FRAME
    rms = frame_rms(pcm[first:last])
    width = 10
    if len(rms) <= width:
        return first
    energy = np.convolve(rms**2, np.ones(width), mode="valid")
    best = len(energy) - 1 - int(np.argmin(energy[::-1]))
    return first + (best + width // 2) * frame
