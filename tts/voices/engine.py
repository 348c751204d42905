"""Interface between a synthesis engine and the voice built on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tts.trim import Samples
from tts.word_times import PhonemeGroup


class VoiceError(RuntimeError):
    """A voice cannot be loaded or cannot speak. The message says what to do about it."""


@dataclass(frozen=True, slots=True)
class RawSpeech:
    """An engine's output for one line of words."""

    samples: Samples
    """float32 [n] at the engine's rate; empty where it has no sounds for the words."""
    groups: Sequence[PhonemeGroup] = ()
    """Samples of each stretch of phonemes between two blanks; empty where they are unknown."""


class SynthesisEngine(Protocol):
    """Interface of a synthesis engine: the part of a voice that differs between engines."""

    name: str
    """Name by which the voice was loaded."""
    rate_hz: int
    """Sample rate of the output."""

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        """Synthesize one sentence of plain words. May raise anything; may return no samples."""
        ...
