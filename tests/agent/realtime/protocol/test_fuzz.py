"""Random frames: whatever comes, the answer is a request or a problem, never an exception."""

import json
import string
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.session.api.client_events import Request
from agent.session.api.server_events import Problem
from tests.support.wire.wire_frames import make

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELD_NAMES = st.sampled_from(
    ["session", "item", "response", "audio", "item_id", "content_index", "audio_end_ms",
     "event_id", "previous_item_id", "type", "id", "role", "content", "text", "transcript",
     "tools", "tool_choice", "metadata", "input", "output", "format", "voice", "turn_detection",
     "transcription", "eagerness", "threshold", "instructions", "max_output_tokens",
     "conversation", "output_modalities", "played_ms", "call_id", "name", "arguments", "status",
     "object", "rate", "speed"]
)  # fmt: skip
TYPES = st.sampled_from(
    ["session.update", "input_audio_buffer.append", "input_audio_buffer.commit",
     "input_audio_buffer.clear", "conversation.item.create", "conversation.item.retrieve",
     "conversation.item.truncate", "conversation.item.delete", "response.create",
     "response.cancel", "output_audio_buffer.clear", "halfsec.playback", "realtime", "message",
     "function_call", "server_vad", "semantic_vad", "audio/pcm", "audio/pcmu", "input_text",
     "user", "assistant"]
)  # fmt: skip
SHAPES = st.recursive(
    JSON_VALUES | TYPES,
    lambda inner: (
        st.dictionaries(FIELD_NAMES, inner, max_size=5)
        | st.tuples(TYPES, st.dictionaries(FIELD_NAMES, inner, max_size=4)).map(
            lambda pair: pair[1] | {"type": pair[0]}
        )
        | st.lists(inner, max_size=2)
    ),
    max_leaves=12,
)
EVENTS = st.tuples(TYPES, st.dictionaries(FIELD_NAMES, SHAPES, max_size=4)).map(
    lambda pair: pair[1] | {"type": pair[0]}
)


@settings(max_examples=600, deadline=None)
@given(event=EVENTS, extensions=st.booleans())
def test_any_event_is_answered_by_a_request_or_a_problem(
    event: dict[str, Any], extensions: bool
) -> None:
    protocol = make(extensions)
    for answer in protocol.receive(json.dumps(event)):
        assert isinstance(answer, Request | Problem)
        if isinstance(answer, Problem):
            (frame,) = protocol.send(answer)
            assert json.loads(frame)["error"]["message"]


@settings(max_examples=300, deadline=None)
@given(frame=st.binary(max_size=200) | st.text(alphabet=string.printable, max_size=200))
def test_any_bytes_are_answered_by_a_problem(frame: str | bytes) -> None:
    assert all(isinstance(answer, Problem) for answer in make().receive(frame))
