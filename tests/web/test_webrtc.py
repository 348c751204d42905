"""Chromium calls the real service by WebRTC, as OpenAI's example for browsers does."""

from pathlib import Path
from typing import Final

import numpy as np
import pytest
import soundfile
import soxr
from playwright.sync_api import Browser

from tests.support.browser.pages import ALLOW, AUTOPLAY, FAKE_DEVICE, SAMPLE, Launch
from tests.support.service.live import LiveServer
from tests.support.service.live_call import overlap

pytest_plugins = ["tests.support.browser.fixtures", "tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.browser, pytest.mark.models]

ANSWER_MS: Final = 60_000
"""Until something is heard; only a hang takes that long."""

QUESTION: Final = "What should I cook for dinner tonight?"

CALL: Final = """
async () => {
    const connection = new RTCPeerConnection();
    const speaker = document.createElement("audio");
    speaker.autoplay = true;
    connection.ontrack = (event) => { speaker.srcObject = event.streams[0]; };
    const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
    connection.addTrack(microphone.getTracks()[0], microphone);
    const channel = connection.createDataChannel("oai-events");
    window.call = { connection, channel, events: [] };
    channel.addEventListener("message", (event) => call.events.push(JSON.parse(event.data)));
    await connection.setLocalDescription(await connection.createOffer());
    const answer = await fetch("/v1/realtime/calls?model=gpt-realtime", {
        method: "POST",
        body: connection.localDescription.sdp,
        headers: { Authorization: "Bearer KEY", "Content-Type": "application/sdp" },
    });
    await connection.setRemoteDescription({ type: "answer", sdp: await answer.text() });
    return [answer.status, answer.headers.get("Location")];
}
"""

CAME: Final = "(kind) => call.events.find((event) => event.type === kind)"

STATS: Final = """
async () => Object.fromEntries(
    [...(await call.connection.getStats()).values()]
        .filter((each) => ["inbound-rtp", "outbound-rtp", "codec"].includes(each.type))
        .map((each) => [each.type, each]),
)
"""


@pytest.fixture(scope="module")
def talking_browser(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """Browser whose microphone asks the sample question every ten seconds."""
    pcm, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    speech = soxr.resample(pcm, rate_hz, 48_000)
    path: Path = tmp_path_factory.mktemp("microphone") / "question.wav"
    sound = np.concatenate([np.zeros(48_000 * 2), speech, np.zeros(48_000 * 6)])
    soundfile.write(path, sound, 48_000, subtype="PCM_16")
    return launch(AUTOPLAY, FAKE_DEVICE, ALLOW, f"--use-file-for-fake-audio-capture={path}")


def test_a_page_asks_and_hears_the_answer(live: LiveServer, talking_browser: Browser) -> None:
    context = talking_browser.new_context()
    try:
        page = context.new_page()
        page.goto(live.http)
        status, location = page.evaluate(CALL)
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
