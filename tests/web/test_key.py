"""The page at a closed server: it asks for the key once, in a dialog, and keeps it to itself."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from agent.http.auth.principal import KeyLimits
from latency_budget.account.clock import unix_ns
from tests.support.service.live import LiveServer

pytest_plugins = ["tests.support.browser.fixtures", "tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.browser, pytest.mark.models]

ANSWER_MS = 60_000


@pytest.fixture
def key(live: LiveServer) -> Iterator[str]:
    """Closes the server for the length of the test."""
    text = live.keys.add("ana", KeyLimits(), unix_ns() // 10**9)
    live.ask(live.access.refresh)
    live.access.closed = True  # as with `access.require_key` = "auto"
    yield text
    live.keys.revoke("ana")
    live.ask(live.access.refresh)
    live.access.closed = False


def write(page: Page, text: str) -> None:
    page.get_by_label("Write to the agent").fill(text)
    page.keyboard.press("Enter")


def test_it_asks_once_and_keeps_the_key_to_itself(
    browser: Browser, live: LiveServer, key: str
) -> None:
    context = browser.new_context()
    page = context.new_page()
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.on("websocket", lambda socket: addresses.append(socket.url))
    page.goto(live.http)
    expect(page.locator("#server")).to_have_text("Ready")
    dialog = page.get_by_role("dialog", name="This server needs a key")
    expect(dialog).to_have_count(0)

    write(page, "What is the capital of France?")
    expect(dialog).to_be_visible()
    field = dialog.get_by_label("Key")
    expect(field).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.locator("#phase")).to_have_text("Press and talk")
    assert not [each for each in addresses if "client_secrets" in each]

    page.get_by_role("button", name="Press and talk").click()
    field.fill("hs_wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("This key does not work here.")
    expect(field).to_have_value("")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()
    field.fill(f" {key} ")
    dialog.get_by_role("button", name="Continue").click()
    expect(dialog).to_have_count(0)
    # What was written before the key was there has not been lost.
    expect(page.locator(".message.caller .sure").first).to_contain_text("capital of France")
    expect(page.locator("#server")).to_have_text("Connected")
    assert page.evaluate("sessionStorage.getItem('halfsec.key')") == key
    page.get_by_role("button", name="End the call").click()

    page.reload()
    expect(page.locator("#server")).to_have_text("Ready")
    write(page, "Hello again!")
    expect(page.locator(".message.agent[data-state=done]")).to_have_count(1, timeout=ANSWER_MS)
    expect(dialog).to_have_count(0)

    assert not [each for each in addresses if key in each or "ek_" in each]
    assert context.cookies() == []
    assert page.evaluate("localStorage.length") == 0
    context.close()
