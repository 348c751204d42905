"""A session whose caller says nothing, on fake stages."""

import pytest

from agent.calls.registry import CallRegistry
from agent.calls.service import close_for
from agent.config.schema import AgentProfile, Config
from agent.errors import SilentCallError
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import Message
from agent.session.api.settings import ServerVad, SessionSettings
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import IdleRules
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import SessionId
from tests.support.session.session_call import Call, call_with

pytestmark = pytest.mark.virtual_time

GREETS = AgentProfile(greeting="Hello.")
SOON = IdleRules(idle_after_ms=60)


def texts(call: Call) -> list[str]:
    ends = call.of(say.ReplyEnded)
    return [notice.text for notice in ends if isinstance(notice, say.ReplyEnded)]


async def test_a_silent_caller_is_asked_twice_and_then_left_alone() -> None:
    async with call_with("Good.", profile=GREETS, idle=SOON) as call:
        await call.until(say.ReplyEnded, 3)
        call.ears.say("Here I am.")  # a third prompt would have come first, or would cut this off
        await call.until(say.ReplyEnded, 4)
    assert texts(call) == ["Hello.", "Hey?", "Hey?", "Good."]
    assert sum(each[0] == "generate" for each in call.chat.calls) == 1, "prompts cost no model"


async def test_the_prompt_is_sound_that_the_client_hears() -> None:
    async with call_with(profile=AgentProfile(greeting="Hi"), idle=SOON) as call:
        await call.until(say.ReplyEnded, 2)
    names = call.names()
    prompt = names.index("ReplyStarted", names.index("ReplyEnded"))
    assert names[prompt : prompt + 4] == ["ReplyStarted", "ReplyText", "ReplyAudio", "ReplyEnded"]


async def test_silent_call_ends() -> None:
    idle = IdleRules(idle_after_ms=40, idle_hangup_ms=60)
    with pytest.raises(ExceptionGroup) as raised:
        async with call_with(profile=GREETS, idle=idle) as call:
            await call.until(say.ReplyEnded, 99)
    assert raised.value.subgroup(SilentCallError) is not None
    assert texts(call) == ["Hello.", "Hey?", "Hey?"]
    assert call.chat.closed


async def test_noise_before_the_greeting_plays_does_not_replace_it() -> None:
    """What nobody has heard is begun anew behind a noise: the same words."""
    async with call_with("An answer.", profile=GREETS) as call:
        await call.until(say.ReplyStarted)
        call.ears.utterance += 1
        call.ears.words[1] = ""
        call.session.feed(ev.SpeechStarted(1, 0))  # before the first sound of it
        call.ears.hear(ev.SpeechPaused(1, 0))
        call.ears.hear(ev.SilenceGrew(1, 5000))
        await call.until(say.ReplyEnded, 2)
        assert texts(call) == ["", "Hello."]
        call.ears.say("And you?")
        await call.until(say.ReplyEnded, 3)
    assert texts(call) == ["", "Hello.", "An answer."]


async def test_speech_before_the_greeting_plays_is_answered_instead() -> None:
    async with call_with("An answer.", profile=GREETS) as call:
        await call.until(say.ReplyStarted)
        call.session.feed(ev.SpeechStarted(1, 0))
        call.ears.utterance, call.ears.words[1] = 1, "Who is this?"
        call.ears.hear(ev.SpeechPaused(1, 0))
        call.ears.hear(ev.SilenceGrew(1, 5000))
        await call.until(say.ReplyEnded, 2)
    assert texts(call) == ["", "An answer."]


async def test_the_clients_own_time_out_commits_the_silence_and_lets_the_model_answer() -> None:
    async with call_with("One.", "Two.", "Three.") as call:
        settings: SessionSettings = call.session.settings.changed(
            turn_detection=ServerVad(idle_timeout_ms=50)
        )
        await call.session.handle(ask.UpdateSession(settings))
        call.ears.say("Count.")
        await call.until(say.ReplyEnded, 3)
    assert texts(call) == ["One.", "Two.", "Three."]
    first = call.names().index("SilenceTimedOut")
    assert call.names()[first : first + 8] == [
        "SilenceTimedOut",
        "AudioCommitted",
        "ItemAdded",
        "TranscriptCompleted",
        "ReplyStarted",
        "ReplyText",
        "ReplyAudio",
        "ReplyEnded",
    ]
    told = call.of(say.SilenceTimedOut)[0]
    committed = call.of(say.AudioCommitted)[1]
    assert isinstance(told, say.SilenceTimedOut)
    assert isinstance(committed, say.AudioCommitted)
    assert told.item_id == committed.item_id
    assert (told.audio_start_ms, told.audio_end_ms) == (59_950, 60_000)
    items = [item for item in call.session.conversation if isinstance(item, Message)]
    assert [(each.role, each.text) for each in items] == [
        ("user", "Count."),
        ("assistant", "One."),
        ("user", ""),
        ("assistant", "Two."),
        ("user", ""),
        ("assistant", "Three."),
    ]
    assert ("user", "") not in call.chat.calls, "the model is shown no message without words"


def test_client_receives_the_reason_when_a_silent_call_ends() -> None:
    call = CallRegistry(Config(), ManualClock()).admit(SessionId("sess_x"), "default")
    nested = ExceptionGroup("", [ExceptionGroup("", [SilentCallError()])])
    assert close_for(nested, call) == (1000, "nobody has spoken for too long")
