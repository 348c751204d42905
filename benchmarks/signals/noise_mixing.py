"""Sound conditions of a turn: noise at a level, a room, a telephone line.

The level is that of the voice above the noise: root mean square of the voice's voiced frames
(`asr.audio.samples.voiced_rms`, so pauses don't count) against that of the noise under the turn.
The same seed, turn and kind of noise give the same stretch of noise, whatever its level, so that
levels are compared on the same sounds. Order: the voice goes through the room, noise is added as
it is at the microphone, and the line carries both.

Pure but for the reading of files and the resampler.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import soxr

from agent.errors import BenchError
from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, Pcm, voiced_rms
from asr.errors import AudioError
from benchmarks.callers.telephone_channel import LINE_RATE_HZ, over_telephone

from .noise import make_sound
from .recordings import SUFFIXES

NUM_VOICES: Final = (3, 8)
"""Least and greatest number of voices of a babble."""

FAR_DB: Final = -12.0
"""Level in dB of a voice behind a room's impulse response, relative to the voice as recorded: four
times the distance."""

PEAK: Final = 0.99
"""Greatest sample of a mixture: a louder one is turned down as a whole, so that nothing clips."""

MakeNoise = Callable[[np.random.Generator, int], Pcm]
"""Function from a generator and a number of samples to a noise of any level, float32 [n]."""


@dataclass(frozen=True, slots=True)
class SoundCondition:
    """Conditions under which a turn is heard."""

    noise: str = ""
    """Kind of noise; empty: none."""
    snr_db: float = 0.0
    """Level of the voice above the noise in dB."""
    in_room: bool = False
    by_telephone: bool = False

    @classmethod
    def parse(cls, text: str) -> "SoundCondition":
        """Parse `clean`, or parts joined by "+": `NOISE@DB`, `room`, `telephone`. Raises
        ValueError."""
        noise, snr_db = "", 0.0
        parts = [] if text == "clean" else text.split("+")
        for part in parts:
            if part in ("room", "telephone"):
                continue
            name, at, level = part.partition("@")
            if not (name and at) or noise:
                raise ValueError(
                    f"{text!r}: a condition is `clean`, or parts joined by +: one NOISE@DB, "
                    "`room`, `telephone`"
                )
            noise, snr_db = name, float(level)
        if not math.isfinite(snr_db):
            raise ValueError(f"{text!r}: the level has to be a number of dB")
        return cls(noise, snr_db, "room" in parts, "telephone" in parts)

    def __str__(self) -> str:
        noise = [f"{self.noise}@{self.snr_db:g}"] if self.noise else []
        parts = [*noise, *["room"] * self.in_room, *["telephone"] * self.by_telephone]
        return "+".join(parts) or "clean"


def pink_noise(rng: np.random.Generator, num_samples: int) -> Pcm:
    """Steady noise, 3 dB less per octave from 20 Hz: a fan."""
    spectrum = np.fft.rfft(rng.standard_normal(num_samples))
    hz = np.fft.rfftfreq(num_samples, 1 / RATE_HZ)
    sound = np.fft.irfft(spectrum / np.sqrt(np.maximum(hz, 20)), num_samples)
    return (sound / max(1e-9, float(sound.std()))).astype(np.float32)


def _generated(name: str) -> MakeNoise:
    def make(rng: np.random.Generator, num_samples: int) -> Pcm:
        return make_sound(name, int(rng.integers(1 << 31)), (num_samples + 1) / RATE_HZ)[
            :num_samples
        ]

    return make


GENERATED: Final[Mapping[str, MakeNoise]] = MappingProxyType(
    {"fan": pink_noise, "keyboard": _generated("keyboard"), "music": _generated("music")}
)
"""Kinds of noise that need no file; a file of the same name takes their place."""


def looped(sounds: Sequence[Pcm]) -> MakeNoise:
    """Noise out of recordings: one of them, from a random start, round and round."""

    def make(rng: np.random.Generator, num_samples: int) -> Pcm:
        sound = sounds[int(rng.integers(len(sounds)))]
        return np.resize(np.roll(sound, -int(rng.integers(len(sound)))), num_samples)

    return make


def babble(voices: Sequence[Pcm]) -> MakeNoise:
    """Noise out of voices: 3 to 8 of them over each other, each as loud as the next, from a random
    start, round and round. Raises BenchError for too few."""
    levels = [(pcm, voiced_rms(pcm)) for pcm in voices]
    usable = [pcm / np.float32(level) for pcm, level in levels if level > 0]
    least, most = NUM_VOICES
    if len(usable) < least:
        raise BenchError(f"babble needs {least} voices at least, {len(usable)} were found.")

    def make(rng: np.random.Generator, num_samples: int) -> Pcm:
        count = int(rng.integers(least, min(most, len(usable)) + 1))
        mixture = np.zeros(num_samples, np.float32)
        for index in rng.permutation(len(usable))[:count]:
            voice = usable[index]
            start = int(rng.integers(len(voice)))
            mixture += np.resize(np.roll(voice, -start), num_samples)
        return mixture

    return make


def read_noises(folder: Path) -> dict[str, MakeNoise]:
    """Kinds of noise in a folder: NAME.wav (flac, ogg), or a folder NAME of such files. Raises
    BenchError."""
    found: dict[str, list[Pcm]] = {}
    if not folder.is_dir():
        raise BenchError(f"{folder}: no such folder of noises.")
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES:
            name = path.relative_to(folder).parts[0]
            pcm = read_sound(path)
            if np.any(pcm):
                found.setdefault(Path(name).stem if path.parent == folder else name, []).append(pcm)
    if not found:
        raise BenchError(f"{folder}: there is no noise in it: NAME.wav, or NAME/*.wav.")
    return {name: looped(sounds) for name, sounds in found.items()}


def read_sound(path: Path) -> Pcm:
    """Read float32 [n] at 16 kHz, mono. Raises BenchError."""
    try:
        return read_file(path)
    except (AudioError, OSError) as error:
        raise BenchError(f"{path}: {error}") from None


def impulse_response(pcm: Pcm) -> Pcm:
    """Impulse response from its direct sound on, of unit energy, so that the voice's end is where
    it was. Raises BenchError for silence."""
    energy = float(np.sqrt(np.sum(pcm.astype(np.float64) ** 2)))
    if energy == 0:
        raise BenchError("The impulse response of the room is silent.")
    return (pcm[int(np.argmax(np.abs(pcm))) :] / energy).astype(np.float32)


def reverberant(pcm: Pcm, response: Pcm) -> Pcm:
    """Voice in a room, float32 of the same length, at `FAR_DB` of its level."""
    size = 1 << (len(pcm) + len(response)).bit_length()
    spectrum = np.fft.rfft(pcm, size) * np.fft.rfft(response, size)
    heard = np.fft.irfft(spectrum, size)[: len(pcm)].astype(np.float32)
    gain = voiced_rms(pcm) / max(1e-9, voiced_rms(heard)) * 10 ** (FAR_DB / 20)
    return heard * np.float32(gain)


def noise_under(pcm: Pcm, noise: Pcm, snr_db: float) -> Pcm:
    """The noise scaled so that the voiced frames of `pcm` lie `snr_db` above it."""
    level = float(np.sqrt(np.mean(noise.astype(np.float64) ** 2)))
    gain = voiced_rms(pcm) / max(1e-9, level) * 10 ** (-snr_db / 20)
    return noise * np.float32(gain)


class Mixer:
    """Puts turns into sound conditions; the same mixture for the same seed, turn and condition."""

    def __init__(
        self, noises: Mapping[str, MakeNoise], response: Pcm | None = None, seed: int = 1
    ) -> None:
        """`response`: impulse response of the room, float32 [n] at 16 kHz."""
        self._noises = noises
        self._response = None if response is None else impulse_response(response)
        self._seed = seed

    def check(self, conditions: Iterable[SoundCondition]) -> None:
        """Raise BenchError for a condition that can't be made."""
        for one in conditions:
            if one.noise and one.noise not in self._noises:
                raise BenchError(
                    f"{one}: there is no noise {one.noise!r}, only {', '.join(self._noises)}; "
                    "--noise adds those of a folder, --babble voices."
                )
            if one.in_room and self._response is None:
                raise BenchError(f"{one}: give the room's impulse response as --room FILE.")

    def mixed(self, name: str, pcm: Pcm, condition: SoundCondition) -> Pcm:
        """Turn `name` in a condition: float32 of the length of `pcm`, 16 kHz."""
        sound = pcm
        if condition.in_room:
            assert self._response is not None, "checked"
            sound = reverberant(sound, self._response)
        if condition.noise:
            key = [self._seed, zlib.crc32(name.encode()), zlib.crc32(condition.noise.encode())]
            noise = self._noises[condition.noise](np.random.default_rng(key), len(sound))
            sound = sound + noise_under(sound, noise, condition.snr_db)
        peak = float(np.abs(sound).max(initial=0.0))
        if peak > PEAK:
            sound = sound * np.float32(PEAK / peak)
        return _by_telephone(sound) if condition.by_telephone else sound


def _by_telephone(sound: Pcm) -> Pcm:
    line = over_telephone(np.rint(sound * 32767).astype(np.int16), RATE_HZ)
    heard = soxr.resample(line.astype(np.float32) / 32768, LINE_RATE_HZ, RATE_HZ, quality="HQ")
    whole = np.zeros(len(sound), np.float32)
    length = min(len(whole), len(heard))
    whole[:length] = heard[:length]
    return whole
