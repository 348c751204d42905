"""A whole session on fake stages: events to the client, and the model's final history."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from agent.config.schema import AgentProfile
from agent.errors import StageError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import ConversationItems, ItemId, ItemReference, Message
from agent.session.api.settings import ResponseOptions, SemanticVad, SessionSettings
from agent.session.context.chat_context import MAX_PENDING
from agent.session.context.chat_messages import messages_of, response_input
from agent.session.ports.stage_ports import APOLOGY, ChatMessage, Speech, SpeechResult
from agent.turn_taking import events as ev
from agent.turn_taking import reopening
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn_record import Origin
from tests.support.fakes.remembering import RememberingChat
from tests.support.fakes.stages import SAMPLES_PER_CHAR, FakeVoice
from tests.support.session import virtual_time
from tests.support.session.session_call import call_with
from tts.text_chunker import SpeakablePiece

pytestmark = pytest.mark.virtual_time


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


async def test_barge_in_truncates_history_to_the_played_words() -> None:
    reply = "One two three four five six seven eight nine ten eleven twelve."
    async with call_with(reply, "Yes.") as call:
        call.ears.say("Count.")
        await call.until(say.ReplyAudio, 10)
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


async def test_model_receives_the_buffered_playback_time() -> None:
    reply = "This sentence takes two seconds to hear."
    async with call_with(reply) as call:
        begun_ns = virtual_time.clock_of_loop().now_ns()
        call.ears.say("Speak.")
        await call.until(say.ReplyAudio, 6)
    speech_ns = len(reply) * SAMPLES_PER_CHAR * 1_000_000_000 // 24_000
    told = call.chat.played_until_ns
    assert len(told) > 6  # when it was made, and with each frame
    assert min(told) >= begun_ns + speech_ns


async def test_playback_reported_by_the_client_corrects_the_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reopening, "REOPEN_NS", 0)
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


async def test_a_cancellation_names_the_response_that_it_is_for() -> None:
    async with call_with("One two three four five six seven.") as call:
        call.ears.say("Count.")
        await call.until(say.ReplyAudio)
        started = call.of(say.ReplyStarted)[0]
        assert isinstance(started, say.ReplyStarted)
        await call.session.handle(ask.CancelResponse("resp_other", "e1"))
        (problem,) = call.of(say.Problem)
        assert isinstance(problem, say.Problem)
        assert (problem.code, problem.event_id) == ("response_cancel_not_active", "e1")
        assert not call.of(say.ReplyEnded)
        await call.session.handle(ask.CancelResponse(started.response_id))
        (ended,) = call.of(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        assert (ended.status, ended.reason) == ("cancelled", "client_cancelled")
        assert len(call.of(say.Problem)) == 1


async def test_a_late_cancellation_of_a_response_leaves_the_next_one() -> None:
    settings = SessionSettings(turn_detection=None)
    async with call_with("One.", "Two.", settings=settings) as call:
        call.ears.words[1] = "First."
        await call.session.handle(ask.CommitAudio("c1"))
        await call.session.handle(ask.CreateResponse(ResponseOptions(), "r1"))
        (ended,) = await call.until(say.ReplyEnded)
        assert isinstance(ended, say.ReplyEnded)
        await call.session.handle(ask.CommitAudio("c2"))
        await call.session.handle(ask.CreateResponse(ResponseOptions(), "r2"))
        await call.session.handle(ask.CancelResponse(ended.response_id, "late"))
        (problem,) = call.of(say.Problem)
        assert isinstance(problem, say.Problem)
        assert (problem.code, problem.event_id) == ("response_cancel_not_active", "late")
        call.ears.hear(ev.TranscriptReady(2, 1, "Second."))
        _, second = await call.until(say.ReplyEnded, 2)
        assert isinstance(second, say.ReplyEnded)
        assert second.text == "Two."


async def test_a_transcription_session_asks_nothing_of_the_language_model() -> None:
    settings = SessionSettings(transcribes_only=True, instructions="Be brief.")
    async with call_with(settings=settings) as call:
        for number in range(1, MAX_PENDING + 20):
            call.ears.say(f"Words {number}.")
            await call.until(say.TranscriptCompleted, number)
        assert call.chat.calls == []
        assert len(call.session._context._pending) <= MAX_PENDING


async def test_only_responses_can_be_truncated() -> None:
    async with call_with() as call:
        for item in (
            Message(ItemId("mine"), "user", "text", "Hello"),
            Message(ItemId("other"), "assistant", "audio", "Hello."),
        ):
            await call.session.handle(ask.CreateItem(item))
            await call.session.handle(ask.TruncateItem(item.id, 500))
    mine, other = [each for each in call.notices if isinstance(each, say.Problem)]
    assert mine.code == other.code == "item_truncate_invalid_item_id"
    assert "no message of the agent" in mine.message
    assert "is unchanged" in other.message
    assert not call.of(say.ItemTruncated)


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


def test_words_behind_which_the_voice_failed_are_neither_said_nor_remembered() -> None:
    class Breaking(FakeVoice):
        num_pieces = 0

        async def speak(self, piece: SpeakablePiece) -> AsyncIterator[Speech]:
            self.num_pieces += 1
            if self.num_pieces == 2:
                raise StageError("tts", "The tts stage took too long.")
            async for speech in super().speak(piece):
                yield speech

    reply = "Your table is booked. It is for two people at nine. Please come early."
    heard = "Your table is booked. " + APOLOGY
    chat = RememberingChat([reply, "Sure."])

    async def story(clock: ManualClock) -> None:
        async with call_with(chat=chat, voice=Breaking(), clock=clock) as call:
            call.ears.say("Is it booked?")
            (ended,) = await call.until(say.ReplyEnded)
            assert isinstance(ended, say.ReplyEnded)
            assert (ended.status, ended.text) == ("failed", heard)
            shown = [each for each in call.of(say.ReplyText) if isinstance(each, say.ReplyText)]
            assert "".join(each.delta for each in shown) == heard
            await asyncio.sleep(10)  # all is played
            call.ears.say("What?")
            await call.until(say.ReplyEnded, 2)
            told = messages_of(tuple(call.session.conversation)[:-1])
        assert chat.asked[-1] == tuple(told)
        assert told[1] == ChatMessage("assistant", heard)

    virtual_time.run(story)


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
        call.ears.say("Hello there.")
        await call.until(say.ReplyEnded, 2)
    told = call.chat.calls[: call.chat.calls.index(("generate", 2))]
    greeting = next(iter(call.session.conversation))
    assert isinstance(greeting, Message)
    assert greeting.text
    assert "Welcome to halfsec.".startswith(greeting.text)
    assert told[-1] == ("reset", (("assistant", greeting.text), ("user", "Hello there.")))
    assert call.turns[0].record.origin is Origin.GREETING
    assert call.turns[0].record.incomplete == ()


async def test_noise_creates_no_message_and_no_answer() -> None:
    async with call_with() as call:
        call.ears.say("")
        await call.until(say.SpeechStopped)
        await asyncio.sleep(0)
    assert call.names() == ["SessionCreated", "SpeechStarted", "SpeechStopped"]


async def test_invalid_request_is_an_error_and_the_session_continues() -> None:
    async with call_with("Fine.") as call:
        await call.session.handle(ask.RetrieveItem(ItemId("nope"), event_id="e1"))
        await call.session.handle(ask.CancelResponse(event_id="e2"))
        settings = call.session.settings.changed(voice="nobody")
        await call.session.handle(ask.UpdateSession(settings, event_id="e3"))
        problems = [n for n in call.of(say.Problem) if isinstance(n, say.Problem)]
        assert [(p.event_id, p.code) for p in problems] == [
            ("e1", "item_retrieve_invalid_item_id"),
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


async def test_a_commit_of_what_was_committed_already_is_answered() -> None:
    """LiveKit's clients send it although the server ends turns by itself, and know this code."""
    async with call_with("Fine.") as call:
        call.ears.say("Hello?")
        await call.until(say.ReplyEnded)
        call.ears._pauses = call.ears.utterance  # as the real ears: the last one's number
        await call.session.handle(ask.CommitAudio(event_id="e1"))
        (problem,) = call.of(say.Problem)
        assert isinstance(problem, say.Problem)
        assert (problem.code, problem.event_id) == ("input_audio_buffer_commit_empty", "e1")
        assert len(call.of(say.AudioCommitted)) == 1


async def test_the_chat_is_closed_with_the_call() -> None:
    async with call_with() as call:
        chat = call.chat
    assert chat.closed


async def test_transcription_session_creates_no_response() -> None:
    profile = AgentProfile(greeting="Hello.")
    async with call_with("No.", profile=profile) as call:
        await call.until(say.ReplyEnded)
        settings = call.session.settings.changed(transcribes_only=True)
        await call.session.handle(ask.UpdateSession(settings))
        call.ears.say("Write this down.")
        (completed,) = await call.until(say.TranscriptCompleted)
        assert isinstance(completed, say.TranscriptCompleted)
        assert completed.transcript == "Write this down."
        await call.session.handle(ask.CreateResponse(ResponseOptions(), "e1"))
        (problem,) = call.of(say.Problem)
        assert isinstance(problem, say.Problem)
        assert (problem.code, problem.param, problem.event_id) == ("invalid_event", "type", "e1")
        assert len(call.of(say.ReplyStarted)) == 1
        assert not [told for told in call.chat.calls if told[0] == "generate"]


async def test_response_may_override_encoding_and_input() -> None:
    async with call_with("One.", "Two.") as call:
        item = Message(ItemId("i1"), "user", "text", "Count.")
        await call.session.handle(ask.CreateItem(item))
        options = ResponseOptions(
            output_encoding="pcmu", input=(ItemReference(ItemId("i1")),), out_of_band=True
        )
        await call.session.handle(ask.CreateResponse(options))
        (started,) = await call.until(say.ReplyStarted)
        assert isinstance(started, say.ReplyStarted)
        assert started.settings.output_encoding == "pcmu"
        (audio, *_) = await call.until(say.ReplyAudio)
        assert isinstance(audio, say.ReplyAudio)
        assert audio.rate_hz == 8000
        await call.until(say.ReplyEnded)
        assert call.session.settings.output_encoding == "pcm16"
        wrong = (
            ResponseOptions(voice="nobody"),
            ResponseOptions(input=(ItemReference(ItemId("i9")),)),
        )
        for options in wrong:
            await call.session.handle(ask.CreateResponse(options))
        codes = [n.code for n in call.notices if isinstance(n, say.Problem)]
        assert codes == ["invalid_value", "item_not_found"]


def test_a_reference_stands_for_its_item_while_that_is_there() -> None:
    conversation = ConversationItems()
    conversation.add(Message(ItemId("i1"), "user", "text", "Count."))
    own = Message(ItemId("i2"), "user", "text", "To three.")
    options = ResponseOptions(input=(ItemReference(ItemId("i1")), own, ItemReference(ItemId("x"))))
    assert [each.text for each in messages_of(response_input(options, conversation))] == [
        "Count.",
        "To three.",
    ]


async def test_a_client_whose_audio_is_slowed_is_told() -> None:
    async with call_with("Hello.") as call:
        call.ears.hear(SpeechResult(0, slowed_to=1.25))
        await call.until(say.Extension)
        (notice,) = call.of(say.Extension)
        assert isinstance(notice, say.Extension)
        assert notice.type == "halfsec.notice"
        assert notice.fields["param"] == "input_audio_buffer.append"
        assert "1.25 times" in notice.fields["message"]


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_written_response_has_no_audio_to_truncate(is_over: bool) -> None:
    chat = RememberingChat(["Count to three."])
    async with call_with(chat=chat) as call:
        chat.hold = asyncio.Event()
        options = ResponseOptions(output_modality="text")
        await call.session.handle(ask.CreateResponse(options))
        (started,) = await call.until(say.ReplyStarted)
        assert isinstance(started, say.ReplyStarted)
        if is_over:
            chat.hold.set()
            await call.until(say.ReplyEnded)
        await call.session.handle(ask.TruncateItem(started.item_id, 0))
        chat.hold.set()
        await call.until(say.ReplyEnded)
        codes = [n.code for n in call.notices if isinstance(n, say.Problem)]
        assert codes == ["item_truncate_invalid_item_id"]
        assert messages_of(call.session.conversation) == [
            ChatMessage("assistant", "Count to three.")
        ]
