"""The page plays a reply quietly while the server wonders whether the caller interrupts it."""

import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import expect

from tests.support.browser.fake_server import (
    WIRE_RATE_HZ,
    FakeCall,
    FakeServer,
    begin_reply,
    end_reply,
    reply,
    say,
)
from tests.support.browser.pages import Open, recording

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

LEVEL = 12_000 / 32_768
"""Of the voice in full."""
DUCKED = 0.2 * LEVEL
VOICE_HZ = 500


def voice(seconds: float) -> npt.NDArray[np.int16]:
    t = np.arange(int(seconds * WIRE_RATE_HZ)) / WIRE_RATE_HZ
    return np.asarray(12_000 * np.sin(2 * np.pi * VOICE_HZ * t), dtype=np.int16)


def played_ms(call: FakeCall, item_id: str) -> int:
    reports = [e for e in call.of_type("halfsec.playback") if e["item_id"] == item_id]
    return int(reports[-1]["played_ms"]) if reports else 0


def levels(sound: npt.NDArray[np.float32], rate_hz: int) -> npt.NDArray[np.float32]:
    """The peak of each period of the voice."""
    period = rate_hz // VOICE_HZ
    whole = sound[: len(sound) // period * period].reshape(-1, period)
    return np.asarray(np.abs(whole).max(axis=1), dtype=np.float32)


def spans(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and one past the last of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def test_a_reply_is_ducked_comes_back_and_leaves_the_next_one_loud(
    open_page: Open, server: FakeServer
) -> None:
    async def script(call: FakeCall) -> None:
        first, next_one = voice(6.0), voice(1.0)
        await begin_reply(call, "item_1")
        await say(call, "item_1", "All of this may be heard.", first, len(first))
        await call.until(lambda: played_ms(call, "item_1") >= 400)
        await call.send("halfsec.duck", item_id="item_1")
        await call.until(lambda: played_ms(call, "item_1") >= 1200)
        await call.send("halfsec.unduck", item_id="item_1")
        await call.until(lambda: played_ms(call, "item_1") >= 2000)
        await call.send("halfsec.duck", item_id="item_1")
        await call.until(lambda: played_ms(call, "item_1") >= 2600)
        await call.send("input_audio_buffer.speech_started", item_id="item_2", audio_start_ms=0)
        await end_reply(call, "item_1", "cancelled")
        await call.until_event("conversation.item.truncate")
        await begin_reply(call, "item_3")
        await say(call, "item_3", "Yes?", next_one, len(next_one))
        await end_reply(call, "item_3", "completed")

    server.script = script
    page = open_page()
    page.get_by_role("button", name="Press and talk").click()
    call = server.wait_for_call()
    server.wait_for(lambda: played_ms(call, "item_3") >= 1000, "the end of the last reply")
    expect(page.locator("output[data-figure=underruns]")).to_have_text("0")
    sound, rate_hz = recording(page)
    peaks = levels(sound, rate_hz)
    ms = 1000 / VOICE_HZ

    quiet = spans(np.abs(peaks - DUCKED) < 0.02 * LEVEL)
    loud = spans(peaks > 0.95 * LEVEL)
    quiet = [(a, b) for a, b in quiet if (b - a) * ms > 100]
    loud = [(a, b) for a, b in loud if (b - a) * ms > 100]
    assert len(quiet) == 2
    assert len(loud) == 3
    fall_ms = [(quiet[n][0] - loud[n][1]) * ms for n in (0, 1)]
    rise_ms = (loud[1][0] - quiet[0][1]) * ms
    print(f"ducked in {fall_ms} ms, back in {rise_ms} ms")
    assert max(fall_ms) <= 30  # the ramp of 20 ms, and the periods in which it begins and ends
    assert 60 <= rise_ms <= 110
    # A click is a step between two samples that the voice itself never makes.
    steepest = LEVEL * 2 * np.pi * VOICE_HZ / rate_hz
    assert np.abs(np.diff(sound)).max() < 1.5 * steepest


def test_late_duck_does_not_affect_the_next_reply(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await reply(call, "item_1", [("Short.", voice(0.3))])
        await call.until(lambda: played_ms(call, "item_1") >= 300)
        await call.send("halfsec.duck", item_id="item_1")
        await reply(call, "item_2", [("Another.", voice(0.6))])

    server.script = script
    page = open_page()
    page.get_by_role("button", name="Press and talk").click()
    call = server.wait_for_call()
    server.wait_for(lambda: played_ms(call, "item_2") >= 600, "the end of the last reply")
    sound, rate_hz = recording(page)
    num_loud = np.count_nonzero(levels(sound, rate_hz) > 0.95 * LEVEL)
    assert num_loud * 1000 / VOICE_HZ > 800
