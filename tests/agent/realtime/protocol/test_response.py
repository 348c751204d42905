"""A reply as the client sees it: shapes and order from response.created to response.done."""

import base64
from typing import Any

import numpy as np
import pytest

from agent.codec.g711 import alaw_decode, mulaw_decode
from agent.errors import InternalError
from agent.session.api.conversation import ItemId, Message
from agent.session.api.server_events import (
    AudioCommitted,
    ItemAdded,
    Notice,
    ReplyAudio,
    ReplyEnded,
    ReplyReason,
    ReplyStarted,
    ReplyStatus,
    ReplyText,
    SessionCreated,
    SpeechStarted,
    SpeechStopped,
    TranscriptCompleted,
    TranscriptDelta,
    Usage,
)
from agent.session.api.settings import SessionSettings
from tests.support.wire.wire_frames import make, say

U1, A1 = ItemId("item_u1"), ItemId("item_a1")


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def started(**changes: Any) -> ReplyStarted:
    settings = changes.pop("settings", SessionSettings())
    return ReplyStarted(
        response_id="resp_1",
        item_id=A1,
        previous_item_id=U1,
        modality=settings.output_modality,
        settings=settings,
        **changes,
    )


def audio(ms: int, rate_hz: int = 24_000) -> ReplyAudio:
    pcm = np.arange(rate_hz * ms // 1000).astype(np.int16)
    return ReplyAudio("resp_1", pcm, rate_hz)


def ended(
    status: ReplyStatus = "completed", reason: ReplyReason | None = None, **more: Any
) -> ReplyEnded:
    return ReplyEnded("resp_1", status, reason, more.pop("text", "Hello."), Usage(9, 4, 3), **more)


VOICE_TURN: list[Notice] = [
    SpeechStarted(U1, 320),
    SpeechStopped(U1, 1800),
    AudioCommitted(U1, None),
    ItemAdded(Message(U1, "user", "audio", None), None),
    started(metadata={"client_event_id": "x"}),
    ReplyText("resp_1", "Hel"),
    audio(100),
    ReplyText("resp_1", "lo."),
    audio(40),
    ended(),
    TranscriptDelta(U1, "hi"),
    TranscriptCompleted(U1, "hi there", 1.48),
]


def test_a_spoken_turn_in_the_documented_order() -> None:
    assert types(say(make(), VOICE_TURN)) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]


def test_a_typed_turn_has_text_events_and_no_audio() -> None:
    settings = SessionSettings(output_modality="text")
    notices: list[Notice] = [
        ItemAdded(Message(U1, "user", "text", "hi"), None),
        started(settings=settings),
        ReplyText("resp_1", "Hello."),
        ended(),
    ]
    events = say(make(), notices)
    assert types(events) == [
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
    ]
    assert events[5]["part"] == {"type": "text", "text": ""}
    assert events[7]["text"] == "Hello."
    assert events[11]["response"]["output"][0]["content"] == [
        {"type": "output_text", "text": "Hello."}
    ]


def test_finished_response_contains_all_its_output() -> None:
    done = say(make(), [SessionCreated("sess_7", SessionSettings()), *VOICE_TURN])[19]
    assert done == {
        "event_id": done["event_id"],
        "type": "response.done",
        "response": {
            "id": "resp_1",
            "object": "realtime.response",
            "status": "completed",
            "status_details": None,
            "output": [
                {
                    "id": "item_a1",
                    "object": "realtime.item",
                    "type": "message",
                    "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_audio", "transcript": "Hello."}],
                }
            ],
            "conversation_id": "conv_7",
            "output_modalities": ["audio"],
            "max_output_tokens": "inf",
            "audio": {
                "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "hibari"}
            },
            "usage": {
                "total_tokens": 12,
                "input_tokens": 9,
                "output_tokens": 3,
                "input_token_details": {
                    "text_tokens": 9,
                    "audio_tokens": 0,
                    "image_tokens": 0,
                    "cached_tokens": 4,
                    "cached_tokens_details": {
                        "text_tokens": 4,
                        "audio_tokens": 0,
                        "image_tokens": 0,
                    },
                },
                "output_token_details": {"text_tokens": 3, "audio_tokens": 0},
            },
            "metadata": {"client_event_id": "x"},
        },
    }


def test_items_form_a_chain_and_open_empty() -> None:
    events = say(make(), VOICE_TURN)
    added = [event for event in events if event["type"] == "conversation.item.added"]
    assert [(e["item"]["id"], e["previous_item_id"]) for e in added] == [(U1, None), (A1, U1)]
    assert added[0]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert added[1]["item"]["content"] == []
    assert added[1]["item"]["status"] == "in_progress"
    created = events[5]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert created["metadata"] == {"client_event_id": "x"}


def test_parts_are_named_audio_though_items_say_output_audio() -> None:
    events = {event["type"]: event for event in say(make(), VOICE_TURN)}
    part = events["response.content_part.added"]
    assert part["part"] == {"type": "audio", "transcript": ""}
    assert {name: part[name] for name in part if name not in ("event_id", "type", "part")} == {
        "response_id": "resp_1",
        "item_id": A1,
        "output_index": 0,
        "content_index": 0,
    }
    assert events["response.content_part.done"]["part"]["transcript"] == "Hello."


def test_a_barge_in_stops_the_client_first_and_then_closes_what_is_open() -> None:
    notices: list[Notice] = [
        started(),
        ReplyText("resp_1", "Hello there."),
        audio(200),
        SpeechStarted(ItemId("item_u2"), 4000),
        ended("cancelled", "turn_detected", text="Hello"),
        SpeechStopped(ItemId("item_u2"), 5000),
    ]
    events = say(make(), notices)[6:]
    assert types(events) == [
        "input_audio_buffer.speech_started",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
        "input_audio_buffer.speech_stopped",
    ]
    assert events[2]["transcript"] == "Hello"
    assert events[4]["item"]["status"] == "incomplete"
    assert events[6]["response"]["status"] == "cancelled"
    assert events[6]["response"]["status_details"] == {
        "type": "cancelled",
        "reason": "turn_detected",
    }


@pytest.mark.parametrize(
    ("end", "details"),
    [
        (
            ended("cancelled", "client_cancelled"),
            {"type": "cancelled", "reason": "client_cancelled"},
        ),
        (
            ended("incomplete", "max_output_tokens"),
            {"type": "incomplete", "reason": "max_output_tokens"},
        ),
        (
            ended("failed", "error", error_message="The voice is gone."),
            {
                "type": "failed",
                "error": {
                    "type": "server_error",
                    "code": "reply_failed",
                    "message": "The voice is gone.",
                },
            },
        ),
    ],
)
def test_ends_that_are_no_completion_say_why(end: ReplyEnded, details: dict[str, Any]) -> None:
    response = say(make(), [started(), end])[-2]["response"]
    assert response["status"] == end.status
    assert response["status_details"] == details
    assert response["output"][0]["status"] == "incomplete"


def test_a_response_out_of_band_joins_no_conversation() -> None:
    events = say(make(), [started(out_of_band=True), audio(20), ended()])
    assert not [kind for kind in types(events) if kind.startswith("conversation.")]
    assert events[-2]["response"]["conversation_id"] is None


def test_two_responses_can_be_open_one_of_them_out_of_band() -> None:
    protocol = make()
    other = ReplyStarted("resp_2", ItemId("i2"), None, "text", SessionSettings(), None, True)
    say(protocol, [started(), other, ReplyText("resp_2", "x"), ReplyText("resp_1", "y")])
    done = say(protocol, [ReplyEnded("resp_2", "completed", None, "x", Usage()), ended()])
    ids = [event["response"]["id"] for event in done if event["type"] == "response.done"]
    assert ids == ["resp_2", "resp_1"]


@pytest.mark.parametrize("encoding", ["pcm16", "pcmu", "pcma"])
def test_audio_is_cut_into_deltas_of_at_most_200_ms_in_the_sessions_encoding(
    encoding: Any,
) -> None:
    rate_hz = 24_000 if encoding == "pcm16" else 8_000
    sent = audio(450, rate_hz)
    settings = SessionSettings(output_encoding=encoding)
    events = say(make(), [started(settings=settings), sent])[4:]
    chunks = [base64.b64decode(event["delta"], validate=True) for event in events]
    assert len(chunks) == 3
    data = b"".join(chunks)
    if encoding == "pcm16":
        assert np.frombuffer(data, "<i2").tolist() == sent.pcm.tolist()
        return
    assert len(chunks[0]) == 1600
    heard = mulaw_decode(data) if encoding == "pcmu" else alaw_decode(data)
    assert np.abs(heard.astype(int) - sent.pcm).max() <= np.abs(sent.pcm.astype(int)).max() / 16


def test_audio_that_does_not_fit_the_session_is_our_own_fault() -> None:
    protocol = make()
    say(protocol, [started()])
    with pytest.raises(InternalError, match="24000 Hz"):
        protocol.send(audio(20, 16_000))


def test_notices_of_a_response_that_is_not_open_are_our_own_fault() -> None:
    protocol = make()
    with pytest.raises(InternalError, match="no open response"):
        protocol.send(ReplyText("resp_1", "x"))
    say(protocol, [started()])
    with pytest.raises(InternalError, match="started already"):
        protocol.send(started())
    say(protocol, [ended()])
    with pytest.raises(InternalError, match="no open response"):
        protocol.send(ended())
