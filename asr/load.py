"""Loaders of the models of speech recognition: the one place that knows which engines exist.

Each returns the interface that its callers are typed against. Recognizers of other packages are
plug-ins: nothing here changes for one.
"""

from pathlib import Path
from typing import Final

from asr.errors import ModelError
from asr.recognition.engine import RecognizerOptions
from asr.recognition.recognizer import Recognizer
from asr.speech_detection.end_of_turn import EndOfTurnModel
from asr.speech_detection.vad import SileroVad, VoiceDetector
from engine_plugins.discovery import Member, PluginError, PluginKind, load_plugin
from engine_plugins.reference import PluginReference, parse_plugin

ENGINE_MEMBERS: Final[dict[str, Member]] = {"languages": "attribute", "recognize": "method"}
"""Members of a `RecognitionEngine`."""


def load_recognizer(
    path: Path | str,
    *,
    threads: int = 2,
    compute_type: str = "int8",
    device: str = "cpu",
    language: str = "en",
) -> Recognizer:
    """Load the recognizer whose files lie at `path`; blocks for 0.5 s and more.

    A directory holds a CTranslate2 Whisper; a string like "NAME:ARGUMENT" means a plug-in.
    `language` (a code like "de") is for multilingual models; the others know only English. Raises
    ModelError when a file is missing or damaged, naming it, or when the model can't be run as
    asked.
    """
    if isinstance(path, str) and (plugin := parse_plugin(path)) is not None:
        return _plugin(plugin, RecognizerOptions(threads, device, compute_type, language))
    from asr.recognition.whisper import WhisperTranscriber

    return WhisperTranscriber.load(
        path, threads=threads, compute_type=compute_type, device=device, language=language
    )


def load_voice_detector(path: Path | str) -> VoiceDetector:
    """Load a voice activity detector: silero VAD's ONNX file. Raises ModelError when it is missing,
    damaged or another model."""
    return SileroVad.load(path)


def load_end_of_turn_model(path: Path | str, *, threads: int = 1) -> EndOfTurnModel:
    """Load an end-of-turn model: Smart Turn's ONNX file. Blocks for a quarter of a second. Raises
    ModelError when it is missing, damaged or another model."""
    from asr.speech_detection.turn_model import TurnModel

    return TurnModel.load(path, threads=threads)


def _plugin(reference: PluginReference, options: RecognizerOptions) -> Recognizer:
    from asr.recognition.engine_recognizer import EngineRecognizer

    try:
        engine = load_plugin(PluginKind.RECOGNIZER, reference, options, ENGINE_MEMBERS)
    except PluginError as error:
        raise ModelError(str(error)) from error
    return EngineRecognizer(engine, str(reference))
