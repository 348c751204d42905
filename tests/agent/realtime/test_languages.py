"""The language that a client asks for transcripts in."""

import pytest

from agent.errors import ClientError
from agent.realtime.protocol.fields import Fields
from agent.realtime.protocol.session_update import merge_session
from agent.session.api.settings import SessionSettings


def asked(before: SessionSettings | None = None, **transcription: object) -> SessionSettings:
    update = {"type": "realtime", "audio": {"input": {"transcription": transcription}}}
    before = before or SessionSettings(agent_language="fr")
    return merge_session(before, Fields(update, "session"))


@pytest.mark.parametrize(("language", "code"), [("de", "de"), ("es-MX", "es"), (None, "fr")])
def test_the_language_is_the_clients_or_else_the_agents(language: str | None, code: str) -> None:
    assert asked(language=language).language == code


def test_a_language_that_is_to_be_found_is_english_until_it_is() -> None:
    session = asked(language="auto", prompt="Ana.")
    assert (session.language, session.finds_language) == ("en", True)
    found = session.with_language("de")
    assert (found.language, found.finds_language) == ("de", False)
    assert found.transcription == {"language": "de", "prompt": "Ana."}
    of_agent = SessionSettings(agent_language="auto")
    assert (of_agent.language, of_agent.finds_language) == ("en", True)
    assert of_agent.with_language("es").transcription == {"language": "es"}
    assert not asked(of_agent, language="fr").finds_language
    assert asked(languages=["auto"]).with_language("de").language == "de"


def test_a_single_one_of_several_languages_is_the_calls() -> None:
    assert asked(languages=["de-AT"]).language == "de"
    assert asked(languages=["de"], language="es").language == "es"
    assert asked(languages=[]).language == "fr"


def test_the_newest_of_language_and_languages_counts() -> None:
    spanish = asked(language="es", prompt="Ana.")
    german = asked(spanish, languages=["de"])
    assert german.language == "de"
    assert german.transcription == {"languages": ["de"], "prompt": "Ana."}
    assert asked(german, language="es").language == "es"
    assert asked(german, language="es").transcription == spanish.transcription
    assert asked(german, language=None).language == "de"
    assert asked(german, prompt="Eva.").language == "de"
    assert asked(spanish, languages=[]).language == "es"


def test_regions_of_one_language_are_one() -> None:
    assert asked(languages=["de", "de-AT"]).language == "de"
    with pytest.raises(ClientError, match="names several"):
        asked(languages=["de", "fr"])
    with pytest.raises(ClientError, match="names several"):
        asked(languages=["tlh", "de"])


def test_a_change_behind_one_that_was_refused_asks_for_its_own_fields_only() -> None:
    spanish = asked(language="es", keywords=["Ana"])
    german = asked(spanish, language="de")
    prompted = asked(german, prompt="Eva.")
    assert prompted.rebased(german, spanish).transcription == {
        "language": "es",
        "keywords": ["Ana"],
        "prompt": "Eva.",
    }
    several = asked(german, languages=["fr"])
    assert several.rebased(german, spanish).transcription == {
        "languages": ["fr"],
        "keywords": ["Ana"],
    }
    assert asked(german, language=None).rebased(german, spanish).language == "fr"
    none = german.changed(transcription=None)
    assert none.rebased(german, spanish).transcription is None
