"""One of each event that the service sends, for parsers of others to read.

Every shape that an event can have is among them: replies in sound and in text, completed, cut off,
failed, out of band; items of all kinds; errors with and without the event that caused them.
"""

import numpy as np

from agent.realtime.protocol.ids import CountingIds
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.conversation import FunctionCall, FunctionOutput, ItemId, Message, Modality
from agent.session.api.server_events import (
    AudioCleared,
    AudioCommitted,
    ItemAdded,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    MessageBegun,
    Notice,
    Problem,
    ReplyAudio,
    ReplyCalled,
    ReplyEnded,
    ReplyReason,
    ReplyStarted,
    ReplyStatus,
    ReplyText,
    SessionCreated,
    SessionUpdated,
    SilenceTimedOut,
    SpeechStarted,
    SpeechStopped,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptionFailed,
    Usage,
)
from agent.session.api.settings import ServerVad, SessionSettings, Truncation

KINDS = frozenset(
    ["session.created", "session.updated", "error", "rate_limits.updated",
     "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
     "input_audio_buffer.committed", "input_audio_buffer.cleared",
     "input_audio_buffer.timeout_triggered",
     "conversation.item.added", "conversation.item.done", "conversation.item.retrieved",
     "conversation.item.deleted", "conversation.item.truncated",
     "conversation.item.input_audio_transcription.delta",
     "conversation.item.input_audio_transcription.completed",
     "conversation.item.input_audio_transcription.failed",
     "response.created", "response.done", "response.output_item.added", "response.output_item.done",
     "response.content_part.added", "response.content_part.done",
     "response.output_audio.delta", "response.output_audio.done",
     "response.output_audio_transcript.delta", "response.output_audio_transcript.done",
     "response.output_text.delta", "response.output_text.done",
     "response.function_call_arguments.delta", "response.function_call_arguments.done",]
)  # fmt: skip

U1, A1 = ItemId("item_u1"), ItemId("item_a1")

SETTINGS = (
    SessionSettings(),
    SessionSettings(turn_detection=None, output_modality="text", max_output_tokens=12),
    SessionSettings(
        turn_detection=ServerVad(idle_timeout_ms=5000),
        input_encoding="pcmu",
        output_encoding="pcma",
        transcription={"model": "gpt-4o-mini-transcribe", "language": "en"},
        tools=({"type": "function", "name": "f", "parameters": {"type": "object"}},),
        tool_choice="required",
        parallel_tool_calls=True,
        truncation=Truncation(retention_ratio=0.8),
    ),
)

ENDS: tuple[tuple[ReplyStatus, ReplyReason | None], ...] = (
    ("completed", None),
    ("cancelled", "turn_detected"),
    ("cancelled", "client_cancelled"),
    ("incomplete", "max_output_tokens"),
    ("failed", "error"),
)


def a_reply(
    number: int, modality: Modality, status: ReplyStatus, reason: ReplyReason | None
) -> list[Notice]:
    response_id, item_id = f"resp_{modality}{number}", ItemId(f"item_{modality}{number}")
    out_of_band = number == 0
    started = ReplyStarted(
        response_id, item_id, U1, modality, SETTINGS[0], {"client_event_id": "c"}, out_of_band
    )
    said: list[Notice] = [ReplyText(response_id, "Hello. ")]
    if modality == "audio":
        said.append(ReplyAudio(response_id, np.zeros(4800, np.int16), 24_000))
    error = "It broke." if status == "failed" else None
    ended = ReplyEnded(response_id, status, reason, "Hello.", Usage(10, 5, 2), error)
    return [started, *said, ended]


def a_reply_that_calls() -> list[Notice]:
    """Words, and two tools at once."""
    item_id, first = ItemId("item_words"), ItemId("item_f1")
    started = ReplyStarted("resp_tools", item_id, U1, "audio", SETTINGS[0], may_call=True)
    calls = (FunctionCall(first, "call_a", "f", '{"n": 1}'),
             FunctionCall(ItemId("item_f2"), "call_b", "g", "{}"))  # fmt: skip
    return [
        started,
        MessageBegun("resp_tools", U1),
        ReplyText("resp_tools", "Let me look."),
        ReplyCalled("resp_tools", calls[0], item_id),
        ReplyCalled("resp_tools", calls[1], first),
        ReplyEnded("resp_tools", "completed", None, "Let me look.", Usage(10, 5, 2)),
    ]


def every_notice() -> list[Notice]:
    """Every notice of a session, in a possible order."""
    items = (
        Message(A1, "assistant", "audio", "Hi.", "incomplete"),
        Message(ItemId("item_s"), "system", "text", "Be kind."),
        Message(ItemId("item_t"), "user", "text", "Hello?"),
        FunctionCall(ItemId("item_f"), "call_1", "f", "{}"),
        FunctionOutput(ItemId("item_o"), "call_1", "42"),
    )
    notices: list[Notice] = [SessionCreated("sess_1", SETTINGS[0], 1_800_000_000)]
    notices += [SessionUpdated(settings) for settings in SETTINGS]
    notices += [
        SpeechStarted(U1, 100),
        SpeechStopped(U1, 900),
        AudioCommitted(U1, None),
        ItemAdded(Message(U1, "user", "audio", None), None),
        TranscriptDelta(U1, "Hel"),
        TranscriptCompleted(U1, "Hello.", 0.8),
        TranscriptionFailed(U1, "The recognizer is being restarted."),
        SilenceTimedOut(U1, 900, 5900),
        AudioCleared(),
        *(ItemAdded(item, U1) for item in items),
        *(ItemRetrieved(item) for item in items),
        ItemTruncated(A1, 500),
        ItemDeleted(A1),
        Problem("No.", "invalid_value", param="session.audio", event_id="mine"),
        Problem("No.", "invalid_event"),
    ]
    for modality in ("audio", "text"):
        for number, (status, reason) in enumerate(ENDS):
            notices += a_reply(number, "audio" if modality == "audio" else "text", status, reason)
    return notices + a_reply_that_calls()


def frames_of_every_kind() -> list[str]:
    protocol = RealtimeProtocol(SessionSettings(), model="m", new_id=CountingIds("t"))
    return [frame for notice in every_notice() for frame in protocol.send(notice)]
