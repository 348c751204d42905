"""Loader of voices by name: the one place that knows which engines exist.

The names are "hibari", its variants, "pico-de" and its like, Piper voices of the models directory,
and "NAME:ARGUMENT" for voices of other packages, which are plug-ins: nothing here changes for one.
A voice reads text by the rules of its own language: hibari is English, a Pico voice has it in the
name, a Piper voice in its settings; a plug-in's is English unless its engine has another one
(`language`, a code like "de").
"""

import json
from pathlib import Path
from typing import Final

import languages
from engine_plugins.reference import parse_plugin
from tts.voices.engine import VoiceError, VoiceOptions

from .text.normalize import rules_of
from .voice import PostprocessedVoice, Voice

PICO_PREFIX: Final = "pico-"


def load_voice(name: str, models_dir: Path, *, threads: int = 1) -> Voice:
    """Load a voice by name: "hibari", "pico-de", a Piper voice by its folder in `models_dir` or its
    file, or a plug-in's by "NAME:ARGUMENT".

    `threads` are ONNX Runtime's; one is right beside other models on few cores. Reading the model
    takes 0.5-1 s and blocks. Raises `VoiceError` when there is no such voice, saying which exist.
    """
    if threads < 1:
        raise VoiceError(f"a voice needs at least one thread, not {threads}")
    if name == "hibari" or name.startswith("hibari-"):
        from tts.voices.hibari import HibariEngine

        return PostprocessedVoice(HibariEngine(name, threads=threads), name)
    if (plugin := parse_plugin(name)) is not None:
        from tts.voices.plugin import load_plugin_engine

        engine = load_plugin_engine(plugin, VoiceOptions(threads))
        language = getattr(engine, "language", languages.ENGLISH.code)
        return _reading(PostprocessedVoice(engine, name, str(language)))
    if name.startswith(PICO_PREFIX):
        from tts.voices.pico import MAX_CALL_CHARS, PicoEngine

        language = name.removeprefix(PICO_PREFIX)
        return _reading(PostprocessedVoice(PicoEngine(name), name, language, MAX_CALL_CHARS))
    if model := _piper_model(name, models_dir):
        from tts.voices.piper import PiperEngine

        piper = PiperEngine(name, model, threads=threads)
        return _reading(PostprocessedVoice(piper, name, _piper_language(model)))
    known = ", ".join(available_voices(models_dir))
    raise VoiceError(f"there is no voice {name!r} in {models_dir}. Voices that exist: {known}")


def _reading(voice: PostprocessedVoice) -> PostprocessedVoice:
    """The voice, once it is known that text can be read in its language. Raises VoiceError."""
    try:
        rules_of(voice.language)
    except ModuleNotFoundError as error:
        raise VoiceError(
            f"the voice {voice.name} speaks {voice.language!r}, for whose numbers and dates the "
            "package num2words is needed: pip install 'halfsec[languages]'."
        ) from error
    return voice


def _piper_language(model: Path) -> str:
    """Language of a Piper voice, by the settings that its engine was loaded with."""
    settings = json.loads(Path(f"{model}.json").read_text(encoding="utf-8"))
    return languages.code_of(str(settings.get("espeak", {}).get("voice", languages.ENGLISH.code)))


def available_voices(models_dir: Path) -> tuple[str, ...]:
    """Names that `load_voice` takes and that need nothing more: hibari, and folders of `models_dir`
    with a Piper model."""
    folders = sorted(models_dir.iterdir()) if models_dir.is_dir() else []
    return ("hibari", *(folder.name for folder in folders if _piper_model(folder.name, models_dir)))


def _piper_model(name: str, models_dir: Path) -> Path | None:
    """The `.onnx` file of a Piper voice: it always has its settings beside it."""
    named = Path(name)
    candidates = [named] if named.suffix == ".onnx" else sorted((models_dir / name).glob("*.onnx"))
    for candidate in candidates:
        if candidate.is_file() and candidate.with_name(candidate.name + ".json").is_file():
            return candidate
    return None
