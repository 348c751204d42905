"""A session's language: what follows it, at the start and when the client changes it."""

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.ports.stage_ports import APOLOGY, apology_in
from languages import PROFILES
from tests.support.session.session_call import Call, call_with


def notices(call: Call) -> list[say.Extension]:
    return [
        each
        for each in call.of(say.Extension)
        if isinstance(each, say.Extension) and each.type == "halfsec.notice"
    ]


async def change(call: Call, language: str) -> None:
    settings = call.session.settings.changed(transcription={"language": language})
    await call.session.handle(ask.UpdateSession(settings))


async def test_a_client_changes_the_language_of_its_call() -> None:
    async with call_with("Hallo.") as call:
        assert (call.ears.language, call.session.settings.language) == ("en", "en")
        await change(call, "de")
        await call.until(say.SessionUpdated)
        assert (call.ears.language, call.session.settings.language) == ("de", "de")
        assert call.session._machine._state.rules.language == "de"
        assert notices(call) == []


async def test_a_language_that_is_not_complete_is_told() -> None:
    async with call_with("Ola.") as call:
        await change(call, "pt")
        await call.until(say.SessionUpdated)
        assert [each.fields["code"] for each in notices(call)] == ["language_partial"]


def test_the_apology_of_a_language() -> None:
    assert apology_in("fr") == PROFILES["fr"].sentences.apology
    assert apology_in("pt") == apology_in("en") == APOLOGY
