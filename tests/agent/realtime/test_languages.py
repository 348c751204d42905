"""The language that a client asks for transcripts in."""

import pytest

from agent.errors import ClientError
from agent.realtime.protocol.fields import Fields
from agent.realtime.protocol.session_update import merge_session
from agent.session.api.settings import SessionSettings


def asked(language: str | None) -> SessionSettings:
    update = {
        "type": "realtime",
        "audio": {"input": {"transcription": {"language": language}}},
    }
    return merge_session(SessionSettings(agent_language="fr"), Fields(update, "session"))


@pytest.mark.parametrize(("language", "code"), [("de", "de"), ("es-MX", "es"), (None, "fr")])
def test_the_language_is_the_clients_or_else_the_agents(language: str | None, code: str) -> None:
    assert asked(language).language == code


def test_a_language_that_nobody_recognizes_is_refused() -> None:
    with pytest.raises(ClientError, match=r"no language.*de \(German\)") as caught:
        asked("xx")
    assert caught.value.param == "session.audio.input.transcription.language"
