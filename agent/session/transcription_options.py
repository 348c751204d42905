"""Language and prompt of the recognizer, from a client's `audio.input.transcription`."""

from collections.abc import Mapping
from typing import Any

from asr.recognition.recognizer import AS_LOADED, TranscriptionOptions


def transcription_options(transcription: Mapping[str, Any] | None) -> TranscriptionOptions:
    """Options of the next passes. Keywords stand in front of the prompt, where Whisper's own
    implementations have them; a region ("en-US") is left off a language."""
    if transcription is None:
        return AS_LOADED
    languages = transcription.get("languages") or ()
    language = transcription.get("language") or next(iter(languages), None)
    keywords = ", ".join(transcription.get("keywords") or ())
    prompt = " ".join(filter(None, (keywords and f"{keywords}.", transcription.get("prompt"))))
    code = language.replace("_", "-").partition("-")[0].lower() if language else None
    return TranscriptionOptions(code or None, prompt)
