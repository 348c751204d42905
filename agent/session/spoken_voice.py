"""Voice of a session in its language: the one that was asked for, or the language's own."""

import languages
from agent.session.api.settings import SessionSettings

from .response.dependencies import PrepareLanguage

NO_VOICE = ""
"""Voice of a session in which nothing speaks."""


def asked_voice(settings: SessionSettings) -> str:
    """The voice that these settings ask for; `NO_VOICE` where nothing speaks."""
    return (settings.asked_voice or settings.voice) if settings.speaks else NO_VOICE


async def with_spoken_voice(
    prepare_language: PrepareLanguage, settings: SessionSettings
) -> SessionSettings:
    """The settings with the voice that speaks their language, whose models are then loaded. What
    was asked for is kept, so that it speaks again in its own language. Where nothing speaks, no
    voice is needed; where the language is to be found, a recognizer of several is. Raises
    ClientError for a language that calls can't have here."""
    if settings.finds_language:
        await prepare_language(languages.AUTO, NO_VOICE)
    asked = settings.asked_voice or settings.voice
    if not settings.speaks:
        await prepare_language(settings.language, NO_VOICE)
        return settings.changed(voice=asked, asked_voice="")
    voice = await prepare_language(settings.language, asked)
    return settings.changed(voice=voice, asked_voice="" if voice == asked else asked)
