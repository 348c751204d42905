"""A whole session on fake stages: what the client is told, and what the model is left with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent import events as ev
from agent import notices as say
from agent import requests as ask
from agent import warming
from agent.config import AgentProfile
from agent.conversation import ItemId, Message
from agent.errors import ClientError, StageError
from agent.notices import Notice
from agent.ports import VoicePort
from agent.reply import APOLOGY
from agent.reply_desk import Surroundings
from agent.session import Session
from agent.settings import ResponseOptions, SemanticVad, SessionSettings
from agent.turn_log import TurnLog
from latency_budget.clock import SystemClock
from latency_budget.history import TurnEntry
from latency_budget.trace import TraceWriter
from latency_budget.turn import SessionId

from .fakes.stages import FakeChat, FakeEars, FakeVoice


class Call:
    """One session and everything it said."""

    def __init__(self, chat: FakeChat, voice: FakeVoice, profile: AgentProfile) -> None:
        self.chat = chat
        self.ears = FakeEars()
        self.voice = voice
        self.notices: list[Notice] = []
        self.turns: list[TurnEntry] = []
        self._news = asyncio.Event()
        clock = SystemClock()
        session_id = SessionId("sess_test")
        self.trace = TraceWriter(
            session_id, started_unix_ns=0, config_fingerprint="", origin_ns=clock.now_ns()
        )

        def open_voice(name: str, rate_hz: int) -> VoicePort:
            if name != "hibari":
                raise ClientError(f"There is no voice {name!r}.", code="invalid_value")
            return self.voice

        around = Surroundings(
            clock=clock,
            open_chat=lambda instructions, examples: self.chat,
            open_voice=open_voice,
            lead_ms=400,
            budget_ms=500,
            notify=self._notify,
        )
        log = TurnLog(session_id, self.trace, self.turns.append)
        settings = SessionSettings(instructions="Be brief.")
        self.session = Session(session_id, profile, settings, around, self.ears, log)

    def _notify(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._news.set()

    async def until(self, kind: type[Notice], count: int = 1) -> list[Notice]:
        """Wait for the `count`-th notice of this kind."""
        while len(found := [n for n in self.notices if isinstance(n, kind)]) < count:
            self._news.clear()
            await self._news.wait()
        return found

    def names(self) -> list[str]:
        """Kinds of notices in order, repeated text and audio folded."""
        names: list[str] = []
        for notice in self.notices:
            name = type(notice).__name__
            if not (names and names[-1] == name and name in ("ReplyAudio", "ReplyText")):
                names.append(name)
        return names

    def of(self, kind: type[Notice]) -> list[Notice]:
        return [notice for notice in self.notices if isinstance(notice, kind)]


@asynccontextmanager
async def call_with(
    *replies: str | Exception,
    voice: FakeVoice | None = None,
    profile: AgentProfile | None = None,
) -> AsyncIterator[Call]:
    call = Call(FakeChat(replies), voice or FakeVoice(), profile or AgentProfile())
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(call.session.run())
        await call.ears.running.wait()
        yield call
        running.cancel()


async def test_a_spoken_turn_in_the_order_that_clients_expect() -> None:
    async with call_with("Hi there.") as call:
        call.ears.say("Hello?")
        await call.until(say.ReplyEnded)
    assert call.names() == [
        "SessionCreated",
        "SpeechStarted",
        "SpeechStopped",
        "AudioCommitted",
        "ItemAdded",
        "TranscriptDelta",
        "TranscriptCompleted",
        "ReplyStarted",
        "ReplyText",
        "ReplyAudio",
        "ReplyEnded",
    ]
    ended = call.of(say.ReplyEnded)[0]
    assert isinstance(ended, say.ReplyEnded)
    assert (ended.status, ended.text) == ("completed", "Hi there.")
    assert ("user", "Hello?") in call.chat.calls
    assert [item.text for item in call.session.conversation if isinstance(item, Message)] == [
        "Hello?",
        "Hi there.",
    ]


async def test_a_barge_in_leaves_the_words_that_were_heard() -> None:
    reply = "One two three four five six seven eight nine ten eleven twelve."
    async with call_with(reply, "Yes.") as call:
        call.ears.say("Count.")
        await call.until(say.ReplyAudio, 8)
        call.ears.say("Stop.")
        await call.until(say.ReplyEnded, 2)
        ended = call.of(say.ReplyEnded)[0]
        assert isinstance(ended, say.ReplyEnded)
        assert (ended.status, ended.reason) == ("cancelled", "turn_detected")
        assert reply.startswith(ended.text)
        assert len(ended.text) < len(reply)
        names = call.names()
        second = names.index("SpeechStarted", names.index("ReplyStarted"))
        assert names[second : second + 2] == ["SpeechStarted", "ReplyEnded"]
        assert ("truncate", len(ended.text)) in call.chat.calls
        heard = next(i for i in call.session.conversation if getattr(i, "role", "") == "assistant")
        assert isinstance(heard, Message)
        assert (heard.text, heard.status) == (ended.text, "incomplete")


async def test_the_clients_word_on_what_it_played_corrects_ours() -> None:
    async with call_with("One two three four five six seven.", "Yes.") as call:
        call.ears.say("Count.")
        await call.until(say.ReplyAudio, 6)
        started = call.of(say.ReplyStarted)[0]
        assert isinstance(started, say.ReplyStarted)
        call.ears.utterance += 1
        call.ears.hear(ev.SpeechStarted(call.ears.utterance, 99_000))
        await call.until(say.ReplyEnded)
        await call.session.handle(ask.TruncateItem(started.item_id, 200))
        truncated = call.of(say.ItemTruncated)[0]
        assert truncated == say.ItemTruncated(started.item_id, 200)
        item = call.session.conversation.get(started.item_id)
        assert isinstance(item, Message)
        assert item.text == "One"
        await call.session.handle(ask.TruncateItem(started.item_id, 99_999))
        late = call.of(say.ItemTruncated)[1]
        assert isinstance(late, say.ItemTruncated)
        assert late.audio_end_ms <= 1000


async def test_words_without_sound_are_typed_and_answered_in_text() -> None:
    async with call_with("Good morning.") as call:
        item = Message(ItemId("mine"), "user", "text", "Hello")
        await call.session.handle(ask.CreateItem(item))
        options = ResponseOptions(output_modality="text", metadata={"a": "b"})
        await call.session.handle(ask.CreateResponse(options))
        await call.until(say.ReplyEnded)
    assert not call.of(say.ReplyAudio)
    texts = [n.delta for n in call.of(say.ReplyText) if isinstance(n, say.ReplyText)]
    assert "".join(texts) == "Good morning."
    started = call.of(say.ReplyStarted)[0]
    assert isinstance(started, say.ReplyStarted)
    assert started.metadata == {"a": "b"}
    assert call.turns[0].agent_text == "Good morning."


@pytest.mark.parametrize("broken", ["llm", "voice"])
async def test_a_stage_that_fails_ends_the_turn_with_an_apology(broken: str) -> None:
    fault = StageError("tts", "The tts stage took too long.")
    replies = [StageError("llm", "The language model took too long.")] if broken == "llm" else []
    voice = FakeVoice(fault if broken == "voice" else None)
    async with call_with(*replies, voice=voice) as call:
        call.ears.say("Hello?")
        await call.until(say.ReplyEnded)
        ended = call.of(say.ReplyEnded)[0]
        assert isinstance(ended, say.ReplyEnded)
        assert ended.status == "failed"
        assert ended.text.endswith(APOLOGY)
        assert call.of(say.ReplyAudio)
        call.voice.fault = None
        call.ears.say("And now?")
        await call.until(say.ReplyEnded, 2)
        again = call.of(say.ReplyEnded)[1]
        assert isinstance(again, say.ReplyEnded)
        assert again.status == "completed"


async def test_a_greeting_is_spoken_first_and_remembered() -> None:
    profile = AgentProfile(greeting="Welcome to halfsec.")
    async with call_with("Sure.", profile=profile) as call:
        await call.until(say.ReplyEnded)
        call.ears.say("Thanks.")
        await call.until(say.ReplyEnded, 2)
    told = call.chat.calls[: call.chat.calls.index(("generate", 2))]
    greeting = next(iter(call.session.conversation))
    assert isinstance(greeting, Message)
    assert greeting.text
    assert "Welcome to halfsec.".startswith(greeting.text)
    assert told[-1] == ("reset", (("assistant", greeting.text), ("user", "Thanks.")))


async def test_noise_gives_no_message_and_no_answer() -> None:
    async with call_with() as call:
        call.ears.say("")
        await call.until(say.SpeechStopped)
        await asyncio.sleep(0)
    assert call.names() == ["SessionCreated", "SpeechStarted", "SpeechStopped"]


async def test_what_a_client_may_not_ask_is_a_problem_and_the_session_goes_on() -> None:
    async with call_with("Fine.") as call:
        await call.session.handle(ask.RetrieveItem(ItemId("nope"), event_id="e1"))
        await call.session.handle(ask.CancelResponse(event_id="e2"))
        settings = call.session.settings.changed(voice="nobody")
        await call.session.handle(ask.UpdateSession(settings, event_id="e3"))
        problems = [n for n in call.of(say.Problem) if isinstance(n, say.Problem)]
        assert [(p.event_id, p.code) for p in problems] == [
            ("e1", "item_not_found"),
            ("e2", "response_cancel_not_active"),
            ("e3", "invalid_value"),
        ]
        assert call.session.settings.voice == "hibari"
        call.ears.say("Hello?")
        await call.until(say.ReplyEnded)


async def test_changed_settings_take_effect() -> None:
    async with call_with() as call:
        settings = call.session.settings.changed(
            instructions="Be kind.", turn_detection=SemanticVad(eagerness="low")
        )
        await call.session.handle(ask.UpdateSession(settings))
        assert call.of(say.SessionUpdated) == [say.SessionUpdated(settings)]
        assert call.ears.detection == SemanticVad(eagerness="low")
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await call.until(say.ReplyEnded)
    assert ("system", "Be kind.") in call.chat.calls


async def test_push_to_talk_waits_for_the_words() -> None:
    async with call_with("Right.") as call:
        settings = call.session.settings.changed(turn_detection=None)
        await call.session.handle(ask.UpdateSession(settings))
        await call.session.handle(ask.CommitAudio())
        await call.session.handle(ask.CreateResponse(ResponseOptions()))
        await asyncio.sleep(0)
        assert not call.of(say.ReplyStarted)
        call.ears.hear(ev.TranscriptReady(call.ears.utterance, 1, "Pushed to talk."))
        await call.until(say.ReplyEnded)
    names = call.names()
    assert names.index("AudioCommitted") < names.index("TranscriptCompleted")
    assert names.index("TranscriptCompleted") < names.index("ReplyStarted")
    assert ("user", "Pushed to talk.") in call.chat.calls


async def test_the_chat_is_closed_with_the_call() -> None:
    async with call_with() as call:
        chat = call.chat
    assert chat.closed


async def test_changes_are_warmed_before_anybody_speaks() -> None:
    async with call_with() as call:
        settings = call.session.settings.changed(instructions="Be kind.")
        await call.session.handle(ask.UpdateSession(settings))
        await call.session.handle(ask.CreateItem(Message(ItemId("a"), "user", "text", "Hello")))
        await call.chat.warmed.wait()
        assert call.chat.calls == [("system", "Be kind."), ("user", "Hello"), ("warm", None)]
        call.chat.warmed.clear()
        await call.session.handle(ask.DeleteItem(ItemId("a")))
        await call.chat.warmed.wait()
        assert call.chat.calls[3:] == [("reset", ()), ("warm", None)]


async def test_nothing_is_warmed_during_a_reply_but_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warming, "QUIET_S", 0)
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
    assert call.chat.calls[1:] == [("generate", 1), ("user", "Hello"), ("warm", None)]


async def test_a_reply_ends_the_warming_that_is_under_way() -> None:
    async with call_with("Fine.") as call:
        call.chat.warming = asyncio.Event()
        await call.chat.warmed.wait()
        await call.session.handle(ask.CreateResponse(ResponseOptions(output_modality="text")))
        await call.until(say.ReplyEnded)
    assert call.chat.calls == [("warm", None), ("warm cancelled", None), ("generate", 1)]


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
