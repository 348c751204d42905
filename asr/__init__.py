"""Speech to text for one caller or many: voice activity, endpointing, partials and finals.

`StreamingTranscriber` is the whole in one object. `Listener` with `SileroVad` and
`WhisperTranscriber` are its parts, for owners of threads. What needs a model runtime is imported on
first use, so that the pure parts come without one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .audio import (
    RATE_HZ,
    AudioFrame,
    Pcm,
    float32_to_pcm16,
    last_voiced_sample,
    ms_from_samples,
    pcm16_to_float32,
    samples_from_ms,
    to_mono,
)
from .early import EarlyWords
from .endpointing import (
    Endpointer,
    EndpointEvent,
    EndpointingConfig,
    SilenceGrew,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
)
from .errors import AudioError, BufferFullError, ModelError
from .far_end import level_of
from .listener import CommittedBuffer, Listener, ListenerOutput
from .offset import OffsetRemover
from .resample import Resampler
from .stabilizer import Stabilized, Stabilizer
from .transcripts import DecodeJob, FinalTranscript, Hypothesis, PartialTranscript
from .utterance import ListenerConfig
from .vad import FRAME, SileroVad, VadState, VoiceDetector

if TYPE_CHECKING:
    from .files import read_blocks, read_file
    from .streaming import AsrEvent, StreamingConfig, StreamingTranscriber
    from .turn_model import TurnModel
    from .whisper import WhisperTranscriber, WindowPolicy

_LAZY = {
    "AsrEvent": "streaming",
    "StreamingConfig": "streaming",
    "StreamingTranscriber": "streaming",
    "TurnModel": "turn_model",
    "WhisperTranscriber": "whisper",
    "WindowPolicy": "whisper",
    "read_blocks": "files",
    "read_file": "files",
}

__all__ = [
    "FRAME",
    "RATE_HZ",
    "AsrEvent",
    "AudioError",
    "AudioFrame",
    "BufferFullError",
    "CommittedBuffer",
    "DecodeJob",
    "EarlyWords",
    "EndpointEvent",
    "Endpointer",
    "EndpointingConfig",
    "FinalTranscript",
    "Hypothesis",
    "Listener",
    "ListenerConfig",
    "ListenerOutput",
    "ModelError",
    "OffsetRemover",
    "PartialTranscript",
    "Pcm",
    "Resampler",
    "SilenceGrew",
    "SileroVad",
    "SpeechPaused",
    "SpeechResumed",
    "SpeechStarted",
    "Stabilized",
    "Stabilizer",
    "StreamingConfig",
    "StreamingTranscriber",
    "TurnModel",
    "VadState",
    "VoiceDetector",
    "WhisperTranscriber",
    "WindowPolicy",
    "float32_to_pcm16",
    "last_voiced_sample",
    "level_of",
    "ms_from_samples",
    "pcm16_to_float32",
    "read_blocks",
    "read_file",
    "samples_from_ms",
    "to_mono",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
