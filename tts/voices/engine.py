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
    """What an engine made of one line of words."""

    samples: Samples
    groups: Sequence[PhonemeGroup] = ()
    """Where each stretch of phonemes between two blanks lies, if the engine can tell."""


class Engine(Protocol):
    """The part of a voice that differs from engine to engine."""

    name: str
    rate_hz: int

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        """One sentence of plain words. May raise anything; may return no samples."""
        ...
