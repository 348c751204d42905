"""Environment of a stock client in a subprocess, and its report."""

import array
import asyncio
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

RATE_HZ: Final = 24_000
BYTES_PER_S: Final = 2 * RATE_HZ
PATIENCE_S: Final = 60.0
"""For any one thing. Only a hang takes so long, on any machine."""

STORY: Final = "Tell me a long story about a dragon."
"""The embedded model answers with four sentences: 15 s of speech."""

READER: Final = "reader"
"""The agent of these tests that begins with a long greeting."""

WEATHER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Parameters of the tool that the scenarios offer: any call fits it, whatever the model thinks."""

SPOKEN_TURN: Final = (
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
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
    "rate_limits.updated",
)
"""Transcription events apart: they may come anywhere behind the commit."""

CLOSING_OF_A_CUT: Final = SPOKEN_TURN[SPOKEN_TURN.index("response.output_audio.done") :]

TOOL_CALL: Final = (
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
    "rate_limits.updated",
)

Event = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """One service, and what there is to say to it."""

    http: str
    """Its address, such as "http://127.0.0.1:8080"."""
    recordings: Mapping[str, bytes]
    """PCM16 at 24 kHz, by name."""
    transcripts: Mapping[str, str]
    cut: Callable[[], Awaitable[None]]
    """Break all connections to it, as a network does: without a word. New ones can be made."""

    @property
    def ws(self) -> str:
        return self.http.replace("http", "ws", 1)

    def speech(self, name: str, *, silence_s: float = 2.0) -> bytes:
        """A recording and the silence behind it."""
        return self.recordings[name] + bytes(int(silence_s * RATE_HZ) * 2)


Scenario = Callable[[Scene], Awaitable[None]]


def pieces(pcm: bytes, piece_ms: int = 20) -> Iterable[bytes]:
    """What a microphone gives, piece by piece."""
    size = BYTES_PER_S * piece_ms // 1000
    return (pcm[first : first + size] for first in range(0, len(pcm), size))


def loudest(pcm: bytes) -> int:
    """Largest sample of PCM16."""
    samples = array.array("h", pcm)
    if sys.byteorder == "big":
        samples.byteswap()
    return max(map(abs, samples), default=0)


def overlap(said: str, heard: str) -> float:
    """Share of the words said that were heard."""
    words = [
        set("".join(c for c in text.lower() if c.isalnum() or c == " ").split())
        for text in (said, heard)
    ]
    return len(words[0] & words[1]) / len(words[0])


def outline(events: Iterable[Event]) -> list[str]:
    """Types in order: of repeated deltas only the first, nothing of transcription."""
    kept: list[str] = []
    for event in events:
        kind = event["type"]
        if "input_audio_transcription" in kind or (kind.endswith(".delta") and kind in kept):
            continue
        kept.append(kind)
    return kept


def check_chain(events: Iterable[Event]) -> None:
    """Ids that are unique in their session, and items that each stand behind the one before."""
    last: str | None = None
    ids: set[str] = set()
    seen: set[str] = set()
    for event in events:
        if event["type"] == "session.created":
            last, ids, seen = None, set(), set()
        assert event["event_id"] not in ids, event
        ids.add(event["event_id"])
        if event["type"] == "conversation.item.added":
            item_id = event["item"]["id"]
            assert event["previous_item_id"] == last, event
            assert item_id not in seen, event
            seen.add(item_id)
            last = item_id


def check_tool_call(events: list[Event]) -> Event:
    """The first function call of a response as clients depend on it: order, ids, whole arguments.

    Returns its item. Other calls may follow, a client's own doings may be answered in between, and
    a client that asks for the next response by itself may have its beginning already.
    """
    events = events[: outline_index(events, "rate_limits.updated") + 1]
    begun = next(e for e in events if e["type"] == "response.output_item.added")["item"]
    about = ("response.created", "response.done", "rate_limits.updated")
    events = [e for e in events if e["type"] in about or begun["id"] == _item_of(e)]
    assert tuple(outline(events)) == TOOL_CALL, outline(events)
    item: Event = next(e for e in events if e["type"] == "response.output_item.done")["item"]
    assert begun["type"] == item["type"] == "function_call"
    assert (begun["status"], item["status"]) == ("in_progress", "completed")
    assert begun["call_id"] == item["call_id"]
    assert begun["name"] == item["name"] == "get_weather"
    shown = next(e for e in events if e["type"] == "conversation.item.added")["item"]
    assert (shown["call_id"], shown["name"]) == (item["call_id"], item["name"])
    whole = next(e for e in events if e["type"] == "response.function_call_arguments.done")
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(e["delta"] for e in deltas) == whole["arguments"] == item["arguments"]
    assert {e["call_id"] for e in deltas} == {whole["call_id"]} == {item["call_id"]}
    assert whole["name"] == item["name"]
    check_arguments(item["arguments"])
    response = events[outline_index(events, "response.done")]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["id"] == item["id"]
    return item


def _item_of(event: Event) -> str | None:
    item_id: str | None = event.get("item_id") or event.get("item", {}).get("id")
    return item_id


def check_arguments(text: str) -> None:
    """They fit `WEATHER`."""
    assert json.loads(text)["city"] in WEATHER["properties"]["city"]["enum"], text


def outline_index(events: list[Event], kind: str) -> int:
    """Where the first event of a type stands."""
    return next(index for index, event in enumerate(events) if event["type"] == kind)


def scene_of_environment() -> Scene:
    """The one that the runner has set: HALFSEC_CLIENTS_SCENE is the path of its description."""
    told = json.loads(Path(os.environ["HALFSEC_CLIENTS_SCENE"]).read_text())
    recordings = {name: Path(path).read_bytes() for name, path in told["recordings"].items()}

    async def cut() -> None:
        """The runner's answer comes when it is done."""
        reader, writer = await asyncio.open_connection("127.0.0.1", told["cut_port"])
        assert await reader.read() == b"cut\n"
        writer.close()

    return Scene(told["http"], recordings, told["transcripts"], cut)


def main(scenarios: Mapping[str, Scenario]) -> None:
    """Run those named on the command line, or all, one after another."""
    scene = scene_of_environment()
    for name in sys.argv[1:] or scenarios:
        problem: str | None = None
        try:
            asyncio.run(_within_patience(scenarios[name], scene))
        except BaseException:
            problem = traceback.format_exc()
        print(json.dumps({"scenario": name, "problem": problem}), flush=True)


async def _within_patience(scenario: Scenario, scene: Scene) -> None:
    async with asyncio.timeout(2 * PATIENCE_S):
        await scenario(scene)
