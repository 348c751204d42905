"""Interface of a recognition engine: the part of a recognizer that differs between engines.

`engine_recognizer.py` makes a `Recognizer` of one: it cuts long audio, keeps damaged samples away,
counts words and estimates their times. Whisper is a `Recognizer` of its own, because its windows
and retries need more.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from asr.audio.samples import Pcm

from .recognizer import TranscriptionOptions


@dataclass(frozen=True, slots=True)
class RecognizerOptions:
    """Settings of `[asr]` that an engine is loaded with."""

    threads: int = 2
    device: str = "cpu"
    """"cpu" or "cuda"."""
    compute_type: str = "int8"
    """Number format, as far as the engine has a choice."""
    language: str = "en"
    """Language of the callers, a code like "de"."""


@dataclass(frozen=True, slots=True)
class RecognizedWord:
    """A word and when it was said."""

    text: str
    """As it stands in `RawTranscript.text`; punctuation may be missing."""
    first_sample: int
    """First sample in the recognized audio, 16 kHz."""
    end_sample: int
    """Sample after the last one."""


@dataclass(frozen=True, slots=True)
class RawTranscript:
    """An engine's result for one stretch of audio."""

    text: str
    """Empty where nothing was said."""
    words: Sequence[RecognizedWord] = ()
    """The words in order; empty where their times are unknown, which are then estimated."""
    avg_logprob: float = 0.0
    """Natural log of the mean probability of a token; 0 where it is unknown. What is no number, or
    infinite, counts as a failure of the engine."""
    no_speech_prob: float = 0.0


class RecognitionEngine(Protocol):
    """Interface of a recognition engine; what a recognizer plug-in makes. One thread at a time
    calls it, and each call blocks. `asr.check_recognizer` is the contract."""

    @property
    def languages(self) -> Sequence[str]:
        """Codes of the languages that `TranscriptionOptions` may name; the first is that of
        loading."""
        ...

    def recognize(self, pcm: Pcm, options: TranscriptionOptions) -> RawTranscript:
        """Recognize float32 [n] at 16 kHz, 50 ms to 28 s of finite samples. It is called for a
        growing utterance several times a second, and for silence now and then: that has an empty
        text. A language that is None is that of loading. May raise anything."""
        ...
