"""Every state of the page as a picture, and that nothing is cut off in it.

The pictures land in the test's folder, or in HALFSEC_PICTURES, to be looked at by people; for these
they are taken in four looks, else in two, which have both sizes and both schemes.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser.fake_server import (
    WEB_DEMO,
    FakeCall,
    FakeServer,
    begin_reply,
    hear,
    reply,
    say,
)
from tests.support.browser.pages import AUTOPLAY, DENY, FAKE_DEVICE, Launch, Open, tone

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1120, "height": 760}},
    "phone": {"viewport": {"width": 390, "height": 780}, "has_touch": True},
    "narrow": {"viewport": {"width": 320, "height": 640}, "has_touch": True},
}
CHECKED = ("desktop-light", "phone-dark")
"""What is cut off depends on the size; the colours of both schemes are computed with below."""
LOOKS = [
    pytest.param(size, scheme, id=f"{size}-{scheme}")
    for size in ("desktop", "phone")
    for scheme in ("light", "dark")
    if "HALFSEC_PICTURES" in os.environ or f"{size}-{scheme}" in CHECKED
]

FIRST = "What should I cook for dinner tonight?"
FIRST_ANSWER = "How about a spinach omelette? It takes ten minutes and one pan."
SECOND = "I have no eggs left."
SECOND_ANSWER = "Then make pasta with garlic and olive oil, "

Shot = Callable[[Page, str], None]


@pytest.fixture
def shot(tmp_path: Path) -> Shot:
    folder = Path(os.environ.get("HALFSEC_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str) -> None:
        page.screenshot(path=folder / f"{name}.png")
        print(f"picture: {folder / name}.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for control in ("#talk", "#text", "#sample", "#phase"):
            box = page.locator(control).bounding_box()
            assert box is not None
            size = page.viewport_size
            assert size is not None
            assert box["y"] + box["height"] <= size["height"]
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= size["width"]

    return take


def turn(number: int, answer: str, stages: dict[str, tuple[float, float]]) -> dict[str, Any]:
    total = sum(exposed for _, exposed in stages.values())
    return {
        "turn": number,
        "caller_text": FIRST,
        "agent_text": answer,
        "e2e_ear_ms": total,
        "e2e_server_ms": total - 20,
        "cut_in": False,
        "interrupted": False,
        "stages": {
            name: {"spent_ms": spent, "exposed_ms": exposed}
            for name, (spent, exposed) in stages.items()
        },
        "reply_s": 3.0,
    }


async def conversation(call: FakeCall) -> None:
    """One turn within the budget, one interrupted and over it, and a third in the making."""
    await hear(call, "item_1", FIRST)
    await reply(call, "item_2", [(FIRST_ANSWER, tone(0.4))])
    await call.until(lambda: any(e["played_ms"] == 400 for e in call.of_type("halfsec.playback")))
    stages = {
        "capture": (10.0, 10.0),
        "endpoint": (224.0, 224.0),
        "asr": (143.0, 41.0),
        "llm_prefill": (38.0, 0.0),
        "llm_clause": (92.0, 74.0),
        "tts": (31.0, 31.0),
        "transport": (18.0, 18.0),
    }
    await call.send("halfsec.turn", turn=turn(1, FIRST_ANSWER, stages))
    await hear(call, "item_3", SECOND)
    await begin_reply(call, "item_4")
    await say(call, "item_4", SECOND_ANSWER, tone(1.2))
    await say(call, "item_4", "and a little chilli if you like it hot.", tone(2.0))
    slow = {**stages, "endpoint": (330.0, 330.0), "llm_clause": (160.0, 152.0)}
    await call.send("halfsec.turn", turn=turn(2, SECOND_ANSWER, slow))
    await call.until(lambda: any(e["played_ms"] > 1000 for e in call.of_type("halfsec.playback")))
    await call.send("input_audio_buffer.speech_started", item_id="item_5", audio_start_ms=0)
    await call.until_event("conversation.item.truncate")
    await call.send("halfsec.partial", item_id="item_5", text="And what goes with", stable_chars=9)


def contrast(first: str, second: str) -> float:
    """Ratio of two #rrggbb colours (WCAG 2.2, section 1.4.3)."""

    def luminance(colour: str) -> float:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_words_can_be_read_in_both_schemes() -> None:
    style = (WEB_DEMO / "styles/base.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    )
    for scheme in (light, light | dark):
        for ground in ("ground", "surface", "accent-soft", "caller", "alarm-ground"):
            for ink in ("ink", "ink-soft", "ink-pale"):
                assert contrast(scheme[ink], scheme[ground]) >= 4.5, (ink, ground)
        for ink in ("good", "bad"):
            assert contrast(scheme[ink], scheme["ground"]) >= 4.5, ink
        assert contrast(scheme["accent-ink"], scheme["accent"]) >= 4.5


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_talking(open_page: Open, server: FakeServer, shot: Shot, size: str, scheme: str) -> None:
    server.script = conversation
    page = open_page(color_scheme=scheme, device_scale_factor=2, **SIZES[size])
    expect(page.locator("#server")).to_have_text("Ready")
    shot(page, f"welcome-{size}-{scheme}")
    page.get_by_role("button", name="Press and talk").click()
    expect(page.locator(".message.caller").last).to_contain_text("And what goes with")
    shot(page, f"talking-{size}-{scheme}")
    page.locator(".turn summary").last.click()
    page.get_by_text("About this call").click()
    shot(page, f"details-{size}-{scheme}")


async def as_it_happens(call: FakeCall) -> None:
    """A turn whose reply is being prepared, after one for which a tool was asked and whose words
    were interrupted."""
    await hear(call, "item_1", FIRST)
    for state in ("started", "done"):
        await call.send("halfsec.tool", item_id="item_2", name="larder", state=state, ms=184)
    await begin_reply(call, "item_2")
    await say(call, "item_2", FIRST_ANSWER, tone(6.0))
    await call.until(lambda: any(e["played_ms"] > 1500 for e in call.of_type("halfsec.playback")))
    marks = {"speech_paused": 1085, "asr_start": 1090, "asr_final": 1150, "reply_requested": 1155,
             "caller_last_voiced": 1000, "audio_received": 1008, "llm_first_token": 1190,
             "first_piece": 1240, "tts_start": 1241}  # fmt: skip
    for name, at_ms in marks.items():
        guess = {"turn": None, "name": name, "at_ms": at_ms, "now_ms": 1245, "guess": True}
        await call.send("halfsec.mark", **guess)


@pytest.mark.parametrize(("size", "scheme"), [*LOOKS, pytest.param("narrow", "dark")])
def test_telling(open_page: Open, server: FakeServer, shot: Shot, size: str, scheme: str) -> None:
    server.script = as_it_happens
    page = open_page(color_scheme=scheme, device_scale_factor=2, **SIZES[size])
    page.get_by_role("button", name="Press and talk").click()
    expect(page.locator(".turn.live .turn-work")).to_have_count(4)
    expect(page.locator(".message.agent .now")).to_have_count(1)
    shot(page, f"happening-{size}-{scheme}")
    page.get_by_label("Write to the agent").fill("A second line,\nand what follows it")
    page.locator("#download summary").click()
    shot(page, f"download-{size}-{scheme}")


@pytest.fixture(scope="module")
def deaf(launch: Launch) -> Browser:
    """A browser that refuses the microphone."""
    return launch(AUTOPLAY, FAKE_DEVICE, DENY)


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_trouble(
    deaf: Browser, open_page: Open, server: FakeServer, shot: Shot, size: str, scheme: str
) -> None:
    stages = {
        "vad": "ready",
        "asr": "ready",
        "turn": "loading",
        "llm": "loading: 40 % of the weights converted",
        "voice hibari": "loading",
    }
    server.readiness = (503, {"status": "warming", "stages": stages})
    look = {"color_scheme": scheme, "device_scale_factor": 2, **SIZES[size]}
    page = open_page(using=deaf, expect_errors=True, **look)
    expect(page.get_by_role("alert")).to_be_visible()
    shot(page, f"warming-{size}-{scheme}")
    server.readiness = (200, {"status": "ready", "stages": {}})
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_role("button", name="Press and talk").click()
    expect(page.get_by_role("alert")).to_contain_text("blocked")
    shot(page, f"denied-{size}-{scheme}")
