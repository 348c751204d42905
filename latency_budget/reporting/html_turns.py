"""Single turns in a report: waterfalls of the slowest, and those that have no time to draw."""

from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.turn import Stage
from latency_budget.account.turn_record import NS_PER_MS
from latency_budget.storage.history import TurnEntry, entry_json

from .html_charts import spans_bar, stage_name
from .markup import NOTHING, Html, joined, table, tag
from .waterfall import action_line, headline

MAX_DRAWN: Final = 40
"""Waterfalls, at some 5 kB. Who wants to see others chooses with --last, --since or --session."""

MAX_LISTED: Final = 100
"""Turns without a time, of a line each."""

MAX_WORDS: Final = 400
"""Characters of what was said on either side."""


def turns_section(entries: Sequence[TurnEntry]) -> Html:
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
            tag("li", headline(entry.record, entry.budget), _session(entry)) for entry in newest
        )
        parts += [tag("h3", f"Turns without a time: {which}"), tag("ul", joined(items))]
    return joined(parts)


def actions_table(entries: Sequence[TurnEntry]) -> Html:
    """What was done lest turns be late, and what it brought; nothing where nothing was done."""
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


def _session(entry: TurnEntry) -> Html:
    return tag("small", " session ", tag("bdi", entry.session))


def _waterfall(entry: TurnEntry) -> Html:
    """One turn: a table whose last column is its drawing."""
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
    drawn = table(caption, heads, rows, bars=True, note=_session(entry))
    done = (tag("p", action_line(taken)) for taken in entry.record.actions)
    return tag("article", drawn, *_words(turn), *done, *_doubts(waterfall))


def _words(turn: dict[str, Any]) -> list[Html]:
    """What was said, where that is kept."""
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
