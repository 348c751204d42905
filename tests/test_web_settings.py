"""The page's settings, and push-to-talk: what the server is told, and what is remembered."""

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from .browser.fake_server import FakeCall, FakeServer, begin_reply, hear, obey, reply, say
from .browser.pages import Open, tone

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

MODELS = [
    {"id": "default", "kind": "agent"},
    {"id": "cook", "kind": "agent"},
    {"id": "smollm2", "kind": "language_model"},
    {"id": "hibari", "kind": "voice"},
    {"id": "joe", "kind": "voice"},
]
SESSION: dict[str, Any] = {
    "instructions": "Be brief.",
    "audio": {
        "input": {"turn_detection": {"type": "semantic_vad", "eagerness": "auto"}},
        "output": {"voice": "hibari"},
    },
}
HALF_SECOND = 12_000
"""Samples at 24 kHz."""

UNTIL_LEVEL_MOVES = """() => new Promise((resolve) => {
  let moves = 0;
  const desk = document.getElementById('desk');
  new MutationObserver(() => (moves += 1) === 10 && resolve()).observe(desk, { attributes: true });
})"""
"""Sound arrives at the page: ten frames in which the meter moved."""


@pytest.fixture
def server(server: FakeServer) -> FakeServer:
    server.models = MODELS
    server.session = SESSION
    server.script = obey
    return server


def remembering(open_page: Open, server: FakeServer, **preferences: Any) -> Page:
    """The page in a browser that remembers these."""
    page = open_page()
    stored = json.dumps(preferences)
    page.evaluate("(text) => localStorage.setItem('halfsec.settings', text)", stored)
    page.reload()
    expect(page.locator("#server")).to_have_text("Ready")
    return page


def settings_of(page: Page) -> Locator:
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog", name="Settings")
    expect(dialog).to_be_visible()
    return dialog


def talk(page: Page) -> Locator:
    return page.locator("#talk")


def has(counted: Callable[[], int], number: int) -> bool:
    return counted() == number


def updates(call: FakeCall) -> list[dict[str, Any]]:
    """What was set, without the type that stands in each."""
    found = [dict(event["session"]) for event in call.of_type("session.update")]
    assert {each.pop("type") for each in found} <= {"realtime"}
    return found


def kinds(call: FakeCall) -> list[str]:
    apart = ("session.update", "halfsec.playback")
    return [event["type"] for event in call.events if event["type"] not in apart]


def test_who_changes_nothing_sends_nothing(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    talk(page).click()
    call = server.wait_for_call()
    server.wait_for(lambda: len(call.audio) > 0, "audio")
    assert call.events == []
    assert page.evaluate("localStorage.length") == 0


def test_settings_reach_the_server_and_are_remembered(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    dialog = settings_of(page)
    dialog.get_by_label("Your turn is over").select_option("silence")
    dialog.get_by_label("Silence, in milliseconds").fill("900")
    dialog.get_by_label("Voice").select_option("joe")
    dialog.get_by_label("Instructions").fill("Speak like a pirate.")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    talk(page).click()
    call = server.wait_for_call()
    server.wait_for(lambda: len(updates(call)) == 3 and len(call.audio) > 0, "the settings")
    vad = {"type": "server_vad", "silence_duration_ms": 900}
    assert updates(call) == [
        {"audio": {"input": {"turn_detection": vad}}},
        {"audio": {"output": {"voice": "joe"}}},
        {"instructions": "Speak like a pirate."},
    ]

    dialog = settings_of(page)
    dialog.get_by_label("Your turn is over").select_option("high")
    server.wait_for(lambda: len(updates(call)) == 4, "the change")
    eager = {"type": "semantic_vad", "eagerness": "high"}
    assert updates(call)[3] == {"audio": {"input": {"turn_detection": eager}}}
    dialog.get_by_role("button", name="Reset everything").click()
    server.wait_for(lambda: len(updates(call)) == 7, "what was at first")
    assert updates(call)[4:] == [
        {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "auto"}}}},
        {"audio": {"output": {"voice": "hibari"}}},
        {"instructions": "Be brief."},
    ]
    expect(dialog.get_by_label("Instructions")).to_have_value("")
    assert page.evaluate("localStorage.length") == 0
    assert len(server.calls) == 1


def test_a_renewed_call_has_the_same_settings(open_page: Open, server: FakeServer) -> None:
    async def break_down(call: FakeCall) -> None:
        await call.until_event("session.update")
        await call.close(1011)

    server.script = break_down
    page = remembering(open_page, server, voice="joe")
    talk(page).click()
    server.wait_for_call()
    server.wait_for(lambda: updates(server.calls[0]), "the voice")
    server.script = obey
    call = server.wait_for_call(2)
    server.wait_for(lambda: updates(call), "the voice again")
    assert updates(call) == [{"audio": {"output": {"voice": "joe"}}}]


def test_what_the_server_refuses_is_said_beside_the_field(
    open_page: Open, server: FakeServer
) -> None:
    async def refuse(call: FakeCall) -> None:
        update = await call.until_event("session.update")
        message = "There is no voice 'anna'; there are hibari, joe."
        error = {"type": "invalid_request_error", "param": "session.audio.output.voice"}
        asked = {"message": message, "event_id": update["event_id"], "code": "invalid_value"}
        await call.send("error", error={**error, **asked})
        await call.until_event("session.update", 2)

    server.script = refuse
    page = remembering(open_page, server, voice="anna")
    talk(page).click()
    notice = page.get_by_role("alert").filter(has_text="did not take a setting")
    expect(notice).to_contain_text("There is no voice 'anna'")
    notice.get_by_role("button", name="Change it").click()
    dialog = page.get_by_role("dialog", name="Settings")
    voice = dialog.get_by_label("Voice")
    expect(voice).to_have_attribute("aria-invalid", "true")
    expect(voice).to_have_value("anna")
    expect(dialog.get_by_text("there are hibari, joe")).to_be_visible()
    voice.select_option("joe")
    call = server.calls[0]
    server.wait_for(lambda: len(updates(call)) == 2, "another voice")
    expect(voice).to_have_attribute("aria-invalid", "false")
    expect(dialog.get_by_text("there are hibari, joe")).to_have_count(0)
    assert len(server.calls) == 1


def test_numbers_out_of_range_are_not_taken(open_page: Open, server: FakeServer) -> None:
    page = remembering(open_page, server, turns="silence")
    dialog = settings_of(page)
    field = dialog.get_by_label("Silence, in milliseconds")
    field.fill("5")
    field.press("Tab")
    expect(dialog.get_by_text("A whole number from 32 to 20000")).to_be_visible()
    expect(field).to_have_attribute("aria-invalid", "true")
    assert "silenceMs" not in page.evaluate("localStorage.getItem('halfsec.settings')")
    field.fill("450")
    field.press("Tab")
    expect(field).to_have_attribute("aria-invalid", "false")
    assert '"silenceMs":450' in page.evaluate("localStorage.getItem('halfsec.settings')")


def test_another_agent_begins_a_new_call(open_page: Open, server: FakeServer) -> None:
    async def answer(call: FakeCall) -> None:
        await hear(call, "item_1", "Hello.")
        await reply(call, "item_2", [("Hello yourself.", tone(0.1))])

    server.script = answer
    page = open_page()
    talk(page).click()
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1)
    dialog = settings_of(page)
    agent = dialog.get_by_label("Who answers")
    expect(agent.get_by_role("option")).to_have_text(["The server’s choice", "default", "cook"])
    agent.select_option("cook")
    call = server.wait_for_call(2)
    assert call.query == "model=cook"
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(2)
    server.wait_for(lambda: len(call.audio) > 0, "audio of the new call")
    dialog.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="End the call").click()
    page.reload()
    talk(page).click()
    assert server.wait_for_call(3).query == "model=cook"
    page.goto(f"{server.url}?model=default")
    talk(page).click()
    assert server.wait_for_call(4).query == "model=default", "the address is more particular"


def test_a_key_is_needed_for_the_lists_only(open_page: Open, server: FakeServer) -> None:
    page = open_page(expect_errors=True)
    page.route("**/v1/models", lambda route: route.fulfill(status=401, json={"error": {}}))
    dialog = settings_of(page)
    expect(dialog.get_by_text("to those with a key")).to_be_visible()
    dialog.get_by_label("Your turn is over").select_option("low")
    assert '"low"' in page.evaluate("localStorage.getItem('halfsec.settings')")


# --- push-to-talk ---


def holding(open_page: Open, server: FakeServer) -> tuple[Page, FakeCall]:
    """In a call with push-to-talk, with nothing said yet."""
    page = remembering(open_page, server, turns="hold")
    talk(page).click()
    call = server.wait_for_call()
    expect(page.locator("#phase")).to_contain_text("Hold the button, or Space")
    server.wait_for(lambda: updates(call), "how turns end")
    assert updates(call) == [{"audio": {"input": {"turn_detection": None}}}]
    return page, call


def say_something(server: FakeServer, call: FakeCall) -> None:
    before = len(call.audio)
    server.wait_for(lambda: len(call.audio) >= before + HALF_SECOND, "what is said")


def test_only_what_is_said_while_it_is_held_is_sent(open_page: Open, server: FakeServer) -> None:
    page, call = holding(open_page, server)
    page.evaluate(UNTIL_LEVEL_MOVES)
    assert len(call.audio) == 0
    page.locator("#phase").click()
    page.keyboard.down("Space")
    expect(page.locator("#phase")).to_contain_text("Let go when you have finished")
    expect(talk(page)).to_have_attribute("aria-pressed", "true")
    say_something(server, call)
    before = len(kinds(call))
    page.keyboard.up("Space")
    server.wait_for(lambda: call.of_type("response.create"), "the wish for an answer")
    said = len(call.audio)
    assert kinds(call)[before:] == ["input_audio_buffer.commit", "response.create"]
    expect(page.locator("#phase")).to_have_text("Thinking")
    page.evaluate(UNTIL_LEVEL_MOVES)
    assert len(call.audio) == said


def test_a_slip_of_the_finger_does_no_harm(open_page: Open, server: FakeServer) -> None:
    page, call = holding(open_page, server)
    before = len(kinds(call))
    talk(page).click()
    server.wait_for(lambda: len(kinds(call)) >= before + 2, "what becomes of it")
    assert set(kinds(call)) == {"input_audio_buffer.clear"}
    expect(page.locator("#phase")).to_contain_text("Hold the button")


def test_it_can_be_held_in_every_way(open_page: Open, server: FakeServer) -> None:
    page, call = holding(open_page, server)
    box = talk(page).bounding_box()
    assert box is not None
    x, y = box["x"] + 20, box["y"] + 20
    touch = page.context.new_cdp_session(page)

    def finger(kind: str, *points: dict[str, float]) -> None:
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(points)})

    def click() -> None:
        talk(page).evaluate("(button) => button.click()")  # as screen readers do

    def press() -> None:
        page.mouse.move(x, y)
        page.mouse.down()

    def key() -> None:
        talk(page).focus()
        page.keyboard.down("Enter")

    ways: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (press, page.mouse.up),
        (lambda: finger("touchStart", {"x": x, "y": y}), lambda: finger("touchEnd")),
        (click, click),
        (key, lambda: page.keyboard.up("Enter")),
        (press, lambda: page.evaluate("dispatchEvent(new Event('blur'))")),
    ]

    def turns() -> int:
        return len(call.of_type("response.create"))

    for count, (hold, let_go) in enumerate(ways, start=1):
        hold()
        expect(talk(page)).to_have_attribute("aria-pressed", "true")
        say_something(server, call)
        let_go()
        server.wait_for(partial(has, turns, count), f"turn {count}")
        expect(talk(page)).to_have_attribute("aria-pressed", "false")
        assert len(call.of_type("input_audio_buffer.commit")) == count


def test_taking_the_floor_interrupts_the_agent(open_page: Open, server: FakeServer) -> None:
    async def script(call: FakeCall) -> None:
        await call.until_event("session.update")
        await begin_reply(call, "item_1")
        await say(call, "item_1", "A very long story.", tone(5.0))

    server.script = script
    page = remembering(open_page, server, turns="hold")
    talk(page).click()
    call = server.wait_for_call()
    expect(page.locator("#phase")).to_have_text("Speaking: hold to interrupt")
    page.mouse.click(4, 400)
    page.keyboard.down("Space")
    server.wait_for(lambda: call.of_type("conversation.item.truncate"), "what was heard")
    assert call.of_type("response.cancel")
    expect(page.locator(".message.agent[data-state=cut]")).to_be_visible()
    page.keyboard.up("Space")


def test_space_writes_where_one_writes(open_page: Open, server: FakeServer) -> None:
    page, call = holding(open_page, server)
    before = len(kinds(call))
    page.get_by_label("Write to the agent").press_sequentially("one two")
    expect(page.get_by_label("Write to the agent")).to_have_value("one two")
    dialog = settings_of(page)
    dialog.get_by_label("Echo cancellation").focus()
    page.keyboard.press("Space")
    expect(dialog.get_by_label("Echo cancellation")).not_to_be_checked()
    assert len(kinds(call)) == before


def test_what_is_held_before_the_line_is_open_is_not_lost(
    open_page: Open, server: FakeServer
) -> None:
    page = remembering(open_page, server, turns="hold")
    page.locator("#phase").click()
    page.keyboard.down("Space")
    call = server.wait_for_call()
    say_something(server, call)
    page.keyboard.up("Space")
    server.wait_for(lambda: call.of_type("response.create"), "the turn")
    first, *rest = [event["type"] for event in call.events]
    assert first == "session.update", "before any sound"
    assert rest[-2:] == ["input_audio_buffer.commit", "response.create"]
    page.get_by_role("button", name="End the call").click()
    expect(page.locator("#phase")).to_have_text("Press and talk")


def test_the_sample_question_is_a_turn_with_push_to_talk_too(
    open_page: Open, server: FakeServer
) -> None:
    page = remembering(open_page, server, turns="hold")
    page.get_by_role("button", name="Play a sample question").click()
    call = server.wait_for_call()
    server.wait_for(lambda: call.of_type("response.create"), "the question")
    assert len(call.audio) > 2 * HALF_SECOND


def test_muted_it_hears_silence(open_page: Open, server: FakeServer) -> None:
    page = open_page()
    talk(page).click()
    call = server.wait_for_call()
    server.wait_for(lambda: bool(call.audio.any()), "speech")
    mute = page.get_by_role("button", name="Mute")
    mute.click()
    expect(mute).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#phase")).to_have_text("Muted: it hears silence")
    before = len(call.audio)
    server.wait_for(lambda: len(call.audio) >= before + 2 * HALF_SECOND, "silence")
    assert not call.audio[-HALF_SECOND:].any()
    mute.click()
    expect(page.locator("#phase")).to_have_text("Listening: go ahead")


SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1120, "height": 760}},
    "phone": {"viewport": {"width": 390, "height": 780}, "has_touch": True},
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_pictures(
    open_page: Open, server: FakeServer, tmp_path: Path, size: str, scheme: str
) -> None:
    folder = Path(os.environ.get("HALFSEC_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page = open_page(color_scheme=scheme, device_scale_factor=2, **SIZES[size])
    talk(page).click()
    server.wait_for_call()
    dialog = settings_of(page)
    dialog.get_by_label("Instructions").fill("You are a cook. Answer in one sentence.")
    expect(dialog.get_by_label("Microphone").get_by_role("option")).not_to_have_count(1)
    for name, part in (("settings", "Taking turns"), ("settings-sound", "Sound")):
        dialog.get_by_role("group", name=part).scroll_into_view_if_needed()
        page.screenshot(path=folder / f"{name}-{size}-{scheme}.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert dialog.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    dialog.get_by_label("Your turn is over").select_option("hold")
    page.keyboard.press("Escape")
    expect(page.locator("#phase")).to_have_text(re.compile("Hold the button"))
    page.screenshot(path=folder / f"hold-{size}-{scheme}.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
