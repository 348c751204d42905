"""Telephone channel model: 300-3400 Hz at 8 kHz in mu-law (ITU-T G.712, G.711).

The service uses no other settings on such a line. No detector threshold between 0.3 and 0.7 does
better than the wide band's. The turn model separates ends from pauses about as well (the area under
its curve falls by 0.02 at most), but its log-odds at ends are 0.4 to 1.1 lower (with a head fitted
on the wide band alone; the head that ships has heard such lines, `benchmarks/end_of_turn/fit.py`).

The caller's level matters to the voice detector alone (`asr/speech_detection/agc.py`). Of 428 words
18 are wrong as recorded, 19 with the voice at -20 and -30 dB of full scale, 22 at -40, 23 at -10,
where it is clipped.

Pure but for the resampler. The band is cut in the spectrum of the whole recording, with soft edges,
so nothing is delayed and nothing rings: a recording keeps its end on the way through the line.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import soxr

from agent.codec.g711 import mulaw_decode, mulaw_encode

LINE_RATE_HZ: Final = 8_000

BAND_HZ: Final = (300.0, 3400.0)
"""Pass band of the line in Hz."""

EDGE_HZ: Final = 100.0
"""Width in Hz of each edge: a sharper edge rings for longer than a word's pause."""


def over_telephone(pcm: npt.NDArray[np.int16], rate_hz: int) -> npt.NDArray[np.int16]:
    """Pass int16 [n] mono of any rate through the line. Returns int16 [m] at `LINE_RATE_HZ`."""
    sound = pcm.astype(np.float32) / np.float32(32768)
    if rate_hz != LINE_RATE_HZ:
        sound = soxr.resample(sound, rate_hz, LINE_RATE_HZ, quality="HQ")
    if not len(sound):
        return np.zeros(0, np.int16)
    spectrum = np.fft.rfft(sound)
    hz = np.fft.rfftfreq(len(sound), 1 / LINE_RATE_HZ)
    inside = np.minimum(hz - (BAND_HZ[0] - EDGE_HZ), (BAND_HZ[1] + EDGE_HZ) - hz) / EDGE_HZ
    gain = np.sin(np.clip(inside, 0, 1) * np.pi / 2) ** 2
    passed = np.fft.irfft(spectrum * gain, len(sound))
    line = np.clip(np.rint(passed * 32768), -32768, 32767).astype(np.int16)
    return mulaw_decode(mulaw_encode(line))
