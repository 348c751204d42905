"""The microphone page calls by WebRTC: the real service, and fallback to the WebSocket."""

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.browser.pages import talk
from tests.support.service.live import LiveServer
from tests.support.service.live_call import overlap

pytest_plugins = ["tests.support.browser.fixtures", "tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.browser, pytest.mark.models]

ANSWER_MS = 60_000
"""Until something is heard; only a hang takes that long."""

QUESTION = "What should I cook for dinner tonight?"

WATCH = """
window.connections = [];
window.sent = [];
window.RTCPeerConnection = class extends RTCPeerConnection {
    constructor(configuration) {
        super(POLICY ?? configuration);
        connections.push(this);
    }
    createDataChannel(label) {
        const channel = super.createDataChannel(label);
        const send = channel.send.bind(channel);
        channel.send = (text) => { sent.push(JSON.parse(text)); send(text); };
        return channel;
    }
};
"""
"""Keeps the page's connections, and the events that they send."""

ENERGY = """
async () => [...(await connections.at(-1).getStats()).values()]
    .find((each) => each.type === "inbound-rtp").totalAudioEnergy
"""

Call = Callable[..., Page]


@pytest.fixture
def open_call(talking_browser: Browser, live: LiveServer) -> Iterator[Call]:
    """Opens the page, which prefers WebRTC, and begins a call."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def start(query: str = "", policy: str = "null") -> Page:
        context = talking_browser.new_context()
        contexts.append(context)
        context.add_init_script(WATCH.replace("POLICY", policy))
        context.add_init_script(
            "localStorage.setItem('halfsec.settings', JSON.stringify({ connection: 'webrtc' }))"
        )
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{live.http}/{query}")
        expect(page.locator("#server")).to_have_text("Ready")
        talk(page).click()
        return page

    yield start
    for context in contexts:
        context.close()
    assert problems == []


def test_a_greeting_is_heard_over_webrtc(open_call: Call, live: LiveServer) -> None:
    page = open_call("?model=pirate")
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    expect(page.locator("#server")).to_have_text("Connected: WebRTC", timeout=ANSWER_MS)
    greeting = page.locator(".message.agent").first
    expect(greeting).to_have_attribute("data-state", "done", timeout=ANSWER_MS)
    expect(greeting.locator(".sure")).to_have_text(live.config.agents["pirate"].greeting)
    assert page.evaluate(ENERGY) > 0
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#server")).to_have_text("Ready")
    assert page.evaluate("connections.map((each) => each.connectionState)") == ["closed"]
    live.settle()
    assert sockets == []
    assert page.evaluate("sent") == [], "the server plays, counts and truncates"


def test_a_question_is_answered_over_webrtc(open_call: Call) -> None:
    page = open_call()
    expect(page.locator("#server")).to_have_text("Connected: WebRTC", timeout=ANSWER_MS)
    caller = page.locator(".message.caller[data-state=done] .sure").first
    expect(caller).to_have_text(re.compile("cook", re.IGNORECASE), timeout=ANSWER_MS)
    assert overlap(QUESTION, caller.inner_text()) > 0.6
    expect(page.locator("#phase")).to_contain_text("Speaking", timeout=ANSWER_MS)
    expect(page.locator(".message.agent .sure").first).to_be_visible(timeout=ANSWER_MS)
    assert page.evaluate(ENERGY) > 0, "the answer is heard"
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#server")).to_have_text("Ready")


def test_a_reply_is_cut_at_the_word_that_was_heard(open_call: Call, live: LiveServer) -> None:
    page = open_call("?model=reader")
    page.get_by_role("button", name="Mute").click()  # nobody else interrupts it
    greeting = page.locator(".message.agent").first
    expect(greeting.locator(".sure")).to_have_text(re.compile(r"\w+ \w+"), timeout=ANSWER_MS)
    page.keyboard.press("Escape")
    expect(greeting).to_have_attribute("data-state", "cut")
    page.wait_for_function("sent.some(({ type }) => type === 'conversation.item.retrieve')")
    (session,) = httpx.get(f"{live.http}/v1/sessions", timeout=60).json()["sessions"]
    page.get_by_role("button", name="End the call").click()
    live.settle()
    document = httpx.get(f"{live.http}/v1/calls/{session['session']}", timeout=60).json()
    heard = document["transcript"][0]["text"]
    assert 0 < len(heard) < len(live.config.agents["reader"].greeting)
    expect(greeting.locator(".sure")).to_have_text(heard)
    types = [event["type"] for event in page.evaluate("sent")]
    assert types == ["output_audio_buffer.clear", "conversation.item.retrieve"]


def test_a_call_that_finds_no_way_for_its_audio_goes_by_websocket(
    open_call: Call, live: LiveServer
) -> None:
    page = open_call("?model=pirate", policy="{ iceTransportPolicy: 'relay' }")
    expect(page.locator("#notice .notice-title")).to_have_text(
        "This call goes by WebSocket", timeout=ANSWER_MS
    )
    expect(page.locator("#server")).to_have_text("Connected")
    expect(page.locator(".message.agent").first).to_contain_text("Ahoy", timeout=ANSWER_MS)
    for _ in range(600):  # the page hangs up the first try beside the second
        if not len(live.webrtc):
            break
        page.wait_for_timeout(50)
    assert len(live.webrtc) == 0, "the line of the first try is free"
    assert page.evaluate("connections.map((each) => each.connectionState)") == ["closed"]
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#server")).to_have_text("Ready")
