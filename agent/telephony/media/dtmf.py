"""DTMF: detector of keys in audio, and generator of their tones.

A key is two tones at once (ITU-T Q.23), one of four low and one of four high frequencies. They are
detected as with Goertzel filters, by eight bins of a Fourier transform over blocks of 12.75 ms; two
blocks in a row have to agree, so that a tone of 40 ms is a key and one of 20 ms is none (Q.24).
Speech contains both frequencies at times, but always with others: the two tones have to hold most
of the block's energy, and exceed the other frequencies of their group.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

RATE_HZ: Final = 8_000
LOW_HZ: Final = (697, 770, 852, 941)
HIGH_HZ: Final = (1209, 1336, 1477, 1633)
KEYS: Final = "123A456B789C*0#D"

BLOCK: Final = 102
"""Samples at 8 kHz. Longer blocks separate frequencies better, and detect short tones worse."""
AGREEING: Final = 2
"""Blocks in a row that begin a key, or end it."""

LEAST_LEVEL: Final = 10 ** (-36 / 20)
"""Amplitude of each tone, as a fraction of full scale, at least. Carriers accept keys down to
-25 dBm, about -28 dB of full scale, and lines attenuate them by a few dB more."""
CLEAR_DB: Final = 8.0
"""Level of the strongest tone of a group over each of the others, at least."""
HIGH_OVER_LOW_DB: Final = 4.0
LOW_OVER_HIGH_DB: Final = 8.0
"""Largest twist in each direction. Lines attenuate high tones more than low ones."""
SHARE: Final = 0.75
"""Share of the block's energy in the two tones, at least. Steady tones have all of it; a vowel has
a third."""

TONE_HZ: Final = 1400
TONE_DB: Final = -14.0
"""Level of the recorder tone, relative to full scale."""
RAMP_S: Final = 0.01
"""Fade at both ends of the recorder tone: a tone that is cut off clicks."""

Int16 = npt.NDArray[np.int16]


class DtmfDetector:
    """Detects keys in audio, in pieces of any length. Not thread-safe."""

    def __init__(self, rate_hz: int = RATE_HZ) -> None:
        """`rate_hz`: sample rate of the audio."""
        self._block = BLOCK * rate_hz // RATE_HZ
        angles = 2j * np.pi * np.outer((*LOW_HZ, *HIGH_HZ), np.arange(self._block)) / rate_hz
        self._filters = np.exp(-angles).T * (2 / self._block)
        self.is_tone = False
        """The audio that was pushed last has a key's tone, or the end of one."""
        self._rest: Int16 = np.zeros(0, np.int16)
        self._last = ""
        self._in_a_row = 0
        self._pressed = ""

    def push(self, pcm: Int16) -> list[str]:
        """Keys that begin in this audio. `pcm`: int16 [n]."""
        sound = np.concatenate([self._rest, pcm])
        count = len(sound) // self._block
        self._rest = sound[count * self._block :]
        blocks = sound[: count * self._block].reshape(count, self._block) / 32768
        self.is_tone = bool(self._last)
        keys = []
        for block in blocks:
            heard = self._key(block)
            self.is_tone = self.is_tone or bool(heard)
            if key := self._next(heard):
                keys.append(key)
        return keys

    def _next(self, key: str) -> str:
        """Key that begins with this block; empty without one."""
        self._in_a_row = self._in_a_row + 1 if key == self._last else 1
        self._last = key
        if self._in_a_row < AGREEING or key == self._pressed:
            return ""
        self._pressed = key
        return key

    def _key(self, block: npt.NDArray[np.float64]) -> str:
        """Key whose tones a block has; empty without one."""
        energy = float(np.mean(block * block))
        if energy < LEAST_LEVEL**2:  # of two tones, each half of its square
            return ""
        levels = np.abs(block @ self._filters)
        low, high = levels[:4], levels[4:]
        row, column = int(np.argmax(low)), int(np.argmax(high))
        tones = low[row] ** 2 / 2 + high[column] ** 2 / 2
        twist_db = 20 * np.log10(max(high[column], 1e-9) / max(low[row], 1e-9))
        is_key = (
            min(low[row], high[column]) >= LEAST_LEVEL
            and -LOW_OVER_HIGH_DB <= twist_db <= HIGH_OVER_LOW_DB
            and _is_clear(low, row)
            and _is_clear(high, column)
            and tones >= SHARE * energy
        )
        return KEYS[4 * row + column] if is_key else ""


def _is_clear(levels: npt.NDArray[np.float64], strongest: int) -> bool:
    others = np.delete(levels, strongest)
    return bool(levels[strongest] >= 10 ** (CLEAR_DB / 20) * others.max())


def sound_of(
    keys: str,
    *,
    rate_hz: int = RATE_HZ,
    on_ms: int = 100,
    off_ms: int = 100,
    level_db: float = -12.0,
) -> Int16:
    """Tones of keys in sequence, int16 [n]. `level_db`: level of each tone, relative to full scale.
    Raises ValueError for an invalid key."""
    length = rate_hz * on_ms // 1000
    pause = np.zeros(rate_hz * off_ms // 1000)
    time_s = np.arange(length) / rate_hz
    parts = []
    for key in keys:
        if key not in KEYS:
            raise ValueError(f"{key!r} is no key of a telephone; there are {KEYS}")
        row, column = divmod(KEYS.index(key), 4)
        tones = np.sin(2 * np.pi * LOW_HZ[row] * time_s)
        tones += np.sin(2 * np.pi * HIGH_HZ[column] * time_s)
        parts += [tones * 10 ** (level_db / 20), pause]
    sound = np.concatenate(parts) if parts else np.zeros(0)
    return np.asarray(np.round(sound * 32767), dtype=np.int16)


def recorder_tone(rate_hz: int) -> Int16:
    """Tone that announces a recording, int16 [n]: 1400 Hz, as regulators require."""
    time_s = np.arange(rate_hz // 2) / rate_hz
    fade = np.minimum(1.0, np.minimum(time_s, time_s[::-1]) / RAMP_S)
    sound = 10 ** (TONE_DB / 20) * np.sin(2 * np.pi * TONE_HZ * time_s) * fade
    return np.asarray(np.round(sound * 32767), dtype=np.int16)
