"""The page's error messages, and the remedies that it offers."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser.fake_server import FakeCall, FakeServer, begin_reply, hear, reply, say
from tests.support.browser.pages import (
    ALLOW,
    AUTOPLAY,
    DENY,
    FAKE_DEVICE,
    INSECURE_HOST,
    Launch,
    Open,
    tone,
)

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

KEEP_CONTEXT = """() => {
globalThis.AudioContext = class extends AudioContext {
  constructor(options) {
    super(options);
    globalThis.theContext = this;
  }
};
}"""
UNTIL_CLOSED = """() => new Promise((resolve) => {
  const check = () => theContext.state === 'closed' && resolve();
  theContext.addEventListener('statechange', check);
  check();
})"""
NOTE_PROBLEM = """(code) => {
  const notice = document.getElementById('notice');
  globalThis.thatProblem = new Promise((resolve) => {
    const check = () => notice.dataset.code === code && resolve();
    new MutationObserver(check).observe(notice, { attributes: true });
  });
}"""
KEEP_STREAM = """() => {
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (constraints) => {
  globalThis.theConstraints = constraints;
  globalThis.theStream = await ask(constraints);
  return globalThis.theStream;
};
}"""


def alarm(page: Page, code: str) -> None:
    """Expects the notice of this problem, with an explanation and a way out."""
    notice = page.get_by_role("alert")
    expect(notice).to_have_attribute("data-code", code)
    expect(notice).to_be_visible()
    expect(notice.locator(".notice-text")).not_to_be_empty()
    expect(notice.get_by_role("button")).to_be_visible()


def press_talk(page: Page) -> None:
    page.get_by_role("button", name="Press and talk").click()


def test_a_refused_microphone_is_explained_and_writing_works(
    launch: Launch, open_page: Open, server: FakeServer
) -> None:
    async def script(call: FakeCall) -> None:
        created = await call.until_event("conversation.item.create")
        await call.send("conversation.item.added", item={"id": "item_1", **created["item"]})
        await call.until_event("response.create")
        await reply(call, "item_2", [("Then we write.", tone(0.3))])

    server.script = script
    page = open_page(using=launch(AUTOPLAY, FAKE_DEVICE, DENY))
    press_talk(page)
    alarm(page, "permission-denied")
    assert server.calls == []
    page.get_by_label("Write to the agent").fill("You can't hear me.")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".message.agent[data-state=done] .sure")).to_have_text("Then we write.")


def test_a_missing_microphone_is_named(launch: Launch, open_page: Open, server: FakeServer) -> None:
    page = open_page(using=launch(AUTOPLAY, ALLOW))
    press_talk(page)
    alarm(page, "no-microphone")
    page.get_by_role("button", name="Play a sample question").click()
    call = server.wait_for_call()
    server.wait_for(lambda: len(call.audio) > 24_000, "the sample question")


def test_an_insecure_address_is_explained_and_writing_works(
    open_page: Open, server: FakeServer
) -> None:
    async def script(call: FakeCall) -> None:
        created = await call.until_event("conversation.item.create")
        await call.send("conversation.item.added", item={"id": "item_1", **created["item"]})
        await reply(call, "item_2", [("Reading ", tone(0.3)), ("is fine.", tone(0.3))])

    server.script = script
    page = open_page(f"http://{INSECURE_HOST}:{server.port}/")
    alarm(page, "insecure-context")
    expect(page.get_by_role("alert")).to_contain_text("https://")
    page.get_by_role("button", name="I will type").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_label("Write to the agent").fill("No microphone here.")
    page.keyboard.press("Enter")
    expect(page.locator(".message.agent[data-state=done] .sure")).to_have_text("Reading is fine.")


def test_sound_held_back_by_the_browser_can_be_turned_on(
    open_page: Open, server: FakeServer
) -> None:
    page = open_page()
    page.evaluate(KEEP_CONTEXT)
    press_talk(page)
    call = server.wait_for_call()
    page.evaluate("theContext.suspend()")
    alarm(page, "sound-suspended")
    page.get_by_role("button", name="Turn sound on").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    before = len(call.audio)
    server.wait_for(lambda: len(call.audio) > before + 4800, "audio again")


def test_a_microphone_taken_away_is_noticed(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    page.evaluate(KEEP_STREAM)
    press_talk(page)
    call = server.wait_for_call()
    assert page.evaluate("theConstraints.audio") == {
        "echoCancellation": True,
        "noiseSuppression": True,
        "autoGainControl": True,
    }
    page.evaluate("theStream.getAudioTracks()[0].dispatchEvent(new Event('ended'))")
    alarm(page, "microphone-lost")
    page.get_by_role("button", name="Use the microphone again").click()
    expect(page.locator("#phase")).to_contain_text("Listening")
    before = len(call.audio)
    server.wait_for(lambda: len(call.audio) > before + 4800, "audio again")
    assert len(server.calls) == 1


def test_hanging_up_lets_go_of_the_microphone(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    page.evaluate(KEEP_CONTEXT)
    page.evaluate(KEEP_STREAM)
    press_talk(page)
    server.wait_for_call()
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#phase")).to_have_text("Press and talk")
    page.evaluate(UNTIL_CLOSED)
    assert page.evaluate("theStream.getTracks().map((track) => track.readyState)") == ["ended"]


def test_a_lost_server_is_announced_and_found_again(open_page: Open, server: FakeServer) -> None:
    async def first(call: FakeCall) -> None:
        await hear(call, "item_1", "Are you there?")
        await begin_reply(call, "item_2")
        await say(call, "item_2", "Yes, I am he", tone(3.0))

    async def second(call: FakeCall) -> None:
        await reply(call, "item_2", [("Here again.", tone(0.3))])

    server.script = first
    page = open_page(expect_errors=True)
    press_talk(page)
    expect(page.locator("#phase")).to_contain_text("Speaking")
    server.script = second
    server.stop()
    alarm(page, "server-gone")
    expect(page.get_by_role("alert")).to_contain_text("Trying again")
    expect(page.locator(".message.agent[data-state=cut] del")).not_to_be_empty()
    server.start()
    call = server.wait_for_call(2)
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".divider")).to_contain_text("starts afresh")
    expect(page.locator(".message.agent").last.locator(".sure")).to_have_text("Here again.")
    server.wait_for(lambda: len(call.audio) > 0, "audio on the new connection")


def test_a_broken_connection_comes_back_to_its_call(open_page: Open, server: FakeServer) -> None:
    is_to_break: list[bool] = []

    async def first(call: FakeCall) -> None:
        told = {"session": "sess_1", "resume_token": "resume_1", "resume_s": 60}
        await call.send("halfsec.session", **told)
        await hear(call, "item_1", "Are you there?")
        await begin_reply(call, "item_2")
        await say(call, "item_2", "Yes, I am he", tone(3.0))
        await call.send("input_audio_buffer.speech_started", item_id="item_3", audio_start_ms=9)
        await begin_reply(call, "item_4")
        await say(call, "item_4", "Once more", tone(3.0))
        await call.until(lambda: is_to_break)
        await call.close(1011)

    async def second(call: FakeCall) -> None:
        await reply(call, "item_5", [("Here again.", tone(0.3))])

    server.script = first
    page = open_page(expect_errors=True)
    press_talk(page)
    expect(page.locator(".message.agent").last.locator(".sure")).not_to_be_empty()
    page.evaluate(NOTE_PROBLEM, "connection-broke")
    server.script = second
    heard = [{"type": "input_audio", "transcript": words} for words in ("Are you there?", "I said")]
    server.resumed = {
        "items": [
            {"id": "item_1", "role": "user", "content": heard[:1]},
            {"id": "item_3", "role": "user", "content": heard[1:]},
        ],
        "received": 0,
    }
    is_to_break.append(True)
    call = server.wait_for_call(2)
    assert call.query == "model=default&resume=resume_1"
    page.evaluate("thatProblem")
    server.wait_for(
        lambda: any(
            event["item_id"] == "item_4" for event in call.of_type("conversation.item.truncate")
        ),
        "how much it had played",
    )
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".divider")).to_contain_text("the call goes on")
    expect(page.locator(".message.agent[data-state=cut] del").last).not_to_be_empty()
    expect(page.locator(".message.agent").last.locator(".sure")).to_have_text("Here again.")
    expect(page.locator(".message.caller")).to_have_text(["YouAre you there?", "YouI said"])
    server.wait_for(lambda: len(call.audio) > 0, "audio on the new connection")


@pytest.mark.parametrize(
    ("code", "problem"), [(1012, "server-restarting"), (1013, "server-full"), (1011, "server-gone")]
)
def test_a_close_code_says_why_and_the_page_returns(
    open_page: Open, server: FakeServer, code: int, problem: str
) -> None:
    async def refuse(call: FakeCall) -> None:
        server.readiness = (503, {"status": "draining", "stages": {}})
        await call.close(code)

    async def accept(call: FakeCall) -> None:
        await call.until(lambda: False)

    server.script = refuse
    page = open_page(expect_errors=True)
    page.evaluate(NOTE_PROBLEM, problem)
    press_talk(page)
    page.evaluate("thatProblem")
    server.script = accept
    server.readiness = (200, {"status": "ready", "stages": {}})
    expect(page.locator("#server")).to_have_text("Connected")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_busy_lines_are_tried_again_in_growing_pauses(open_page: Open, server: FakeServer) -> None:
    server.full = True
    page = open_page(expect_errors=True)
    press_talk(page)
    alarm(page, "not-admitted")
    expect(page.get_by_role("alert")).to_contain_text("busy")
    assert server.num_refused <= 2
    server.full = False
    server.wait_for_call()
    expect(page.get_by_role("alert")).to_be_hidden()
    assert server.num_refused <= 3


def test_a_call_ended_by_the_server_lets_go(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await call.close(1008, "Sessions end after 30 minutes.")

    server.script = script
    page = open_page()
    press_talk(page)
    alarm(page, "session-ended")
    expect(page.get_by_role("alert")).to_contain_text("Sessions end after 30 minutes.")
    expect(page.locator("#phase")).to_have_text("Press and talk")
    assert len(server.calls) == 1


def test_a_warming_server_shows_its_progress(open_page: Open, server: FakeServer) -> None:
    stages = {
        "asr": "ready",
        "llm": "loading: 40 % of the weights converted",
        "voice hibari": "loading",
    }
    server.readiness = (503, {"status": "warming", "stages": stages})
    page = open_page(expect_errors=True)
    notice = page.get_by_role("alert")
    expect(notice.get_by_role("listitem")).to_have_text(
        ["Recognitionready", "Language model40 %", "Voice hibariloading"]
    )
    bars = notice.get_by_role("progressbar")
    assert bars.evaluate_all("(bars) => bars.map((bar) => bar.position)") == [1, 0.4, -1]
    expect(page.locator("#server")).to_have_text("Warming up")
    expect(page.get_by_role("button", name="Press and talk")).to_be_disabled()
    server.readiness = (200, {"status": "ready", "stages": {}})
    expect(notice).to_be_hidden()
    expect(page.get_by_role("button", name="Press and talk")).to_be_enabled()


def test_a_failed_answer_leaves_the_call_open(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await call.send("response.created", response={"id": "resp_1", "status": "in_progress"})
        details = {"type": "failed", "error": {"type": "server_error", "message": "No voice."}}
        response = {"id": "resp_1", "status": "failed", "status_details": details, "output": []}
        await call.send("response.done", response=response)

    server.script = script
    page = open_page()
    press_talk(page)
    alarm(page, "reply-failed")
    expect(page.get_by_role("alert")).to_contain_text("No voice.")
    expect(page.locator("#phase")).to_contain_text("Listening")
