"""Latency report as one HTML file, to be kept beside a build or mailed.

The file needs no network and no script. It complies with the content security policy that it
contains, and with a stricter one of a server (a policy that forbids its style sheet leaves a plain
page). Its figures come from the same functions as the terminal's report: `summarize`, `entry_json`,
`compare`, `thresholds`. It has the words of callers where they were kept; `markup` escapes them.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.budget import Budget
from latency_budget.account.turn import Stage
from latency_budget.account.turn_record import NS_PER_MS
from latency_budget.statistics.aggregate import PERCENTILES, TurnAggregate, percentiles_ms
from latency_budget.statistics.intervals import wilson_interval
from latency_budget.storage.history import TurnEntry, entry_json, profiles_json

from .compare import Comparison
from .html_charts import (
    COLOURS,
    IN_TIME,
    LATE,
    bins_of,
    histogram,
    legend,
    spans_bar,
    stacked_bar,
    stage_bar,
    stage_name,
)
from .markup import NOTHING, Html, joined, table, tag
from .thresholds import METRICS, Condition
from .trace_or_store import Source
from .waterfall import action_line, headline

_STYLE: Final = Path(__file__).with_name("html_report.css")

_RANKS: Final = tuple(f"p{percent}" for percent in PERCENTILES)

MAX_DRAWN: Final = 40
"""Most waterfalls, at some 5 kB each. Other turns are chosen with --last, --since or --session."""

MAX_LISTED: Final = 100
"""Most turns without a time, of a line each."""

MAX_WORDS: Final = 400
"""Longest text of either side, in characters."""


@dataclass(frozen=True, slots=True)
class Report:
    """Contents of a report."""

    source: Source
    summary: dict[str, Any]
    """Summary of its turns, by `summarize`."""
    written_unix_ns: int
    other: Source | None = None
    found: Comparison | None = None
    """Comparison with the other source."""
    gate: Sequence[Condition] = ()

    @property
    def at_ear(self) -> bool:
        """True where the summary measures at the ear."""
        return bool(self.summary["measure"] == "e2e_ear_ms")

    @property
    def budget(self) -> Budget:
        """The budget of most turns."""
        ((budget, _),) = Counter(entry.budget for entry in self.source.entries).most_common(1)
        return budget


def html_report(report: Report) -> str:
    """The text of the HTML file."""
    sections = {
        "gate": ("Gate", _gate(report)),
        "summary": ("Summary", _summary(report)),
        "histogram": ("How long callers waited", _histogram(report)),
        "stages": ("Where the time went", _stages(report)),
        "comparison": ("Comparison", _comparison(report)),
        "turns": ("Turns", _turns(report.source.entries)),
    }
    shown = {place: each for place, each in sections.items() if each[1]}
    links = (tag("li", tag("a", title, href=f"#{place}")) for place, (title, _) in shown.items())
    body = tag(
        "main",
        *(
            tag(
                "section",
                tag("h2", title, id=f"{place}-title"),
                content,
                id=place,
                aria_labelledby=f"{place}-title",
            )
            for place, (title, content) in shown.items()
        ),
    )
    nav = tag("nav", tag("ul", joined(links)), aria_label="Parts of this report")
    page = tag("body", _header(report), nav, body)
    return f"<!DOCTYPE html>\n{tag('html', _head(report), page, lang='en')}\n"


def _head(report: Report) -> Html:
    style = _STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"Latency of {_name(report)}"),
        tag("style", Html(style)),
    )


def _name(report: Report) -> str:
    source = report.source
    return source.name if source.session is None else f"session {source.session}"


def _header(report: Report) -> Html:
    written = datetime.fromtimestamp(report.written_unix_ns / 1e9, UTC)
    return tag(
        "header",
        tag("h1", "Latency report"),
        tag("p", tag("bdi", _name(report)), f", written {written:%Y-%m-%d %H:%M} UTC"),
        *(tag("p", doubt, class_="doubt") for doubt in report.source.doubts),
    )


def _gate(report: Report) -> Html:
    if not report.gate:
        return NOTHING
    values = [METRICS[condition.name](report.summary) for condition in report.gate]
    held = [condition.holds(value) for condition, value in zip(report.gate, values, strict=True)]
    words = "All conditions hold." if all(held) else f"Missed: {held.count(False)} of {len(held)}."
    rows = [
        (
            str(condition),
            "not known" if value is None else f"{value:g}",
            _verdict("holds" if holds else "missed", holds),
        )
        for condition, value, holds in zip(report.gate, values, held, strict=True)
    ]
    return joined(
        [
            tag("p", _verdict(words, all(held)), class_="verdict"),
            table("Conditions of the gate", ("condition", "value", "outcome"), rows),
        ]
    )


def _verdict(words: str, good: bool) -> Html:
    return tag("strong", words, class_="good" if good else "bad")


def _summary(report: Report) -> Html:
    entries, summary = report.source.entries, report.summary
    answered = [entry for entry in entries if entry.record.answered]
    aggregate = TurnAggregate.of(report.source.records)
    late = sum(entry.late for entry in entries)
    timed = [entry for entry in entries if entry.record.e2e_raw_ns is not None]
    counts = [
        ("turns", str(summary["turns"])),
        ("answered", _share(summary["answered"], len(entries))),
        ("later than their own budget", _share(late, len(timed))),
        ("cut in on the caller", _with_interval(aggregate.cut_ins, len(answered))),
        ("interrupted by the caller", _share(aggregate.interrupted, len(answered))),
        ("re-opened before an answer was heard", str(aggregate.withdrawn)),
        ("begun with an opener", _share(summary["openers"], len(answered))),
    ]
    raw = summary["e2e_raw_ms"]
    side = "ear" if report.at_ear else "server"
    rows = [
        (
            f"at the ear ({aggregate.at_ear.total()} turns)",
            *_figures(percentiles_ms(aggregate.at_ear)),
        ),
        (
            f"at the server ({aggregate.at_server.total()} turns)",
            *_figures(percentiles_ms(aggregate.at_server)),
        ),
        (f"at the {side}, had nothing been held back to a pace", *_figures(raw)),
    ]
    figures = (tag("div", tag("dt", name), tag("dd", value)) for name, value in counts)
    caption = "From the caller's last word to the first audible sound of the answer, in ms"
    return joined(
        [
            tag("dl", joined(figures), class_="figures"),
            table(caption, ("", *_RANKS), rows),
            _profiles(report),
            _actions(entries),
        ]
    )


def _with_interval(part: int, whole: int) -> str:
    """A share with the 95 % interval of its rate."""
    low, high = wilson_interval(part, whole)
    interval = f", 95 %: {100 * low:.1f}-{100 * high:.1f}" if whole else ""
    return f"{_share(part, whole)}{interval}"


def _profiles(report: Report) -> Html:
    """Table by budget; nothing where all turns have budgets of one name."""
    if len({entry.budget.name for entry in report.source.entries}) < 2:
        return NOTHING
    profiles = profiles_json(None, report.source.entries)["profiles"]
    rows = [
        (f"{name} ({each['turns']} turns, {each['measure']})", *_figures(each))
        for name, each in sorted(profiles.items())
    ]
    return table("The same by budget, in ms", ("", *_RANKS), rows)


def _share(number: int, whole: int) -> str:
    return f"{number} of {whole} ({100 * number / whole:.1f}\N{NO-BREAK SPACE}%)" if whole else "0"


def _figures(values: dict[str, Any]) -> list[str]:
    return ["-" if values[rank] is None else f"{values[rank]:.1f}" for rank in _RANKS]


def _histogram(report: Report) -> Html:
    limits = [
        limit
        for limit, _ in Counter(e.budget.total_ms for e in report.source.entries).most_common(3)
    ]
    runs = [("", report.source)]
    if report.other is not None:
        runs = [("First run. ", report.source), ("Second run. ", report.other)]
    at_ear = report.at_ear if report.found is None else report.found.measure == "e2e_ear_ms"
    times = [
        [(ms, e.late) for e in source.entries if (ms := _e2e_ms(e, at_ear)) is not None]
        for _, source in runs
    ]
    known = sorted(ms for run in times for ms, _ in run)
    if not known:
        return tag("p", "No turn has a time from the caller's last word to the answer.")
    until_ms = max(1.25 * max(limits), 1.1 * known[-(-99 * len(known) // 100) - 1])
    parts = [
        legend(
            [(IN_TIME, "in-time", "in time"), (LATE, "late", "later than the turn's own budget")]
        )
    ]
    side = "ear" if at_ear else "server"
    for (label, source), run in zip(runs, times, strict=True):
        bins = bins_of(run, until_ms)
        name = f"{label}Turns by the time until the answer's first sound, at the {side}"
        rows = [(each.label, f"{each.turns}", f"{each.late}") for each in bins if each.turns]
        counted = table(f"{label}{source.name}", ("wait", "turns", "of them late"), rows)
        parts += [
            tag("figure", histogram(bins, limits, name), tag("figcaption", f"{name}.")),
            tag("details", tag("summary", f"{label}The bars as a table"), counted),
        ]
    return joined(parts)


def _e2e_ms(entry: TurnEntry, at_ear: bool) -> float | None:
    """End-to-end time on one side only: two quantities are never mixed."""
    return entry.record.e2e_ear_ms if at_ear else entry.record.e2e_server_ms


def _stages(report: Report) -> Html:
    stages, budget = report.summary["stages"], report.budget
    if stages[Stage.CAPTURE]["exposed_ms"]["p50"] is None:
        return NOTHING
    axis_ms = max(
        *(budget.allowance_ms(stage) for stage in Stage),
        *(stages[stage]["exposed_ms"]["p95"] for stage in Stage),
    )
    rows = [
        (
            stage_name(stage),
            f"{exposed['p50']:.1f}",
            f"{exposed['p95']:.1f}",
            str(budget.allowance_ms(stage)),
            stage_bar(stage, exposed["p50"], exposed["p95"], axis_ms, budget.allowance_ms(stage)),
        )
        for stage in Stage
        for exposed in (stages[stage]["exposed_ms"],)
    ]
    everything = [
        (f"{stage.value} {kind}", *_figures(stages[stage][f"{kind}_ms"]))
        for stage in Stage
        for kind in ("exposed", "spent")
    ]
    heads = ("stage", "p50", "p95", "allowed", f"0 to {axis_ms:.0f} ms")
    caption = (
        f"Exposed: for how many ms callers waited for a stage. Bars are full up to p50 and pale up"
        f" to p95; the line is what the {budget.name} budget of {budget.total_ms} ms allows"
    )
    ranks = table("Exposed and spent, in ms", ("", *_RANKS), everything)
    return joined(
        [
            _means(report),
            table(caption, heads, rows, bars=True),
            tag("p", "Percentiles of stages do not add up: a turn is slow in one, rarely in all."),
            tag("details", tag("summary", "All percentiles"), ranks),
        ]
    )


def _means(report: Report) -> Html:
    """Mean exposed times of all turns and of the slowest tenth: means add up, percentiles don't."""
    timed = sorted(
        ((ms, e) for e in report.source.entries if (ms := _e2e_ms(e, report.at_ear)) is not None),
        key=lambda pair: pair[0],
    )
    groups = [("all turns", timed)]
    if len(timed) >= 20:
        groups.append(("the slowest tenth", timed[-(len(timed) // 10) :]))
    means = [
        (name, {stage: _mean_ms(report, stage, group) for stage in Stage}) for name, group in groups
    ]
    limit_ms = report.budget.total_ms
    axis_ms = 1.02 * max(limit_ms, *(sum(parts.values()) for _, parts in means))
    rows = [
        (name, f"{sum(parts.values()):.1f}", stacked_bar(parts, axis_ms, limit_ms))
        for name, parts in means
    ]
    used = [stage for stage in Stage if any(parts[stage] for _, parts in means)]
    caption = f"Exposed on average, in ms, and a line at {limit_ms} ms"
    numbers = table(
        "Exposed on average, in ms",
        ("stage", *(name for name, _ in means)),
        [(stage.value, *(f"{parts[stage]:.1f}" for _, parts in means)) for stage in Stage],
    )
    return joined(
        [
            table(caption, ("", "mean", "stage by stage"), rows, bars=True),
            legend((COLOURS[stage], stage.value, stage.value) for stage in used),
            tag("details", tag("summary", "The averages as a table"), numbers),
        ]
    )


def _mean_ms(report: Report, stage: Stage, group: Sequence[tuple[float, TurnEntry]]) -> float:
    if stage is Stage.TRANSPORT and not report.at_ear:
        return 0.0
    total_ns = sum(entry.record.stages[stage].exposed_ns for _, entry in group)
    return total_ns / len(group) / NS_PER_MS


def _comparison(report: Report) -> Html:
    found = report.found
    if found is None or report.other is None:
        return NOTHING
    rows = [
        (
            each.name,
            f"{each.first_ms:.1f}",
            f"{each.second_ms:.1f}",
            f"{each.ms:+.1f}",
            f"{each.low_ms:+.1f} to {each.high_ms:+.1f}",
        )
        for each in found.differences
    ]
    return joined(
        [
            tag("p", tag("strong", found.verdict), class_="verdict"),
            tag("p", f"First: {report.source.name}, {found.num_first} turns."),
            tag("p", f"Second: {report.other.name}, {found.num_second} turns."),
            table(
                f"{found.measure} of both runs",
                ("", "first", "second", "change", "95 % interval"),
                rows,
            ),
        ]
    )


def _turns(entries: Sequence[TurnEntry]) -> Html:
    """Waterfalls of the slowest turns, and a list of those without a time."""
    timed = [entry for entry in entries if entry.record.e2e_ns is not None]
    slowest = sorted(timed, key=lambda entry: -(entry.record.e2e_ns or 0))[:MAX_DRAWN]
    others = [entry for entry in entries if entry.record.e2e_ns is None]
    newest = others[-MAX_LISTED:]
    if len(slowest) < len(timed):
        said = f"Drawn are the {len(slowest)} slowest of {len(timed)} turns with a time."
    else:
        said = f"All {len(timed)} turns with a time are drawn, the slowest first."
    parts = [
        tag("p", said),
        tag(
            "p",
            "Full: the caller waited for this stage. Pale: it worked behind another. The line is"
            " the turn's budget. Times are in ms since the caller's last word.",
        ),
        *(_waterfall(entry) for entry in slowest),
    ]
    if newest:
        which = (
            f"{len(others)}"
            if len(newest) == len(others)
            else (f"the newest {len(newest)} of {len(others)}")
        )
        items = (
            tag("li", headline(entry.record, entry.budget), _session_of(entry)) for entry in newest
        )
        parts += [tag("h3", f"Turns without a time: {which}"), tag("ul", joined(items))]
    return joined(parts)


def _actions(entries: Sequence[TurnEntry]) -> Html:
    """Table of the actions and their savings; nothing where none was taken."""
    taken: dict[Action, list[ActionTaken]] = {}
    for entry in entries:
        for each in entry.record.actions:
            taken.setdefault(each.action, []).append(each)
    rows = []
    for action in Action:
        if found := taken.get(action):
            saved = [each.saved_ms for each in found if each.saved_ms is not None]
            brought = f"{median(saved):.1f} ({len(saved)} turns)" if saved else "not known"
            predicted = median(each.predicted_ms for each in found)
            rows.append((action.value, str(len(found)), f"{predicted:.1f}", brought))
    if not rows:
        return NOTHING
    heads = ("action", "turns", "predicted", "saved")
    return table("Done lest a turn be late, with what it saves in ms (medians)", heads, rows)


def _session_of(entry: TurnEntry) -> Html:
    return tag("small", " session ", tag("bdi", entry.session))


def _waterfall(entry: TurnEntry) -> Html:
    """Waterfall of one turn: a table whose last column is the chart."""
    turn = entry_json(entry)
    waterfall, budget_ms = turn["waterfall"], turn["budget"]["total_ms"]
    axis_ms = max((entry.record.e2e_ns or 0) / NS_PER_MS, 1.04 * budget_ms)
    rows = [
        (
            stage_name(stage),
            f"{times['spent_ms']:.1f}",
            f"{times['exposed_ms']:.1f}",
            spans_bar(waterfall, stage, axis_ms, budget_ms),
        )
        for stage in Stage
        for times in (turn["stages"][stage],)
        if times["spent_ms"] or times["exposed_ms"]
    ]
    heads = ("stage", "spent", "exposed", f"0 to {axis_ms:.0f} ms, line at {budget_ms}")
    caption = headline(entry.record, entry.budget)
    drawn = table(caption, heads, rows, bars=True, note=_session_of(entry))
    done = (tag("p", action_line(taken)) for taken in entry.record.actions)
    return tag("article", drawn, *_words(turn), *done, *_doubts(waterfall))


def _words(turn: dict[str, Any]) -> list[Html]:
    """The words of both sides, where they are kept."""
    said = [("caller", turn["caller_text"]), ("agent", turn["agent_text"])]
    return [
        tag("p", f"{who}: ", tag("q", _shortened(text), dir="auto"), class_="words")
        for who, text in said
        if text
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]} ..."


def _doubts(waterfall: dict[str, Any]) -> list[Html]:
    lines = []
    if waterfall["wasted_ms"]:
        prompt, output = waterfall["wasted_prompt_tokens"], waterfall["wasted_output_tokens"]
        tokens = f", {prompt} + {output} tokens" if prompt or output else ""
        lines.append(tag("p", f"discarded work: {waterfall['wasted_ms']:.1f} ms{tokens}"))
    if waterfall["incomplete"]:
        lines.append(tag("p", f"incomplete: {', '.join(waterfall['incomplete'])}", class_="doubt"))
    return lines
