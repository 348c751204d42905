"""The dashboard in a browser, against a server whose turns are known."""

import itertools
import json
import re

import pytest
from playwright.sync_api import Page, expect

from agent.pages import WEB_DEMO

from .browser.fake_latency import FakeLatency
from .browser.fake_turns import (
    BEGAN_S,
    Json,
    histograms_of,
    many,
    percentiles,
    summary_of,
    turn,
    windows_of,
)
from .browser.pages import Open

pytest_plugins = ["tests.browser.fixtures", "tests.browser.latency_fixtures"]
pytestmark = pytest.mark.browser

TURNS = "/v1/latency/turns"
EVENTS = "/v1/latency/events"
SUMMARY = "/v1/latency/summary"


def figure(page: Page, name: str) -> str:
    return page.locator(f'#head [data-figure="{name}"] .value').inner_text()


def rows(page: Page) -> list[str]:
    return page.locator(".turns-body .turn-session").all_inner_texts()


def test_its_figures_are_those_of_the_server(latency: FakeLatency, dashboard: Open) -> None:
    latency.turns = many(60)
    latency.refusals = [{"at": "2026-11-22T06:01:00Z", "code": "busy", "calls": 4}]
    latency.histograms = histograms_of(latency.turns)
    latency.windows = windows_of(latency.turns, 300)
    latency.calls = [{"session": "sess_live", "agent": "reception", "turns": 3, "p50_ms": 411.4}]
    summary = summary_of(latency.turns)
    page = dashboard()
    expect(page.locator("#stream")).to_have_text("Live")
    expect(page.locator("#head")).not_to_have_attribute("aria-busy", "true")
    for name in ("p50", "p95", "p99"):
        assert figure(page, name) == f"{round(summary[name])} ms"
    assert figure(page, "within").startswith(f"{int(summary['within'] * 1000) / 10:g}")
    assert figure(page, "calls") == "1"
    assert figure(page, "refused") == "1"
    expect(page.locator(".call-facts")).to_contain_text("3 turns · p50 411 ms")

    page.locator("#analysis").scroll_into_view_if_needed()
    plot = page.locator("#distribution figure .plot")
    expect(plot).to_have_attribute("aria-label", re.compile(f"p50 {round(summary['p50'])} ms"))
    expect(plot).to_have_attribute("aria-label", re.compile("of 60 turns.*500 ms"))
    expect(plot.locator("canvas")).to_have_count(1)
    table = page.locator("#distribution tbody tr")
    expect(table).to_have_count(10)
    endpoint = summary["stages"]["endpoint"]["exposed_ms"]
    expect(table.nth(2)).to_contain_text(f"{round(endpoint['p95'])} ms")
    page.get_by_role("button", name="End of turn").click()
    expect(plot).to_have_attribute("aria-label", re.compile("^End of turn: distribution of 60"))
    shares = [each["summary"]["within"] for each in latency.windows]
    expect(page.locator("#trend .plot")).to_have_attribute(
        "aria-label", re.compile(f"lowest {int(min(shares) * 1000 + 1e-6) / 10:g} %")
    )
    rate = (1 - summary["within"]) / 0.01
    expect(page.locator(".burn-value").first).to_have_text(f"{rate:.1f}×")
    page.get_by_label("Target").select_option("0.95")
    expect(page.locator(".burn-value").first).to_have_text(f"{rate / 5:.1f}×")
    expect(page.locator("#refusals tbody")).to_contain_text("busy")


def test_a_turn_is_there_as_it_ends(latency: FakeLatency, dashboard: Open) -> None:
    latency.turns = [turn(1), turn(2)]
    page = dashboard()
    expect(page.locator(".turns-body .turn-row")).to_have_count(2)
    latency.wait_for_stream()
    fresh = turn(3, exposed={"endpoint": 300.0, "tts": 512.0})
    latency.turns.append(fresh)
    latency.publish("turn", **fresh)
    expect(page.locator(".turns-body .turn-row").first).to_contain_text("sess_one · 3")
    expect(page.locator(".turns-body .turn-wait").first).to_have_text("812 ms")
    expect(page.locator(".turns-body .turn-wait").first).to_have_attribute("data-verdict", "over")
    bar = page.locator(".turns-body .track").first
    expect(bar).to_have_attribute("aria-label", "End of turn 300 ms, Voice 512 ms; budget 500 ms")
    latency.publish("turn", **fresh)
    latency.publish("turn", **turn(4))
    expect(page.locator(".turns-body .turn-row")).to_have_count(4)
    # The figures are asked for anew, not guessed: the later, the longer an answer takes.
    p99 = page.locator('#head [data-figure="p99"] .value')
    expect(p99).to_have_text("812 ms", timeout=40_000)


def test_a_call_is_shown_while_it_happens(latency: FakeLatency, dashboard: Open) -> None:
    page = dashboard()
    expect(page.locator("#live .empty")).to_be_visible()
    latency.wait_for_stream()
    expect(page.locator("#stream")).to_have_text("Live")
    session = {"session": "sess_new"}
    latency.publish("session", **session, state="began", agent="reception")
    card = page.locator(".call")
    expect(card).to_contain_text("reception")
    expect(card.locator(".call-state")).to_have_text("Listening")
    latency.publish("session", **session, state="thinking", stage="llm_clause")
    expect(card.locator(".call-state")).to_have_text("Thinking · First words")
    marks = (
        *(("caller_last_voiced", 0), ("asr_start", 30), ("asr_final", 230), ("endpoint", 260)),
        *(("reply_requested", 240), ("llm_first_token", 300), ("first_piece", 360)),
        *(("tts_start", 360), ("first_audible_ready", 400), ("released", 405)),
    )
    for name, ms in marks:
        latency.publish("mark", **session, turn=1, name=name, at_ms=9_000.0 + ms)
    asr = card.locator('.lane[data-stage="asr"]')
    expect(asr).to_have_attribute("style", re.compile(r"width: 26\.6667%; left: 4%"))
    latency.publish("turn", **turn(1, session="sess_new"))
    expect(card.locator(".lanes-words")).to_have_text("420 ms")
    expect(card.locator(".lanes")).to_have_attribute("aria-label", "Turn 1 answered in 420 ms")
    latency.publish("session", **session, state="ended", turns=1)
    expect(card).to_have_count(0)
    expect(page.locator("#live .empty")).to_be_visible()


def test_filters_are_in_the_questions_and_in_the_address(
    latency: FakeLatency, dashboard: Open
) -> None:
    latency.turns = [turn(1), turn(2, session="sess_two", profile="cpu", budget_ms=900)]
    page = dashboard()
    expect(page.locator(".turns-body .turn-row")).to_have_count(2)
    page.get_by_role("combobox", name="Profile").select_option("cpu")
    expect(page.locator(".turns-body .turn-row")).to_have_count(1)
    page.get_by_label("Call", exact=True).fill("sess_two")
    page.get_by_label("Call", exact=True).press("Enter")
    page.get_by_role("combobox", name="Time").select_option("1h")
    latency.wait_for(
        lambda: any("window" in each and each.get("session") for each in latency.queries(SUMMARY)),
        "a summary of the session",
    )
    asked = latency.queries(TURNS)[-1]
    assert asked["profile"] == "cpu"
    assert asked["session"] == "sess_two"
    assert asked["limit"] == "100"
    assert page.url.endswith("#range=1h&profile=cpu&session=sess_two")
    spans = [int(float(each["since"])) for each in latency.queries(TURNS)]
    assert abs(spans[-1] - spans[0] - 23 * 3600) < 3600
    latency.publish("turn", **turn(3))
    latency.publish("turn", **turn(4, session="sess_two", profile="cpu"))
    expect(page.locator(".turns-body .turn-row").first).to_contain_text("sess_two · 4")
    expect(page.locator(".turns-body .turn-row")).to_have_count(2)

    page.get_by_role("combobox", name="Time").select_option("custom")
    page.get_by_role("textbox", name="To", exact=True).fill("2026-11-20T10:00:00")
    page.get_by_role("textbox", name="From").fill("2026-11-19T10:00:00")
    page.get_by_role("textbox", name="From").press("Enter")
    latency.wait_for(lambda: "until" in latency.queries(TURNS)[-1], "an end of the time")
    last = latency.queries(TURNS)[-1]
    assert float(last["until"]) - float(last["since"]) == 86_400
    again = dashboard(page.url.partition("dashboard")[2])
    expect(again.get_by_role("textbox", name="From")).to_have_value(re.compile("^2026-11-19T10:00"))
    expect(again.get_by_role("combobox", name="Profile")).to_have_value("cpu")


def test_ten_thousand_turns_stay_a_few_rows(latency: FakeLatency, dashboard: Open) -> None:
    latency.turns = many(10_000)
    page = dashboard()
    expect(page.locator("#turns")).to_have_attribute("aria-rowcount", "10001")
    grid = page.locator("#turns")
    most = 0
    for _ in range(200):
        state = grid.evaluate(
            """async (grid) => {
                grid.scrollTop = grid.scrollHeight;
                const frame = () => new Promise((done) => requestAnimationFrame(done));
                await frame();
                await frame();
                return {
                    rows: grid.querySelectorAll('.turns-body .turn-row').length,
                    there: document.querySelector('#turns-status').textContent,
                };
            }"""
        )
        most = max(most, state["rows"])
        if "That is all" in state["there"]:
            break
    expect(page.locator("#turns-status")).to_contain_text("10,000 turns here. That is all of them.")
    assert most < 40
    grid.evaluate("(grid) => { grid.scrollTop = grid.scrollHeight; }")
    expect(page.locator(".turns-body .turn-row").last).to_have_attribute("aria-rowindex", "10001")
    numbers = [int(text.rpartition(" ")[2]) for text in rows(page)]
    assert numbers == list(range(len(numbers), 0, -1))
    befores = [int(each["before"]) for each in latency.queries(TURNS) if "before" in each]
    assert befores == list(range(9901, 0, -500))
    # In the middle a turn that ends moves nothing under the reader's eyes.
    grid.evaluate("(grid) => { grid.scrollTop = 5000 * 44; }")
    middle = page.locator('.turns-body [aria-rowindex="5002"]')
    expect(middle).to_contain_text("· 5000")
    top = page.get_by_text("· 5000", exact=False).first.bounding_box()
    latency.publish("turn", **turn(10_001))
    expect(page.locator("#turns-status")).to_contain_text("10,001 turns here")
    expect(page.locator('.turns-body [aria-rowindex="5003"]')).to_contain_text("· 5000")
    assert page.get_by_text("· 5000", exact=False).first.bounding_box() == top


def test_it_is_worked_by_the_keyboard(latency: FakeLatency, dashboard: Open) -> None:
    latency.turns = many(300)
    page = dashboard()
    expect(page.locator(".turns-body .turn-row").first).to_be_visible()
    page.locator("#turns").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "PageDown"):
        page.keyboard.press(key)
    active = page.locator('.turns-body [aria-selected="true"]')
    expect(active).to_have_count(1)
    first = int(str(active.get_attribute("aria-rowindex")))
    assert first > 6
    page.keyboard.press("End")
    expect(active).to_have_attribute("aria-rowindex", "101")
    expect(active).to_be_in_viewport()
    page.keyboard.press("Home")
    expect(active).to_have_attribute("aria-rowindex", "2")
    expect(page.locator("#turns")).to_have_attribute(
        "aria-activedescendant", str(active.get_attribute("id"))
    )
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Turn 300")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_text("Where the time went")).to_be_visible()
    strip = dialog.get_by_role("slider", name="Marks of the turn")
    strip.focus()
    page.keyboard.press("End")
    expect(strip).to_have_attribute("aria-valuetext", re.compile("The client played that sound"))
    page.keyboard.press("ArrowLeft")
    expect(dialog.locator(".mark-readout")).to_contain_text("The first audible sound was sent")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page).not_to_have_url(re.compile("turn="))


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
    assert [text.rpartition(" ")[2] for text in rows(page)] == ["4", "3", "2", "1"]
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


def test_a_key_that_may_not_see_it_is_told_so(latency: FakeLatency, dashboard: Open) -> None:
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
    expect(page.locator("#stream")).to_have_text("Live", timeout=20_000)
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
    assert figure(page, "p50") == f"{round(percentiles(waits(latency.turns))['p50'])} ms"


def waits(turns: list[Json]) -> list[float]:
    return [each["e2e_ear_ms"] for each in turns]


def test_a_turn_opens_with_all_that_is_known_of_it(latency: FakeLatency, dashboard: Open) -> None:
    acted = [
        {"action": "short_clause", "predicted_ms": 82.0, "saved_ms": 64.2},
        {"action": "pause_sooner", "predicted_ms": 40.0, "saved_ms": None},
    ]
    latency.turns = [
        *many(1200, first=2),
        turn(1, row=2000, actions=acted, caller_text="Hi?", agent_text="Hello."),
    ]
    latency.traces = {"sess_one": '{"format":1}\n'}
    page = dashboard("#turn=sess_one%2F1")
    dialog = page.get_by_role("dialog", name="Turn 1")
    expect(dialog).to_contain_text("420 ms")
    expect(dialog).to_contain_text("within its budget of 500 ms")
    expect(dialog).to_contain_text("Was to save 82 ms; saved 64 ms.")
    expect(dialog).to_contain_text("what it saved is not known yet")
    expect(dialog.locator("q")).to_have_text(["Hi?", "Hello."])
    expect(dialog).to_contain_text("There is no recording of this turn")
    full = dialog.locator('.piece.exposed[data-stage="endpoint"]').bounding_box()
    asr = dialog.locator('.piece.exposed[data-stage="asr"]').bounding_box()
    assert full is not None
    assert asr is not None
    assert full["width"] / asr["width"] == pytest.approx(231 / 44, rel=0.05)
    assert asr["x"] == pytest.approx(full["x"] + full["width"], abs=1)
    strip = dialog.get_by_role("slider").bounding_box()
    assert strip is not None
    page.mouse.move(strip["x"] + strip["width"] - 1, strip["y"] + 10)
    expect(dialog.locator(".mark-readout")).to_have_text(
        "+420 ms: The client played that sound, by its reports"
    )
    with page.expect_download() as download:
        dialog.get_by_role("button", name="Download the trace").click()
    assert download.value.path().read_text() == '{"format":1}\n'
    page.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    # One that memory has no more of is looked for in the store, page by page.
    page.evaluate("location.hash = 'turn=sess_00000/3'")
    expect(page.get_by_role("dialog", name="Turn 3")).to_contain_text("Where the time went")
    page.evaluate("location.hash = 'turn=sess_nobody/3'")
    expect(page.get_by_role("dialog", name="Turn 3")).to_contain_text("not known here any more")
    page.go_back()
    expect(page.get_by_role("dialog", name="Turn 3")).to_contain_text("Where the time went")


def test_only_the_turn_is_fetched_of_a_recording(latency: FakeLatency, dashboard: Open) -> None:
    seconds, rate_hz = 60, 8_000
    frames = b"".join(
        second.to_bytes(2, "little") * 2 * rate_hz for second in range(seconds)
    )  # left and right: the second it is
    sizes = (len(frames) + 36).to_bytes(4, "little"), len(frames).to_bytes(4, "little")
    described = b"".join(
        number.to_bytes(size, "little")
        for number, size in ((1, 2), (2, 2), (rate_hz, 4), (4 * rate_hz, 4), (4, 2), (16, 2))
    )
    head = b"RIFF" + sizes[0] + b"WAVEfmt " + (16).to_bytes(4, "little") + described + b"data"
    latency.recordings = {"sess_one": head + sizes[1] + frames}
    latency.turns = [turn(1, recording={"from_s": 20.0, "to_s": 23.0})]
    page = dashboard("#turn=sess_one%2F1")
    page.get_by_role("button", name="Listen to the turn").click()
    player = page.locator("audio")
    expect(player).to_be_visible()
    asked = [each["range"] for each in latency.headers("/v1/sessions/sess_one/recording")]
    assert asked == [
        "bytes=0-1023",
        f"bytes={44 + 4 * rate_hz * 39 // 2}-{43 + 4 * rate_hz * 47 // 2}",
    ]
    length_s = player.evaluate(
        """async (audio) => {
            if (audio.readyState < 1) {
                await new Promise((done) => { audio.onloadedmetadata = done; });
            }
            return audio.duration;
        }"""
    )
    assert length_s == 4.0


def test_tables_are_saved_whole(latency: FakeLatency, dashboard: Open) -> None:
    latency.turns = many(2100)
    latency.turns[5]["caller_text"] = '=HYPERLINK("x"), she said'
    latency.histograms = histograms_of(latency.turns)
    page = dashboard()
    expect(page.locator(".turns-body .turn-row").first).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").first.click()
    lines = download.value.path().read_bytes().decode().split("\r\n")
    assert lines[0].startswith("at,session,turn,agent,profile,budget_ms,e2e_ear_ms")
    numbers = [int(line.split(",")[2]) for line in lines[1:-1]]
    assert numbers == list(range(2100, 0, -1))
    assert '"\'=HYPERLINK(""x""), she said"' in lines[2100 - 5]
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").last.click()
    saved = download.value.path().read_text().splitlines()
    whole = sum(int(line.split(",")[2]) for line in saved if line.startswith("e2e,"))
    assert whole == 2100


def test_the_engine_and_guesses_are_told_of(latency: FakeLatency, dashboard: Open) -> None:
    page = dashboard()
    latency.wait_for_stream()
    expect(page.locator("#stream")).to_have_text("Live")
    state = {
        "inter_token_p50_ms": 14.9, "inter_token_p99_ms": 22.0, "time_to_first_token_p50_ms": 33.1,
        "waiting": 2, "replying": 1, "pages_used": 350, "pages_total": 400, "prompt_tokens": 2000,
        "cached_tokens": 1650, "drafted_tokens": 400, "accepted_tokens": 310,
        "guesses": {"made": 120, "used": 90, "dropped": 30, "wasted_ms": 2400.0},
    }  # fmt: skip
    latency.publish("engine", **state)
    latency.publish("engine", **state)
    engine, guesses = page.locator("#engine"), page.locator("#guesses")
    for part in ("15 ms", "p99 22 ms", "33 ms", "87.5 %", "350 of 400", "82.5 %", "77.5 %"):
        expect(engine).to_contain_text(part)
    expect(engine.locator('[data-name="pages"]')).to_have_attribute("data-over", "")
    for part in ("75 %", "90 of 120 guesses", "30", "2400 ms", "20 ms a guess"):
        expect(guesses).to_contain_text(part)
    latency.publish("refusal", at="2026-11-22T06:02:00Z", code="busy", calls=4)
    expect(page.locator("#refusals tbody tr")).to_have_count(1)
    assert figure(page, "refused") == "1"


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
    assert list(itertools.chain(latency.queries(EVENTS))) == [{}]
