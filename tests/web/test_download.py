"""A call as files: the sound of both on one time axis, the words, and the server's trace."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr
from playwright.sync_api import Download, Page, Route, expect

from tests.support.browser.fake_server import (
    WIRE_RATE_HZ,
    FakeCall,
    FakeServer,
    Pcm,
    begin_reply,
    end_reply,
    hear,
    reply,
    say,
)
from tests.support.browser.pages import SAMPLE, Open, correlation, recording, tone

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

Wave = npt.NDArray[np.float32]
File = Literal["Sound", "Transcript", "Trace"]
HALF_SECOND = WIRE_RATE_HZ // 2
PIECE = WIRE_RATE_HZ // 10
BUSY = "() => { const end = performance.now() + 1500; while (performance.now() < end); }"


def voice(seconds: float) -> Pcm:
    """A tone that rises: unlike itself shifted."""
    t = np.arange(int(seconds * WIRE_RATE_HZ)) / WIRE_RATE_HZ
    phase = 2 * np.pi * (200 * t + 0.5 * (1800 / seconds) * t**2)
    return np.asarray(12_000 * np.cos(phase), dtype=np.int16)


def place(heard: npt.NDArray[Any], sound: npt.NDArray[Any]) -> int:
    """First sample of the stretch of `heard` that is most like `sound`."""
    size = 1 << int(np.ceil(np.log2(len(heard) + len(sound))))
    spectrum = np.fft.rfft(heard.astype(np.float64), size)
    products = np.fft.irfft(spectrum * np.conj(np.fft.rfft(sound.astype(np.float64), size)), size)
    return int(np.argmax(products[: len(heard)]))


def offsets(heard: npt.NDArray[Any], sound: npt.NDArray[Any]) -> list[int]:
    """How far each tenth of a second of `sound` is from where it stands in `heard`."""
    pieces = range(0, len(sound), PIECE)
    return [place(heard, sound[at : at + PIECE]) - at for at in pieces]


def download(page: Page, name: File) -> Download:
    menu = page.locator("#download")
    if menu.get_attribute("open") is None:
        menu.locator("summary").click()
    with page.expect_download() as found:
        menu.get_by_role("button", name=name).click()
    return found.value


def text_of(page: Page, name: File) -> str:
    return Path(download(page, name).path()).read_text(encoding="utf-8")


def sound_of(page: Page) -> tuple[Wave, Wave]:
    """Left and right, 24 kHz."""
    got = download(page, "Sound")
    assert got.suggested_filename.endswith(".wav")
    info = soundfile.info(got.path())
    assert (info.samplerate, info.channels, info.subtype) == (WIRE_RATE_HZ, 2, "PCM_16")
    pcm, _ = soundfile.read(got.path(), dtype="float32")
    assert len(pcm) == info.frames
    return pcm[:, 0], pcm[:, 1]


def start_of(sound: npt.NDArray[Any], heard: npt.NDArray[Any]) -> float:
    """Sample of `heard` at which `sound` began, by its loud tenths of a second.

    A browser that gets too little of the processor drops or stretches some of it: the median holds.
    """
    whole = len(sound) // PIECE * PIECE
    levels = np.std(sound[:whole].astype(np.float64).reshape(-1, PIECE), axis=1)
    loud = levels > 0.5 * levels.mean()
    return float(np.median(np.array(offsets(heard, sound)[: len(loud)])[loud]))


def test_both_channels_are_placed_at_playback_time(open_page: Open, server: FakeServer) -> None:
    answer = voice(1.0)
    question, _ = soundfile.read(SAMPLE, dtype="float32")

    async def script(call: FakeCall) -> None:
        await call.until(lambda: len(call.audio) >= 3 * WIRE_RATE_HZ)
        await reply(call, "item_1", [("Rising.", answer)], len(answer))

    server.script = script
    page = open_page()
    expect(page.locator("#download")).to_be_hidden()
    page.get_by_role("button", name="Play a sample question").click()
    call = server.wait_for_call()
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1)
    left, right = sound_of(page)
    # The test's own recorder hears the question and the answer in one stream.
    heard, rate_hz = recording(page)
    both = soxr.resample(heard, rate_hz, WIRE_RATE_HZ)

    # The axis begins within the first batch, which is silent.
    asked = call.audio[HALF_SECOND : 2 * WIRE_RATE_HZ]
    assert correlation(left, asked) > 0.999, offsets(left, asked)
    assert correlation(right, answer) > 0.999, offsets(right, answer)
    apart = start_of(answer, both) - start_of(question, both)
    placed = start_of(answer, right) - start_of(question, left)
    assert placed == pytest.approx(apart, abs=720)  # 30 ms


def test_a_page_that_is_busy_loses_no_sound(open_page: Open, server: FakeServer) -> None:
    """Afterwards it is told of what is past and what is present in any order."""

    async def script(call: FakeCall) -> None:
        for number in range(20):
            name = f"item_{number}"
            await call.send("halfsec.tool", item_id=name, name="clock", state="done", ms=7)
            await asyncio.sleep(0.1)
        await call.until(lambda: len(call.audio) >= 3 * WIRE_RATE_HZ)
        await reply(call, "item_99", [("Rising.", voice(1.0))])

    server.script = script
    page = open_page()
    page.get_by_role("button", name="Play a sample question").click()
    call = server.wait_for_call()
    server.wait_for(lambda: len(call.audio) >= HALF_SECOND // 2, "the beginning")
    page.evaluate(BUSY)
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1)
    left, _ = sound_of(page)
    question, _ = soundfile.read(SAMPLE, dtype="float32")
    assert correlation(left, question) > 0.95, offsets(left, question)


def test_what_was_interrupted_ends_where_it_was_cut(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await hear(call, "item_1", "Tell *me* a story.")
        await begin_reply(call, "item_2")
        await say(call, "item_2", "Once upon a time there was a king, ", voice(2.0))
        await say(call, "item_2", "and a queen.", voice(2.0))
        await call.until(lambda: played_ms(call) >= 800)
        await call.send("input_audio_buffer.speech_started", item_id="item_3", audio_start_ms=0)
        await end_reply(call, "item_2", "cancelled")
        await call.until_event("conversation.item.truncate")
        await hear(call, "item_3", "Stop.")
        await call.send("halfsec.tool", item_id="item_4", name="clock", state="done", ms=7)

    server.script = script
    page = open_page()
    page.get_by_role("button", name="Press and talk").click()
    call = server.wait_for_call()
    expect(page.locator("#transcript .tool")).to_have_count(1)
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#phase")).to_have_text("Press and talk")
    (truncate,) = call.of_type("conversation.item.truncate")
    _, right = sound_of(page)
    sounded = np.flatnonzero(np.abs(right) > 1e-4)
    sounded_ms = 1000 * (sounded[-1] - sounded[0]) / WIRE_RATE_HZ
    assert sounded_ms == pytest.approx(truncate["audio_end_ms"], abs=12)

    text = text_of(page, "Transcript")
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert "**You**: Tell \\*me\\* a story." in lines[0]
    assert "**Agent**: Once upon" in lines[1]
    assert lines[1].endswith("~~ (interrupted)")
    assert "queen" in lines[1].split("~~")[1]
    assert "**You**: Stop." in lines[2]
    assert "*Tool clock: done after 7 ms.*" in lines[3]
    assert [line[2:9] for line in lines] == sorted(line[2:9] for line in lines)
    assert "Session: sess_1" in text


def played_ms(call: FakeCall) -> int:
    reports = call.of_type("halfsec.playback")
    return int(reports[-1]["played_ms"]) if reports else 0


async def one_answer(call: FakeCall, words: str = "Hello.") -> None:
    await hear(call, "item_1", "Hello?")
    await reply(call, "item_2", [(words, tone(0.2))])


def test_the_trace_comes_from_the_server_or_is_said_to_be_gone(
    open_page: Open, server: FakeServer
) -> None:
    server.script = one_answer
    page = open_page(expect_errors=True)  # Chromium's own lines about the 404 and the lost server
    page.evaluate("sessionStorage.setItem('halfsec.key', 'hs_mine')")
    page.reload()
    page.get_by_role("button", name="Press and talk").click()
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1)
    server.traces["sess_1"] = '{"format":1}\n{"at_ns":7}\n'
    assert text_of(page, "Trace") == server.traces["sess_1"]
    assert server.trace_keys == ["Bearer hs_mine"]
    page.get_by_role("button", name="End the call").click()

    menu = page.locator("#download")
    server.traces.clear()
    menu.locator("summary").click()
    menu.get_by_role("button", name="Trace").click()
    expect(menu.get_by_role("status")).to_contain_text("The trace is gone")
    server.stop()
    menu.get_by_role("button", name="Trace").click()
    expect(menu.get_by_role("status")).to_contain_text("does not answer")
    _, right = sound_of(page)
    assert np.any(right)
    assert "Hello?" in text_of(page, "Transcript")


def test_what_happens_before_its_keeper_is_fetched_is_kept(
    open_page: Open, server: FakeServer
) -> None:
    answer = voice(0.5)

    async def script(call: FakeCall) -> None:
        await call.until(lambda: len(call.audio) >= 2 * WIRE_RATE_HZ)
        await hear(call, "item_1", "Hello?")
        for state in ("started", "done"):
            await call.send("halfsec.tool", item_id="item_2", name="greet", state=state, ms=7)
        await reply(call, "item_2", [("Hello.", answer)], len(answer))

    server.script = script
    page = open_page()
    held: list[Route] = []
    page.route("**/call-views.js", lambda route: held.append(route))
    page.get_by_role("button", name="Play a sample question").click()
    call = server.wait_for_call()
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1)
    page.wait_for_timeout(1000)  # what is held is older than that when it is released
    held.pop().continue_()
    expect(page.locator("#transcript .tool")).to_have_text("Looking that up: greet … done, 7 ms")
    left, right = sound_of(page)
    # The axis begins within the first batch, which is silent.
    assert correlation(left, call.audio[HALF_SECOND : 3 * HALF_SECOND]) > 0.999
    assert correlation(right, answer) > 0.999
    lines = [line for line in text_of(page, "Transcript").splitlines() if line.startswith("- ")]
    said = ("**You**: Hello?", "*Tool greet: done after 7 ms.*", "**Agent**: Hello.")
    for line, words in zip(lines, said, strict=True):
        assert words in line
    minutes, seconds = lines[-1].split()[1].split(":")
    sounded_s = place(right, answer) / WIRE_RATE_HZ
    assert 60 * int(minutes) + float(seconds) < sounded_s + 0.5


def test_a_new_call_has_files_of_its_own(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    for words in ("First.", "Second."):
        server.script = partial(one_answer, words=words)
        page.get_by_role("button", name="Press and talk").click()
        expect(page.locator(".message.agent[data-state=done]").last).to_contain_text(words)
        page.get_by_role("button", name="End the call").click()
        expect(page.locator("#phase")).to_have_text("Press and talk")
    text = text_of(page, "Transcript")
    assert "First." not in text
    assert "Second." in text
    left, _ = sound_of(page)
    assert len(left) < len(server.calls[0].audio) + len(server.calls[1].audio) + WIRE_RATE_HZ


def test_the_menu_is_used_by_keyboard(open_page: Open, server: FakeServer) -> None:
    server.script = one_answer
    page = open_page()
    page.get_by_label("Write to the agent").fill("Hi")
    page.keyboard.press("Enter")
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1)
    menu = page.locator("#download")
    menu.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(menu.get_by_role("button", name="Transcript")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    with page.expect_download() as found:
        page.keyboard.press("Enter")
    assert found.value.suggested_filename.endswith(".md")
    page.keyboard.press("Escape")
    expect(menu.get_by_role("button", name="Transcript")).to_be_hidden()
    expect(menu.locator("summary")).to_be_focused()
    assert server.calls[0].of_type("response.cancel") == []
