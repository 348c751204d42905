"""Log-mel features for Whisper, computed only where the audio is not digital silence.

Two thirds of a short window are digital silence, whose features are known. faster-whisper's
extractor computes them like any other; here only the frames are computed that a sample other than
zero falls into, and the window function is made once. The numbers are the same but for rounding.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asr.audio.samples import Pcm

HOP: Final = 160
WINDOW: Final = 400
"""Hop and window in samples: 10 and 25 ms, those of Whisper's training."""

_FLOOR: Final = 1e-10
_RANGE: Final = 8.0
"""Powers of ten below the loudest value, where the spectrogram is cut off."""


class LogMel:
    """Feature extractor. Stateless: any number of threads may use one."""

    def __init__(self, filters: npt.NDArray[Any]) -> None:
        """`filters`: float [mels, 201], from FFT bins to mel bands."""
        self._filters = filters.astype(np.float32)
        self._hann = np.hanning(WINDOW + 1)[:-1].astype(np.float32)

    def __call__(self, pcm: Pcm) -> npt.NDArray[np.float32]:
        """Features float32 [mels, n // 160] of float32 [n] at 16 kHz, n > 200."""
        log = np.full((len(self._filters), len(pcm) // HOP), np.log10(_FLOOR), np.float32)
        sounding = np.flatnonzero(pcm)
        if len(sounding):
            # Frame t is made of the samples around t * HOP; beyond the ends they are mirrored.
            first = max(0, (int(sounding[0]) - WINDOW // 2) // HOP + 1)
            last = min(log.shape[1] - 1, (int(sounding[-1]) + WINDOW // 2) // HOP)
            mirrored = np.pad(pcm, WINDOW // 2, mode="reflect")
            log[:, first : last + 1] = self._log(mirrored[first * HOP : last * HOP + WINDOW])
        np.maximum(log, log.max() - np.float32(_RANGE), out=log)
        log += np.float32(4)
        log /= np.float32(4)
        return log

    def _log(self, pcm: Pcm) -> npt.NDArray[np.float32]:
        """Log energies of all frames that lie within these samples, float32 [mels, frames]."""
        frames = np.lib.stride_tricks.sliding_window_view(pcm, WINDOW)[::HOP]
        spectrum = np.fft.rfft(frames * self._hann)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        mel: npt.NDArray[np.float32] = np.log10(np.maximum(self._filters @ power.T, _FLOOR))
        return mel
