"""The microphone page in a real Chromium, against a scripted server: what is heard and said."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr
from playwright.sync_api import Page, expect

from agent.http.static_files import LEVEL
from tests.support.browser.fake_server import (
    DELTA_SAMPLES,
    WEB_DEMO,
    WIRE_RATE_HZ,
    FakeCall,
    FakeServer,
    Pcm,
    begin_reply,
    end_reply,
    hear,
    reply,
    say,
    transcribe,
)
from tests.support.browser.pages import (
    SAMPLE,
    Open,
    check_played,
    correlation,
    noise,
    recording,
)

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

QUESTION = "What should I cook for dinner tonight?"
TURN: dict[str, Any] = {
    "turn": 1,
    "caller_text": QUESTION,
    "agent_text": "Try an omelette with spinach.",
    "e2e_ear_ms": 412.0,
    "e2e_server_ms": 380.0,
    "cut_in": False,
    "interrupted": False,
    "stages": {
        "endpoint": {"spent_ms": 240.0, "exposed_ms": 240.0},
        "asr": {"spent_ms": 143.0, "exposed_ms": 60.0},
        "llm_clause": {"spent_ms": 120.0, "exposed_ms": 80.0},
        "tts": {"spent_ms": 30.0, "exposed_ms": 29.0},
        "pacing": {"spent_ms": 3.0, "exposed_ms": 3.0},
    },
    "reply_s": 2.4,
}


def sample_pcm() -> Pcm:
    pcm, rate_hz = soundfile.read(SAMPLE, dtype="int16")
    assert rate_hz == WIRE_RATE_HZ
    return np.asarray(pcm, dtype=np.int16)


def sweep(seconds: float) -> Pcm:
    """A tone that rises from 200 to 2000 Hz: loud in every sample, and unlike itself shifted."""
    t = np.arange(int(seconds * WIRE_RATE_HZ)) / WIRE_RATE_HZ
    phase = 2 * np.pi * (200 * t + 0.5 * (1800 / seconds) * t**2)
    return np.asarray(12_000 * np.cos(phase), dtype=np.int16)


def finer(pcm: Pcm) -> npt.NDArray[np.float32]:
    """At four times the rate: a recording may start between two samples of the wire's grid."""
    return np.asarray(soxr.resample(pcm.astype(np.float32), 1, 4), dtype=np.float32)


def figure(page: Page, name: str) -> int:
    return int(page.locator(f"output[data-figure={name}]").text_content() or "0")


def start_talking(page: Page, server: FakeServer) -> FakeCall:
    page.get_by_role("button", name="Press and talk").click()
    return server.wait_for_call()


def test_the_microphone_arrives_as_24_khz_speech(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    call = start_talking(page, server)
    server.wait_for(lambda: len(call.audio) >= 4.2 * WIRE_RATE_HZ, "4.2 s of audio")
    # Noise suppression and gain control work on it in between: alike (0.56), not equal. The same
    # sentence backwards, equal in spectrum and level, reaches 0.22.
    alike = correlation(call.audio, sample_pcm())
    backwards = correlation(call.audio, sample_pcm()[::-1])
    assert alike > 0.4
    assert alike > 1.5 * backwards
    assert call.offered == ["realtime", "halfsec.v1"]
    assert call.query == "model=default"
    assert len(call.audio) % (WIRE_RATE_HZ // 50) == 0


def test_the_sample_question_takes_the_microphones_place(
    open_page: Open, server: FakeServer
) -> None:
    page = open_page()
    page.get_by_role("button", name="Play a sample question").click()
    call = server.wait_for_call()
    needed = len(sample_pcm()) + WIRE_RATE_HZ
    server.wait_for(lambda: len(call.audio) >= needed, "the question and a second of silence")
    assert correlation(finer(call.audio), finer(sample_pcm())) > 0.995
    assert np.all(call.audio[-WIRE_RATE_HZ // 2 :] == 0)


def test_the_sample_question_is_not_mixed_with_the_microphone(
    open_page: Open, server: FakeServer
) -> None:
    page = open_page()
    call = start_talking(page, server)
    page.get_by_role("button", name="Play a sample question").click()
    server.wait_for(lambda: len(call.audio) >= 4 * WIRE_RATE_HZ, "4 s of audio")
    assert correlation(finer(call.audio), finer(sample_pcm())) > 0.995
    assert len(server.calls) == 1


def played_as_sent(page: Page, server: FakeServer, voice: Pcm) -> int:
    """Wait for the end of a reply, and check what was played of it. Returns the number of gaps,
    which the page counts: audio that comes late is silence there, not lost."""
    played = page.locator("output[data-figure=playedMs]")
    expect(played).to_have_text(str(1000 * len(voice) // WIRE_RATE_HZ))
    call, num_gaps = server.calls[0], figure(page, "underruns")
    sent = len(call.audio)  # what is recorded comes in batches, as the microphone's audio does
    server.wait_for(lambda: len(call.audio) >= sent + WIRE_RATE_HZ // 4, "more audio")
    heard, rate_hz = recording(page)
    expected = soxr.resample(voice.astype(np.float32), WIRE_RATE_HZ, rate_hz)
    check_played(heard, expected, rate_hz, num_gaps)
    return num_gaps


def test_reply_is_played_as_sent(open_page: Open, server: FakeServer) -> None:
    voice = noise(2.0)

    async def script(call: FakeCall) -> None:
        half = len(voice) // 2
        await reply(
            call, "item_1", [("First half, ", voice[:half]), ("second half.", voice[half:])]
        )

    server.script = script
    page = open_page()
    call = start_talking(page, server)
    expect(page.locator(".message.agent[data-state=done] .sure")).to_have_text(
        "First half, second half."
    )
    played_as_sent(page, server, voice)
    reports = [event["played_ms"] for event in call.of_type("halfsec.playback")]
    assert reports == sorted(reports)
    assert reports[-1] == 2000
    assert 5 <= len(reports) <= 12
    assert call.of_type("conversation.item.truncate") == []


def test_audio_that_comes_late_is_a_counted_gap(open_page: Open, server: FakeServer) -> None:
    voice = noise(1.0)
    half = len(voice) // 2

    async def script(call: FakeCall) -> None:
        await begin_reply(call, "item_1")
        await say(call, "item_1", "First half, ", voice[:half], half)
        await call.until(lambda: reported(call) >= 400)
        sent = len(call.audio)  # by the clock that the loudspeaker has, too
        await call.until(lambda: len(call.audio) >= sent + half)
        await say(call, "item_1", "second half.", voice[half:], half)
        await end_reply(call, "item_1", "completed")

    server.script = script
    page = open_page()
    start_talking(page, server)
    assert played_as_sent(page, server, voice) == 1


PIECE = 2_400


@pytest.mark.parametrize(
    ("order", "num_gaps"),
    [
        pytest.param([0, 1, 2, 3, None, 4, 5], 0, id="a gap that is not counted"),
        pytest.param([0, 1, None, 3, 4, 5], 1, id="a loss"),
        pytest.param([0, 1, None, 2, 4, 5], 2, id="a loss beside a gap"),
        pytest.param([0, 1, 3, None, 2, 4, 5], 2, id="another order"),
        pytest.param([0, 1, 1, None, 2, 3, 4, 5], 2, id="a repetition"),
    ],
)
def test_a_gap_is_told_from_a_loss(order: list[int | None], num_gaps: int) -> None:
    voice = noise(6 * PIECE / WIRE_RATE_HZ)
    pieces = voice.reshape(6, PIECE)
    silence = np.zeros(PIECE, dtype=np.int16)

    def check(order: list[int | None], num_gaps: int) -> None:
        parts = [silence if number is None else pieces[number] for number in order]
        check_played(np.concatenate([silence, *parts, silence]), voice, WIRE_RATE_HZ, num_gaps)

    check([0, 1, 2, 3, 4, 5], 0)
    check([0, None, 1, 2, 3, None, 4, 5], 2)
    with pytest.raises(AssertionError):
        check(order, num_gaps)


def test_talking_over_the_agent_silences_it(open_page: Open, server: FakeServer) -> None:
    voice = sweep(6.0)

    async def script(call: FakeCall) -> None:
        await begin_reply(call, "item_1")
        third = len(voice) // 3
        await say(call, "item_1", "The first part is heard, ", voice[:third])
        await say(call, "item_1", "the second is not, ", voice[third : 2 * third])
        await call.until(lambda: reported(call) >= 800)
        await call.send("input_audio_buffer.speech_started", item_id="item_2", audio_start_ms=0)
        # What was on the wire already arrives after the interruption, as it does in the wild.
        await say(call, "item_1", "nor the third.", voice[2 * third :])
        await end_reply(call, "item_1", "cancelled")
        await call.until_event("conversation.item.truncate")
        await hear(call, "item_2", "Stop, please.")

    server.script = script
    page = open_page()
    call = start_talking(page, server)
    expect(page.locator(".message.caller .sure")).to_have_text("Stop, please.")
    (truncate,) = call.of_type("conversation.item.truncate")
    assert truncate["item_id"] == "item_1"
    assert truncate["content_index"] == 0
    cut_ms = truncate["audio_end_ms"]
    assert 800 <= cut_ms < 4000
    server.wait_for(lambda: call.of_type("halfsec.playback")[-1]["played_ms"] >= cut_ms, "a report")

    # A second later not one more sample has been played: what sounded is what was reported.
    sent = len(call.audio)
    server.wait_for(lambda: len(call.audio) >= sent + WIRE_RATE_HZ, "another second of audio")
    heard, rate_hz = recording(page)
    last_sound = int(np.flatnonzero(np.abs(heard) > 1e-6)[-1])
    to_silence_ms = 1000 * (last_sound - page.evaluate("wireFrames[0].frame")) / rate_hz
    print(f"from speech_started to silence: {to_silence_ms:.1f} ms")
    sounded_ms = 1000 * np.count_nonzero(np.abs(heard) > 1e-6) / rate_hz
    assert sounded_ms == pytest.approx(cut_ms, abs=10)
    assert figure(page, "playedMs") == pytest.approx(cut_ms, abs=1)
    expect(page.locator(".message.agent del")).to_have_text(re.compile("the second is not, nor"))


def reported(call: FakeCall) -> int:
    reports = call.of_type("halfsec.playback")
    return int(reports[-1]["played_ms"]) if reports else 0


def test_partials_transcript_and_latency_are_shown(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await call.send("input_audio_buffer.speech_started", item_id="item_1", audio_start_ms=0)
        await call.send(
            "halfsec.partial", item_id="item_1", text="What should I look for", stable_chars=14
        )
        await call.until_event("halfsec.playback")

    server.script = script
    page = open_page()
    call = start_talking(page, server)
    caller = page.locator(".message.caller")
    expect(caller.locator(".sure")).to_have_text("What should I ")
    expect(caller.locator(".unsure")).to_have_text("look for")
    assert page.locator("#announcer p").count() == 0
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#phase")).to_have_text("Press and talk")

    async def answer(call: FakeCall) -> None:
        await hear(call, "item_3", QUESTION)
        await reply(call, "item_4", [(TURN["agent_text"], sweep(0.5))])
        await call.send("halfsec.turn", turn=TURN)

    server.script = answer
    page.get_by_role("button", name="Press and talk").click()
    server.wait_for_call(2)
    expect(caller.last.locator(".sure")).to_have_text(QUESTION)
    bar = page.locator(".message.agent .turn")
    expect(bar).to_have_attribute("data-wait-ms", "412")
    expect(bar.locator(".turn-headline")).to_contain_text("412 ms from your last word")
    parts = bar.locator(".turn-part")
    colours = parts.evaluate_all(
        "(all) => all.map((part) => getComputedStyle(part).backgroundColor)"
    )
    assert len(set(colours)) == len(colours) == 5
    entries = bar.locator(".legend > span")  # whatever is drawn is named, however small it is
    expect(entries).to_have_text(
        ["End of turn 240", "Recognition 60", "First words 80", "Voice 29", "Pacing 3"]
    )
    expect(bar.locator(".turn-limit")).to_have_text("500 ms")
    bar.locator("summary").click()
    expect(bar.get_by_role("row", name="Recognition 143 ms 60 ms")).to_be_visible()
    said = page.locator("#announcer p")
    expect(said.filter(has_text="Agent: Try an omelette")).to_have_count(1)
    expect(said.filter(has_text="Answered after 412 milliseconds.")).to_have_count(1)
    assert call.of_type("response.cancel") == []


def test_writing_interrupts_and_is_answered(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await begin_reply(call, "item_1")
        await say(call, "item_1", "A very long story.", sweep(5.0))
        await call.until_event("response.cancel")
        await end_reply(call, "item_1", "cancelled")
        created = await call.until_event("conversation.item.create")
        item = {"id": "item_2", "status": "completed", **created["item"]}
        await call.send("conversation.item.added", item=item, previous_item_id="item_1")
        await call.until_event("response.create")
        await reply(call, "item_3", [("Yes.", sweep(0.2))])

    server.script = script
    page = open_page()
    call = start_talking(page, server)
    expect(page.locator("#phase")).to_contain_text("Speaking")
    page.get_by_label("Write to the agent").fill("  Is it short?  ")
    page.keyboard.press("Enter")
    expect(page.locator(".message.caller .sure")).to_have_text("Is it short?")
    expect(page.locator(".message.agent[data-state=done] .sure")).to_have_text("Yes.")
    kinds = [event["type"] for event in call.events if event["type"] != "halfsec.playback"]
    assert kinds == [
        "response.cancel",
        "conversation.item.truncate",
        "conversation.item.create",
        "response.create",
    ]
    assert page.get_by_label("Write to the agent").input_value() == ""


def test_escape_stops_the_agent(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await begin_reply(call, "item_1")
        await say(call, "item_1", "A very long story.", sweep(5.0))
        await call.until_event("response.cancel")
        await end_reply(call, "item_1", "cancelled")

    server.script = script
    page = open_page()
    call = start_talking(page, server)
    expect(page.locator("#phase")).to_contain_text("Speaking")
    page.keyboard.press("Escape")
    server.wait_for(lambda: call.of_type("conversation.item.truncate"), "a truncation")
    expect(page.locator("#phase")).to_contain_text("Listening")


def test_speech_that_was_noise_leaves_no_trace(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await call.send("input_audio_buffer.speech_started", item_id="item_1", audio_start_ms=0)
        await call.send("input_audio_buffer.speech_stopped", item_id="item_1", audio_end_ms=300)
        await transcribe(call, "item_1", "")
        await hear(call, "item_2", QUESTION)
        await call.send("error", error={"type": "server_error", "message": "Out of breath."})

    server.script = script
    page = open_page()
    start_talking(page, server)
    expect(page.locator(".message .sure")).to_have_text([QUESTION])
    expect(page.get_by_role("alert")).to_contain_text("Out of breath.")


def test_the_keyboard_is_enough(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    expect(page.locator("#server")).to_have_text("Ready")
    for name in ("Press and talk", "Play a sample question", "Write to the agent", "Send"):
        for _ in range(3):
            page.keyboard.press("Tab")
            focused = page.locator(":focus")
            if focused.count() and name in focused.evaluate(
                "(element) => element.labels?.[0]?.textContent ?? element.textContent"
            ):
                break
        else:
            pytest.fail(f"{name} can't be reached with the Tab key")
    page.get_by_role("button", name="Press and talk").focus()
    page.keyboard.press("Enter")
    server.wait_for_call()
    expect(page.get_by_role("button", name="End the call")).to_have_attribute(
        "aria-pressed", "true"
    )


def test_the_page_is_light_before_anybody_touches_it(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    expect(page.locator("#server")).to_have_text("Ready")
    page.wait_for_load_state("networkidle")
    loaded: dict[str, int] = page.evaluate("""() => Object.fromEntries(
        [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
            .map(({ name, decodedBodySize }) => [new URL(name).pathname, decodedBodySize]))""")
    assert loaded["/"] > 0
    assert loaded["/app.js"] > 0
    assert "/ui/call-views.js" not in loaded  # what only a call needs
    assert "/ui/settings-panel.js" not in loaded
    names = {name.lstrip("/") or "index.html" for name in loaded if name != "/readyz"}
    packed = sum(len(gzip.compress((WEB_DEMO / name).read_bytes(), LEVEL)) for name in names)
    print(f"the page loads {packed} bytes, {sum(loaded.values())} unpacked, in {len(names)} files")
    assert packed < 100_000
    assert SAMPLE.stat().st_size < 150_000


def test_the_page_has_nothing_inline() -> None:
    html = Path(WEB_DEMO / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html) == []
    assert all("http" not in link for link in re.findall(r'(?:src|href)="([^"]*)"', html))
    assert DELTA_SAMPLES < WIRE_RATE_HZ
