"""The report as a page: whole, without a script, its figures those of the terminal's report."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_budget import SessionId, Stage, TurnRecord, budget_profile, summarize
from latency_budget.__main__ import main
from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.budget import EMBEDDED, Budget
from latency_budget.reporting.compare import compare
from latency_budget.reporting.html_charts import MAX_BINS, bins_of
from latency_budget.reporting.html_report import (
    MAX_DRAWN,
    MAX_LISTED,
    MAX_WORDS,
    Report,
    html_report,
)
from latency_budget.reporting.markup import Html, tag
from latency_budget.reporting.thresholds import read_gate
from latency_budget.reporting.trace_or_store import Source
from latency_budget.storage.history import TurnEntry
from tests.latency_budget.test_report import turn
from tests.latency_budget.test_thresholds import run, store_of

NASTY = "</style></q><script>alert(1)</script><img src=x onerror=\"alert('2')\"> & \0 \ud800 \u202e"

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags and texts of a page; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def words(self) -> str:
        return " ".join(self.texts)

    def count(self, name: str, **attributes: str) -> int:
        return sum(
            each == name and attributes.items() <= found.items() for each, found in self.tags
        )


def entry(record: TurnRecord, budget: Budget = EMBEDDED, words: str = "") -> TurnEntry:
    return TurnEntry(SessionId("s"), record, budget, caller_text=words, agent_text=words)


def report(entries: Sequence[TurnEntry], **more: object) -> Report:
    source = Source("turns.sqlite", None, tuple(entries))
    made = Report(source, summarize(source.records), 1_800_000_000 * 10**9)
    return replace(made, **more)  # type: ignore[arg-type]


def page(entries: Sequence[TurnEntry], **more: object) -> Page:
    return Page(html_report(report(entries, **more)))


def test_it_says_what_the_terminal_says() -> None:
    entries = [entry(turn(n, released_ms=200 + 31 * n, heard_ms=220 + 31 * n)) for n in range(20)]
    entries.append(entry(turn(20, released_ms=None)))
    entries.append(entry(turn(21, released_ms=300, caller_last_voiced=400)))
    shown = page(entries)
    summary = summarize(each.record for each in entries)
    for rank in ("p50", "p90", "p95", "p99"):
        assert f"{summary[rank]:.1f}" in shown.texts
        assert f"{summary[rank] - 20:.1f}" in shown.texts, "at the server"
        for stage in Stage:
            times = summary["stages"][stage]
            assert f"{times['exposed_ms'][rank]:.1f}" in shown.texts
            assert f"{times['spent_ms'][rank]:.1f}" in shown.texts
    num_late = sum(each.late for each in entries)
    assert num_late == 10
    assert f"{num_late} of 20 (50.0\N{NO-BREAK SPACE}%)" in shown.texts
    assert "1 of 21 (4.8\N{NO-BREAK SPACE}%), 95 %: 0.8-22.7" in shown.texts, "cut in"
    assert "turn 20: not answered" in shown.texts
    assert "500 ms" in shown.texts, "the budget's line in the histogram"
    assert "turn 19: 789.0 ms at the server, 809.0 ms at the ear, late by 309.0 ms" in shown.texts


def test_it_needs_nothing_and_runs_nothing() -> None:
    text = html_report(report([entry(turn(released_ms=300), words="Hello?")]))
    shown = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert shown.tags[0] == ("html", {"lang": "en"})
    used = {name for name, _ in shown.tags}
    assert not used & {"script", "link", "img", "iframe", "object", "form", "base", "image", "use"}
    attributes = {name for _, found in shown.tags for name in found}
    assert not attributes & {"style", "src", "srcset", "action"}
    assert not [name for name in attributes if name.startswith("on")]
    links = {found["href"] for _, found in shown.tags if "href" in found}
    ids = {f"#{found['id']}" for _, found in shown.tags if "id" in found}
    assert links
    assert links <= ids
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(found["content"] for _, found in shown.tags if "http-equiv" in found)
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")


def test_words_of_callers_stay_words() -> None:
    entries = [
        TurnEntry(SessionId(NASTY), turn(released_ms=300), EMBEDDED, NASTY, NASTY, 1.0),
        TurnEntry(SessionId(NASTY), turn(2, released_ms=None)),
    ]
    source = Source(NASTY, NASTY, tuple(entries), (NASTY,))
    text = html_report(report(entries, source=source))
    shown = Page(text)
    cleaned = NASTY.replace("\0", "\ufffd").replace("\ud800", "\ufffd")
    assert shown.texts.count(cleaned) >= 5
    assert shown.count("script") == shown.count("img") == 0
    text.encode("utf-8")


def test_drawings_have_tables() -> None:
    shown = page([entry(turn(released_ms=300)), entry(turn(2, released_ms=720))])
    for name, found in shown.tags:
        if name == "svg":
            assert found.get("aria-hidden") == "true" or found.get("aria-label")
    assert shown.count("svg", role="img") == 1
    assert "300 to 325 ms" in shown.texts, "of the histogram's table"
    assert shown.count("table") == shown.count("caption")
    assert shown.count("th", scope="row")


def test_the_slowest_turns_are_drawn_and_it_says_so() -> None:
    num_timed, num_without = MAX_DRAWN + 5, MAX_LISTED + 5
    entries = [entry(turn(n, released_ms=200 + n)) for n in range(num_timed)]
    entries += [entry(turn(1000 + n, released_ms=None)) for n in range(num_without)]
    shown = page(entries)
    assert f"Drawn are the {MAX_DRAWN} slowest of {num_timed} turns with a time." in shown.texts
    drawn = [int(number) for number in re.findall(r"turn (\d+): [\d.]+ ms", shown.words)]
    assert drawn == list(range(num_timed - 1, 4, -1))
    assert f"Turns without a time: the newest {MAX_LISTED} of {num_without}" in shown.texts
    listed = [int(number) for number in re.findall(r"turn (\d+): not answered", shown.words)]
    assert listed == list(range(1005, 1000 + num_without))
    whole = page(entries[:3])
    assert "All 3 turns with a time are drawn, the slowest first." in whole.texts


def test_a_waterfall_shows_spans_and_what_was_said() -> None:
    slow = turn(7, released_ms=900, heard_ms=1000, asr_start=-30)
    words = "x" * (MAX_WORDS + 1)
    shown = page([entry(slow, words=words)])
    assert f"{'x' * MAX_WORDS} ..." in shown.texts
    assert "0 to 1000 ms, line at 500" in shown.texts
    assert "\N{BLACK LEFT-POINTING SMALL TRIANGLE}" in shown.texts, "it began before the origin"
    spans = [found for name, found in shown.tags if name == "rect" and "fill-opacity" in found]
    assert {"x": "90.00%", "width": "10.00%"}.items() <= next(
        found for found in reversed(spans) if found["class"] == "transport"
    ).items()
    flawed = page([entry(turn(released_ms=300, asr_final=80))])
    assert "incomplete: asr_final before asr_start" in flawed.texts


def test_turns_without_a_time_are_a_page_too() -> None:
    shown = page([entry(turn(released_ms=None))])
    assert "No turn has a time from the caller's last word to the answer." in shown.texts
    assert "0 of 1 (0.0\N{NO-BREAK SPACE}%)" in shown.texts


def test_budgets_of_several_names_are_distinguished() -> None:
    slow = budget_profile("cpu")
    entries = [entry(turn(1, released_ms=300)), entry(turn(2, released_ms=700), slow)]
    shown = page([*entries, entry(turn(3, released_ms=320))])
    assert "cpu (1 turns, e2e_server_ms)" in shown.texts
    assert "embedded (2 turns, e2e_server_ms)" in shown.texts
    assert {"500 ms", "900 ms"} <= set(shown.texts)
    assert "cpu (" not in page(entries[:1]).words


def test_what_was_done_lest_a_turn_be_late() -> None:
    opener = Action.OPENER
    done = [
        (ActionTaken(opener, 200, 150), ActionTaken(Action.SHORT_CLAUSE, 30)),
        (ActionTaken(opener, 300, 250),),
        (ActionTaken(opener, 400),),
    ]
    entries = [
        entry(replace(turn(n, released_ms=600), actions=taken)) for n, taken in enumerate(done)
    ]
    shown = page(entries)
    cells = shown.texts[shown.texts.index("saved") + 1 :][:8]
    assert cells[:4] == ["short_clause", "1", "30.0", "not known"]
    assert cells[4:] == ["opener", "3", "300.0", "200.0 (2 turns)"]
    assert "action opener: 200 ms predicted, saved 150 ms" in shown.texts
    assert "predicted" not in page([entry(turn(released_ms=600))]).texts


def test_the_gate_and_the_comparison_are_in_it() -> None:
    first, second = run(400, 40, 30, 1), run(500, 40, 30, 2)
    other = Source("other.sqlite", None, tuple(entry(each) for each in second))
    found = compare(first, second)
    gate = read_gate("e2e.p50<=450 turns>=100 asr.p50<=0")
    shown = page([entry(each) for each in first], other=other, found=found, gate=gate)
    assert found.verdict in shown.texts
    assert f"{found.differences[1].ms:+.1f}" in shown.texts
    assert shown.count("svg", role="img") == 2, "a histogram of each run"
    assert "Missed: 1 of 3." in shown.texts
    outcomes = [word for word in shown.texts if word in ("holds", "missed")]
    assert outcomes == ["holds", "missed", "holds"]
    assert "Gate" not in page([entry(first[0])]).texts


@given(st.lists(st.tuples(st.floats(0, 1e7), st.booleans()), max_size=40), st.floats(1, 1e7))
def test_every_time_is_in_one_bin(times: list[tuple[float, bool]], until_ms: float) -> None:
    bins = bins_of(times, until_ms)
    assert 2 <= len(bins) <= MAX_BINS + 1
    assert bins[0].start_ms == 0
    assert [each.end_ms for each in bins[:-1]] == [each.start_ms for each in bins[1:]]
    for each in bins:
        inside = [late for ms, late in times if each.start_ms <= ms < (each.end_ms or float("inf"))]
        assert (each.turns, each.late) == (len(inside), sum(inside))


def test_tags_escape_what_is_not_markup() -> None:
    assert tag("p", "a < b", tag("b", "&"), Html("<i></i>"), title='"') == (
        '<p title="&quot;">a &lt; b<b>&amp;</b><i></i></p>'
    )
    assert tag("meta", charset="utf-8", name=None) == '<meta charset="utf-8">'
    assert (
        tag("rect", class_="x", fill_opacity=0.35) == '<rect class="x" fill-opacity="0.35"></rect>'
    )


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = str(store_of(tmp_path / "a.sqlite", run(450, 40, 30, 1)))
    second = str(store_of(tmp_path / "b.sqlite", run(650, 40, 30, 2)))
    target = tmp_path / "report.html"
    options = [first, "--html", str(target), "--compare", second, "--gate", "e2e.p50<=1"]
    assert main(options) == 1
    printed = capsys.readouterr().out
    assert f"the turns are drawn in {target}" in printed
    assert "GATE MISSED: e2e.p50<=1" in printed
    assert "█" not in printed
    shown = Page(target.read_text(encoding="utf-8"))
    assert "Missed: 1 of 1." in shown.texts
    assert first in shown.words
    assert main([first, "--json", "--html", str(target)]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert f"{summary['p95']:.1f}" in Page(target.read_text(encoding="utf-8")).texts
    assert main([first, "--html", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path}: Is a directory\n"
