"""`@openai/agents` in Chromium, by its default transport there, WebRTC: `make test-clients`."""

import os
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser

from tests.clients.peers import CACHE, MissingTool, build
from tests.support.service.live import LiveServer
from tests.support.service.live_call import overlap
from tests.web.test_webrtc import ANSWER_MS, QUESTION

pytest_plugins = ["tests.support.browser.fixtures", "tests.support.service.live_fixtures"]
pytestmark = pytest.mark.timeout(1200)  # an environment is built in it

BUNDLE: Final = "node_modules/@openai/agents-realtime/dist/bundle/openai-realtime-agents.umd.js"

CALL: Final = """
async () => {
    const minted = await fetch("/v1/realtime/client_secrets", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ session: { type: "realtime", model: "default" } }),
    });
    const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebRTC } = OpenAIAgentsRealtime;
    const agent = new RealtimeAgent({ name: "Assistant", instructions: "Answer briefly." });
    const transport = new OpenAIRealtimeWebRTC({
        baseUrl: `${location.origin}/v1/realtime/calls`,
    });
    const session = new RealtimeSession(agent, { transport });
    window.call = { session, transport, events: [], errors: [], history: [] };
    transport.on("*", (event) => call.events.push(event));
    session.on("error", (error) => call.errors.push(JSON.stringify(error)));
    session.on("history_updated", (history) => { call.history = history; });
    await session.connect({ apiKey: (await minted.json()).value });
    return transport.callId;
}
"""

CAME: Final = "(kind) => call.events.some((event) => event.type === kind)"
ANSWERED: Final = """
() => call.history.some((item) => item.role === "assistant" && item.status === "completed")
"""
INTERRUPT: Final = """
() => {
    call.session.sendMessage("Tell me a long story about a dragon.");
}
"""


@pytest.fixture(scope="module")
def bundle() -> Path:
    try:
        build("openai_agents_js")
    except MissingTool as error:
        if os.environ.get("HALFSEC_CLIENTS") == "need":
            pytest.fail(str(error))
        pytest.skip(str(error))
    return CACHE / "openai_agents_js" / BUNDLE


def test_the_agents_sdk_talks_by_webrtc(
    live: LiveServer, talking_browser: Browser, bundle: Path
) -> None:
    context = talking_browser.new_context(bypass_csp=True)
    try:
        page = context.new_page()
        page.goto(live.http)
        page.add_script_tag(path=bundle)
        call_id = page.evaluate(CALL)
        said = "conversation.item.input_audio_transcription.completed"
        page.wait_for_function(CAME, arg=said, timeout=ANSWER_MS)
        page.wait_for_function(CAME, arg="output_audio_buffer.stopped", timeout=ANSWER_MS)
        page.wait_for_function(ANSWERED, timeout=ANSWER_MS)
        page.evaluate("() => { call.events = []; }")
        page.evaluate(INTERRUPT)
        page.wait_for_function(CAME, arg="output_audio_buffer.started", timeout=ANSWER_MS)
        page.evaluate("() => call.session.interrupt()")
        page.wait_for_function(CAME, arg="output_audio_buffer.cleared", timeout=ANSWER_MS)
        history: list[dict[str, Any]] = page.evaluate("() => call.history")
        errors = page.evaluate("() => call.errors")
        page.evaluate("() => call.session.close()")
        page.wait_for_timeout(100)  # the goodbye leaves
    finally:
        context.close()
    assert call_id.startswith("rtc_")
    assert errors == []
    questions = [
        part["transcript"]
        for item in history
        if item.get("role") == "user"
        for part in item["content"]
        if part["type"] == "input_audio" and part["transcript"]
    ]
    assert overlap(QUESTION, questions[0]) > 0.6
