"""Every state of the dashboard as a picture, and that axe finds nothing wrong with it.

The pictures land in the test's folder, or in HALFSEC_PICTURES, to be looked at by people; for these
they are taken in four looks, else in two, which have both sizes and both schemes.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.clients.peers import MissingTool
from tests.support.browser.fake_latency import FakeLatency
from tests.support.browser.fake_turns import histograms_of, many, turn, windows_of
from tests.support.browser.pages import Open, axe_violations

pytest_plugins = ["tests.support.browser.fixtures", "tests.support.browser.latency_fixtures"]
pytestmark = pytest.mark.browser

SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {"viewport": {"width": 390, "height": 780}, "has_touch": True},
}
CHECKED = ("desktop-light", "phone-dark")
LOOKS = [
    pytest.param({"color_scheme": scheme, "bypass_csp": True, **SIZES[size]}, id=f"{size}-{scheme}")
    for size in SIZES
    for scheme in ("light", "dark")
    if "HALFSEC_PICTURES" in os.environ or f"{size}-{scheme}" in CHECKED
]

Shot = Callable[..., None]

ENGINE = {
    "inter_token_p50_ms": 14.9, "inter_token_p95_ms": 18.2, "inter_token_p99_ms": 22.0,
    "time_to_first_token_p50_ms": 33.1, "time_to_first_token_p95_ms": 61.0, "waiting": 2,
    "replying": 3, "pages_total": 400, "page_tokens": 16, "prompt_tokens": 20_000,
    "cached_tokens": 16_500, "output_tokens": 900, "drafted_tokens": 400, "accepted_tokens": 310,
    "guesses": {"made": 120, "used": 90, "dropped": 30, "wasted_ms": 2210.0},
}  # fmt: skip

RUNNING = (
    *(("caller_last_voiced", 0), ("audio_received", 20), ("speech_paused", 90), ("asr_start", 40)),
    *(("asr_final", 190), ("reply_requested", 195), ("llm_first_token", 240)),
    *(("first_piece", 310), ("tts_start", 310), ("first_audible_ready", 350), ("endpoint", 372)),
    *(("released", 374), ("heard", 396)),
)


@pytest.fixture
def shot(tmp_path: Path, request: pytest.FixtureRequest) -> Shot:
    folder = Path(os.environ.get("HALFSEC_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    look = request.node.callspec.id

    def take(page: Page, name: str, *, whole: bool = False) -> None:
        path = folder / f"dashboard-{name}-{look}.png"
        page.screenshot(path=path, full_page=whole)
        print(f"picture: {path}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if look not in CHECKED:
            return
        try:
            assert axe_violations(page) == []
        except MissingTool as error:
            if os.environ.get("REQUIRE_BROWSER") == "1":
                pytest.fail(str(error))
            print(f"not looked at by axe: {error}")

    return take


def fill(latency: FakeLatency) -> None:
    latency.turns = many(900)
    latency.histograms = histograms_of(latency.turns)
    latency.windows = windows_of(latency.turns, 600)
    latency.calls = [
        {
            **{"session": "sess_0f3a9c", "agent": "reception", "state": "speaking", "turns": 12},
            **{"p50_ms": 431.2, "began_at": "2026-11-22T06:00:00Z"},
        },
        {
            **{"session": "sess_77b012", "agent": "orders", "state": "thinking", "turns": 3},
            **{"stage": "llm_clause", "p50_ms": 402.0, "began_at": "2026-11-22T06:04:00Z"},
        },
        {"session": "sess_c21d5e", "agent": "orders", "state": "waiting", "waiting": True},
    ]
    latency.refusals = [
        {"at": f"2026-11-22T06:0{minute}:00Z", "code": code, "calls": 3}
        for minute, code in ((5, "busy"), (3, "too_many_calls"), (1, "would_be_late"))
    ]


@pytest.mark.parametrize("look", LOOKS)
def test_busy(latency: FakeLatency, dashboard: Open, shot: Shot, look: dict[str, Any]) -> None:
    fill(latency)
    page = dashboard(**look)
    latency.wait_for_stream()
    expect(page.locator("#stream")).to_have_text("Live")
    expect(page.locator(".call")).to_have_count(3)
    for name, ms in RUNNING:
        latency.publish("mark", session="sess_0f3a9c", turn=13, name=name, at_ms=9_000.0 + ms)
    latency.publish("turn", **turn(1000, session="sess_0f3a9c"))
    latency.turns.append(turn(1000, session="sess_0f3a9c"))
    for used in (300, 320, 346, 352):
        latency.publish("engine", **ENGINE, pages_used=used)
        # Each at a time of its own, as in life.
        expect(page.locator("#engine")).to_contain_text(f"{used} of 400")
    expect(page.locator(".turns-body")).to_contain_text("sess_0f3a9c")
    shot(page, "busy")
    page.locator("#analysis").scroll_into_view_if_needed()
    for plot in ("#distribution figure", "#trend", "#engine"):
        page.locator(plot).scroll_into_view_if_needed()
        expect(page.locator(f"{plot} .plot canvas").first).to_be_visible()
    page.evaluate("scrollTo(0, 0)")
    shot(page, "whole", whole=True)


@pytest.mark.parametrize("look", LOOKS)
def test_a_turn(latency: FakeLatency, dashboard: Open, shot: Shot, look: dict[str, Any]) -> None:
    fill(latency)
    latency.turns.append(
        turn(
            7,
            row=5000,
            session="sess_0f3a9c",
            agent="reception",
            caller_text="What should I cook for dinner tonight?",
            agent_text="How about a spinach omelette? It takes ten minutes and one pan.",
            interrupted=True,
            recording={"from_s": 1.0, "to_s": 4.0},
            actions=[{"action": "short_clause", "predicted_ms": 82.0, "saved_ms": 64.2}],
            marks=[{"name": name, "ms": ms} for name, ms in RUNNING],
        )
    )
    page = dashboard("#turn=sess_0f3a9c%2F7", **look)
    dialog = page.get_by_role("dialog", name="Turn 7")
    expect(dialog).to_contain_text("Where the time went")
    strip = dialog.get_by_role("slider")
    strip.focus()
    page.keyboard.press("ArrowRight")
    shot(page, "turn")
    dialog.locator(".panel-part").last.scroll_into_view_if_needed()
    shot(page, "turn-end")


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_yet(
    latency: FakeLatency, dashboard: Open, shot: Shot, look: dict[str, Any]
) -> None:
    latency.hold(True)
    stages = {"asr": "ready", "llm_engine": "loading 62 %", "tts": "ready"}
    latency.readiness = (503, {"status": "warming", "stages": stages})
    page = dashboard(expect_errors=True, **look)
    expect(page.locator("#notes")).to_contain_text("The server is warming up")
    expect(page.locator("#notes")).to_contain_text("loading 62 %")
    shot(page, "warming")
    latency.readiness = (200, {"status": "ready", "stages": {}})
    latency.hold(False)
    expect(page.locator("#notes")).to_be_hidden()
    expect(page.locator("#turns-empty")).to_have_text("No turns yet.")
    expect(page.locator("#head")).not_to_have_attribute("aria-busy", "true")
    shot(page, "empty", whole=True)


@pytest.mark.parametrize("look", LOOKS)
def test_trouble(latency: FakeLatency, dashboard: Open, shot: Shot, look: dict[str, Any]) -> None:
    fill(latency)
    latency.has_store = False
    latency.turns = latency.turns[:40]
    page = dashboard(expect_errors=True, **look)
    expect(page.locator("#notes")).to_contain_text("Only the newest turns are known")
    shot(page, "no-store")
    latency.publish("lost", events=120)
    expect(page.locator("#banner")).to_contain_text("Some events were missed")
    shot(page, "lost")
    latency.key = "hs_right"
    latency.end_streams()
    expect(page.get_by_role("dialog", name="This server needs a key")).to_be_visible()
    shot(page, "key")
    page.keyboard.press("Escape")
    expect(page.locator("#banner")).to_contain_text("This server needs a key")
    page.get_by_role("button", name="Enter a key").click()
    page.get_by_role("textbox", name="Key").fill("hs_right")
    page.keyboard.press("Enter")
    expect(page.locator("#stream")).to_have_text("Live")
    latency.stop()
    expect(page.locator("#banner")).to_contain_text("The server does not answer")
    shot(page, "gone")
