"""A coverage-guided fuzzer of the voice socket's dialect, by atheris (libFuzzer).

    python -m tests.fuzz_wire --inputs 1000000

An input is a few frames, one a line, to one connection; a first byte decides how that connection is
set up. They begin as real events, and are changed as JSON (fields, values, kinds) or as bytes, by
what reaches lines of `agent/realtime/protocol` that none has reached. Whatever comes, each frame
is answered by
requests or problems, each problem can be said to the client, and what a client may set is within
its bounds. The first input that breaks this is printed, and kept as a file `crash-...`; exit 77.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import atheris

with atheris.instrument_imports(
    include=["agent.realtime.protocol", "agent.telephony.carriers", "agent.codec"]
):
    from agent.realtime.protocol.ids import CountingIds
    from agent.realtime.protocol.protocol import RealtimeProtocol

from agent.session.api.client_events import AppendAudio, Request, UpdateSession
from agent.session.api.server_events import Problem, SessionCreated, SessionUpdated
from agent.session.api.settings import SessionSettings
from latency_budget.account.turn import SessionId

MAX_BYTES: Final = 2048
MAX_FRAMES: Final = 3
"""One that sets, one that is set by it, and one more: longer inputs only take longer."""
NEW: Final = SessionSettings()

_MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
_TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
_AUDIO = {
    "input": {
        "format": {"type": "audio/pcm", "rate": 24000},
        "transcription": {"model": "whisper-1", "language": "en", "prompt": "x"},
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
    "tracing": "auto", "truncation": "disabled", "include": [], "prompt": {"id": "p"},
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
ODD: Final[Sequence[Any]] = (
    None, True, False, 0, -1, 1, 1e308, -0.0, 2**63, 10**400, "", "root", "auto", "none", "inf",
    "\x00", "\ud800", "<|im_end|>", "é" * 70, "x" * 600, [], {}, [[]], [None], {"": None},
)  # fmt: skip


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


def change(data: bytes, max_size: int, seed: int) -> bytes:
    """Half of the time as JSON, else as bytes: libFuzzer's own way."""
    chance = random.Random(seed)
    lines = data[1:].split(b"\n")
    at = chance.randrange(len(lines))
    try:
        event = json.loads(lines[at])
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict) or chance.random() < 0.4:
        if not lines[at] and chance.random() < 0.5:
            lines[at] = _text_of(chance.choice(SEEDS))
            return (data[:1] + b"\n".join(lines))[:max_size]
        changed: bytes = atheris.Mutate(data, max_size)
        return changed
    if chance.random() < 0.2 and len(lines) < MAX_FRAMES:
        lines.insert(at, _text_of(chance.choice(SEEDS)))
    else:
        _change_a_value(event, chance)
        lines[at] = _text_of(event)
    first = bytes([chance.randrange(256)]) if chance.random() < 0.1 else data[:1]
    return (first + b"\n".join(lines))[:max_size]


def _change_a_value(event: Any, chance: random.Random) -> None:
    """Of this object or one inside it."""
    inside = event
    while chance.random() < 0.7:
        values = list(inside.values() if isinstance(inside, dict) else inside)
        deeper = [value for value in values if isinstance(value, dict | list) and value]
        if not deeper:
            break
        inside = chance.choice(deeper)
    keys = list(inside if isinstance(inside, dict) else range(len(inside)))
    if not keys:
        return
    key = chance.choice(keys)
    what = chance.random()
    if what < 0.2:
        del inside[key]
    elif what < 0.35 and isinstance(inside, dict):
        inside[chance.choice(_NAMES)] = inside[key]
    elif what < 0.6:
        other = chance.choice(SEEDS)
        inside[key] = other[chance.choice(list(other))]
    else:
        inside[key] = chance.choice(ODD)


def _names_in(value: Any) -> set[str]:
    found: set[str] = set()
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list | tuple):
            found |= _names_in(inner)
    return found | (set(value) if isinstance(value, dict) else set())


_NAMES: Final = sorted(_names_in(SEEDS))


def _text_of(event: Any) -> bytes:
    return json.dumps(event).encode()


def main(argv: Sequence[str] | None = None) -> None:
    """Ends the process: 0 after so many inputs, 77 at the first that breaks a promise."""
    parser = argparse.ArgumentParser(description="Fuzz the voice socket's dialect.")
    parser.add_argument("--inputs", type=int, default=100_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of chance (%(default)s)")
    options = parser.parse_args(argv)
    corpus = Path(tempfile.mkdtemp(prefix="halfsec-fuzz-"))
    for number, event in enumerate(SEEDS):
        (corpus / f"{number}").write_bytes(bytes([number * 15]) + _text_of(event))
    (corpus / "words").write_text("".join(f'"\\"{name}\\""\n' for name in _NAMES))
    dictionary = corpus.with_suffix(".dict")
    (corpus / "words").rename(dictionary)
    # libFuzzer's limit of memory is off: it looks at the peak, which on Linux a process inherits
    # from the one that started it, and a test run with models has gigabytes.
    arguments = [
        sys.argv[0], f"-runs={options.inputs}", f"-seed={options.seed}", f"-max_len={MAX_BYTES}",
        f"-dict={dictionary}", "-print_final_stats=1", "-timeout=10", "-verbosity=0",
        "-rss_limit_mb=0",
        f"-artifact_prefix={tempfile.gettempdir()}/", str(corpus),
    ]  # fmt: skip
    atheris.Setup(arguments, lambda data: examine(data), custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
