"""The dashboard in a browser, against a server whose turns are known."""

import re

import pytest
from playwright.sync_api import expect

from tests.support.browser.fake_latency import FakeLatency
from tests.support.browser.fake_turns import (
    Json,
    histograms_of,
    many,
    summary_of,
    turn,
    windows_of,
)
from tests.support.browser.pages import Open, head_figure, shown_turns

pytest_plugins = ["tests.support.browser.fixtures", "tests.support.browser.latency_fixtures"]
pytestmark = pytest.mark.browser

TURNS = "/v1/latency/turns"
SUMMARY = "/v1/latency/summary"


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
        assert head_figure(page, name) == f"{round(summary[name])} ms"
    assert head_figure(page, "within").startswith(f"{int(summary['within'] * 1000) / 10:g}")
    assert head_figure(page, "calls") == "1"
    assert head_figure(page, "refused") == "1"
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
    expect(p99).to_have_text("812 ms")


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
    facts = card.locator(".call-facts")
    expect(facts).to_have_text("0 turns")
    latency.publish("session", **session, state="hearing", stage=None, background_tools=2)
    expect(facts).to_have_text("0 turns · 2 tools in the background")
    latency.publish("session", **session, state="hearing", agent="billing", handoffs=1)
    expect(facts).to_have_text("0 turns · 2 tools in the background · 1 handoff")
    expect(card.locator(".call-agent")).to_have_text("billing")
    latency.publish("session", **session, state="hearing", stage=None, background_tools=0)
    expect(facts).to_have_text("0 turns · 1 handoff")
    latency.publish("session", **session, state="thinking", stage="llm_clause")
    expect(card.locator(".call-state")).to_have_text("Thinking · First words")
    marks = (
        *(("caller_last_voiced", 0), ("asr_start", 30), ("asr_final", 230), ("endpoint", 260)),
        *(("reply_requested", 240), ("llm_first_token", 300), ("first_piece", 360)),
        *(("tts_start", 360), ("first_audible_ready", 400), ("released", 405)),
    )
    for name, ms in marks:
        latency.publish("mark", **session, turn=1, name=name, at_ms=9_000.0 + ms)
    asr = card.locator('.timeline-bar[data-stage="asr"]')
    expect(asr).to_have_attribute("style", re.compile(r"width: 26\.6667%; left: 4%"))
    latency.publish("turn", **turn(1, session="sess_new"))
    expect(card.locator(".timeline-text")).to_have_text("420 ms")
    expect(card.locator(".timeline")).to_have_attribute("aria-label", "Turn 1 answered in 420 ms")
    latency.publish("session", **session, state="ended", turns=1)
    expect(card).to_have_count(0)
    expect(page.locator("#live .empty")).to_be_visible()


def test_a_call_whose_caller_came_back_waits_no_longer(
    latency: FakeLatency, dashboard: Open
) -> None:
    latency.calls = [{"session": "sess_back", "state": "waiting", "waiting": True}]
    page = dashboard()
    state = page.locator(".call-state")
    expect(state).to_have_text("Waiting for the caller to come back")
    latency.publish("session", session="sess_back", state="listening", stage=None)
    expect(state).to_have_text("Listening")
    latency.publish("session", session="sess_back", state="waiting", stage=None)
    expect(state).to_have_text("Waiting for the caller to come back")


def test_servers_that_share_a_store_can_be_chosen(latency: FakeLatency, dashboard: Open) -> None:
    latency.turns = [turn(1), turn(2, replica="gpu-2:8080")]
    page = dashboard()
    expect(page.locator(".turns-body .turn-row")).to_have_count(2)
    page.get_by_role("combobox", name="Server").select_option("gpu-2:8080")
    expect(page.locator(".turns-body .turn-row")).to_have_count(1)
    assert page.url.endswith("#replica=gpu-2%3A8080")
    latency.publish("turn", **turn(3))
    latency.publish("turn", **turn(4, replica="gpu-2:8080"))
    expect(page.locator(".turns-body .turn-row").first).to_contain_text("sess_one · 4")
    expect(page.locator(".turns-body .turn-row")).to_have_count(2)


def test_a_single_server_is_no_choice(latency: FakeLatency, dashboard: Open) -> None:
    latency.turns = [turn(1)]
    page = dashboard()
    expect(page.locator(".turns-body .turn-row")).to_have_count(1)
    latency.wait_for(lambda: bool(latency.queries(SUMMARY)), "figures")
    expect(page.get_by_role("combobox", name="Server")).to_have_count(0)


def since_of(query: Json) -> float:
    return float(query["since"])


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
        lambda: since_of(latency.queries(TURNS)[-1]) - since_of(latency.queries(TURNS)[0]) > 82_000,
        "a question for an hour in place of a day",
    )
    asked = latency.queries(TURNS)[-1]
    assert asked["profile"] == "cpu"
    assert asked["session"] == "sess_two"
    assert asked["limit"] == "100"
    assert page.url.endswith("#range=1h&profile=cpu&session=sess_two")
    latency.wait_for(
        lambda: any(each.get("window") == "60" for each in latency.queries(SUMMARY)),
        "figures of that hour",
    )
    figures = next(each for each in latency.queries(SUMMARY) if each.get("window") == "60")
    assert (figures["profile"], figures["session"]) == ("cpu", "sess_two")
    latency.publish("turn", **turn(3))
    latency.publish("turn", **turn(4, session="sess_two", profile="cpu"))
    expect(page.locator(".turns-body .turn-row").first).to_contain_text("sess_two · 4")
    expect(page.locator(".turns-body .turn-row")).to_have_count(2)

    page.get_by_role("combobox", name="Time").select_option("custom")
    page.get_by_role("textbox", name="To", exact=True).fill("2026-11-20T10:00:00")
    page.get_by_role("textbox", name="From").fill("2026-11-19T10:00:00")
    page.get_by_role("textbox", name="From").press("Enter")

    def seconds_asked_for() -> float:
        last = latency.queries(TURNS)[-1]
        return float(last.get("until", 0)) - float(last["since"])

    latency.wait_for(lambda: seconds_asked_for() == 86_400, "a day, once both ends are filled in")
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
    numbers = [int(text.rpartition(" ")[2]) for text in shown_turns(page)]
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
    expect(active).to_have_attribute("aria-rowindex", re.compile(r"^([7-9]|\d\d+)$"))
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


def test_engine_and_speculation_are_shown(latency: FakeLatency, dashboard: Open) -> None:
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
    assert head_figure(page, "refused") == "1"
