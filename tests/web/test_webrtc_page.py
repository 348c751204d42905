"""The page's calls by WebRTC, against a scripted server with the service's own connection."""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Page, expect

from agent.webrtc.peer import load
from tests.support.browser.fake_peer_call import FakePeerCall
from tests.support.browser.fake_server import (
    FakeCall,
    FakeServer,
    begin_reply,
    say,
)
from tests.support.browser.pages import (
    SAMPLE,
    Open,
    correlation,
    noise,
    remembering,
    settings_of,
    talk,
    tone,
)

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

WATCH = """
window.connections = [];
window.RTCPeerConnection = class extends RTCPeerConnection {
    constructor(...all) {
        super(...all);
        connections.push(this);
    }
};
"""

ENERGY = """
async () => [...(await connections.at(-1).getStats()).values()]
    .find((each) => each.type === "inbound-rtp").totalAudioEnergy
"""

STATES = "() => connections.map((each) => each.connectionState)"

KEEP_STATES = """
() => {
    window.states = [];
    const [connection] = connections;
    connection.addEventListener("connectionstatechange", () =>
        states.push(connection.connectionState),
    );
}
"""
"""Keeps the states of the first connection."""

KEEP_SERVER = """
() => {
    window.told = [];
    const server = document.getElementById("server");
    const keep = () => told.push(server.textContent);
    new MutationObserver(keep).observe(server, { childList: true });
}
"""
"""Keeps what the page says of the server."""

SENDS_NOTHING = "() => connections[0].getSenders().every(({ track }) => track === null)"

REFUSE_TO_PLAY = """
() => {
    window.isRefused = true;
    window.refused = [];
    const play = HTMLMediaElement.prototype.play;
    HTMLMediaElement.prototype.play = async function () {
        refused.push(this);
        if (isRefused) throw new DOMException("Not without a gesture.", "NotAllowedError");
        return play.call(this);
    };
}
"""
"""Refuses to play, as browsers do that ask for a gesture each time, and keeps each element that was
tried. Chromium takes the click with which the call began."""

PATIENCE_MS = 60_000

RESPONSE = "resp_item_2"
WORDS = "One morning a small brown fox left the wood."


@pytest.fixture(autouse=True)
def loaded() -> None:
    """The service has loaded the library before the first call."""
    load()


def using_webrtc(open_page: Open, **preferences: Any) -> Page:
    """The page with this choice, which keeps its connections."""
    page = remembering(open_page, connection="webrtc", **preferences)
    page.add_init_script(WATCH)
    page.reload()
    expect(page.locator("#server")).to_have_text("Ready")
    return page


def has_sent(call: FakeCall, num_samples: int) -> bool:
    return len(call.audio) >= num_samples


async def answer(call: FakePeerCall, words: str) -> None:
    """The text of a reply, all of it at once."""
    item = {"id": "item_2", "type": "message", "role": "assistant", "content": []}
    await call.send("response.created", response={"id": RESPONSE, "status": "in_progress"})
    await call.send("response.output_item.added", response_id=RESPONSE, output_index=0, item=item)
    ids = {"response_id": RESPONSE, "item_id": "item_2", "output_index": 0, "content_index": 0}
    await call.send("response.output_audio_transcript.delta", **ids, delta=words)


async def done(call: FakePeerCall, status: str) -> None:
    output = [{"id": "item_2", "type": "message", "role": "assistant", "content": []}]
    response = {"id": RESPONSE, "status": status, "output": output}
    await call.send("response.done", response=response)


def test_a_call_over_webrtc_is_held(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakePeerCall) -> None:
        await call.until(lambda: len(call.heard) >= 50)
        await call.send("input_audio_buffer.speech_started", item_id="item_1", audio_start_ms=0)
        await call.send("input_audio_buffer.speech_stopped", item_id="item_1", audio_end_ms=900)
        kind = "conversation.item.input_audio_transcription"
        await call.send(f"{kind}.delta", item_id="item_1", content_index=0, delta="What should")
        await call.send(
            f"{kind}.completed", item_id="item_1", content_index=0, transcript="What should I cook?"
        )
        await answer(call, WORDS)
        await done(call, "completed")  # long before it was heard
        await call.play(RESPONSE, noise(2.0))

    server.peer_script = script
    page = using_webrtc(open_page)
    talk(page).click()
    expect(page.locator("#server")).to_have_text("Connected: WebRTC")
    expect(page.locator(".message.caller .sure")).to_have_text("What should I cook?")
    expect(page.locator("#phase")).to_contain_text("Speaking")
    reply = page.locator(".message.agent")
    expect(reply).to_have_attribute("data-state", "done")
    expect(reply.locator(".sure")).to_have_text(WORDS)
    assert page.evaluate(ENERGY) > 0
    displays = page.locator(".of-websocket").evaluate_all(
        "(all) => all.map((each) => getComputedStyle(each).display)"
    )
    assert displays == ["none", "none"]
    call = server.peer_calls[0]
    assert max(int(np.abs(pcm).max()) for pcm in call.heard) > 1000, "the microphone is heard"
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#server")).to_have_text("Ready")
    server.wait_for(call.peer.closed.is_set, "the end of the call")
    assert page.evaluate(STATES) == ["closed"]
    assert call.events == [], "the server plays, counts and truncates"
    assert server.calls == []
    page.locator("#download summary").click()
    with page.expect_download() as found:
        page.locator("#download").get_by_role("button", name="Sound").click()
    sound, rate_hz = soundfile.read(found.value.path())
    sounding = np.count_nonzero(np.abs(sound) > 0.01, axis=0)
    assert sounding[0] > 0, "the caller, left"
    assert sounding[1] > rate_hz, "the agent's two seconds, right"


def test_a_reply_is_cut_where_the_server_says(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakePeerCall) -> None:
        await answer(call, WORDS)
        sent_ms = await call.play(RESPONSE, tone(30.0))
        await call.send(
            "conversation.item.truncated", item_id="item_2", content_index=0, audio_end_ms=sent_ms
        )
        await done(call, "cancelled")
        await call.until(lambda: call.of_type("conversation.item.retrieve"))
        content = [{"type": "output_audio", "transcript": "One morning a"}]
        item = {"id": "item_2", "type": "message", "role": "assistant", "content": content}
        await call.send("conversation.item.retrieved", item=item)

    server.peer_script = script
    page = using_webrtc(open_page)
    talk(page).click()
    reply = page.locator(".message.agent")
    expect(reply.locator(".sure")).to_have_text(re.compile(r"\w+ \w+"))
    page.keyboard.press("Escape")
    expect(reply).to_have_attribute("data-state", "cut")
    expect(reply.locator(".sure")).to_have_text("One morning a")
    expect(page.locator("#phase")).not_to_contain_text("Speaking")
    kinds = [event["type"] for event in server.peer_calls[0].events]
    assert kinds == ["output_audio_buffer.clear", "conversation.item.retrieve"]


@pytest.mark.parametrize("gesture", ["key", "button"])
def test_a_reply_that_the_browser_does_not_play_can_be_turned_on(
    open_page: Open, server: FakeServer, gesture: str
) -> None:
    async def script(call: FakePeerCall) -> None:
        """Listens only."""

    server.peer_script = script
    page = using_webrtc(open_page)
    page.evaluate(REFUSE_TO_PLAY)
    talk(page).click()
    expect(page.locator("#server")).to_have_text("Connected: WebRTC")
    notice = page.locator("#notice")
    expect(notice.locator(".notice-title")).to_have_text("Your browser blocks the sound")
    page.keyboard.press("Shift")
    page.wait_for_function("refused.length > 1")  # as it was
    expect(notice).to_be_visible()
    page.evaluate("isRefused = false")
    if gesture == "key":
        page.keyboard.press("Shift")
    else:
        notice.get_by_role("button", name="Turn sound on").click()
    expect(notice).to_be_hidden()
    page.wait_for_function("!refused[0].paused")
    num_tries = page.evaluate("refused.length")
    page.keyboard.press("Shift")
    page.get_by_role("button", name="End the call").click()
    assert page.evaluate("refused.length") == num_tries


def test_a_call_that_ends_unheard_takes_its_notice_along(
    open_page: Open, server: FakeServer
) -> None:
    async def script(call: FakePeerCall) -> None:
        """Listens only."""

    server.peer_script = script
    page = using_webrtc(open_page)
    page.evaluate(REFUSE_TO_PLAY)
    talk(page).click()
    notice = page.locator("#notice")
    expect(notice.locator(".notice-title")).to_have_text("Your browser blocks the sound")
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#server")).to_have_text("Ready")
    expect(notice).to_be_hidden()
    num_tries = page.evaluate("refused.length")
    page.keyboard.press("Shift")
    assert page.evaluate("refused.length") == num_tries


def test_the_sample_question_is_sent_from_its_beginning(
    open_page: Open, server: FakeServer
) -> None:
    async def script(call: FakePeerCall) -> None:
        """Listens only."""

    server.peer_script = script
    page = using_webrtc(open_page)
    page.get_by_role("button", name="Play a sample question").click()
    pcm, _ = soundfile.read(SAMPLE, dtype="int16")
    server.wait_for(lambda: server.peer_calls, "a connection")
    call = server.peer_calls[0]
    # It is 86 packets; what a busy machine loses of them is not sent again.
    server.wait_for(lambda: sum(map(len, call.heard)) > len(pcm) * 9 // 10, "the question")
    heard, half, end = np.concatenate(call.heard), len(pcm) // 2, len(pcm) * 4 // 5
    for part in (pcm[:half], pcm[half:end]):
        assert correlation(heard, part) > 2 * correlation(heard, part[::-1])
        assert correlation(heard, part) > 0.5


def test_push_to_talk_sends_what_was_said_while_it_was_held(
    open_page: Open, server: FakeServer
) -> None:
    async def script(call: FakePeerCall) -> None:
        """Listens only."""

    server.peer_script = script
    page = using_webrtc(open_page, turns="hold")
    talk(page).click()
    expect(page.locator("#phase")).to_contain_text("Hold the button, or Space")
    page.wait_for_function(SENDS_NOTHING)
    call = server.peer_calls[0]
    page.locator("#phase").click()
    page.keyboard.down("Space")
    expect(page.locator("#phase")).to_contain_text("Let go when you have finished")
    num_heard, num_events = len(call.heard), len(call.events)
    server.wait_for(lambda: len(call.heard) >= num_heard + 25, "half a second")
    page.keyboard.up("Space")
    server.wait_for(lambda: call.of_type("response.create"), "the end of the turn")
    kinds = [event["type"] for event in call.events[num_events:]]
    assert kinds[-2:] == ["input_audio_buffer.commit", "response.create"]
    assert set(kinds[:-2]) <= {"input_audio_buffer.clear"}
    page.wait_for_function(SENDS_NOTHING)


def test_a_server_without_webrtc_is_called_by_websocket(
    open_page: Open, server: FakeServer
) -> None:
    page = open_page(expect_errors=True)  # the browser logs the refusal
    dialog = settings_of(page)
    dialog.get_by_label("Connection", exact=True).select_option("webrtc")
    dialog.get_by_role("button", name="Done").click()
    talk(page).click()
    call = server.wait_for_call()
    server.wait_for(lambda: len(call.audio) > 0, "audio")
    expect(page.locator("#server")).to_have_text("Connected")
    expect(page.locator("#notice .notice-title")).to_have_text("This call goes by WebSocket")
    expect(page.locator("#notice .notice-text")).to_contain_text("need the extra")
    assert server.num_offers == 1
    stored = page.evaluate("JSON.parse(localStorage.getItem('halfsec.settings')).connection")
    assert stored == "webrtc"
    page.get_by_role("button", name="End the call").click()
    talk(page).click()
    server.wait_for_call(2)
    assert server.num_offers == 2, "the next call tries again, for it was asked for"


def test_other_agents_are_called_as_this_one_could_be(open_page: Open, server: FakeServer) -> None:
    """By WebSocket: WebRTC is not tried again until the caller has hung up."""
    server.models = [{"id": name, "kind": "agent"} for name in ("default", "cook", "pirate")]
    page = open_page(expect_errors=True)  # the browser logs the refusal
    dialog = settings_of(page)
    dialog.get_by_label("Connection", exact=True).select_option("webrtc")
    dialog.get_by_role("button", name="Done").click()
    talk(page).click()
    server.wait_for_call()
    page.evaluate(KEEP_SERVER)
    for number, name in enumerate(("cook", "pirate"), start=2):
        dialog = settings_of(page)
        dialog.get_by_label("Who answers").select_option(name)
        dialog.get_by_role("button", name="Done").click()
        call = server.wait_for_call(number)
        assert f"model={name}" in call.query
        server.wait_for(partial(has_sent, call, 1), "audio")
    assert server.num_offers == 1
    assert "Ready" not in page.evaluate("told"), "it is no longer so once the next call is begun"
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#server")).to_have_text("Ready")
    talk(page).click()
    server.wait_for_call(4)
    assert server.num_offers == 2


def test_a_line_that_dies_is_noticed_before_the_browser_gives_it_up(
    open_page: Open, server: FakeServer
) -> None:
    async def script(call: FakePeerCall) -> None:
        """Listens only."""

    server.peer_script = script
    page = using_webrtc(open_page)
    talk(page).click()
    expect(page.locator("#server")).to_have_text("Connected: WebRTC")
    page.evaluate(KEEP_STATES)
    server.peer_calls[0].cut_line()
    page.wait_for_function("() => connections.length === 2", timeout=PATIENCE_MS)
    assert page.evaluate("states") == ["disconnected"], "and not failed"
    expect(page.locator("#server")).to_have_text("Connected: WebRTC")
    assert page.evaluate(STATES) == ["closed", "connected"]
    assert server.hung_up == ["/v1/realtime/calls/rtc_1/hangup"]


def test_a_lossy_line_makes_the_next_call_one_by_webrtc(
    open_page: Open, server: FakeServer
) -> None:
    voice = noise(0.4)

    async def stutter(call: FakeCall) -> None:
        await begin_reply(call, "item_1")
        while True:  # until the call is ended: what is a gap is the loudspeaker's to say
            passed = partial(has_sent, call, len(call.audio) + 2 * len(voice))
            await say(call, "item_1", "Words ", voice, len(voice))
            await call.until(passed)

    async def listen(call: FakePeerCall) -> None:
        """Listens only."""

    server.script, server.peer_script = stutter, listen
    page = open_page()
    talk(page).click()
    gaps = page.locator("output[data-figure=underruns]")
    expect(gaps).to_have_text(
        re.compile(r"^([3-9]|\d\d)$"), timeout=PATIENCE_MS
    )  # as the rule says
    expect(page.locator("#server")).to_have_text("Connected")
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#server")).to_have_text("Ready")
    assert server.num_offers == 0
    talk(page).click()
    expect(page.locator("#server")).to_have_text("Connected: WebRTC")
    assert (server.num_offers, len(server.calls)) == (1, 1)
