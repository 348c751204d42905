"""Devices that come, go, change or are refused, and pages that sleep, hide or are open twice."""

import json

import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser.fake_server import (
    WIRE_RATE_HZ,
    FakeCall,
    FakeServer,
    begin_reply,
    obey,
    say,
)
from tests.support.browser.pages import Open, settings_of, tone

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

# Newer Chromium names its fake devices to pages that were not allowed any: here nobody does.
SPY = """() => {
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
globalThis.asked = [];
globalThis.streams = [];
navigator.mediaDevices.getUserMedia = async (constraints) => {
  globalThis.asked.push(constraints.audio);
  const { deviceId } = constraints.audio;
  if (deviceId && globalThis.isGone) throw new DOMException('gone', 'OverconstrainedError');
  const stream = await ask(constraints);
  globalThis.streams.push(stream);
  return stream;
};
const list = navigator.mediaDevices.enumerateDevices.bind(navigator.mediaDevices);
navigator.mediaDevices.enumerateDevices = async () => {
  const found = await list();
  if (globalThis.streams.length) return found;
  return found.map(({ kind }) => ({ kind, deviceId: '', groupId: '', label: '' }));
};
globalThis.sinks = [];
AudioContext.prototype.setSinkId = async (id) => globalThis.sinks.push(id);
}"""

REFUSE = """([name, message]) => {
navigator.mediaDevices.getUserMedia = async () => { throw new DOMException(message, name); };
}"""

HUM = """([deviceHz, hz]) => {
navigator.mediaDevices.getUserMedia = async () => {
  const context = new AudioContext({ sampleRate: deviceHz });
  const oscillator = new OscillatorNode(context, { frequency: hz });
  const destination = new MediaStreamAudioDestinationNode(context, { channelCount: 1 });
  oscillator.connect(destination);
  oscillator.start();
  return destination.stream;
};
}"""
"""A microphone of that rate, by which a tone is heard."""

FORCE_RATE = """(rate) => {
globalThis.AudioContext = class extends AudioContext {
  constructor(options) { super({ sampleRate: rate, ...options }); }
};
}"""


def talk(page: Page) -> None:
    page.get_by_role("button", name="Press and talk").click()


def notice(page: Page, code: str) -> Locator:
    found = page.locator(f"#notice[data-code={code}]")
    expect(found).to_be_visible()
    return found


def more_audio(server: FakeServer, call: FakeCall, samples: int = WIRE_RATE_HZ // 5) -> None:
    before = len(call.audio)
    server.wait_for(lambda: len(call.audio) >= before + samples, "more audio")


def test_another_microphone_is_taken_in_the_middle_of_a_call(
    open_page: Open, server: FakeServer
) -> None:
    page = open_page()
    page.evaluate(SPY)
    dialog = settings_of(page)
    expect(dialog.get_by_text("once the microphone was allowed")).to_be_visible()
    page.keyboard.press("Escape")
    talk(page)
    call = server.wait_for_call()
    dialog = settings_of(page)
    dialog.get_by_label("Microphone").select_option(label="Fake Audio Input 2")
    page.wait_for_function("() => asked.length === 2")
    dialog.get_by_label("Noise suppression").uncheck()
    page.wait_for_function("() => streams.length === 3")
    first, second, third = page.evaluate("asked")
    assert first == {"echoCancellation": True, "noiseSuppression": True, "autoGainControl": True}
    chosen = second["deviceId"]
    assert second == {**first, "deviceId": chosen}
    assert third == {**second, "noiseSuppression": False}
    page.wait_for_function("() => streams[1].getTracks()[0].readyState === 'ended'")
    states = page.evaluate("streams.map((stream) => stream.getTracks()[0].readyState)")
    assert states == ["ended", "ended", "live"]
    more_audio(server, call)
    dialog.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="End the call").click()
    page.reload()
    page.evaluate(SPY)
    talk(page)
    server.wait_for_call(2)
    assert page.evaluate("asked") == [third]
    assert len(server.calls) == 2


def test_a_microphone_that_is_gone_is_replaced_and_that_is_said(
    open_page: Open, server: FakeServer
) -> None:
    page = open_page()
    page.evaluate(SPY)
    stored = json.dumps({"microphone": "unplugged", "speaker": "unplugged"})
    page.evaluate("(text) => localStorage.setItem('halfsec.settings', text)", stored)
    page.reload()
    page.evaluate(SPY)
    page.evaluate("globalThis.isGone = true")
    talk(page)
    call = server.wait_for_call()
    more_audio(server, call)
    assert page.evaluate("asked.map(({deviceId}) => deviceId?.exact ?? null)") == [
        "unplugged",
        None,
    ]
    assert page.evaluate("sinks") == ["unplugged"]
    notice(page, "another-microphone").get_by_role("button", name="Choose").click()
    dialog = page.get_by_role("dialog", name="Settings")
    selected = dialog.get_by_label("Microphone").locator("option:checked")
    expect(selected).to_have_text("The one chosen before, not here now")


def test_devices_are_listed_as_they_come(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    talk(page)
    server.wait_for_call()
    dialog = settings_of(page)
    options = dialog.get_by_label("Microphone").get_by_role("option")
    expect(options).to_have_text(
        ["As the system chooses", "Fake Audio Input 1", "Fake Audio Input 2"]
    )
    page.evaluate(
        """() => {
        const headset = { kind: 'audioinput', deviceId: 'new', label: 'Headset' };
        navigator.mediaDevices.enumerateDevices = async () => [headset];
        navigator.mediaDevices.dispatchEvent(new Event('devicechange'));
        }"""
    )
    expect(options).to_have_text(["As the system chooses", "Headset"])


def test_a_loudspeaker_that_fails_is_no_reason_to_be_silent(
    open_page: Open, server: FakeServer
) -> None:
    page = open_page()
    talk(page)
    call = server.wait_for_call()
    dialog = settings_of(page)
    speakers = dialog.get_by_label("Loudspeaker")
    expect(speakers.get_by_role("option")).not_to_have_count(1)
    page.evaluate(
        """() => {
        AudioContext.prototype.setSinkId = async () => {
          throw new DOMException('gone', 'NotFoundError');
        };
        }"""
    )
    speakers.select_option(index=1)
    page.keyboard.press("Escape")
    notice(page, "another-speaker")
    more_audio(server, call)
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("NotAllowedError", "Permission dismissed", "permission-dismissed"),
        ("NotAllowedError", "Permission denied by system", "permission-system"),
        ("NotReadableError", "Could not start audio source", "microphone-busy"),
    ],
)
def test_a_refusal_is_explained_and_can_be_overcome(
    open_page: Open, server: FakeServer, name: str, message: str, code: str
) -> None:
    page = open_page()
    page.evaluate(REFUSE, [name, message])
    talk(page)
    box = notice(page, code)
    assert server.calls == []
    page.evaluate("() => { delete navigator.mediaDevices.getUserMedia; }")
    box.get_by_role("button").click()
    more_audio(server, server.wait_for_call())
    expect(page.locator("#notice")).to_be_hidden()


def test_system_mute_is_shown_and_cleared(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    page.evaluate(SPY)
    talk(page)
    call = server.wait_for_call()
    page.evaluate("streams[0].getTracks()[0].dispatchEvent(new Event('mute'))")
    notice(page, "microphone-hushed")
    page.evaluate("streams[0].getTracks()[0].dispatchEvent(new Event('unmute'))")
    expect(page.locator("#notice")).to_be_hidden()
    more_audio(server, call)


def test_a_microphone_that_is_muted_from_the_first_is_shown(
    open_page: Open, server: FakeServer
) -> None:
    """And another one in its place clears the notice."""
    page = open_page()
    page.evaluate(
        """() => {
        globalThis.isHushed = true;
        Object.defineProperty(MediaStreamTrack.prototype, 'muted', { get: () => isHushed });
        }"""
    )
    talk(page)
    call = server.wait_for_call()
    notice(page, "microphone-hushed")
    page.evaluate("globalThis.isHushed = false")
    settings_of(page).get_by_label("Automatic gain").uncheck()
    expect(page.locator("#notice")).to_be_hidden()
    more_audio(server, call)


def test_the_last_choice_counts_where_an_earlier_one_comes_later(
    open_page: Open, server: FakeServer
) -> None:
    page = open_page()
    page.evaluate(SPY)
    talk(page)
    call = server.wait_for_call()
    page.evaluate(
        """() => {
        const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
        const slow = new Promise((resolve) => { globalThis.hurry = resolve; });
        navigator.mediaDevices.getUserMedia = async (constraints) => {
          if (constraints.audio.autoGainControl === false) await slow;
          return ask(constraints);
        };
        }"""
    )
    gain = settings_of(page).get_by_label("Automatic gain")
    gain.uncheck()
    gain.check()
    page.wait_for_function("streams.length === 2")
    page.evaluate("hurry()")
    page.wait_for_function("streams.length === 3")
    page.wait_for_function("streams[2].getTracks()[0].readyState === 'ended'")
    assert page.evaluate("streams[1].getTracks()[0].readyState") == "live"
    more_audio(server, call)


def pitch_hz(pcm: npt.NDArray[np.int16]) -> float:
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    return float(np.argmax(spectrum)) * WIRE_RATE_HZ / len(pcm)


@pytest.mark.parametrize(("context_hz", "device_hz"), [(16_000, 48_000), (96_000, 8_000)])
def test_any_rate_of_device_and_context_arrives_in_tune(
    open_page: Open, server: FakeServer, context_hz: int, device_hz: int
) -> None:
    """And another one in the middle of the call."""
    page = open_page()
    page.evaluate(FORCE_RATE, context_hz)
    page.evaluate(HUM, [device_hz, 500])
    talk(page)
    call = server.wait_for_call()
    server.wait_for(lambda: len(call.audio) >= WIRE_RATE_HZ, "a second of audio")
    assert pitch_hz(call.audio[-WIRE_RATE_HZ // 2 :]) == pytest.approx(500, abs=4)
    page.evaluate(HUM, [44_100, 1_000])
    dialog = settings_of(page)
    dialog.get_by_label("Automatic gain").uncheck()
    server.wait_for(
        lambda: abs(pitch_hz(call.audio[-WIRE_RATE_HZ // 4 :]) - 1_000) < 8, "the other microphone"
    )
    assert page.locator("output[data-figure=rateHz]").text_content() == str(context_hz)
    assert len(server.calls) == 1


# --- staying alive ---


def test_a_tab_in_the_background_goes_on_listening_and_speaking(
    open_page: Open, server: FakeServer
) -> None:
    async def script(call: FakeCall) -> None:
        await call.until(lambda: len(call.audio) > WIRE_RATE_HZ)
        await begin_reply(call, "item_1")
        await say(call, "item_1", "In the background.", tone(0.5))

    server.script = script
    page = open_page()
    talk(page)
    call = server.wait_for_call()
    page.evaluate(
        """() => {
        Object.defineProperty(document, 'hidden', { value: true, configurable: true });
        Object.defineProperty(document, 'visibilityState', { value: 'hidden' });
        document.dispatchEvent(new Event('visibilitychange'));
        globalThis.requestAnimationFrame = () => 0;
        }"""
    )
    server.wait_for(
        lambda: any(event["played_ms"] >= 400 for event in call.of_type("halfsec.playback")),
        "what it has played",
    )
    more_audio(server, call)
    assert len(server.calls) == 1


def test_a_clock_that_was_set_costs_a_question(open_page: Open, server: FakeServer) -> None:
    server.script = obey
    page = open_page()
    talk(page)
    call = server.wait_for_call()
    more_audio(server, call)
    page.evaluate("() => { const now = Date.now; Date.now = () => now() + 3_600_000; }")
    server.wait_for(lambda: call.of_type("session.update"), "a question")
    assert call.of_type("session.update")[0]["session"] == {"type": "realtime"}
    more_audio(server, call, 3 * WIRE_RATE_HZ)
    assert len(call.of_type("session.update")) == 1
    assert len(server.calls) == 1


def test_after_sleep_a_dead_connection_is_replaced_and_the_call_goes_on(
    open_page: Open, server: FakeServer
) -> None:
    async def dead(call: FakeCall) -> None:
        told = {"session": "sess_1", "resume_token": "resume_1", "resume_s": 60}
        await call.send("halfsec.session", **told)

    server.script = dead
    server.resumed = {"items": [], "received": 0}
    page = open_page()
    talk(page)
    more_audio(server, server.wait_for_call())
    page.evaluate("() => { const now = Date.now; Date.now = () => now() + 3_600_000; }")
    call = server.wait_for_call(2)
    assert call.query == "model=default&resume=resume_1"
    more_audio(server, call)
    assert len(server.calls) == 2


def test_a_full_server_says_why_and_when(open_page: Open, server: FakeServer) -> None:
    busy = {"code": "busy", "message": "All lines are busy; try again later."}
    server.full = True
    server.refusal = (503, busy, {"Retry-After": "10"})
    page = open_page(expect_errors=True)
    talk(page)
    box = notice(page, "server-full")
    expect(box).to_contain_text("All lines are busy; try again later. Trying again in 10 s.")
    limit = {"code": "rate_limit_exceeded", "message": "All calls that this key may hold."}
    server.refusal = (429, limit, {"Retry-After": "10"})
    box.get_by_role("button", name="Try now").click()
    expect(notice(page, "lines-taken")).to_contain_text("All calls that this key may hold.")
    assert server.num_refused == 2
    server.full = False
    page.get_by_role("button", name="Try now").click()
    server.wait_for_call()
    expect(page.locator("#notice")).to_be_hidden()


def test_two_tabs_have_two_calls_and_one_microphone(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        token = f"resume_{len(server.calls)}"
        await call.send("halfsec.session", session="s", resume_token=token, resume_s=60)

    server.script = script
    first = open_page()
    talk(first)
    one = server.wait_for_call()
    more_audio(server, one)
    second = first.context.new_page()
    second.goto(server.url)
    talk(second)
    two = server.wait_for_call(2)
    more_audio(server, two)
    box = notice(first, "other-tab")
    expect(first.locator("#phase")).to_have_text("On the line")
    heard = len(one.audio)
    more_audio(server, two)
    assert len(one.audio) == heard
    box.get_by_role("button", name="Talk here").click()
    more_audio(server, one)
    notice(second, "other-tab")
    assert [call.query for call in server.calls] == ["model=default"] * 2


def test_two_tabs_come_back_to_their_own_calls(open_page: Open, server: FakeServer) -> None:
    is_to_break: list[bool] = []

    async def script(call: FakeCall) -> None:
        number = len(server.calls)
        await call.send("halfsec.session", session="s", resume_token=f"t{number}", resume_s=60)
        if number <= 2:
            await call.until(lambda: is_to_break)
            await call.close(1011)

    server.script = script
    server.resumed = {"items": [], "received": 0}
    first = open_page(expect_errors=True)
    talk(first)
    one = server.wait_for_call()
    second = first.context.new_page()
    second.goto(server.url)
    talk(second)
    two = server.wait_for_call(2)
    is_to_break.append(True)
    # A script looks again when its page sends something.
    first.get_by_label("Write to the agent").fill("Hello.")
    first.keyboard.press("Enter")
    server.wait_for_call(4)
    queries = [call.query for call in server.calls]
    assert sorted(queries) == sorted(
        ["model=default"] * 2 + [f"model=default&resume=t{number}" for number in (1, 2)]
    )
    assert {one.query, two.query} == {"model=default"}
