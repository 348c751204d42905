"""The page's settings and push-to-talk: what is sent, and what is stored."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.browser.fake_server import FakeCall, FakeServer, hear, obey, reply
from tests.support.browser.pages import Open, remembering, settings_of, talk, tone, updates

pytest_plugins = ["tests.support.browser.fixtures"]
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


@pytest.fixture
def server(server: FakeServer) -> FakeServer:
    server.models = MODELS
    server.session = SESSION
    server.script = obey
    return server


def test_unchanged_settings_send_nothing(open_page: Open, server: FakeServer) -> None:
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
    page = remembering(open_page, voice="joe")
    talk(page).click()
    server.wait_for_call()
    server.wait_for(lambda: updates(server.calls[0]), "the voice")
    server.script = obey
    call = server.wait_for_call(2)
    server.wait_for(lambda: updates(call), "the voice again")
    assert updates(call) == [{"audio": {"output": {"voice": "joe"}}}]


def test_the_last_setting_counts_where_an_older_one_was_lost(
    open_page: Open, server: FakeServer
) -> None:
    """Push-to-talk that was taken back must not come back: the agent would wait for a release."""

    async def lose(call: FakeCall) -> None:
        await call.send("halfsec.session", session="sess_1", resume_token="resume_1", resume_s=60)
        await call.until_event("session.update")
        await call.close(1011)

    server.script = lose
    server.resumed = {"items": [], "received": 0}
    page = open_page(expect_errors=True)
    talk(page).click()
    first = server.wait_for_call()
    server.wait_for(lambda: len(first.audio) > 0, "audio")
    dialog = settings_of(page)
    server.full = True
    dialog.get_by_label("Your turn is over").select_option("hold")
    server.wait_for(lambda: updates(first), "push-to-talk")
    expect(page.locator("#server")).not_to_have_text("Connected")
    dialog.get_by_label("Your turn is over").select_option("auto")
    server.script = obey
    server.full = False
    call = server.wait_for_call(2)
    assert call.query == "model=default&resume=resume_1"
    server.wait_for(lambda: len(updates(call)) == 2, "both settings")
    assert updates(call) == [
        {"audio": {"input": {"turn_detection": None}}},
        {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "auto"}}}},
    ]


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
    page = remembering(open_page, voice="anna")
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
    page = remembering(open_page, turns="silence")
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


SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1120, "height": 760}},
    "phone": {"viewport": {"width": 390, "height": 780}, "has_touch": True},
}


CHECKED = ("desktop-light", "phone-dark")
"""Other looks are for people who want the pictures."""


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(size, scheme, id=f"{size}-{scheme}")
        for size in SIZES
        for scheme in ("light", "dark")
        if "HALFSEC_PICTURES" in os.environ or f"{size}-{scheme}" in CHECKED
    ],
)
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
    for name, part in (("settings", "h2"), ("settings-sound", ".settings-reset")):
        dialog.locator(part).scroll_into_view_if_needed()
        page.screenshot(path=folder / f"{name}-{size}-{scheme}.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert dialog.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    dialog.get_by_label("Your turn is over").select_option("hold")
    page.keyboard.press("Escape")
    expect(page.locator("#phase")).to_have_text(re.compile("Hold the button"))
    page.screenshot(path=folder / f"hold-{size}-{scheme}.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
