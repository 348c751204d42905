"""Clients that say nothing, or nonsense, of what they play: history holds what was paced."""

import json
from typing import Any

import pytest

from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import Message
from agent.session.api.settings import SessionSettings
from agent.turn_taking import events as ev
from tests.support.session.session_call import call_with

pytestmark = pytest.mark.virtual_time

REPLY = "One two three four five six seven eight nine ten eleven twelve."


@pytest.mark.parametrize("claims", [[], [1 << 40], [10_000_000, 1 << 40], [0, 1 << 40]])
async def test_claims_beyond_playback_are_clamped(claims: list[int]) -> None:
    async with call_with(REPLY) as call:
        call.ears.say("Count.")
        await call.until(say.ReplyAudio, 8)
        started = call.of(say.ReplyStarted)[0]
        assert isinstance(started, say.ReplyStarted)
        for played_ms in claims:
            await call.session.handle(ask.PlaybackReport(started.item_id, played_ms))
        call.ears.utterance += 1
        call.ears.hear(ev.SpeechStarted(call.ears.utterance, 99_000))
        await call.until(say.ReplyEnded)
        ended = call.of(say.ReplyEnded)[0]
        assert isinstance(ended, say.ReplyEnded)
        audio = [each for each in call.notices if isinstance(each, say.ReplyAudio)]
        sent_s = sum(len(each.pcm) / each.rate_hz for each in audio)
        assert REPLY.startswith(ended.text)
        assert len(ended.text) * 0.05 <= sent_s, "fifty ms a character"
        item = call.session.conversation.get(started.item_id)
        assert isinstance(item, Message)
        assert item.text == ended.text


async def test_a_client_that_claims_less_is_believed() -> None:
    async with call_with(REPLY) as call:
        call.ears.say("Count.")
        await call.until(say.ReplyAudio, 8)
        started = call.of(say.ReplyStarted)[0]
        assert isinstance(started, say.ReplyStarted)
        await call.session.handle(ask.PlaybackReport(started.item_id, 0))
        call.session.feed(ev.SpeechStarted(2, 99_000))  # before any more could be played
        ended = (await call.until(say.ReplyEnded))[0]
        assert isinstance(ended, say.ReplyEnded)
        assert ended.text == ""


@pytest.mark.parametrize("lie", [-1, -(1 << 62), 1.5, "12", None, True, [], 1 << 50])
@pytest.mark.parametrize(
    ("kind", "field"),
    [("halfsec.playback", "played_ms"), ("conversation.item.truncate", "audio_end_ms")],
)
def test_invalid_time_is_refused_and_the_field_named(kind: str, field: str, lie: Any) -> None:
    protocol = RealtimeProtocol(SessionSettings(), model="m", extensions=True)
    event = {"type": kind, "item_id": "item_1", field: lie}
    if kind.endswith("truncate"):
        event["content_index"] = 0
    (answer,) = protocol.receive(json.dumps(event))
    assert isinstance(answer, say.Problem)
    assert answer.param == field


@pytest.mark.parametrize("lie", ["NaN", "Infinity", "-Infinity"])
def test_non_json_number_is_refused(lie: str) -> None:
    protocol = RealtimeProtocol(SessionSettings(), model="m", extensions=True)
    (answer,) = protocol.receive(
        f'{{"type": "halfsec.playback", "item_id": "item_1", "played_ms": {lie}}}'
    )
    assert isinstance(answer, say.Problem)
    assert answer.message.endswith("is not JSON.")
