"""Turns on the real service: interrupted, cancelled, cut to what was heard, replayed."""

import httpx
import pytest

from agent.cli.replay import replay
from latency_budget.reporting.trace import Trace, read_trace
from tests.support.service.live import LiveServer
from tests.support.service.live_call import (
    WIRE_HZ,
    Event,
    LiveCall,
    audio_of,
    call_to,
    overlap,
    recording,
    silence,
    transcript,
    words_of,
)

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

STORY = "Tell me a long story about a dragon."
"""The embedded model answers with four sentences: 15 s of speech."""


async def trace_of(live: LiveServer, call: LiveCall) -> Trace:
    session_id = call.events[0]["session"]["id"]
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        answer = await http.get(f"{live.http}/v1/sessions/{session_id}/trace")
    assert answer.status_code == 200
    return read_trace(answer.text.splitlines())


async def hear_some(call: LiveCall, num_deltas: int) -> Event:
    """Wait for so much of a reply (100 ms each). Returns its last delta."""
    for _ in range(num_deltas):
        delta = await call.until("response.output_audio.delta")
    return delta


async def retrieve(call: LiveCall, item_id: str) -> Event:
    await call.send("conversation.item.retrieve", item_id=item_id)
    item: Event = (await call.until("conversation.item.retrieved"))["item"]
    return item


def shown_of(call: LiveCall, response_id: str) -> str:
    """All text of a response that was sent, heard or not."""
    return "".join(
        event["delta"]
        for event in call.of("response.output_audio_transcript.delta")
        if event["response_id"] == response_id
    )


def check_heard(text: str, shown: str) -> None:
    """A real beginning of what was said, that ends where a word does."""
    assert text
    assert shown.startswith(text)
    assert len(text) < len(shown)
    assert not shown[len(text)].isalnum()


@pytest.mark.parametrize("model", [None, "reader"], ids=["the model's words", "a greeting"])
async def test_the_caller_interrupts(live: LiveServer, model: str | None) -> None:
    async with call_to(live.url, model=model) as call:
        if model is None:
            await call.type(STORY)
            await call.send("response.create")
        heard = await hear_some(call, 15)
        response_id, item_id = heard["response_id"], heard["item_id"]
        said = "all-circuits-busy-now"
        await call.append(recording(said), piece_ms=20)
        started = await call.until("input_audio_buffer.speech_started")
        cut = await call.response()
        assert cut["id"] == response_id
        assert cut["status"] == "cancelled"
        assert cut["status_details"]["reason"] == "turn_detected"
        behind = call.types[call.types.index(started["type"]) + 1 :]
        assert behind[:5] == [
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
        ]
        await call.append(silence(2.0), piece_ms=20)
        number = len(call.events)
        words = await call.until("conversation.item.input_audio_transcription.completed")
        assert overlap(transcript(said), words["transcript"]) >= 0.6
        item = await retrieve(call, item_id)
        assert item["status"] == "incomplete"
        text = item["content"][0]["transcript"]
        assert text == words_of(cut)
        check_heard(text, shown_of(call, response_id))
        again = await hear_some(call, 2)
        assert again["response_id"] != response_id
        await call.send("response.cancel")
        await call.response()
        later = call.events[number:]
        assert all(event.get("response_id") != response_id for event in later)
        trace = await trace_of(live, call)
    result = replay(trace)
    assert result.difference is None
    assert result.num_commands >= 5


async def test_a_client_cancels(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        await call.type(STORY)
        await call.send("response.create")
        heard = await hear_some(call, 10)
        await call.send("response.cancel")
        cut = await call.response()
        assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        check_heard(words_of(cut), shown_of(call, heard["response_id"]))
        number = len(call.events)
        await call.prove_alive()
        later = [event["type"] for event in call.events[number:]]
        assert "response.output_audio.delta" not in later


async def test_client_reports_the_played_audio(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        response = await call.ask("What is the capital of France?")
        spoken, item_id = words_of(response), response["output"][0]["id"]
        sent_ms = len(audio_of(call.events, response["id"])) * 1000 // WIRE_HZ
        told = {}
        for end_ms in (600_000, sent_ms // 2, sent_ms // 2, 0):
            place = {"item_id": item_id, "content_index": 0, "audio_end_ms": end_ms}
            await call.send("conversation.item.truncate", **place)
            truncated = await call.until("conversation.item.truncated")
            assert truncated["audio_end_ms"] == min(end_ms, sent_ms)
            item = await retrieve(call, item_id)
            told[end_ms] = item["content"][0]["transcript"] if item["content"] else ""
        assert told[600_000] == spoken
        assert spoken.startswith(told[sent_ms // 2])
        assert len(told[sent_ms // 2]) < len(spoken)
        assert told[0] == ""
        await call.prove_alive()


async def test_one_response_at_a_time(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        await call.type(STORY)
        await call.send("response.create")
        await call.until("response.created")
        await call.send("response.create", event_id="again")
        refused = await call.until("error")
        assert refused["error"]["code"] == "conversation_already_has_active_response"
        assert refused["error"]["event_id"] == "again"
        await call.send("response.cancel")
        await call.response()
        await call.prove_alive()


async def test_responses_out_of_band_leave_nothing_behind(live: LiveServer) -> None:
    """More of them than the engine has room for at once."""
    async with call_to(live.url) as call:
        number = 4 * live.config.agent.max_sessions + 2
        for index in range(number):
            response = await call.answer(
                conversation="none",
                metadata={"index": str(index)},
                output_modalities=["text"],
                max_output_tokens=2,
                input=[
                    {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "Hello!"}],
                    }
                ],
            )
            assert response["metadata"] == {"index": str(index)}
            assert response["status"] == "incomplete", response
            assert response["conversation_id"] is None
        assert call.of("conversation.item.added") == []
        await call.prove_alive()


async def test_two_calls_do_not_mix(live: LiveServer) -> None:
    async with call_to(live.url) as one, call_to(live.url) as other:
        for call in (one, other):
            await call.update(output_modalities=["text"], max_output_tokens=12)
        await one.type("My name is Alice.")
        await other.say("vm-nobodyavail", silence_s=3.0)
        first = await one.answer()
        heard = await other.until("conversation.item.input_audio_transcription.completed")
        second = await other.response()
        assert overlap(transcript("vm-nobodyavail"), heard["transcript"]) >= 0.8
        assert first["id"] != second["id"]
        assert one.of("input_audio_buffer.speech_started") == []
        ids = [{event["event_id"] for event in call.events} for call in (one, other)]
        assert all(ids)
        assert one.events[0]["session"]["id"] != other.events[0]["session"]["id"]
