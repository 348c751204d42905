"""Chromium calls the real service by WebRTC, as OpenAI's example for browsers does."""

from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser

from tests.support.service.live import LiveServer
from tests.support.service.live_call import overlap

pytest_plugins = ["tests.support.browser.fixtures", "tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.browser, pytest.mark.models]

ANSWER_MS: Final = 60_000
"""Until something is heard; only a hang takes that long."""

QUESTION: Final = "What should I cook for dinner tonight?"

GUIDE: Final = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "clients.md"


def call_of_the_guide(url: str) -> str:
    """The code of the documentation, as a function that keeps the call and its events."""
    code = GUIDE.read_text(encoding="utf-8").partition("```javascript\n")[2].partition("```")[0]
    assert "http://localhost:8080/" in code
    code = code.replace("http://localhost:8080/", url)
    assert "console.log(" in code
    code = code.replace("console.log(", "call.events.push(")
    return f"""
async () => {{
    const secret = "KEY";
    window.call = {{ events: [] }};
    {code}
    Object.assign(call, {{ connection, channel }});
    return [answer.status, answer.headers.get("Location")];
}}
"""


CAME: Final = "(kind) => call.events.find((event) => event.type === kind)"

STATS: Final = """
async () => Object.fromEntries(
    [...(await call.connection.getStats()).values()]
        .filter((each) => ["inbound-rtp", "outbound-rtp", "codec"].includes(each.type))
        .map((each) => [each.type, each]),
)
"""


def test_a_page_asks_and_hears_the_answer(live: LiveServer, talking_browser: Browser) -> None:
    context = talking_browser.new_context()
    try:
        page = context.new_page()
        page.goto(live.http)
        status, location = page.evaluate(call_of_the_guide(f"{live.http}/"))
        assert status == 201
        assert location.startswith("/v1/realtime/calls/rtc_")
        said = "conversation.item.input_audio_transcription.completed"
        page.wait_for_function(CAME, arg=said, timeout=ANSWER_MS)
        page.wait_for_function(CAME, arg="output_audio_buffer.started", timeout=ANSWER_MS)
        page.wait_for_function(CAME, arg="response.done", timeout=ANSWER_MS)
        stats = page.evaluate(STATS)
        question = page.evaluate(CAME, said)["transcript"]
        types = [event["type"] for event in page.evaluate("() => call.events")]
        page.evaluate("() => call.connection.close()")
        page.wait_for_timeout(100)  # the goodbye leaves
    finally:
        context.close()
    assert types[0] == "session.created"
    assert "error" not in types
    assert overlap(QUESTION, question) > 0.6
    assert stats["inbound-rtp"]["totalAudioEnergy"] > 0, "the answer is heard"
    assert "useinbandfec=1" in stats["codec"]["sdpFmtpLine"]
