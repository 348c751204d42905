"""Half an hour on the page, in seconds: what it keeps does not grow with the turns."""

from functools import partial
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Page, expect

from tests.support.browser.fake_server import FakeCall, FakeServer, hear, reply
from tests.support.browser.pages import Open, tone

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

TURNS = 208
"""Half an hour's, with two messages each: the transcript is full then."""
MORE = 200
"""Enough to be seen, if something grew with each: nearly to twice what it was."""

IN_THE_AIR = 8
"""Turns that are sent before the page has played what came before: half of what it remembers."""

STAGES = ("endpoint", "llm_clause", "tts")
GROWTH = {"Nodes": 1.1, "JSEventListeners": 1.1, "JSHeapUsedSize": 1.25}
"""Of the heap, a collection leaves 5 % more or less. And the lines to be downloaded are not all
there yet: a thousand at most, of half a KB."""


async def turns(call: FakeCall, first: int, end: int) -> None:
    for number in range(first, end):
        words = f"Question {number}, about the weather of tomorrow?"
        await hear(call, f"item_{number}_1", words)
        answer = f"Answer {number}: rain in the morning."
        await reply(call, f"item_{number}_2", [(answer, tone(0.004))])
        turn = {
            "turn": number,
            "item_id": f"item_{number}_2",
            "caller_text": words,
            "agent_text": answer,
            "e2e_ear_ms": 412.0,
            "e2e_server_ms": 380.0,
            "cut_in": False,
            "interrupted": False,
            "stages": {name: {"spent_ms": 150.0, "exposed_ms": 130.0} for name in STAGES},
            "reply_s": 0.1,
        }
        await call.send("halfsec.turn", turn=turn)
        if number % IN_THE_AIR == IN_THE_AIR - 1:
            await call.until(partial(has_played, call, f"item_{number}_2"))
            call.events.clear()


def has_played(call: FakeCall, item_id: str) -> bool:
    return any(event["item_id"] == item_id for event in call.of_type("halfsec.playback"))


def used(devtools: CDPSession, page: Page) -> dict[str, float]:
    """Elements, listeners and bytes that are left after a collection of garbage."""
    page.evaluate("globalThis.recordedChunks.length = 0")  # what the test itself keeps
    for _ in range(2):
        devtools.send("HeapProfiler.collectGarbage")
    metrics: Any = devtools.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in metrics if each["name"] in GROWTH}


def test_memory_stays_flat(open_page: Open, server: FakeServer) -> None:
    goes_on: list[bool] = []

    async def script(call: FakeCall) -> None:
        await turns(call, 0, TURNS)
        await call.until(lambda: goes_on)
        await turns(call, TURNS, TURNS + MORE)

    server.script = script
    page = open_page()
    page.get_by_role("button", name="Press and talk").click()
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")
    last = page.locator(".message.agent").last
    expect(last.locator(".words")).to_have_text(
        f"Answer {TURNS - 1}: rain in the morning.", timeout=60_000
    )
    expect(last.locator(".turn")).to_be_visible()
    before = used(devtools, page)
    goes_on.append(True)
    expect(last.locator(".words")).to_have_text(
        f"Answer {TURNS + MORE - 1}: rain in the morning.", timeout=60_000
    )
    expect(last.locator(".turn")).to_be_visible()
    after = used(devtools, page)
    print(f"after {TURNS} turns: {before}; after {MORE} more: {after}")
    for name, value in before.items():
        assert after[name] <= GROWTH[name] * value, name
