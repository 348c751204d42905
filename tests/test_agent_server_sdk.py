"""Stock clients against the real service: the official SDK, and the strict agents SDK."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from agents.realtime import RealtimeAgent, RealtimeRunner
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from .live import LiveServer
from .live_call import PATIENCE_S, Int16, overlap, recording, silence, transcript
from .wire_frames import check_strictly

pytest_plugins = ["tests.live_fixtures"]
pytestmark = pytest.mark.models

SPOKEN_TURN = [
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
]
"""Transcription events apart: they may come anywhere behind the commit."""


class SdkCall:
    """The SDK's connection, and all that came over it."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []

    async def until(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                event = (await self.connection.recv()).to_dict(mode="json")
                check_strictly(event)
                self.events.append(event)
                if event["type"] == kind:
                    return event

    async def say(self, pcm: Int16, piece_ms: int = 40) -> None:
        size = 24 * piece_ms
        for first in range(0, len(pcm), size):
            piece = base64.b64encode(pcm[first : first + size].tobytes()).decode()
            await self.connection.input_audio_buffer.append(audio=piece)

    async def ask(self, text: str) -> dict[str, Any]:
        await self.connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": text}],
            }
        )
        await self.connection.response.create()
        response: dict[str, Any] = (await self.until("response.done"))["response"]
        return response

    def audio(self) -> Int16:
        """All that was spoken, at 24 kHz."""
        data = b"".join(
            base64.b64decode(event["delta"], validate=True)
            for event in self.events
            if event["type"] == "response.output_audio.delta"
        )
        return np.frombuffer(data, "<i2")


@asynccontextmanager
async def sdk_call(live: LiveServer, model: str = "gpt-realtime-2.1") -> AsyncIterator[SdkCall]:
    async with (
        AsyncOpenAI(base_url=f"{live.http}/v1", api_key="x") as client,
        client.realtime.connect(model=model) as connection,
    ):
        call = SdkCall(connection)
        created = await call.until("session.created")
        assert created["session"]["model"] == model
        yield call


def without_transcription(events: list[dict[str, Any]]) -> list[str]:
    """Types in order, repeated deltas folded into one pair."""
    kept: list[str] = []
    for event in events:
        kind = event["type"]
        if "input_audio_transcription" in kind or (kind.endswith(".delta") and kind in kept):
            continue
        kept.append(kind)
    return kept


async def test_a_typed_conversation_of_two_turns(live: LiveServer) -> None:
    async with sdk_call(live) as call:
        await call.connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"]}
        )
        await call.until("session.updated")
        first = await call.ask("What is the capital of France?")
        second = await call.ask("And what do people eat there?")
    for response in (first, second):
        assert response["status"] == "completed"
        (item,) = response["output"]
        assert item["role"] == "assistant"
        assert item["content"][0]["text"].strip()
    assert "Paris" in first["output"][0]["content"][0]["text"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    deltas = [e["delta"] for e in call.events if e["type"] == "response.output_text.delta"]
    texts = [response["output"][0]["content"][0]["text"] for response in (first, second)]
    assert "".join(deltas) == "".join(texts)


async def test_a_spoken_turn_comes_in_the_order_that_clients_expect(live: LiveServer) -> None:
    said = "vm-nobodyavail"
    async with sdk_call(live) as call:
        await call.say(recording(said), piece_ms=20)
        await call.say(silence(2.0), piece_ms=20)
        await call.until("rate_limits.updated")
        kinds = [event["type"] for event in call.events]
        if not any(kind.endswith("transcription.completed") for kind in kinds):
            await call.until("conversation.item.input_audio_transcription.completed")
    assert without_transcription(call.events[1:]) == SPOKEN_TURN
    heard = next(e for e in call.events if e["type"].endswith("transcription.completed"))
    assert overlap(transcript(said), heard["transcript"]) >= 0.8
    assert heard["usage"]["type"] == "duration"
    assert 1.0 < heard["usage"]["seconds"] < 4.0
    user = next(e for e in call.events if e["type"] == "conversation.item.added")["item"]
    started = next(e for e in call.events if e["type"].endswith("speech_started"))
    stopped = next(e for e in call.events if e["type"].endswith("speech_stopped"))
    assert user["id"] == heard["item_id"] == started["item_id"] == stopped["item_id"]
    assert 0 <= started["audio_start_ms"] < stopped["audio_end_ms"] <= 5000
    check_reply(call)


def check_reply(call: SdkCall) -> None:
    """One spoken reply: sound that can be heard, and the same words everywhere."""
    pcm = call.audio()
    assert len(pcm) > 24_000 // 2
    assert np.abs(pcm.astype(int)).max() > 1000
    kinds = {event["type"]: event for event in call.events}
    done = kinds["response.done"]["response"]
    assert done["status"] == "completed"
    words = done["output"][0]["content"][0]["transcript"]
    assert words == kinds["response.output_audio_transcript.done"]["transcript"]
    deltas = [
        e["delta"] for e in call.events if e["type"] == "response.output_audio_transcript.delta"
    ]
    assert "".join(deltas) == words
    ids = {e.get("response_id") for e in call.events if e["type"].startswith("response.output")}
    assert ids == {done["id"]}
    assert len({event["event_id"] for event in call.events}) == len(call.events)


async def test_the_agents_sdk_holds_a_spoken_conversation(live: LiveServer) -> None:
    said = "conf-locked"
    runner = RealtimeRunner(RealtimeAgent(name="assistant", instructions="Answer in few words."))
    session = await runner.run(
        model_config={"url": f"{live.url}?model=gpt-realtime", "api_key": "x"}
    )
    spoken: list[bytes] = []
    heard: list[str] = []
    async with session:
        for pcm in (recording(said), silence(2.0)):
            for first in range(0, len(pcm), 2400):
                await session.send_audio(pcm[first : first + 2400].tobytes())
        async with asyncio.timeout(PATIENCE_S):
            async for event in session:
                assert event.type != "error", event
                if event.type == "audio":
                    spoken.append(event.audio.data)
                elif event.type == "raw_model_event":
                    data = event.data
                    assert data.type not in ("error", "exception"), data
                    if data.type == "input_audio_transcription_completed":
                        heard.append(data.transcript)
                if heard and len(b"".join(spoken)) > 48_000:
                    break  # the rest of the reply is more of the same, in real time
    assert overlap(transcript(said), " ".join(heard)) >= 0.7
    assert np.abs(np.frombuffer(b"".join(spoken), "<i2").astype(int)).max() > 1000
