"""A session's language: what follows it, at the start and when the client changes it."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from agent.calls.call_state import _settings_json, _settings_of
from agent.calls.session_start import IN_ENGLISH, SessionStart, instructions_in, session_start
from agent.config.layers import load_config
from agent.errors import ClientError, StageError
from agent.http.auth.principal import Principal
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.ports.stage_ports import APOLOGY, Speech, SpeechResult, apology_in
from asr.recognition.recognizer import TranscriptionOptions
from languages import PROFILES
from tests.support.fakes.stages import FakeVoice
from tests.support.session.session_call import Call, call_with

pytestmark = pytest.mark.virtual_time


def notices(call: Call) -> list[say.Extension]:
    return [
        each
        for each in call.of(say.Extension)
        if isinstance(each, say.Extension) and each.type == "halfsec.notice"
    ]


async def change(call: Call, language: str, **changes: Any) -> None:
    settings = call.session.settings.changed(transcription={"language": language}, **changes)
    await call.session.handle(ask.UpdateSession(settings))


async def test_a_client_changes_the_language_of_its_call() -> None:
    async with call_with("Hallo.") as call:
        assert call.ears.transcription == TranscriptionOptions("en")
        await change(call, "de")
        await call.until(say.SessionUpdated)
        assert call.ears.transcription == TranscriptionOptions("de")
        assert call.session._machine._state.rules.language == "de"
        assert notices(call) == []


async def test_a_language_that_is_not_complete_is_told() -> None:
    async with call_with("Ola.") as call:
        await change(call, "pt")
        await call.until(say.SessionUpdated)
        (notice,) = notices(call)
        assert notice.fields["param"] == "session.audio.input.transcription.language"
        assert "recognition and a voice only" in notice.fields["message"]


async def test_a_call_begins_in_its_agents_language() -> None:
    async with call_with("Hallo.", settings=SessionSettings(agent_language="de")) as call:
        assert call.ears.transcription == TranscriptionOptions("de")
        assert notices(call) == []
    async with call_with("Ola.", settings=SessionSettings(agent_language="pt")) as call:
        assert call.ears.transcription == TranscriptionOptions("pt")
        assert len(notices(call)) == 1


async def test_a_client_is_told_that_its_voice_does_not_speak_the_language() -> None:
    prepared: list[tuple[str, str]] = []

    async def prepare(language: str, voice: str) -> str:
        prepared.append((language, voice))
        return {"de": "marin"}.get(language, voice)

    async with call_with("Hallo.") as call:
        stages = replace(call.session._stages, prepare_language=prepare)
        call.session._stages = replace(stages, speaking_voice=lambda name: name)
        await change(call, "de")
        assert call.session.settings.voice == "marin"
        assert notices(call) == [], "the client has named no voice"
        await change(call, "de", voice="hibari")
        (notice,) = notices(call)
        assert notice.fields["param"] == "session.audio.output.voice"
        assert "'hibari' does not speak 'de': 'marin'" in notice.fields["message"]
        assert call.session.settings.voice == "marin"
        assert prepared == [("de", "hibari")] * 2


async def test_a_language_that_calls_cannot_have_changes_nothing() -> None:
    async def prepare(language: str, voice: str) -> str:
        raise ClientError("The model is missing.", code="invalid_value")

    async with call_with("Hello.") as call:
        call.session._stages = replace(call.session._stages, prepare_language=prepare)
        before = call.session.settings
        await change(call, "de")
        (problem,) = call.of(say.Problem)
        assert isinstance(problem, say.Problem)
        assert problem.message == "The model is missing."
        assert call.session.settings is before
        assert call.ears.transcription == TranscriptionOptions("en")
        assert not call.of(say.SessionUpdated)


FOUND = TranscriptionOptions("en", "", ("en", "de", "es", "fr"))


async def test_the_call_goes_on_in_the_language_that_is_found() -> None:
    settings = SessionSettings(agent_language="auto")
    async with call_with("Hallo.", settings=settings) as call:
        assert call.ears.transcription == FOUND
        assert call.session._machine._state.rules.language == "en"
        call.ears.hear(SpeechResult(1, language="de"))
        (updated,) = await call.until(say.SessionUpdated)
        assert isinstance(updated, say.SessionUpdated)
        assert updated.settings.transcription == {"language": "de"}
        assert call.ears.transcription == TranscriptionOptions("de")
        assert call.session._machine._state.rules.language == "de"
        call.ears.hear(SpeechResult(2, language="en"))
        await call.session.handle(ask.UpdateSession(call.session.settings))
        assert call.session.settings.language == "de", "it is found once"


async def test_a_client_asks_for_the_language_to_be_found() -> None:
    async with call_with("Hallo.") as call:
        await change(call, "auto")
        await call.until(say.SessionUpdated)
        assert call.ears.transcription == FOUND
        call.ears.hear(SpeechResult(1, language="en"))
        _, updated = await call.until(say.SessionUpdated, 2)
        assert isinstance(updated, say.SessionUpdated)
        assert updated.settings.transcription == {"language": "en"}
        assert call.ears.transcription == TranscriptionOptions("en")


async def test_a_language_that_calls_cannot_have_is_asked_for_once() -> None:
    async def prepare(language: str, voice: str) -> str:
        raise ClientError("The voice is missing.", code="invalid_value")

    settings = SessionSettings(agent_language="auto")
    async with call_with("Hello.", settings=settings) as call:
        call.session._stages = replace(call.session._stages, prepare_language=prepare)
        for utterance in (1, 2):
            call.ears.hear(SpeechResult(utterance, language="de"))
            await call.until(say.Problem) if utterance == 1 else await asyncio.sleep(0.05)
        assert len(call.of(say.Problem)) == 1
        assert call.session.settings.finds_language
        assert call.ears.transcription == FOUND


async def test_a_language_is_found_again_where_that_is_asked_for_again() -> None:
    async with call_with("Hallo.") as call:
        for number in (1, 2):
            await change(call, "auto")
            await call.until(say.SessionUpdated, 2 * number - 1)
            call.ears.hear(SpeechResult(number, language="de"))
            await call.until(say.SessionUpdated, 2 * number)
            assert call.session.settings.language == "de"


def models_load(call: Call) -> asyncio.Event:
    """From now on each language waits for its models: until this is set."""
    gate = asyncio.Event()

    async def prepare(language: str, voice: str) -> str:
        await gate.wait()
        return voice

    stages = replace(call.session._stages, prepare_language=prepare)
    call.session._stages = replace(stages, is_prepared=lambda language, voice: False)
    return gate


async def test_what_the_client_asks_for_goes_before_what_is_found() -> None:
    """Both wait for models; what was found is no request of the client's."""
    settings = SessionSettings(agent_language="auto")
    async with call_with("Hallo.", settings=settings) as call:
        gate = models_load(call)
        await change(call, "pt")
        call.ears.hear(SpeechResult(1, language="de"))
        await asyncio.sleep(0.05)
        assert call.session.first_deferred == 0
        gate.set()
        await call.until(say.SessionUpdated)
        await asyncio.sleep(0.05)
        assert call.session.settings.language == "pt"
        assert len(call.of(say.SessionUpdated)) == 1


async def test_what_is_found_is_none_of_the_clients_frames() -> None:
    settings = SessionSettings(agent_language="auto")
    async with call_with("Hallo.", settings=settings) as call:
        gate = models_load(call)
        call.ears.hear(SpeechResult(1, language="de"))
        await asyncio.sleep(0.05)
        assert call.session.first_deferred is None
        await call.session.handle(ask.CreateResponse(ResponseOptions()), 7)
        assert call.session.first_deferred == 7, "it waits behind"
        gate.set()
        await call.until(say.SessionUpdated)
        assert call.session.settings.language == "de"


async def test_what_is_found_answers_no_update_of_the_clients() -> None:
    """An update that waits behind it would count as answered: audio would be read in the old
    format, and a refusal would name an event that the client does not know."""
    settings = SessionSettings(agent_language="auto")
    protocol = RealtimeProtocol(settings, model="m")
    async with call_with("Hallo.", settings=settings) as call:
        gate = models_load(call)
        call.ears.hear(SpeechResult(1, language="de"))
        await asyncio.sleep(0.05)
        output = {"voice": "nobody", "format": {"type": "audio/pcmu"}}
        session = {"type": "realtime", "audio": {"output": output}}
        frame = {"type": "session.update", "event_id": "mine", "session": session}
        (update,) = protocol.receive(json.dumps(frame))
        assert isinstance(update, ask.UpdateSession)
        await call.session.handle(update)
        gate.set()
        (updated,) = await call.until(say.SessionUpdated)
        protocol.send(updated)
        assert protocol._asked is update.settings
        (problem,) = await call.until(say.Problem)
        (error,) = protocol.send(problem)
        assert json.loads(error)["error"]["event_id"] == "mine"


def test_another_server_goes_on_in_the_language_that_was_found() -> None:
    found = SessionSettings(agent_language="auto").with_language("de")
    kept = _settings_of(_settings_json(found))
    assert (kept.language, kept.finds_language, kept.agent_language) == ("de", False, "auto")


def test_the_apology_of_a_language() -> None:
    assert apology_in("fr") == PROFILES["fr"].sentences.apology
    assert apology_in("pt") == apology_in("en") == APOLOGY


async def test_a_voice_speaks_again_when_the_call_is_back_in_its_language() -> None:
    prepared: list[tuple[str, str]] = []

    async def prepare(language: str, voice: str) -> str:
        prepared.append((language, voice))
        return "marin" if (language, voice) == ("de", "hibari") else voice

    async with call_with("Hallo.") as call:
        call.session._stages = replace(call.session._stages, prepare_language=prepare)
        await change(call, "de")
        assert call.session.settings.voice == "marin"
        await change(call, "en")
        assert call.session.settings.voice == "hibari"
        assert call.session.settings.asked_voice == ""
        assert prepared == [("de", "hibari"), ("en", "hibari")]


async def test_a_session_that_does_not_speak_needs_no_voice() -> None:
    prepared: list[tuple[str, str]] = []

    async def prepare(language: str, voice: str) -> str:
        prepared.append((language, voice))
        return "marin" if voice == "hibari" else voice

    settings = SessionSettings(output_modality="text")
    async with call_with("Hallo.", settings=settings) as call:
        call.session._stages = replace(call.session._stages, prepare_language=prepare)
        await change(call, "de")
        assert call.session.settings.voice == "hibari"
        await change(call, "de", output_modality="audio")
        assert call.session.settings.voice == "marin"
        await change(call, "de", output_modality="text")
        assert call.session.settings.voice == "hibari"
        assert prepared == [("de", ""), ("de", "hibari"), ("de", "")]


async def test_the_agents_own_instructions_follow_the_language() -> None:
    """A client's stay as they are."""
    config = load_config({"agent.preset": "embedded"}, {}, AGENTS)
    in_language = partial(instructions_in, config, "default")
    settings = SessionSettings(instructions=in_language("en"))
    async with call_with("Hallo.", settings=settings) as call:
        call.session._options = replace(call.session._options, instructions_in=in_language)
        await change(call, "de")
        assert call.session.settings.instructions == in_language("de")
        assert in_language("de").startswith("Be kind.")
        assert PROFILES["de"].answer_in in in_language("de")
        assert call.session._context.instructions == in_language("de")
        await change(call, "en")
        assert call.session.settings.instructions == settings.instructions
        assert PROFILES["de"].answer_in not in settings.instructions
        await change(call, "de", instructions="Be brief.")
        await change(call, "pt")
        assert call.session.settings.instructions == "Be brief."


AGENTS = """
[agents.default]
instructions = "Be kind."
[agents.berlin]
instructions = "Sei freundlich."
language = "de"
"""


def test_a_bound_session_begins_with_the_prompt_of_its_language() -> None:
    config = load_config({"agent.preset": "embedded"}, {}, AGENTS)

    def started(agent: str, language: str, **bound: str) -> SessionStart:
        audio = {"input": {"transcription": {"language": language}}}
        session = {"type": "realtime", "model": agent, "audio": audio, **bound}
        start = session_start(config, Principal("me", "ephemeral", session=session), None)
        assert isinstance(start, SessionStart)
        return start

    spanish = started("default", "es")
    assert PROFILES["es"].answer_in in spanish.settings.instructions
    assert spanish.profile.examples == ()
    assert started("default", "en").profile.examples != ()
    assert started("default", "es", instructions="Mine.").settings.instructions == "Mine."
    assert IN_ENGLISH in started("berlin", "en").settings.instructions
    german = started("berlin", "de").settings.instructions
    assert german == instructions_in(config, "berlin", "de")
    assert PROFILES["de"].answer_in in german
    assert IN_ENGLISH not in german


class FewApologies(FakeVoice):
    """Keeps some apologies only."""

    def __init__(self, *kept: str) -> None:
        super().__init__()
        self.kept = kept

    async def apology(self, text: str = APOLOGY) -> Speech | None:
        return await super().apology(text) if text in self.kept else None


@pytest.mark.parametrize(
    ("kept", "said", "is_heard"),
    [("fr", "fr", True), ("de", "de", True), ("en", "en", True), ("es", "fr", False)],
)
async def test_an_apology_that_the_voice_keeps_is_heard_and_read(
    kept: str, said: str, is_heard: bool
) -> None:
    fault = StageError("llm", "The language model took too long.")
    settings = SessionSettings(agent_language="de", transcription={"language": "fr"})
    voice = FewApologies(apology_in(kept))
    async with call_with(fault, voice=voice, settings=settings) as call:
        call.ears.say("Bonjour.")
        await call.until(say.ReplyEnded)
        (ended,) = call.of(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert ended.text == apology_in(said)
        assert bool(call.of(say.ReplyAudio)) == is_heard
