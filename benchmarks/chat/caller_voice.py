"""Speaks the lines of the dialogues' callers, with their hesitations.

The voice is not the agent's: an agent that hears its own voice is the easier case. Every line is
in the room tone that its pauses have, and ends with more of it, so that no pause is told from a
turn's end by its silence.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import soxr

import tts
from agent.errors import BenchError
from asr.audio.samples import RATE_HZ, Pcm, samples_from_ms
from benchmarks.signals.hesitations import (
    FADE,
    levels_of,
    quietest_frame,
    room_tone,
    spliced,
)
from tts.text_chunker import SpeakablePiece

from .dialogue import DialogueTurn, Hesitation

TAIL_MS: Final = 2500
"""Room tone behind a line in ms: longer than the agent waits for the end of a turn."""


@dataclass(frozen=True, slots=True)
class SpokenLine:
    """A line of a caller as sound."""

    pcm: npt.NDArray[np.int16]
    """[n], mono, at `asr.audio.samples.RATE_HZ`, with the room tone behind it."""
    speech_s: float
    """Length in s without that."""


@dataclass(frozen=True, slots=True)
class LineWord:
    """A word of a line, and when it is spoken."""

    first_char: int
    end_char: int
    start_s: float
    end_s: float


class CallerVoice:
    """A voice that keeps what it has spoken. Blocks while it synthesizes; one thread at a time."""

    def __init__(self, voice: tts.Voice) -> None:
        self._voice = voice
        self._spoken: dict[tuple[str, tuple[Hesitation, ...]], SpokenLine] = {}

    @property
    def name(self) -> str:
        return self._voice.name

    def speak(self, turn: DialogueTurn) -> SpokenLine:
        """Synthesize a turn's line, or return it if it was spoken before. Raises BenchError."""
        key = turn.caller, turn.pauses
        if key not in self._spoken:
            try:
                pcm, words = self._synthesize(turn.caller)
            except tts.VoiceError as error:
                raise BenchError(f"The caller can't speak: {error}") from None
            self._spoken[key] = in_room(hesitant(pcm, words, turn), turn.caller)
        return self._spoken[key]

    def _synthesize(self, text: str) -> tuple[Pcm, list[LineWord]]:
        """Speech at `RATE_HZ` and its words."""
        rate_hz = self._voice.rate_hz
        parts: list[npt.NDArray[np.int16]] = []
        words: list[LineWord] = []
        for chunk in self._voice.synthesize(SpeakablePiece(text, (0, len(text)), 0, is_last=True)):
            before = sum(map(len, parts))
            words += [
                LineWord(
                    *word.text_span,
                    (before + word.start_sample) / rate_hz,
                    (before + word.end_sample) / rate_hz,
                )
                for word in chunk.word_times
            ]
            parts.append(chunk.pcm)
        if not words:
            raise BenchError(f"The caller can't speak {text!r}: it has no words.")
        sound = np.concatenate(parts).astype(np.float32) / np.float32(32768)
        return soxr.resample(sound, rate_hz, RATE_HZ, quality="HQ"), words


def hesitant(pcm: Pcm, words: Sequence[LineWord], turn: DialogueTurn) -> Pcm:
    """Splice a turn's pauses into its line, at the quietest place between the two words. Raises
    BenchError if there is no place for one."""
    levels = levels_of(pcm)
    places: list[int] = []
    for pause in turn.pauses:
        ends = [word.end_s for word in words if word.end_char <= pause.at_char]
        starts = [word.start_s for word in words if word.first_char >= pause.at_char]
        place = quietest_frame(levels, ends[-1], starts[0]) if ends and starts else None
        if place is None or place[0] - (places[-1] if places else 0) < 2 * FADE:
            raise BenchError(
                f"The caller can't pause before {turn.caller[pause.at_char :]!r}: there is no "
                "place between the words, or it is that of another pause."
            )
        places.append(place[0])
    lengths = [samples_from_ms(pause.length_ms) for pause in turn.pauses]
    return spliced(pcm, places, lengths)[0]


def in_room(speech: Pcm, seed: str) -> SpokenLine:
    """Speech in room tone of `TAIL_MS` more; the same for the same seed."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    sound = np.pad(speech, (0, samples_from_ms(TAIL_MS)))
    sound = np.clip(sound + room_tone(len(sound), rng), -1, 1)
    pcm = np.rint(sound * 32767).astype(np.int16)
    return SpokenLine(pcm, len(speech) / RATE_HZ)
