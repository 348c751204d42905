"""Events of the voice socket, `/v1/realtime`, in the dialects `realtime` and `halfsec.v1`.

An input is a few frames, one a line, to one connection; a first byte decides how that connection is
set up. Each frame is answered by requests or problems, each problem can be said to the client, and
what a client may set is within its bounds.
"""

import json
import random
from collections.abc import Sequence
from typing import Any, Final

from agent.realtime.protocol.ids import CountingIds
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.client_events import AppendAudio, Request, UpdateSession
from agent.session.api.server_events import Problem, SessionCreated, SessionUpdated
from agent.session.api.settings import SessionSettings
from latency_budget.account.turn import SessionId
from tests.fuzz.target import JsonGrammar, Target

MAX_FRAMES: Final = 3
"""One that sets, one that is set by it, and one more: longer inputs only take longer."""
NEW: Final = SessionSettings()

_MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
_TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
_AUDIO = {
    "input": {
        "format": {"type": "audio/pcm", "rate": 24000},
        "transcription": {"model": "whisper-1", "language": "en", "prompt": "x", "keywords": ["y"],
            "languages": ["en"], "delay": "low"},
        "noise_reduction": {"type": "near_field"},
        "turn_detection": {
            "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300,
            "silence_duration_ms": 500, "idle_timeout_ms": 6000, "create_response": True,
            "interrupt_response": True,
        },
    },
    "output": {"format": {"type": "audio/pcmu"}, "voice": "alloy", "speed": 1.0},
}  # fmt: skip
_SESSION = {
    "type": "realtime", "instructions": "x", "output_modalities": ["text"], "tools": [_TOOL],
    "tool_choice": {"type": "function", "name": "f"}, "max_output_tokens": "inf", "audio": _AUDIO,
    "tracing": {"workflow_name": "w"}, "include": [], "prompt": None,
    "parallel_tool_calls": False, "reasoning": {"effort": "low"}, "truncation": {
        "type": "retention_ratio", "retention_ratio": 0.8,
        "token_limits": {"post_instructions": 500}},
    "halfsec": {"pace_ms": 100, "budget_ms": 500},
}  # fmt: skip
SEEDS: Final[Sequence[dict[str, Any]]] = (
    {"type": "session.update", "event_id": "e", "session": _SESSION},
    {"type": "session.update", "session": {"type": "transcription", "audio": {"input": {
        "turn_detection": {"type": "semantic_vad", "eagerness": "low"}}}}},
    {"type": "session.update", "session": {"type": "realtime", "modalities": ["text"]}},
    {"type": "input_audio_buffer.append", "audio": "AAAA/3//fw=="},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    {"type": "conversation.item.create", "previous_item_id": "root", "item": _MESSAGE},
    {"type": "conversation.item.create", "item": {"type": "function_call", "name": "f",
        "arguments": "{}", "call_id": "c", "status": "completed"}},
    {"type": "conversation.item.create", "item": {"type": "function_call_output", "id": "i",
        "call_id": "c", "output": "o", "object": "realtime.item"}},
    {"type": "conversation.item.create", "item": {"type": "message", "role": "assistant",
        "content": [{"type": "output_audio", "transcript": "t", "audio": ""}]}},
    {"type": "conversation.item.retrieve", "item_id": "i"},
    {"type": "conversation.item.delete", "item_id": "i"},
    {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0,
        "audio_end_ms": 10},
    {"type": "response.create", "response": {"instructions": "x", "conversation": "none",
        "input": [_MESSAGE, {"type": "item_reference", "id": "i"}], "metadata": {"a": "b"},
        "output_modalities": ["audio"], "max_output_tokens": 5, "tools": [_TOOL],
        "tool_choice": "required", "audio": {"output": {"voice": "marin",
        "format": {"type": "audio/pcma"}}}}},
    {"type": "response.cancel", "response_id": "r"},
    {"type": "halfsec.playback", "item_id": "i", "played_ms": 5},
    {"type": "transcription_session.update"},
)  # fmt: skip
GRAMMAR: Final = JsonGrammar(SEEDS)


def examine(data: bytes) -> None:
    """One input. Raises where the dialect breaks a promise."""
    fixed = frozenset(("instructions", "audio.output.voice")) if data[:1] > b"\x7f" else frozenset()
    protocol = RealtimeProtocol(
        NEW, model="m", new_id=CountingIds("t"), extensions=data[:1] < b"\x40", fixed=fixed
    )
    settled = NEW
    protocol.send(SessionCreated(SessionId("sess_1"), NEW, None))
    for line in data[1:].split(b"\n")[:MAX_FRAMES]:
        for answer in protocol.receive(line if line[:1] == b"\x00" else _as_text(line)):
            assert isinstance(answer, Request | Problem), answer
            if isinstance(answer, AppendAudio):
                assert answer.pcm.ndim == 1, answer
                assert len(answer.pcm), answer
            notices: list[Problem | SessionUpdated] = []
            if isinstance(answer, UpdateSession):
                settled = answer.settings
                notices.append(SessionUpdated(settled))
            if isinstance(answer, Problem):
                assert answer.message, answer
                assert answer.code, answer
                notices.append(answer)
            for said in (frame for notice in notices for frame in protocol.send(notice)):
                json.loads(said.encode())  # as it goes over the wire
    if fixed:
        assert (settled.instructions, settled.voice) == (NEW.instructions, NEW.voice), settled


def _as_text(line: bytes) -> str:
    """What the WebSocket hands on is UTF-8; a lone surrogate can only come as an escape."""
    return line.decode(errors="replace")


def change(data: bytes, chance: random.Random) -> bytes | None:
    return GRAMMAR.change_lines(data, chance, MAX_FRAMES)


def seeds() -> list[bytes]:
    texts = (json.dumps(event).encode() for event in SEEDS)
    return [bytes([number * 15 % 256]) + text for number, text in enumerate(texts)]


TARGET: Final = Target(
    examine, seeds, change, words=[f'"{name}"'.encode() for name in GRAMMAR.names]
)
