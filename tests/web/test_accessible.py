"""Everybody can use the page: what axe-core says in every state, small screens, large text, colours
that the system chooses, and the keyboard alone."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser.fake_server import FakeCall, FakeServer, begin_reply, hear, reply, say
from tests.support.browser.pages import (
    AUTOPLAY,
    DENY,
    FAKE_DEVICE,
    Launch,
    Open,
    axe_violations,
    tone,
)
from tests.web.test_story import QUESTION, TURN, mark, marks_of_a_pause

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

WAIT_MS = 60_000
"""For a second of speech. Only a deadlock lasts that long."""

NARROW: dict[str, Any] = {"viewport": {"width": 320, "height": 640}}


async def everything(call: FakeCall) -> None:
    """A measured turn, tools, one that was interrupted, and one in the making."""
    await hear(call, "item_1", QUESTION)
    for name, state in (("menu_of_the_day", "done"), ("larder", "failed"), ("shop", "started")):
        await call.send("halfsec.tool", item_id="item_2", name=name, state=state, ms=120)
    await reply(call, "item_2", [("How about an omelette?", tone(0.2))])
    await call.send("halfsec.turn", turn=TURN)
    await begin_reply(call, "item_3")
    await say(call, "item_3", "It is made of eggs, which are beaten and fried.", tone(3.0))
    await call.until(lambda: len(call.of_type("halfsec.playback")) > 3)
    await call.send("input_audio_buffer.speech_started", item_id="item_4", audio_start_ms=0)
    await call.until_event("conversation.item.truncate")
    await call.send("halfsec.partial", item_id="item_4", text="No eggs please", stable_chars=8)
    await marks_of_a_pause(call, 1000)
    await mark(call, None, "tts_start", 1170, 1171)


def in_the_middle(page: Page) -> None:
    page.get_by_role("button", name="Press and talk").click()
    expect(page.locator(".turn.live .turn-work")).not_to_have_count(0, timeout=WAIT_MS)
    expect(page.locator(".message.agent del")).to_be_visible()
    page.locator(".turn summary").click()
    page.locator("#about summary").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_in_anybodys_way(open_page: Open, server: FakeServer, scheme: str) -> None:
    server.readiness = (503, {"status": "warming", "stages": {"asr": "ready", "tts": "warming"}})
    server.script = everything
    page = open_page(bypass_csp=True, color_scheme=scheme, expect_errors=True)
    expect(page.get_by_role("alert")).to_be_visible()
    assert axe_violations(page) == []
    server.readiness = (200, {"status": "ready", "stages": {}})
    expect(page.get_by_role("alert")).to_be_hidden()
    assert axe_violations(page) == []
    in_the_middle(page)
    assert axe_violations(page) == []
    page.locator("#download summary").click()
    page.get_by_role("button", name="Trace").click()
    expect(page.locator("#download [role=status]")).to_contain_text("gone")
    page.get_by_label("Write to the agent").evaluate("(field) => (field.value = 'a'.repeat(5000))")
    page.get_by_label("Write to the agent").press("Enter")
    expect(page.locator("#text-note")).not_to_be_empty()
    assert axe_violations(page) == []
    server.stop()
    expect(page.get_by_role("alert")).to_be_visible()
    assert axe_violations(page) == []


@pytest.fixture(scope="module")
def deaf(launch: Launch) -> Browser:
    """A browser that refuses the microphone."""
    return launch(AUTOPLAY, FAKE_DEVICE, DENY)


def test_refusals_and_the_question_for_a_key_are_in_nobodys_way(
    deaf: Browser, open_page: Open, server: FakeServer
) -> None:
    server.readiness = (200, {"status": "ready", "stages": {}, "needs_key": True})
    page = open_page(using=deaf, bypass_csp=True)
    page.get_by_role("button", name="Press and talk").click()
    expect(page.get_by_role("alert")).to_contain_text("blocked")
    assert axe_violations(page) == []
    page.get_by_label("Write to the agent").fill("Hello?")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert axe_violations(page) == []


def fits(page: Page) -> None:
    """Nothing to be scrolled sideways, and no text beyond the edge it stands in."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = page.evaluate("""() => [...document.querySelectorAll('body *')].filter((each) => {
        const { left, right, width } = each.getBoundingClientRect();
        const isShown = each.checkVisibility() && width > 1 && !each.closest('.unseen');
        return isShown && (left < -0.5 || right > innerWidth + 0.5);
    }).map((each) => each.outerHTML.slice(0, 120))""")
    assert outside == []


def can_be_reached(page: Page, name: str) -> None:
    control = page.get_by_role("button", name=name, exact=True)
    control.scroll_into_view_if_needed()
    expect(control).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(NARROW, id="narrow"),
        pytest.param({"viewport": {"width": 560, "height": 380}}, id="zoomed"),
        pytest.param({"viewport": {"width": 1120, "height": 760}}, id="large text"),
    ],
)
def test_all_of_it_fits_on_small_screens_and_in_large_text(
    open_page: Open, server: FakeServer, look: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    server.script = everything
    page = open_page(**look)
    if "large text" in request.node.name:
        page.evaluate("document.documentElement.style.fontSize = '32px'")
    expect(page.locator("#server")).to_have_text("Ready")
    fits(page)
    in_the_middle(page)
    fits(page)
    for name in ("End the call", "Play a sample question", "Send"):
        can_be_reached(page, name)
    transcript = page.locator("#scroller").bounding_box()
    assert transcript
    assert transcript["height"] > 100
    page.locator("#download summary").click()
    fits(page)
    if look is NARROW:
        page.set_viewport_size({"width": 390, "height": 780})
        fits(page)


def test_shapes_that_mean_something_stay_in_forced_colours(
    open_page: Open, server: FakeServer
) -> None:
    server.script = everything
    page = open_page(forced_colors="active")
    in_the_middle(page)
    seen = page.evaluate("""() => Object.fromEntries(
        ['.message .turn-part', '.live .turn-work', '.dot', '.words', '#talk'].map((selector) => {
            const style = getComputedStyle(document.querySelector(selector));
            return [selector, [style.forcedColorAdjust, style.borderTopWidth]];
        }))""")
    for selector in (".message .turn-part", ".live .turn-work", ".dot"):
        assert seen[selector][0] == "none"
    for selector in (".words", "#talk"):
        assert seen[selector][1] != "0px"


def test_the_focus_goes_in_order_and_can_be_seen(open_page: Open, server: FakeServer) -> None:
    server.script = everything
    page = open_page()
    in_the_middle(page)
    page.locator("#download summary").focus()
    page.keyboard.press("Shift+Tab")
    order: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.evaluate("""() => {
            const { activeElement: at } = document;
            if (at === document.body) return null;
            const { outlineStyle } = getComputedStyle(at.closest('#write textarea')
                ? at.form : at);
            const marked = outlineStyle !== 'none';
            return [at.id || at.closest('[id]').id, at.tagName, marked];
        }""")
        if focused is None or (order[1:] and focused[0] == order[0]):  # round again
            break
        assert focused[2], f"{focused} has the focus, and nobody sees it"
        order.append(focused[0])
    places = [
        place for place, before in zip(order, [None, *order], strict=False) if place != before
    ]
    assert places == [
        "download",
        "latency",
        "settings",
        "transcript",
        "talk",
        "sample",
        "mute",
        "text",
        "write",
        "about",
    ]
