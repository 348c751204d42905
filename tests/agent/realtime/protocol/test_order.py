"""Any session that keeps its guarantees comes out as frames that keep the dialect's.

After the invariants of LocalAI's model-checked state machines: one `response.done` for each
`response.created`, nothing of a response behind its end, item ids unique, brackets that nest.
"""

from collections import Counter
from typing import Any, get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from agent.session.api.conversation import ItemId, Message, Modality
from agent.session.api.server_events import (
    AudioCommitted,
    ItemAdded,
    Notice,
    Problem,
    ReplyAudio,
    ReplyEnded,
    ReplyReason,
    ReplyStarted,
    ReplyStatus,
    ReplyText,
    SpeechStarted,
    SpeechStopped,
    TranscriptCompleted,
    TranscriptDelta,
    Usage,
)
from agent.session.api.settings import SessionSettings
from tests.support.wire.wire_frames import make, say

SETTINGS = {
    ("audio", "pcm16"): SessionSettings(),
    ("audio", "pcmu"): SessionSettings(output_encoding="pcmu"),
    ("text", "pcm16"): SessionSettings(output_modality="text"),
}


def reply(draw: DrawFn, number: int, previous: ItemId | None) -> list[Notice]:
    (modality, encoding) = draw(st.sampled_from(sorted(SETTINGS)))
    spoken: Modality = "audio" if modality == "audio" else "text"
    response_id = f"resp_{number}"
    item_id = ItemId(f"item_a{number}")
    begun = ReplyStarted(
        response_id,
        item_id,
        previous,
        spoken,
        SETTINGS[modality, encoding],
        draw(st.none() | st.just({"k": "v"})),
        draw(st.booleans()),
    )
    rate_hz = 8_000 if encoding == "pcmu" else 24_000
    body: list[Notice] = []
    for _ in range(draw(st.integers(0, 4))):
        body.append(ReplyText(response_id, draw(st.text(max_size=5))))
        if spoken == "audio":
            samples = draw(st.integers(0, rate_hz // 2))
            body.append(ReplyAudio(response_id, np.zeros(samples, np.int16), rate_hz))
    status: ReplyStatus = draw(st.sampled_from(get_args(ReplyStatus)))
    reason: ReplyReason | None = None
    if status != "completed":
        reason = draw(st.sampled_from(get_args(ReplyReason)))
    over = ReplyEnded(response_id, status, reason, draw(st.text(max_size=5)), Usage(1, 0, 1))
    return [begun, *body, over]


@st.composite
def sessions(draw: DrawFn) -> list[Notice]:
    """User turns, replies (some interrupted by the next turn's start), problems in between."""
    notices: list[Notice] = []
    last: ItemId | None = None
    for number in range(draw(st.integers(1, 4))):
        user = ItemId(f"item_u{number}")
        if draw(st.booleans()):
            notices += [SpeechStarted(user, number), SpeechStopped(user, number + 1)]
            notices.append(AudioCommitted(user, last))
        notices.append(ItemAdded(Message(user, "user", "audio", None), last))
        told = reply(draw, number, user)
        late: list[Notice] = [TranscriptDelta(user, "x"), TranscriptCompleted(user, "xy", 0.5)]
        for notice in (*late, Problem("No.", "invalid_value")):
            told.insert(draw(st.integers(0, len(told))), notice)
        notices += told
        last = ItemId(f"item_a{number}")
    return notices


@settings(max_examples=150, deadline=None)
@given(notices=sessions())
def test_frames_keep_the_dialects_order(notices: list[Notice]) -> None:
    events = say(make(), notices)
    assert len({event["event_id"] for event in events}) == len(events)
    kinds = Counter(event["type"] for event in events)
    assert kinds["response.created"] == kinds["response.done"] == kinds["rate_limits.updated"]
    assert kinds["conversation.item.added"] == kinds["conversation.item.done"]
    added = [e["item"]["id"] for e in events if e["type"] == "conversation.item.added"]
    assert len(set(added)) == len(added)
    for response_id in {e["response"]["id"] for e in events if e["type"] == "response.created"}:
        check_response([event for event in events if belongs(event, response_id)])


def belongs(event: dict[str, Any], response_id: str) -> bool:
    return response_id in (event.get("response_id"), event.get("response", {}).get("id"))


def check_response(events: list[dict[str, Any]]) -> None:
    """Brackets in order around nothing but deltas."""
    kinds = [event["type"].removeprefix("response.") for event in events]
    spoken = "output_audio.done" in kinds
    closing = ["content_part.done", "output_item.done", "done"]
    if spoken:
        closing = ["output_audio.done", "output_audio_transcript.done", *closing]
    else:
        closing = ["output_text.done", *closing]
    assert kinds[:3] == ["created", "output_item.added", "content_part.added"]
    assert kinds[-len(closing) :] == closing
    deltas = set(kinds[3 : -len(closing)])
    allowed = {"output_audio.delta", "output_audio_transcript.delta"}
    assert deltas <= (allowed if spoken else {"output_text.delta"})
    item = events[-1]["response"]["output"][0]
    assert item == events[-2]["item"]
    assert (item["status"] == "completed") == (events[-1]["response"]["status"] == "completed")
