"""A whole session on fake stages: messages that the model gets ahead, refuses, or never gets."""

import asyncio

import pytest

from agent.errors import StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, Message
from agent.session.api.ids import Identifiers
from agent.session.api.settings import ResponseOptions, SemanticVad
from agent.session.context import prefill_scheduler
from agent.session.ports.stage_ports import SpeechResult
from agent.turn_taking import events as ev
from agent.turn_taking import reopening
from latency_budget.account.turn import SessionId
from tests.support.session.session_call import call_with

pytestmark = pytest.mark.virtual_time


async def test_changes_are_prefilled_before_the_caller_speaks() -> None:
    async with call_with() as call:
        settings = call.session.settings.changed(instructions="Be kind.")
        await call.session.handle(ask.UpdateSession(settings))
        await call.session.handle(ask.CreateItem(Message(ItemId("a"), "user", "text", "Hello")))
        await call.chat.warmed.wait()
        assert call.chat.calls == [("system", "Be kind."), ("user", "Hello"), ("preview", "")]
        call.chat.warmed.clear()
        await call.session.handle(ask.DeleteItem(ItemId("a")))
        await call.chat.warmed.wait()
        assert call.chat.calls[3:] == [("reset", ()), ("preview", "")]


async def test_nothing_is_warmed_during_a_reply_but_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefill_scheduler, "QUIET_S", 0)
    async with call_with("Fine.") as call:
        await call.chat.warmed.wait()
        call.chat.warmed.clear()
        call.chat.hold = asyncio.Event()
        options = ResponseOptions(output_modality="text")
        await call.session.handle(ask.CreateResponse(options))
        await call.chat.generating.wait()
        await call.session.handle(ask.CreateItem(Message(ItemId("a"), "user", "text", "Hello")))
        for _ in range(20):
            await asyncio.sleep(0)
        assert call.chat.calls[1:] == [("generate", 1)]
        call.chat.hold.set()
        await call.chat.warmed.wait()
    assert call.chat.calls[1:] == [("generate", 1), ("user", "Hello"), ("preview", "")]


def partial(utterance: int, text: str) -> SpeechResult:
    return SpeechResult(utterance, partial=(text, 0))


async def test_words_are_computed_while_the_caller_still_speaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reopening, "REOPEN_NS", 0)
    async with call_with("Fine.") as call:
        await call.chat.warmed.wait()
        call.ears.words[1] = "What time is it?"
        call.ears.hear(ev.SpeechStarted(1, 0))
        for words in ("What", "What time"):
            call.chat.warmed.clear()
            call.ears.hear(partial(1, words))
            await call.chat.warmed.wait()
        call.ears.hear(ev.SpeechPaused(1, 0))
        call.ears.hear(partial(1, "What time is"))  # in the pause the final pass goes first
        call.ears.hear(ev.SilenceGrew(1, 350))
        await call.until(say.ReplyEnded)
        call.chat.warmed.clear()
        call.ears.hear(ev.SpeechStarted(2, 0))
        call.ears.hear(partial(2, "No, and where"))
        await call.chat.warmed.wait()
    previews = [text for kind, text in call.chat.calls if kind == "preview"]
    assert previews == ["", "What", "What time", "No, and where"]


async def test_no_prefill_when_disabled_in_the_settings() -> None:
    """No reply in the pause, no words before the message is complete."""
    async with call_with("Fine.", ahead=False) as call:
        await call.chat.warmed.wait()
        call.ears.words[1] = "What time is it?"
        call.ears.hear(ev.SpeechStarted(1, 0))
        call.ears.hear(partial(1, "What"))
        call.ears.hear(ev.SpeechPaused(1, 0))
        call.ears.hear(ev.SilenceGrew(1, 100))
        call.ears.hear(ev.SilenceGrew(1, 350))
        await call.until(say.ReplyEnded)
    assert call.chat.calls == [("preview", ""), ("user", "What time is it?"), ("generate", 1)]


async def test_a_message_without_words_leaves_none_behind() -> None:
    async with call_with() as call:
        await call.chat.warmed.wait()
        call.ears.words[1] = ""
        call.ears.hear(ev.SpeechStarted(1, 0))
        call.chat.warmed.clear()
        call.ears.hear(partial(1, "You"))
        await call.chat.warmed.wait()
        call.ears.hear(ev.SpeechPaused(1, 0))
        call.ears.hear(ev.SilenceGrew(1, 800))
        call.chat.warmed.clear()
        await call.session.handle(ask.CreateItem(Message(ItemId("a"), "user", "text", "Hello")))
        await call.chat.warmed.wait()
    assert call.chat.calls == [
        ("preview", ""),
        ("preview", "You"),
        ("user", "Hello"),
        ("preview", ""),
    ]


async def test_a_reply_ends_the_warming_that_is_under_way() -> None:
    async with call_with("Fine.") as call:
        call.chat.warming = asyncio.Event()
        await call.chat.warmed.wait()
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded)
    assert call.chat.calls == [("preview", ""), ("preview cancelled", ""), ("generate", 1)]


async def test_what_the_model_refuses_while_it_is_warmed_is_a_problem() -> None:
    async with call_with("Fine.") as call:
        call.chat.refusals = [StageError("llm", "too long", refused=True)]
        await call.session.handle(ask.CreateItem(Message(ItemId("a"), "user", "text", "x" * 99)))
        problems = await call.until(say.Problem)
        assert problems == [say.Problem("too long", "invalid_value")]
        call.ears.say("Hello?")
        await call.until(say.ReplyEnded)
        ended = call.of(say.ReplyEnded)[0]
        assert isinstance(ended, say.ReplyEnded)
        assert ended.status == "completed"


async def test_a_reply_cancelled_before_its_first_word_leaves_the_one_before() -> None:
    async with call_with("Fine.", "Good.") as call:
        text = ResponseOptions(output_modality="text")
        await call.session.handle(ask.CreateResponse(text))
        await call.until(say.ReplyEnded)
        call.chat.hold = asyncio.Event()
        await call.session.handle(ask.CreateResponse(text))
        call.chat.generating.clear()
        await call.chat.generating.wait()
        await call.session.handle(ask.CancelResponse())
        call.chat.hold.set()
        await call.session.handle(ask.CreateResponse(text))
        await call.until(say.ReplyEnded, 3)
    assert [name for name, _ in call.chat.calls if name == "truncate"] == []


async def test_options_of_a_cancelled_request_are_forgotten() -> None:
    async with call_with("Right.") as call:
        settings = call.session.settings.changed(turn_detection=None)
        await call.session.handle(ask.UpdateSession(settings))
        await call.session.handle(ask.CommitAudio())
        options = ResponseOptions(output_modality="text", metadata={"stale": "yes"})
        await call.session.handle(ask.CreateResponse(options))  # waits for the words
        await call.session.handle(ask.CancelResponse())
        call.ears.hear(ev.TranscriptReady(call.ears.utterance, 1, "Pushed to talk."))
        await call.until(say.TranscriptCompleted)
        settings = call.session.settings.changed(turn_detection=SemanticVad())
        await call.session.handle(ask.UpdateSession(settings))
        call.ears.say("Hello?")
        started = (await call.until(say.ReplyStarted))[0]
        assert isinstance(started, say.ReplyStarted)
        assert (started.metadata, started.modality) == (None, "audio")
        await call.until(say.ReplyEnded)


async def test_what_is_too_long_for_the_model_is_refused_when_it_is_said() -> None:
    async with call_with("Fine.") as call:
        call.chat.max_chars = 3_000
        session, long = call.session, "x" * 3_001
        await session.handle(ask.UpdateSession(session.settings.changed(instructions=long)))
        await session.handle(ask.CreateItem(Message(ItemId("a"), "user", "text", long)))
        await session.handle(ask.CreateResponse(ResponseOptions(instructions=long)))
        problems = [n for n in call.of(say.Problem) if isinstance(n, say.Problem)]
        assert [(problem.code, problem.param) for problem in problems] == [
            ("invalid_value", "session.instructions"),
            ("invalid_value", "item"),
            ("invalid_value", "response.instructions"),
        ]
        assert session.settings.instructions == "Be brief."
        assert list(session.conversation) == []
        await session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded)
    assert ("system", long) not in call.chat.calls


def test_ids_are_reserved_before_and_until_they_are_used() -> None:
    ids = Identifiers(SessionId("sess_abcdef0123456789"))
    first = ids.item()
    assert first == "item_abcdef012300001"
    assert ids.is_reserved(first)
    assert ids.is_reserved(ItemId("item_abcdef012300002"))
    ids.release(first)
    assert not ids.is_reserved(first)
    for other in ("item_abcdef0123", "item_abcdef0123x", "item_000001", "mine", "item_abcdef0123²"):
        assert not ids.is_reserved(ItemId(other))


async def test_a_client_cannot_take_an_id_that_the_server_will_use() -> None:
    async with call_with("Hi.", "Yes.") as call:

        async def take(name: str) -> None:
            await call.session.handle(ask.CreateItem(Message(ItemId(name), "user", "text", "x")))

        await take("item_test00001")
        await take("item_test00002")
        call.ears.utterance = 1
        call.ears.words[1] = "Hello?"
        call.ears.hear(ev.SpeechStarted(1, 1600))
        announced = (await call.until(say.SpeechStarted))[0]
        assert isinstance(announced, say.SpeechStarted)
        await take(announced.item_id)
        assert len(call.of(say.Problem)) == 3
        call.ears.hear(ev.SpeechPaused(1, 2400))
        call.ears.hear(ev.SilenceGrew(1, 5000))
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.DeleteItem(announced.item_id))
        await take(announced.item_id)  # as clients do that replace an item
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded, 2)
    assert len(call.of(say.Problem)) == 3
