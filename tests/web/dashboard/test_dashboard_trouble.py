"""The dashboard when something is wrong: strangers' texts, clocks, keys, a server that goes."""

import json
import re

import pytest
from playwright.sync_api import expect

from agent.http.static_files import WEB_DEMO
from tests.support.browser.fake_latency import FakeLatency
from tests.support.browser.fake_turns import (
    BEGAN_S,
    Json,
    many,
    percentiles,
    turn,
)
from tests.support.browser.pages import Open, head_figure, shown_turns

pytest_plugins = ["tests.support.browser.fixtures", "tests.support.browser.latency_fixtures"]
pytestmark = pytest.mark.browser

TURNS = "/v1/latency/turns"
EVENTS = "/v1/latency/events"
SUMMARY = "/v1/latency/summary"


def test_texts_of_strangers_are_only_text(latency: FakeLatency, dashboard: Open) -> None:
    evil = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    latency.turns = [
        turn(1, session=evil, agent=evil, profile=evil, caller_text=evil, agent_text=evil)
    ]
    latency.calls = [{"session": evil, "agent": evil, "state": evil, "stage": evil}]
    latency.refusals = [{"at": None, "code": evil, "calls": None}]
    page = dashboard()
    title = page.title()
    expect(page.locator(".turns-body .turn-session")).to_have_text(f"{evil} · 1")
    expect(page.locator(".call-agent")).to_have_text(evil)
    page.locator(".turns-body .turn-row").click()
    expect(page.locator(".said-caller")).to_contain_text(evil)
    expect(page.locator("#refusals code")).to_have_text(evil)
    assert page.locator('img[src="x"]').count() == 0
    assert page.title() == title
    with page.expect_download() as download:
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Save as CSV").first.click()
    assert '"' + evil.replace('"', '""') + '"' in download.value.path().read_text()


def test_a_clock_that_jumps_changes_no_order(latency: FakeLatency, dashboard: Open) -> None:
    latency.turns = [turn(1), turn(2, at="2031-01-01T00:00:00Z"), turn(3, at=None)]
    page = dashboard()
    latency.wait_for_stream()
    expect(page.locator(".turns-body .turn-row")).to_have_count(3)
    page.clock.set_fixed_time("1999-01-01T00:00:00Z")
    latency.publish("turn", **turn(4, at="1985-01-01T00:00:00Z"))
    expect(page.locator(".turns-body .turn-row").first).to_contain_text("· 4")
    assert [text.rpartition(" ")[2] for text in shown_turns(page)] == ["4", "3", "2", "1"]
    page.get_by_role("combobox", name="Time").select_option("15m")
    latency.wait_for(
        lambda: len({each.get("since") for each in latency.queries(TURNS)}) > 1, "other times"
    )
    # What "the last 15 minutes" are, the server's clock says.
    assert float(latency.queries(TURNS)[-1]["since"]) > BEGAN_S - 10**8


def test_a_stream_that_ends_is_taken_up_again(latency: FakeLatency, dashboard: Open) -> None:
    page = dashboard()
    assert "last-event-id" not in latency.wait_for_stream()
    expect(page.locator("#stream")).to_have_text("Live")
    latency.publish("turn", **turn(1))
    expect(page.locator(".turns-body .turn-row")).to_have_count(1)
    latency.end_streams()
    latency.publish("turn", **turn(2))
    assert latency.wait_for_stream(2)["last-event-id"] == "1"
    expect(page.locator(".turns-body .turn-row")).to_have_count(2)
    latency.publish("lost", events=12)
    expect(page.locator("#banner")).to_contain_text("Some events were missed")
    page.get_by_role("button", name="All right").click()
    expect(page.locator("#banner")).to_be_hidden()


def test_a_key_is_asked_for_once_and_stands_in_no_address(
    latency: FakeLatency, dashboard: Open
) -> None:
    latency.key = "hs_right"
    latency.turns = many(20)
    page = dashboard(expect_errors=True)
    dialog = page.get_by_role("dialog", name="This server needs a key")
    expect(dialog).to_be_visible()
    assert latency.asked == []
    page.keyboard.press("Escape")
    expect(page.locator("#banner")).to_contain_text("This server needs a key")
    page.get_by_role("button", name="Enter a key").click()
    dialog.get_by_label("Key").fill("hs_wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("This key does not work here.")
    dialog.get_by_label("Key").fill("hs_right")
    page.keyboard.press("Enter")
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator(".turns-body .turn-row").first).to_be_visible()
    seen = [headers["authorization"] for _, _, headers in latency.asked]
    assert set(seen) == {"Bearer hs_wrong", "Bearer hs_right"}
    assert seen.count("Bearer hs_wrong") == 1
    page.reload()
    expect(page.locator(".turns-body .turn-row").first).to_be_visible()
    latency.key = "hs_other"  # revoked while it is used
    latency.end_streams()
    expect(dialog).to_be_visible()
    expect(dialog.get_by_role("alert")).to_contain_text("This key does not work here.")
    assert not [query for _, query, _ in latency.asked if "hs_" in json.dumps(query)]


def test_key_without_access_is_refused_with_a_reason(latency: FakeLatency, dashboard: Open) -> None:
    latency.refusal = (403, "This key is for calls with certain agents only.")
    page = dashboard(expect_errors=True)
    expect(page.locator("#banner")).to_contain_text("This key may not see the figures")
    expect(page.locator("#banner")).to_contain_text("certain agents only")
    latency.refusal = None
    page.get_by_role("button", name="Use another key").click()
    expect(page.locator("#stream")).to_have_text("Live")
    expect(page.locator("#banner")).to_be_hidden()


def test_a_server_that_goes_is_waited_for(latency: FakeLatency, dashboard: Open) -> None:
    latency.turns = [turn(1)]
    page = dashboard(expect_errors=True)
    expect(page.locator(".turns-body .turn-row")).to_have_count(1)
    latency.stop()
    expect(page.locator("#banner")).to_contain_text("The server does not answer")
    expect(page.locator("#stream")).to_have_text("Offline")
    expect(page.locator(".turns-body .turn-row")).to_have_count(1)
    latency.turns.append(turn(2))
    latency.start()
    expect(page.locator("#stream")).to_have_text("Live")
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator(".turns-body .turn-row")).to_have_count(2)


def test_without_a_store_there_are_the_newest(latency: FakeLatency, dashboard: Open) -> None:
    latency.has_store = False
    latency.turns = many(30)
    page = dashboard(expect_errors=True)
    expect(page.locator("#notes")).to_contain_text("Only the newest turns are known")
    expect(page.locator("#notes")).to_contain_text("latency_budget.store is off")
    expect(page.get_by_role("combobox", name="Time")).to_be_disabled()
    expect(page.locator("#turns-status")).to_have_text("30 turns here. Older ones are not kept.")
    assert head_figure(page, "p50") == f"{round(percentiles(waits(latency.turns))['p50'])} ms"


def waits(turns: list[Json]) -> list[float]:
    return [each["e2e_ear_ms"] for each in turns]


def test_nothing_is_drawn_in_a_hidden_tab(latency: FakeLatency, dashboard: Open) -> None:
    page = dashboard()
    latency.wait_for_stream()
    expect(page.locator("#stream")).to_have_text("Live")
    latency.wait_for(lambda: len(latency.queries(SUMMARY)) == 5, "all figures of the start")
    page.evaluate(
        """() => {
            globalThis.hidden = true;
            Object.defineProperty(document, 'hidden', { get: () => globalThis.hidden });
        }"""
    )
    for number in range(1, 51):
        latency.publish("turn", **turn(number))
    # A call has its card at once, which says that all before it has been taken in.
    latency.publish("session", session="last", state="began", agent="x")
    expect(page.locator(".call")).to_have_count(1)
    expect(page.locator(".call-agent")).to_have_text("")
    assert page.locator(".turns-body .turn-row").count() == 0
    assert len(latency.queries(SUMMARY)) == 5
    page.evaluate(
        "globalThis.hidden = false; document.dispatchEvent(new Event('visibilitychange'))"
    )
    expect(page.locator("#turns-status")).to_contain_text("50 turns here")


def test_the_page_is_light_and_has_nothing_inline(latency: FakeLatency, dashboard: Open) -> None:
    loaded: dict[str, int] = {}
    page = dashboard()
    for path in page.evaluate(
        "performance.getEntriesByType('resource').map((entry) => new URL(entry.name).pathname)"
    ):
        file = WEB_DEMO / path.lstrip("/")
        if file.is_file():
            loaded[path] = file.stat().st_size
    weight = sum(loaded.values()) + (WEB_DEMO / "dashboard.html").stat().st_size
    print(f"the dashboard loads {weight} bytes before anything is done")
    assert "/dashboard/main.js" in loaded
    assert weight < 150_000
    html = (WEB_DEMO / "dashboard.html").read_text(encoding="utf-8")
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html) == []
    assert all("http" not in link for link in re.findall(r'(?:src|href)="([^"]*)"', html))
    assert page.get_by_role("link", name="Talk", exact=True).get_attribute("href") == "."
    latency.wait_for(lambda: bool(latency.queries(EVENTS)), "the stream of events")
    assert latency.queries(EVENTS) == [{}]
