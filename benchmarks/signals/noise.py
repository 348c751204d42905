"""Seeded sounds without speech: silence, noise, tones, keyboard, crying and music on a line.

Each is float32 [n] at 16 kHz, between -1 and 1. Levels change from second to second, because a
detector that ignores a steady noise may take a swelling one for speech.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from asr.audio.samples import RATE_HZ

Float32 = npt.NDArray[np.float32]
Make = Callable[[np.random.Generator, int], Float32]

RANGE_DB: Final = (-60.0, -12.0)
"""Range of a noise's level: root mean square in dB of full scale."""


def _silence(rng: np.random.Generator, num_samples: int) -> Float32:
    """Digital silence, with the last bit of a line now and then."""
    return _clipped(np.rint(rng.normal(0, 0.3, num_samples)) / 32768)


def _white(rng: np.random.Generator, num_samples: int) -> Float32:
    return _swelling(rng, rng.standard_normal(num_samples))


def _pink(rng: np.random.Generator, num_samples: int) -> Float32:
    """Pink noise, 3 dB less per octave from 20 Hz: a room, a road, a fan."""
    spectrum = np.fft.rfft(rng.standard_normal(num_samples))
    hz = np.fft.rfftfreq(num_samples, 1 / RATE_HZ)
    return _swelling(rng, np.fft.irfft(spectrum / np.sqrt(np.maximum(hz, 20)), num_samples))


def _hum(rng: np.random.Generator, num_samples: int) -> Float32:
    """Mains hum, 50 or 60 Hz, with eight harmonics of random strength."""
    phase = 2 * np.pi * rng.choice([50.0, 60.0]) * np.arange(num_samples) / RATE_HZ
    tones = [rng.random() / k * np.sin(k * phase + rng.random() * 6) for k in range(1, 9)]
    return _swelling(rng, np.sum(tones, axis=0))


def _clicks(rng: np.random.Generator, num_samples: int) -> Float32:
    """Clicks of a few samples, two a second: bad contacts, a pen."""
    sound = np.zeros(num_samples)
    for at in rng.integers(0, max(1, num_samples - 80), 2 * num_samples // RATE_HZ):
        sound[at : at + 80] += (
            rng.uniform(0.1, 1.0)
            * rng.choice([-1, 1])
            * np.exp(-np.arange(80) / rng.uniform(2, 20))[: num_samples - at]
        )
    return _clipped(sound)


def _keyboard(rng: np.random.Generator, num_samples: int) -> Float32:
    """Typing: seven keys a second, each a press and a release of ringing plastic, in bursts with
    rests between them."""
    sound = np.zeros(num_samples)
    length = RATE_HZ // 20
    ring = np.arange(length) / RATE_HZ
    at = 0
    while (at := at + int(rng.exponential(RATE_HZ / 7))) < num_samples - 2 * length:
        if rng.random() < 0.02:
            at += int(rng.uniform(1, 5) * RATE_HZ)  # pause for reading
            continue
        for offset, strength in ((0, 1.0), (int(0.08 * RATE_HZ), 0.4)):
            tones = sum(np.sin(2 * np.pi * rng.uniform(800, 5000) * ring) for _ in range(3))
            hit = (tones + rng.standard_normal(length)) * np.exp(-ring / rng.uniform(0.003, 0.012))
            place = sound[at + offset : at + offset + length]
            place += (0.05 * strength * rng.uniform(0.3, 1.5) * hit)[: len(place)]
    return _clipped(sound)


def _beeps(rng: np.random.Generator, num_samples: int) -> Float32:
    """Ringing, busy and keypad tones, as exchanges send them (ITU-T E.180 and Q.23)."""
    pairs = [(440, 480), (480, 620), (350, 440), (697, 1209), (770, 1336), (941, 1477)]
    sound = np.zeros(num_samples)
    at = 0
    while at < num_samples:
        on, off = (int(rng.choice([0.1, 0.25, 0.5, 2.0]) * RATE_HZ) for _ in range(2))
        time = np.arange(min(on, num_samples - at)) / RATE_HZ
        tones = sum(np.sin(2 * np.pi * hz * time) for hz in pairs[rng.integers(len(pairs))])
        sound[at : at + on] = rng.uniform(0.05, 0.3) * tones
        at += on + off
    return _clipped(sound)


def _crying(rng: np.random.Generator, num_samples: int) -> Float32:
    """Approximation of a crying child: harmonics of a 350-600 Hz tone that rises and falls, a
    second long, and the breath between. A real child varies more."""
    sound = np.zeros(num_samples)
    at = 0
    while at < num_samples:
        length = min(int(rng.uniform(0.6, 1.6) * RATE_HZ), num_samples - at)
        part = np.linspace(0, 1, length)
        hz = rng.uniform(350, 500) * (1 + 0.25 * np.sin(np.pi * part) + 0.02 * np.sin(60 * part))
        phase = 2 * np.pi * np.cumsum(hz) / RATE_HZ
        voice = np.sum([np.sin(k * phase) / k**1.2 for k in range(1, 12)], axis=0)
        breath = rng.standard_normal(length) * 0.05
        sound[at : at + length] = rng.uniform(0.02, 0.2) * np.sin(np.pi * part) * (voice + breath)
        at += length + int(rng.uniform(0.2, 0.6) * RATE_HZ)
    return _clipped(sound)


def _music(rng: np.random.Generator, num_samples: int) -> Float32:
    """Approximation of music on hold: four repeated chords on a plucked instrument, a bass, and
    above them a tune on a reed with vibrato, in notes of a syllable's length. Real music varies
    more."""
    beat = int(RATE_HZ * rng.uniform(0.45, 0.65))
    chords = [(0, 4, 7), (9, 12, 16), (5, 9, 12), (7, 11, 14)]
    root_hz = 220 * 2 ** (rng.integers(-3, 4) / 12)
    sound = np.zeros(num_samples)
    for number, at in enumerate(range(0, num_samples, beat)):
        chord = chords[number // 4 % len(chords)]
        for half in chord:
            _lay(sound, at, _plucked(root_hz * 2 ** (half / 12), 3 * beat, rng.uniform(0.3, 0.6)))
        _lay(sound, at, _plucked(root_hz / 2 * 2 ** (chord[0] / 12), 2 * beat, 0.8))
        for part in range(int(rng.integers(1, 3))):
            length = int(beat * rng.choice([0.5, 1.0, 1.5]))
            tune_hz = root_hz * 2 ** ((int(rng.choice(chord)) + 12) / 12)
            _lay(sound, at + part * beat // 2, _reed(tune_hz, length, rng.uniform(0.3, 0.8)))
    return _clipped(0.1 * sound)


def _lay(sound: npt.NDArray[np.float64], at: int, note: npt.NDArray[np.float64]) -> None:
    place = sound[at : at + len(note)]
    place += note[: len(place)]


def _plucked(hz: float, length: int, level: float) -> npt.NDArray[np.float64]:
    time = np.arange(length) / RATE_HZ
    tones = [np.sin(2 * np.pi * k * hz * time) * np.exp(-k * time * 2.5) / k for k in range(1, 7)]
    note: npt.NDArray[np.float64] = level * np.sum(tones, axis=0)
    return note


def _reed(hz: float, length: int, level: float) -> npt.NDArray[np.float64]:
    time = np.arange(length) / RATE_HZ
    phase = 2 * np.pi * hz * time + 0.3 * np.sin(2 * np.pi * 5.5 * time)
    tones = [np.sin(k * phase) / k**1.1 for k in range(1, 8)]
    swell = np.minimum(1.0, np.minimum(time, time[::-1]) / 0.04)
    note: npt.NDArray[np.float64] = level * swell * np.sum(tones, axis=0)
    return note


SOUNDS: Final[Mapping[str, Make]] = MappingProxyType(
    {
        "silence": _silence,
        "white noise": _white,
        "pink noise": _pink,
        "hum": _hum,
        "clicks": _clicks,
        "keyboard": _keyboard,
        "beeps": _beeps,
        "crying": _crying,
        "music": _music,
    }
)


def make_sound(name: str, seed: int, seconds: float) -> Float32:
    """Make a sound: the same one for the same name, seed and length."""
    rng = np.random.default_rng([seed, *name.encode()])
    return SOUNDS[name](rng, int(seconds * RATE_HZ))


def _swelling(rng: np.random.Generator, sound: npt.NDArray[np.float64]) -> Float32:
    """Scale a sound to a level that wanders through `RANGE_DB`, with a new goal each second."""
    goals = rng.uniform(*RANGE_DB, len(sound) // RATE_HZ + 2)
    level_db = np.interp(np.arange(len(sound)) / RATE_HZ, np.arange(len(goals)), goals)
    rms = float(np.sqrt(np.mean(sound**2)))
    return _clipped(sound / max(rms, 1e-9) * 10 ** (level_db / 20))


def _clipped(sound: npt.NDArray[np.float64]) -> Float32:
    clipped: Float32 = np.clip(sound, -1, 1).astype(np.float32)
    return clipped
