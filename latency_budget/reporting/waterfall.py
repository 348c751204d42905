"""Waterfalls and summary tables of turns as text, for a terminal.

A bar shows when a stage was at work: full blocks where it was exposed (the caller waited for it),
light shade where it worked behind something else. A vertical line marks the budget's end. Work
that began before the origin starts with an arrow at the left edge.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from latency_budget.account.actions import ActionTaken
from latency_budget.account.budget import EMBEDDED, Budget
from latency_budget.account.turn import Span, Stage
from latency_budget.account.turn_record import NS_PER_MS, Origin, TurnRecord
from latency_budget.statistics.aggregate import PERCENTILES

EXPOSED, HIDDEN, EARLIER, LIMIT, EMPTY = "█", "░", "◂", "│", " "
MIN_BAR_COLUMNS = 10
"""Smallest width of a bar; in a narrower terminal the lines are longer than it is wide."""

_LABEL_COLUMNS = 11
_NUMBER_COLUMNS = 9
_TEXT_COLUMNS = _LABEL_COLUMNS + 2 * _NUMBER_COLUMNS + 2


def waterfall(record: TurnRecord, *, width: int = 80, budget: Budget = EMBEDDED) -> str:
    """The waterfall of one turn in `width` columns, at least 41. No newline at the end.

    The axis runs from the origin to the end of the turn or of the budget, whichever is later.
    """
    width = max(width, _TEXT_COLUMNS + MIN_BAR_COLUMNS)
    lines = textwrap.wrap(headline(record, budget), width)
    if record.e2e_ns is not None:
        columns = width - _TEXT_COLUMNS
        axis_ns = max(record.e2e_ns, budget.total_ms * NS_PER_MS * 26 // 25)
        lines.append(_axis(columns, axis_ns, budget))
        for stage, time in record.stages.items():
            bar = _bar(stage, record, columns, axis_ns, budget)
            numbers = f"{time.spent_ms:{_NUMBER_COLUMNS}.1f}{time.exposed_ms:{_NUMBER_COLUMNS}.1f}"
            lines.append(f"{stage.value:<{_LABEL_COLUMNS}}{numbers}  {bar}".rstrip())
    lines += [action_line(taken) for taken in record.actions]
    if record.wasted_ns:
        prompt, output = record.wasted_prompt_tokens, record.wasted_output_tokens
        tokens = f", {prompt} + {output} tokens" if prompt or output else ""
        lines.append(f"discarded work: {record.wasted_ms:.1f} ms{tokens}")
    if record.incomplete:
        flaws = f"incomplete: {', '.join(record.incomplete)}"
        lines += textwrap.wrap(flaws, width, subsequent_indent=" " * 12)
    return "\n".join(lines)


def summary_table(summary: Mapping[str, Any]) -> str:
    """The summary of `summarize` as a table in ms, with spent and exposed time by stage."""
    rate = summary["cut_in_rate"]
    cut_ins = ""
    if rate is not None:
        low, high = summary["cut_in_interval"]
        cut_ins = f", cut-ins {100 * rate:.1f} % (95 %: {100 * low:.1f}-{100 * high:.1f})"
    outcomes = summary["outcomes"]
    ranks = [f"p{percent}" for percent in PERCENTILES]
    lines = [
        f"{summary['turns']} turns, {summary['answered']} answered{cut_ins}",
        f"{outcomes['interrupted']} interrupted, {outcomes['reopened']} re-opened before an answer"
        " was heard",
        f"{'ms':<21}" + "".join(f"{rank:>9}" for rank in ranks),
        _row(summary["measure"], summary, ranks),
    ]
    for stage, times in summary["stages"].items():
        lines.append(_row(f"{stage} exposed", times["exposed_ms"], ranks))
        lines.append(_row(f"{'':<{len(stage)}} spent", times["spent_ms"], ranks))
    return "\n".join(lines)


def _row(label: str, values: Mapping[str, float | None], ranks: Sequence[str]) -> str:
    cells = ["-" if (value := values[rank]) is None else f"{value:.1f}" for rank in ranks]
    return f"{label:<21}" + "".join(f"{cell:>9}" for cell in cells)


def headline(record: TurnRecord, budget: Budget) -> str:
    """One line about a turn: its number, times and flags."""
    parts = [f"turn {record.turn}:"]
    if record.e2e_server_ms is not None:
        parts.append(f"{record.e2e_server_ms:.1f} ms at the server")
    if record.e2e_ear_ms is not None:
        parts.append(f"{record.e2e_ear_ms:.1f} ms at the ear")
    if record.paced_ns and record.e2e_raw_ms is not None:
        parts.append(f"{record.e2e_raw_ms:.1f} ms but for the pace")
    if record.e2e_raw_ms is not None and record.e2e_raw_ms > budget.total_ms:
        parts.append(f"late by {record.e2e_raw_ms - budget.total_ms:.1f} ms")
    if record.opener:
        parts.append("with an opener")
    if not record.answered:
        parts.append("not answered")
    elif record.cut_in:
        parts.append("cut in on the caller")
    elif record.e2e_ns is None and record.origin is not Origin.GREETING:
        parts.append("answered, time unknown")
    for applies, words in (
        (record.origin is Origin.REPLY_REQUESTED, "typed"),
        (record.origin is Origin.GREETING, "greeting"),
        (record.interrupted, "interrupted"),
        (record.withdrawn, "the caller went on before an answer was audible"),
        (record.reopened, "re-opened"),
    ):
        if applies:
            parts.append(words)
    return f"{parts[0]} {', '.join(parts[1:])}"


def action_line(taken: ActionTaken) -> str:
    """One line about an action of a turn."""
    saved = "" if taken.saved_ms is None else f", saved {taken.saved_ms:.0f} ms"
    return f"action {taken.action}: {taken.predicted_ms:.0f} ms predicted{saved}"


def _axis(columns: int, axis_ns: int, budget: Budget) -> str:
    head = f"{'ms':<{_LABEL_COLUMNS}}{'spent':>{_NUMBER_COLUMNS}}{'exposed':>{_NUMBER_COLUMNS}}  "
    label = f"{budget.total_ms} ms"
    limit = _column(budget.total_ms * NS_PER_MS, columns, axis_ns)
    return head + "0" + label.rjust(max(limit, len(label) + 1))


def _bar(stage: Stage, record: TurnRecord, columns: int, axis_ns: int, budget: Budget) -> str:
    cells = [EMPTY] * columns
    work = [span for span in record.spans if span.stage is stage]
    _fill(cells, work, HIDDEN, axis_ns)
    _fill(cells, (span for span in record.path if span.stage is stage), EXPOSED, axis_ns)
    if any(span.start_ns < 0 for span in work):
        cells[0] = EARLIER
    limit = _column(budget.total_ms * NS_PER_MS, columns, axis_ns)
    if cells[limit] == EMPTY:
        cells[limit] = LIMIT
    return "".join(cells)


def _fill(cells: list[str], spans: Iterable[Span], glyph: str, axis_ns: int) -> None:
    for span in spans:
        if span.end_ns <= 0 or span.start_ns >= axis_ns:
            continue
        first = _column(max(span.start_ns, 0), len(cells), axis_ns)
        last = _column(min(span.end_ns, axis_ns) - 1, len(cells), axis_ns)
        cells[first : last + 1] = glyph * (last + 1 - first)


def _column(at_ns: int, columns: int, axis_ns: int) -> int:
    return min(columns - 1, at_ns * columns // axis_ns)
