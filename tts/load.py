"""Loader of voices by name: the one place that knows which engines exist.

The names are "hibari", its variants, Piper voices of the models directory, and "NAME:ARGUMENT" for
voices of other packages, which are plug-ins: nothing here changes for one.
"""

from pathlib import Path

from engine_plugins.reference import parse_plugin
from tts.voices.engine import VoiceError, VoiceOptions

from .voice import PostprocessedVoice, Voice


def load_voice(name: str, models_dir: Path, *, threads: int = 1) -> Voice:
    """Load a voice by name: "hibari", a Piper voice by its folder in `models_dir` or its file, or a
    plug-in's by "NAME:ARGUMENT".

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

        return PostprocessedVoice(load_plugin_engine(plugin, VoiceOptions(threads)), name)
    if model := _piper_model(name, models_dir):
        from tts.voices.piper import PiperEngine

        return PostprocessedVoice(PiperEngine(name, model, threads=threads), name)
    known = ", ".join(available_voices(models_dir))
    raise VoiceError(f"there is no voice {name!r} in {models_dir}. Voices that exist: {known}")


def available_voices(models_dir: Path) -> tuple[str, ...]:
    """Names that `load_voice` takes: hibari, and folders of `models_dir` with a Piper model."""
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
