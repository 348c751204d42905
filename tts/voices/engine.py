"""Interface between a synthesis engine and the voice built on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

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


def joined(parts: Sequence[RawSpeech]) -> RawSpeech:
    """Join the speech of a line that was synthesized in parts."""
    if not parts:
        return RawSpeech(np.zeros(0, np.float32))
    groups: list[PhonemeGroup] = []
    offset = 0
    for part in parts:
        groups += [PhonemeGroup(group.start + offset, group.end + offset) for group in part.groups]
        offset += len(part.samples)
    return RawSpeech(np.concatenate([part.samples for part in parts]), groups)


@dataclass(frozen=True, slots=True)
class VoiceOptions:
    """Settings of `[tts]` that an engine is loaded with."""

    threads: int = 1


class SynthesisEngine(Protocol):
    """Interface of a synthesis engine: the part of a voice that differs between engines, and what a
    voice plug-in makes. One thread at a time calls it. `tts.check_voice` is the contract."""

    @property
    def rate_hz(self) -> int:
        """Sample rate of the output, 8000 to 48000."""
        ...

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        """Synthesize one sentence of plain words. `speed` 2 is twice the voice's own speed. May
        raise anything; may return no samples."""
        ...
