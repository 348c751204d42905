"""Sessions, items, transcripts, errors: what the dialect says outside of responses."""

from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.conversation import FunctionCall, FunctionOutput, ItemId, Message
from agent.session.api.server_events import (
    AudioCleared,
    AudioCommitted,
    Extension,
    ItemAdded,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    Notice,
    Problem,
    SessionCreated,
    SessionUpdated,
    TranscriptCompleted,
    TranscriptionFailed,
)
from agent.session.api.settings import SemanticVad, ServerVad, SessionSettings, Truncation
from tests.support.wire.wire_frames import make, say

U1, A1 = ItemId("item_u1"), ItemId("item_a1")


def test_the_session_is_echoed_whole() -> None:
    protocol = RealtimeProtocol(SessionSettings(), model="gpt-realtime", new_id=lambda kind: kind)
    created, updated = say(
        protocol,
        [
            SessionCreated("sess_1", SessionSettings(instructions="Be kind."), 1_800_000_000),
            SessionUpdated(SessionSettings(turn_detection=None, input_encoding="pcma")),
        ],
    )
    assert created == {
        "event_id": "event",
        "type": "session.created",
        "session": {
            "type": "realtime",
            "object": "realtime.session",
            "id": "sess_1",
            "model": "gpt-realtime",
            "expires_at": 1_800_000_000,
            "output_modalities": ["audio"],
            "instructions": "Be kind.",
            "tools": [],
            "tool_choice": "auto",
            "max_output_tokens": "inf",
            "include": None,
            "prompt": None,
            "tracing": None,
            "truncation": "auto",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": None,
                    "noise_reduction": None,
                    "turn_detection": {
                        "type": "semantic_vad",
                        "eagerness": "auto",
                        "create_response": True,
                        "interrupt_response": True,
                    },
                },
                "output": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "voice": "hibari",
                    "speed": 1.0,
                },
            },
        },
    }
    heard = updated["session"]["audio"]["input"]
    assert (updated["session"]["id"], updated["session"]["expires_at"]) == (
        "sess_1",
        1_800_000_000,
    )
    assert (heard["turn_detection"], heard["format"]) == (None, {"type": "audio/pcma"})


def test_what_the_client_set_is_what_it_sees() -> None:
    asked = SessionSettings(
        turn_detection=ServerVad(silence_duration_ms=320),
        transcription={"model": "whisper-1"},
        tools=({"type": "function", "name": "f", "parameters": {"type": "object"}},),
        tool_choice={"type": "function", "name": "f"},
        max_output_tokens=100,
        truncation=Truncation(retention_ratio=0.5, post_instructions_tokens=900),
        parallel_tool_calls=False,
    )
    session = say(make(), [SessionUpdated(asked)])[0]["session"]
    assert session["audio"]["input"]["turn_detection"] == {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 320,
        "idle_timeout_ms": None,
        "create_response": True,
        "interrupt_response": True,
    }
    assert session["audio"]["input"]["transcription"] == {"model": "whisper-1"}
    assert session["tools"] == list(asked.tools)
    assert session["tool_choice"] == {"type": "function", "name": "f"}
    assert session["max_output_tokens"] == 100
    assert session["parallel_tool_calls"] is False
    assert session["truncation"] == {
        "type": "retention_ratio",
        "retention_ratio": 0.5,
        "token_limits": {"post_instructions": 900},
    }
    disabled = SessionSettings(truncation=Truncation(is_disabled=True))
    assert say(make(), [SessionUpdated(disabled)])[0]["session"]["truncation"] == "disabled"
    assert SemanticVad() == SessionSettings().turn_detection


def test_items_of_every_kind() -> None:
    notices: list[Notice] = [
        AudioCleared(),
        AudioCommitted(U1, A1),
        ItemRetrieved(Message(U1, "user", "audio", "hi there")),
        ItemRetrieved(Message(A1, "assistant", "audio", "Hello")),
        ItemAdded(FunctionCall(ItemId("i3"), "c", "f", "{}"), A1),
        ItemAdded(FunctionOutput(ItemId("i4"), "c", "42"), ItemId("i3")),
        ItemAdded(Message(ItemId("i5"), "system", "text", "Be kind."), None),
    ]
    events = say(make(), notices)
    assert [event["type"] for event in events[:2]] == [
        "input_audio_buffer.cleared",
        "input_audio_buffer.committed",
    ]
    assert events[1]["previous_item_id"] == A1
    assert events[2]["item"]["content"] == [{"type": "input_audio", "transcript": "hi there"}]
    assert events[3]["item"]["content"] == [{"type": "output_audio", "transcript": "Hello"}]
    assert events[4]["item"]["call_id"] == "c"
    assert events[6]["item"]["output"] == "42"
    assert events[8]["item"]["content"] == [{"type": "input_text", "text": "Be kind."}]


def test_edits_transcripts_and_errors() -> None:
    notices: list[Notice] = [
        ItemDeleted(U1),
        ItemTruncated(A1, 1500),
        TranscriptCompleted(U1, "hi there", 1.5),
        TranscriptionFailed(U1, "The recognizer stopped."),
        Problem("No.", "invalid_value", param="a.b", event_id="e1"),
    ]
    events = [
        {name: event[name] for name in event if name != "event_id"}
        for event in say(make(), notices)
    ]
    assert events == [
        {"type": "conversation.item.deleted", "item_id": U1},
        {
            "type": "conversation.item.truncated",
            "item_id": A1,
            "content_index": 0,
            "audio_end_ms": 1500,
        },
        {
            "type": "conversation.item.input_audio_transcription.completed",
            "item_id": U1,
            "content_index": 0,
            "transcript": "hi there",
            "usage": {"type": "duration", "seconds": 1.5},
        },
        {
            "type": "conversation.item.input_audio_transcription.failed",
            "item_id": U1,
            "content_index": 0,
            "error": {
                "type": "transcription_error",
                "code": "transcription_failed",
                "message": "The recognizer stopped.",
                "param": None,
            },
        },
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "code": "invalid_value",
                "message": "No.",
                "param": "a.b",
                "event_id": "e1",
            },
        },
    ]


def test_extension_events_need_offered_extensions() -> None:
    notice = Extension("halfsec.partial", {"stable": "hel", "tail": "lo", "event_id": "mine"})
    assert make().send(notice) == ()
    (event,) = say(make(extensions=True), [notice])
    assert event["event_id"].startswith("event_t")
    assert event == {
        "event_id": event["event_id"],
        "type": "halfsec.partial",
        "stable": "hel",
        "tail": "lo",
    }
