"""A change of the language whose models are not loaded: the call goes on until they are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent.errors import ClientError, StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.deferred_requests import MAX_DEFERRED
from agent.session.ports.stage_ports import ChatMessage, SpeechResult
from agent.turn_taking.tables import Agent
from tests.support.session.session_call import Call, call_with
from tests.support.session.tool_call import CLOCK, until

pytestmark = pytest.mark.virtual_time


class Models:
    """Models of languages, of which those of English are loaded, others when a test says so."""

    def __init__(self) -> None:
        self.loaded = {"en"}
        self.asked: list[str] = []
        self.gates = {language: asyncio.Event() for language in ("de", "pt")}
        self.missing: set[str] = set()
        self.cancelled: list[str] = []

    def is_prepared(self, language: str, voice: str) -> bool:
        return language in self.loaded or language not in self.gates

    async def prepare(self, language: str, voice: str) -> str:
        self.asked.append(language)
        if language in self.loaded:
            return voice
        if language not in self.gates:
            raise ClientError(f"{language!r} is not known.", code="invalid_value")
        try:
            await self.gates[language].wait()
        except asyncio.CancelledError:
            self.cancelled.append(language)
            raise
        if language in self.missing:
            raise ClientError("The model is missing.", code="invalid_value")
        self.loaded.add(language)
        return voice


@asynccontextmanager
async def call_and_models(
    *replies: str, settings: SessionSettings | None = None
) -> AsyncIterator[tuple[Call, Models]]:
    models = Models()
    async with call_with(*replies, settings=settings) as call:
        call.session._stages = replace(
            call.session._stages, prepare_language=models.prepare, is_prepared=models.is_prepared
        )
        yield call, models


def update(settings: SessionSettings, event_id: str, **changes: Any) -> ask.UpdateSession:
    """A change as the protocol sends it: on top of those that are not answered yet."""
    return ask.UpdateSession(settings.changed(**changes), event_id, settings)


def to_language(settings: SessionSettings, language: str) -> ask.UpdateSession:
    asked = {**(settings.transcription or {}), "language": language}
    return update(settings, language, transcription=asked)


def create(event_id: str = "create") -> ask.CreateResponse:
    return ask.CreateResponse(ResponseOptions(), event_id)


def message(number: int) -> ask.CreateItem:
    return ask.CreateItem(Message(ItemId(f"mine_{number}"), "user", "text", "Hallo."))


def answers(call: Call) -> list[str]:
    """What a client is waiting for: updates by their language, errors by event id, responses, and
    its own items."""
    told: list[str] = []
    for notice in call.notices:
        match notice:
            case say.SessionUpdated(settings):
                told.append(f"updated {settings.language}")
            case say.Problem(event_id=event_id):
                told.append(f"error {event_id}")
            case say.ReplyStarted(settings=settings):
                told.append(f"response {settings.language}")
            case say.ItemAdded(item) if item.id.startswith("mine_"):
                told.append(f"item {item.id}")
    return told


async def test_the_call_goes_on_in_its_language_until_the_models_are_there() -> None:
    async with call_and_models("Hello.", "Hallo.") as (call, models):
        await call.session.handle(to_language(call.session.settings, "de"))
        await call.session.handle(ask.AppendAudio(np.zeros(480, np.int16), 24_000))
        assert call.ears.fed == [480]
        call.ears.say("How are you?")
        await call.until(say.ReplyEnded)
        assert answers(call) == ["response en"]
        assert call.ears.transcription.language == "en"
        assert models.asked == ["de"]
        await until(lambda: call.session._machine.agent is Agent.IDLE)
        models.gates["de"].set()
        await call.until(say.SessionUpdated)
        assert call.ears.transcription.language == "de"
        assert call.session._machine._state.rules.language == "de"
        call.ears.say("Wie geht es?")
        await call.until(say.ReplyEnded, 2)
        assert answers(call) == ["response en", "updated de", "response de"]


async def test_what_is_sent_behind_the_change_waits_in_order() -> None:
    async with call_and_models("Hallo.") as (call, models):
        settings = call.session.settings
        german = to_language(settings, "de")
        for request in (
            german,
            message(1),
            create(),
            update(german.settings, "fast", speed=1.5),
            message(2),
        ):
            await call.session.handle(request)
        await until(lambda: models.asked)
        assert answers(call) == []
        models.gates["de"].set()
        await call.until(say.ItemAdded, 2)
        told = answers(call)
        assert told == ["updated de", "item mine_1", "response de", "updated de", "item mine_2"]
        assert call.session.settings.speed == 1.5
        assert call.session.first_deferred is None
        await call.until(say.ReplyEnded)


@pytest.mark.parametrize("last", ["pt", "en"])
async def test_of_two_changes_the_last_one_counts_and_both_are_answered(last: str) -> None:
    async with call_and_models() as (call, models):
        german = to_language(call.session.settings, "de")
        await call.session.handle(german)
        await call.session.handle(to_language(german.settings, last))
        models.gates["pt"].set()
        await until(lambda: models.asked)
        assert answers(call) == []
        models.gates["de"].set()
        await call.until(say.SessionUpdated, 2)
        assert answers(call) == ["updated de", f"updated {last}"]
        assert call.session.settings.language == call.ears.transcription.language == last


async def test_a_change_that_fails_leaves_the_old_language_and_what_was_sent_behind_it() -> None:
    async with call_and_models("Hello.") as (call, models):
        models.missing.add("de")
        german = to_language(call.session.settings, "de")
        asked = {**(german.settings.transcription or {}), "prompt": "Ana."}
        prompted = update(german.settings, "prompt", transcription=asked)
        for request in (german, prompted, message(1), create()):
            await call.session.handle(request)
        models.gates["de"].set()
        await call.until(say.ReplyEnded)
        assert answers(call) == ["error de", "updated en", "item mine_1", "response en"]
        (problem,) = call.of(say.Problem)
        assert isinstance(problem, say.Problem)
        assert problem.message == "The model is missing."
        assert call.session.settings.transcription == {"prompt": "Ana."}
        assert (call.ears.transcription.language, call.ears.transcription.prompt) == ("en", "Ana.")


async def test_what_can_be_refused_at_once_does_not_wait_for_models() -> None:
    async with call_and_models() as (call, models):
        await call.session.handle(to_language(call.session.settings, "tlh"))
        assert answers(call) == ["error tlh"]
        call.chat.refused_tools = StageError("llm", "no such schema", refused=True)
        german = to_language(call.session.settings, "de")
        settings = german.settings.changed(tools=(CLOCK,))
        await call.session.handle(replace(german, settings=settings))
        await call.until(say.Problem, 2)
        assert answers(call) == ["error tlh", "error de"]
        assert models.asked == ["tlh"]


async def test_a_response_is_cancelled_while_models_are_loaded() -> None:
    async with call_and_models() as (call, models):
        call.chat.hold = asyncio.Event()
        await call.session.handle(message(1))
        await call.session.handle(create())
        await call.until(say.ReplyStarted)
        await call.session.handle(to_language(call.session.settings, "de"))
        await call.session.handle(ask.CancelResponse())
        (ended,) = await call.until(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert ended.status == "cancelled"
        assert call.session.first_deferred is not None
        models.gates["de"].set()
        await call.until(say.SessionUpdated)
        assert answers(call)[-1] == "updated de"


async def test_a_response_that_waits_is_cancelled_and_answered() -> None:
    async with call_and_models() as (call, models):
        german = to_language(call.session.settings, "de")
        for request in (german, create("first"), message(1), create("second")):
            await call.session.handle(request)
        await call.session.handle(ask.CancelResponse(event_id="cancel"))
        assert answers(call) == ["error first", "error second"]
        assert [each.code for each in call.of(say.Problem) if isinstance(each, say.Problem)] == [
            "response_cancelled"
        ] * 2
        models.gates["de"].set()
        await call.until(say.ItemAdded)
        await until(lambda: call.session.first_deferred is None)
        assert answers(call)[2:] == ["updated de", "item mine_1"]


async def test_a_named_response_that_is_cancelled_is_none_that_waits() -> None:
    async with call_and_models("Hallo.") as (call, models):
        await call.session.handle(to_language(call.session.settings, "de"))
        await call.session.handle(create())
        await call.session.handle(ask.CancelResponse("resp_other", "cancel"))
        assert answers(call) == ["error cancel"], "no response is in progress"
        models.gates["de"].set()
        await call.until(say.ReplyEnded)
        assert answers(call)[1:] == ["updated de", "response de"]


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_response_that_is_cancelled_while_it_is_checked_never_begins(
    is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking, gate = asyncio.Event(), asyncio.Event()

    async def check(message: ChatMessage) -> None:
        checking.set()
        await gate.wait()
        if is_refused:
            raise StageError("llm", "too long", refused=True)

    async with call_and_models("Hallo.") as (call, models):
        monkeypatch.setattr(call.chat, "check", check)
        asked = ask.CreateResponse(ResponseOptions(instructions="Sing."), "create")
        german = to_language(call.session.settings, "de")
        requests: list[ask.Request] = [german, asked, message(1)]
        for frame, request in enumerate(requests):
            await call.session.handle(request, frame)
        models.gates["de"].set()
        await checking.wait()
        assert call.session.first_deferred == 1
        await call.session.handle(ask.CancelResponse(event_id="cancel"))
        assert answers(call) == ["updated de", "error create"]
        assert call.session.first_deferred == 2, "it has been answered"
        await call.session.handle(ask.CancelResponse(event_id="again"))
        gate.set()
        await until(lambda: call.session.first_deferred is None)
        assert answers(call) == ["updated de", "error create", "error again", "item mine_1"]
        assert call.session._machine.agent is Agent.IDLE


async def test_requests_that_are_done_are_not_deferred_any_more() -> None:
    async with call_and_models() as (call, models):
        german = to_language(call.session.settings, "de")
        portuguese = to_language(german.settings, "pt")
        requests: list[ask.Request] = [german, message(1), portuguese, message(2)]
        for frame, request in enumerate(requests):
            await call.session.handle(request, frame)
        assert call.session.first_deferred == 0
        models.gates["de"].set()
        await until(lambda: models.asked == ["de", "pt"])
        assert answers(call) == ["updated de", "item mine_1"]
        assert call.session.first_deferred == 2
        models.gates["pt"].set()
        await until(lambda: call.session.first_deferred is None)
        assert answers(call)[2:] == ["updated pt", "item mine_2"]


async def test_an_error_meanwhile_is_not_the_changes() -> None:
    async with call_and_models() as (call, models):
        await call.session.handle(to_language(call.session.settings, "de"))
        await until(lambda: models.asked)
        refused = ClientError("The recording is too long.", code="invalid_value")
        call.ears.hear(SpeechResult(0, refused=refused))
        await call.until(say.Problem)
        await call.session.handle(ask.CancelResponse(event_id="cancel"))
        models.gates["de"].set()
        await call.until(say.SessionUpdated)
        assert answers(call) == ["error None", "error cancel", "updated de"]


async def test_a_call_that_ends_meanwhile_has_not_done_what_is_deferred() -> None:
    async with call_and_models() as (call, models):
        await call.session.handle(to_language(call.session.settings, "de"), 3)
        await call.session.handle(create(), 4)
        await until(lambda: models.asked)
    assert models.cancelled == ["de"]
    assert call.session.first_deferred == 3
    assert answers(call) == []


async def test_too_many_requests_wait_with_their_sender() -> None:
    async with call_and_models() as (call, models):
        await call.session.handle(to_language(call.session.settings, "de"))
        await until(lambda: models.asked)
        for number in range(MAX_DEFERRED):
            await call.session.handle(message(number))
        loop = asyncio.get_running_loop()
        late = loop.create_task(call.session.handle(message(MAX_DEFERRED)))
        await asyncio.sleep(0)
        await call.session.handle(ask.CancelResponse(event_id="cancel"))
        await call.until(say.Problem)
        assert not late.done()
        models.gates["de"].set()
        await late
        await call.until(say.ItemAdded, MAX_DEFERRED + 1)
        expected = [f"item mine_{number}" for number in range(MAX_DEFERRED + 1)]
        assert answers(call) == ["error cancel", "updated de", *expected]
