"""Streams of a language model's server: server-sent events, chunks of a reply, tool calls.

The first byte decides how the stream is cut. However it is, the same reply comes, or the stream is
refused.
"""

import json
import random
from typing import Any, Final

from agent.session.api.conversation import ModelCall
from agent.stages.remote.completion_chunks import (
    END_OF_STREAM,
    CallAssembler,
    Chunk,
    ReportedError,
    parse_chunk,
)
from agent.stages.remote.event_stream import MalformedStreamError, SseReader
from tests.fuzz.target import JsonGrammar, Target

TOOLS: Final = frozenset(("weather", "hang_up"))

_CALL: Final = {"index": 0, "id": "c1", "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}  # fmt: skip


def _chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "choices": [choice], "usage": None}


CHUNKS: Final[tuple[dict[str, Any], ...]] = (
    _chunk({"role": "assistant", "content": ""}),
    _chunk({"content": "Hé"}),
    _chunk({"reasoning_content": "hm"}),
    _chunk({"reasoning": "hm", "content": None}),
    _chunk({"tool_calls": [_CALL]}),
    _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}),
    _chunk({"tool_calls": [{"function": {"name": "hang_up", "arguments": ""}}]}),
    _chunk({}, "tool_calls"),
    _chunk({}, "stop"),
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 8}}},
    {"error": {"message": "overloaded", "type": "server_error"}},
    {"detail": "x", "message": "y"},
)  # fmt: skip
GRAMMAR: Final = JsonGrammar(CHUNKS)
LINES: Final = (
    b"data: ", b"data:", b": ping", b"event: x", b"id: 1", b"retry: 5", b"\r\n", b"\r", b"\n\n",
    b"data: [DONE]\n\n", b"\xef\xbb\xbf", b"data: {}\n\n", b"\xff",
)  # fmt: skip


def examine(data: bytes) -> None:
    """The stream whole, and in pieces."""
    size = data[0] % 64 + 1 if data else 1
    stream = data[1:]
    whole = _reply([stream])
    pieces = _reply([stream[at : at + size] for at in range(0, len(stream), size)])
    # Which of two errors is met first depends on where the stream is cut.
    assert bool(whole[1]) == bool(pieces[1]), (whole, pieces)
    if not whole[1]:
        assert whole == pieces, (whole, pieces)


def _reply(pieces: list[bytes]) -> tuple[list[Chunk | ModelCall], str]:
    """What a reply consists of, and why it broke off."""
    reader, calls = SseReader(), CallAssembler(TOOLS)
    found: list[Chunk | ModelCall] = []
    is_whole = False

    def take(events: list[str]) -> None:
        nonlocal is_whole
        for event in events:
            is_whole = is_whole or event.strip() == END_OF_STREAM
            if not is_whole:
                chunk = parse_chunk(event)
                found.extend((chunk, *calls.push(chunk.calls)))

    try:
        for piece in pieces:
            take(reader.push(piece))
        take(reader.flush())
        found += calls.flush(is_whole=is_whole)
    except MalformedStreamError as error:
        assert str(error), error
        return found, str(error)
    except ReportedError as error:
        str(error).encode()
        return found, f"reported: {error}"
    for each in found:
        if isinstance(each, ModelCall):
            assert each.name in TOOLS, each
            assert isinstance(json.loads(each.arguments), dict), each
    return found, ""


def change(data: bytes, chance: random.Random) -> bytes | None:
    """One event as JSON, one more, or another line; or as bytes."""
    what = chance.random()
    if what < 0.25:
        return None
    events = data[1:].split(b"\n\n")
    at = chance.randrange(len(events))
    if what < 0.4:
        events.insert(at, b"data: " + json.dumps(chance.choice(CHUNKS)).encode())
    elif what < 0.5:
        events[at] = chance.choice(LINES) + events[at]
    else:
        head, _, text = events[at].partition(b"data: ")
        changed = GRAMMAR.change_text(text, chance)
        if changed is None:
            return None
        events[at] = head + b"data: " + changed
    return data[:1] + b"\n\n".join(events)


def seeds() -> list[bytes]:
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in CHUNKS]
    end = b"data: [DONE]\n\n"
    return [
        b"\x00" + events[0] + events[1] + events[8] + events[9] + end,
        b"\x07" + events[0] + events[4] + events[6] + events[7] + end,
        b"\x01" + b": ping\r\n\r\n" + events[2] + events[3].replace(b"\n", b"\r\n") + end,
        *(bytes([number]) + each + end for number, each in enumerate(events)),
    ]


TARGET: Final = Target(
    examine, seeds, change, words=[*(f'"{name}"'.encode() for name in GRAMMAR.names), *LINES]
)
