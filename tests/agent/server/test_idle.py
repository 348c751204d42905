"""OpenAI's `idle_timeout_ms` on the real service."""

import pytest

from agent.cli.replay import replay
from tests.agent.server.test_turns import trace_of
from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to, words_of

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

LEAST_MS = 5000
"""No shorter time-out is taken."""


async def test_a_silent_caller_is_spoken_to_again(live: LiveServer) -> None:
    async with call_to(live.url) as call:
        detection = {"type": "server_vad", "idle_timeout_ms": LEAST_MS}
        session = await call.update(
            max_output_tokens=8, audio={"input": {"turn_detection": detection}}
        )
        assert session["audio"]["input"]["turn_detection"]["idle_timeout_ms"] == LEAST_MS
        await call.ask("Say hello.")
        num_before = len(call.events)
        timeout = await call.until("input_audio_buffer.timeout_triggered")
        response = await call.response()
        trace = await trace_of(live, call)
    assert timeout["audio_start_ms"] == timeout["audio_end_ms"] == 0, "no audio was sent"
    wanted = [
        "input_audio_buffer.timeout_triggered",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
    ]
    after = call.events[num_before:]
    assert [each["type"] for each in after if each["type"] in wanted][: len(wanted)] == wanted
    committed, added = (next(e for e in after if e["type"] == kind) for kind in wanted[1:3])
    assert committed["item_id"] == timeout["item_id"] == added["item"]["id"]
    assert call.of(wanted[4])[-1]["transcript"] == ""
    assert words_of(response)
    assert replay(trace).difference is None
