"""Language and prompt of the recognizer, from a session's settings."""

import languages
from agent.session.api.settings import SessionSettings
from asr.recognition.recognizer import TranscriptionOptions


def transcription_options(settings: SessionSettings) -> TranscriptionOptions:
    """Options of the next passes: the call's language, or those that it may be, and the prompt.
    Keywords stand in front of
    it, where Whisper's own implementations have them."""
    asked = settings.transcription or {}
    keywords = ", ".join(asked.get("keywords") or ())
    prompt = " ".join(filter(None, (keywords and f"{keywords}.", asked.get("prompt"))))
    candidates = tuple(languages.PROFILES) if settings.finds_language else ()
    return TranscriptionOptions(settings.language, prompt, candidates)
