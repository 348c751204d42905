"""The language that a client asks for transcripts in."""

import pytest

from agent.realtime.protocol.fields import Fields
from agent.realtime.protocol.session_update import merge_session
from agent.session.api.settings import SessionSettings


def asked(**transcription: object) -> SessionSettings:
    update = {"type": "realtime", "audio": {"input": {"transcription": transcription}}}
    return merge_session(SessionSettings(agent_language="fr"), Fields(update, "session"))


@pytest.mark.parametrize(("language", "code"), [("de", "de"), ("es-MX", "es"), (None, "fr")])
def test_the_language_is_the_clients_or_else_the_agents(language: str | None, code: str) -> None:
    assert asked(language=language).language == code


def test_a_single_one_of_several_languages_is_the_calls() -> None:
    assert asked(languages=["de-AT"]).language == "de"
    assert asked(languages=["de"], language="es").language == "es"
    assert asked(languages=[]).language == "fr"
