"""DC blocker: removes the constant offset that cheap sound cards and lines add.

A voice of 0.03 on an offset of 0.3 is no voice to the detector, and silence with an offset measures
as loud as the voice. So the running mean of the last half second is
subtracted: a first-order high-pass at 0.3 Hz, far below any voice.
"""

from typing import Final

import numpy as np

from .samples import RATE_HZ, Pcm

DECAY: Final = 1 - 2 / RATE_HZ
"""Factor by which the running mean decays each sample."""

_BLOCK: Final = 512
"""Samples computed at a time: the powers of the decay stay near 1."""

_POWERS: Final = np.array([DECAY**n for n in range(1, _BLOCK + 1)])


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
        for start in range(0, len(pcm), _BLOCK):
            block = pcm[start : start + _BLOCK].astype(np.float64)
            powers = _POWERS[: len(block)]
            # m[n] = DECAY m[n-1] + (1 - DECAY) x[n], for the whole block at once.
            means = powers * (self._mean + (1 - DECAY) * np.cumsum(block / powers))
            out[start : start + _BLOCK] = block - means
            self._mean = float(means[-1])
        return out
