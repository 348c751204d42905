"""Speech to text for one caller or many: voice activity, endpointing, partials and finals.

`StreamingTranscriber` is all of it in one object. `AsrStream`, a `VoiceDetector` and a `Recognizer`
are its parts, for programs that run them on threads of their own. Modules that need a model runtime
are imported on first use, so that the pure parts import without one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from asr.audio.conversion import DcBlocker, Resampler, to_mono
from asr.audio.samples import (
    RATE_HZ,
    AudioFrame,
    Pcm,
    float32_to_pcm16,
    last_voiced_sample,
    ms_from_samples,
    pcm16_to_float32,
    samples_from_ms,
)
from asr.load import load_end_of_turn_model, load_recognizer, load_voice_detector
from asr.recognition.engine import (
    RawTranscript,
    RecognitionEngine,
    RecognizedWord,
    RecognizerOptions,
)
from asr.recognition.final_reuse import FinalReuse
from asr.recognition.recognizer import (
    AS_LOADED,
    FindsLanguage,
    Recognizer,
    Transcriber,
    TranscriptionOptions,
)
from asr.recognition.stabilizer import Stabilized, Stabilizer
from asr.recognition.transcripts import DecodeJob, FinalTranscript, Hypothesis, PartialTranscript
from asr.recognition.word_times import TimedWord
from asr.speech_detection.echo_gate import level_of
from asr.speech_detection.end_of_turn import EndOfTurnModel
from asr.speech_detection.endpointing import (
    Endpointer,
    EndpointEvent,
    EndpointingConfig,
    SilenceGrew,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
)
from asr.speech_detection.vad import FRAME, SileroVad, VadState, VoiceDetector
from asr.stream.asr_stream import AsrStream, CommittedBuffer, Listener, ListenerOutput
from asr.stream.utterance import ListenerConfig

from .errors import AudioError, BufferFullError, ModelError

if TYPE_CHECKING:
    from asr.audio.files import read_blocks, read_file
    from asr.contract import check_recognizer
    from asr.recognition.whisper import WhisperTranscriber, WindowPolicy
    from asr.speech_detection.turn_model import TurnModel
    from asr.stream.streaming import AsrEvent, StreamingConfig, StreamingTranscriber

_LAZY = {
    "AsrEvent": "stream.streaming",
    "StreamingConfig": "stream.streaming",
    "StreamingTranscriber": "stream.streaming",
    "TurnModel": "speech_detection.turn_model",
    "WhisperTranscriber": "recognition.whisper",
    "WindowPolicy": "recognition.whisper",
    "check_recognizer": "contract",
    "read_blocks": "audio.files",
    "read_file": "audio.files",
}

__all__ = [
    "AS_LOADED",
    "FRAME",
    "RATE_HZ",
    "AsrEvent",
    "AsrStream",
    "AudioError",
    "AudioFrame",
    "BufferFullError",
    "CommittedBuffer",
    "DcBlocker",
    "DecodeJob",
    "EndOfTurnModel",
    "EndpointEvent",
    "Endpointer",
    "EndpointingConfig",
    "FinalReuse",
    "FinalTranscript",
    "FindsLanguage",
    "Hypothesis",
    "Listener",
    "ListenerConfig",
    "ListenerOutput",
    "ModelError",
    "PartialTranscript",
    "Pcm",
    "RawTranscript",
    "RecognitionEngine",
    "RecognizedWord",
    "Recognizer",
    "RecognizerOptions",
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
    "TimedWord",
    "Transcriber",
    "TranscriptionOptions",
    "TurnModel",
    "VadState",
    "VoiceDetector",
    "WhisperTranscriber",
    "WindowPolicy",
    "check_recognizer",
    "float32_to_pcm16",
    "last_voiced_sample",
    "level_of",
    "load_end_of_turn_model",
    "load_recognizer",
    "load_voice_detector",
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
