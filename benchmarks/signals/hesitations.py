"""Hesitations: pauses of room tone spliced into speech between its words.

Shared by the turns that the end-of-turn model is fitted on and by simulated callers. Pure.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from asr.audio.samples import RATE_HZ, Pcm, frame_rms

NOISE_DBFS: Final = (-66.0, -54.0)
"""Range of the room tone's level in dB of full scale, uniform: a quiet room with a good and with a
cheap microphone."""

FADE: Final = RATE_HZ // 200
"""Fade in samples on both sides of a splice: 5 ms."""

LEVEL_FRAME: Final = RATE_HZ // 100
"""Samples over which a level is measured to find a place between two words: 10 ms."""

_AROUND_S: Final = 0.08
"""Uncertainty of a word's time in s, on either side."""


def levels_of(pcm: Pcm) -> npt.NDArray[np.float64]:
    """RMS of each `LEVEL_FRAME` of speech."""
    return frame_rms(pcm, LEVEL_FRAME)


def quietest_frame(
    levels: npt.NDArray[np.float64], end_s: float, start_s: float
) -> tuple[int, float] | None:
    """Find the quietest frame between a word that ends at `end_s` and one that begins at `start_s`.

    Returns the sample in its middle and its level; None outside of the speech.
    """
    first = max(0, int((min(end_s, start_s) - _AROUND_S) * 100))
    around = levels[first : int((max(end_s, start_s) + _AROUND_S) * 100) + 1]
    if not len(around):
        return None
    found = first + int(np.argmin(around))
    return found * LEVEL_FRAME + LEVEL_FRAME // 2, float(levels[found])


def spliced(
    pcm: Pcm, places: Sequence[int], pauses: Sequence[int]
) -> tuple[Pcm, tuple[tuple[int, int], ...]]:
    """Put silences into speech, float32 [n] at 16 kHz. `places` are the samples to cut at,
    ascending; `pauses` the length of each silence in samples.

    Returns the longer speech, and the first sample and the sample after the last of each pause.
    """
    parts: list[Pcm] = []
    found = []
    for number, (first, last) in enumerate(zip([0, *places], [*places, len(pcm)], strict=True)):
        if number:
            begun = sum(map(len, parts))
            found.append((begun, begun + pauses[number - 1]))
            parts.append(np.zeros(pauses[number - 1], np.float32))
        parts.append(_faded(pcm[first:last], number > 0, last < len(pcm)))
    return np.concatenate(parts), tuple(found)


def room_tone(length: int, rng: np.random.Generator) -> Pcm:
    """Noise that falls by 6 dB per octave above 300 Hz, as in a quiet room; float32 [length]."""
    level = 10 ** (float(rng.uniform(*NOISE_DBFS)) / 20)
    spectrum = np.fft.rfft(rng.standard_normal(length))
    hz = np.fft.rfftfreq(length, 1 / RATE_HZ)
    noise = np.fft.irfft(spectrum / np.maximum(hz, 300.0), length)
    return (noise * (level / max(1e-12, float(noise.std())))).astype(np.float32)


def _faded(pcm: Pcm, at_begin: bool, at_end: bool) -> Pcm:
    pcm = pcm.copy()
    ramp = np.linspace(0, 1, FADE, dtype=np.float32)
    if at_begin:
        pcm[:FADE] *= ramp
    if at_end:
        pcm[-FADE:] *= ramp[::-1]
    return pcm
