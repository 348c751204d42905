"""Charts of the HTML report: SVG without scripts and without styles.

Positions on the time axis are percentages, so a chart is as wide as its page while its text keeps
its size. Colours are attributes, which a style sheet may override (and does in dark mode); where a
strict policy forbids the sheet, the chart still shows. Every chart repeats figures of a table
beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from latency_budget.account.turn import Stage

from .markup import NOTHING, Html, joined, tag

COLOURS: Final[Mapping[Stage, str]] = {
    Stage.CAPTURE: "#8a8f8c",
    Stage.ENDPOINT: "#5b7fb9",
    Stage.ASR: "#2a9d8f",
    Stage.LLM_PREFILL: "#b497d6",
    Stage.LLM_CLAUSE: "#8158b5",
    Stage.TOOL: "#a3683c",
    Stage.TTS: "#e0963c",
    Stage.PACING: "#c9bf6a",
    Stage.TRANSPORT: "#bb5f79",
}
"""Colours of the stages, as in the web demo."""

IN_TIME, LATE, LINE, SOFT = "#0e7568", "#b3400e", "#1d1f1e", "#535855"

BIN_WIDTHS_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000)

MAX_BINS: Final = 40
"""Most bars: more are narrower than a finger on a phone's page."""

MAX_TICKS: Final = 7

_TOP_PX = 20
_BARS_PX = 170
_ROW_PX = 14


@dataclass(frozen=True, slots=True)
class Bin:
    """Turns whose time is in `start_ms` (inclusive) to `end_ms`; None: without an upper end."""

    start_ms: int
    end_ms: int | None
    in_time: int = 0
    late: int = 0

    @property
    def turns(self) -> int:
        return self.in_time + self.late

    @property
    def label(self) -> str:
        return (
            f"{self.start_ms} ms and more"
            if self.end_ms is None
            else (f"{self.start_ms} to {self.end_ms} ms")
        )


def bins_of(times_ms: Sequence[tuple[float, bool]], until_ms: float) -> list[Bin]:
    """Bins of equal, round width up to `until_ms`, and one for all times beyond. `times_ms`: time
    and lateness of each turn."""
    width_ms = next(
        (width for width in BIN_WIDTHS_MS if width * MAX_BINS >= until_ms), BIN_WIDTHS_MS[-1]
    )
    num_bins = min(MAX_BINS, max(1, -(-round(until_ms) // width_ms)))
    counts = [[0, 0] for _ in range(num_bins + 1)]
    for time_ms, late in times_ms:
        counts[min(int(max(0.0, time_ms) // width_ms), num_bins)][late] += 1
    return [
        Bin(
            place * width_ms,
            None if place == num_bins else (place + 1) * width_ms,
            *counts[place],
        )
        for place in range(num_bins + 1)
    ]


def histogram(bins: Sequence[Bin], limits_ms: Iterable[int], name: str) -> Html:
    """Bar chart of `bins`, with a line at each budget."""
    most = max((each.turns for each in bins), default=0) or 1
    step = 100 / len(bins)
    width_ms = bins[0].end_ms or 1
    marks: list[Html] = []
    for place, each in enumerate(bins):
        late_px = _BARS_PX * each.late / most
        in_time_px = _BARS_PX * each.in_time / most
        bar = [
            _rect(place * step, step * 0.88, _TOP_PX + _BARS_PX - late_px, late_px, LATE, "late"),
            _rect(
                place * step,
                step * 0.88,
                _TOP_PX + _BARS_PX - late_px - in_time_px,
                in_time_px,
                IN_TIME,
                "in-time",
            ),
        ]
        title = tag("title", f"{each.label}: {each.turns} turns, {each.late} of them late")
        marks.append(tag("g", title, *bar))
    last_ms = bins[-1].start_ms
    tick_ms = next(
        (each for each in BIN_WIDTHS_MS if each % width_ms == 0 and last_ms / each <= MAX_TICKS),
        last_ms,
    )
    marks += [
        _letters(at_ms / width_ms * step, _TOP_PX + _BARS_PX + 16, f"{at_ms}")
        for at_ms in range(0, round(0.8 * last_ms), tick_ms)
    ]
    marks.append(_letters(100, _TOP_PX + _BARS_PX + 16, f"{last_ms} ms +", "end"))
    marks.append(_letters(0, 12, f"{most} turns"))
    marks.append(_rect(0, 100, _TOP_PX + _BARS_PX, 1, LINE, "line"))
    for limit_ms in limits_ms:
        at = limit_ms / width_ms * step
        if at < 100 - step:
            marks.append(_rule(at, 0, _TOP_PX + _BARS_PX))
            anchor, off = ("end", -1.0) if at > 60 else ("start", 1.0)
            marks.append(_letters(at + off, 12, f"{limit_ms} ms", anchor, "line"))
    return _drawing(_TOP_PX + _BARS_PX + 22, name, marks)


def spans_bar(waterfall: Mapping[str, Any], stage: str, axis_ms: float, limit_ms: float) -> Html:
    """One row of a waterfall: pale where the stage ran behind another, full where the caller waited
    for it. `waterfall` is that of `report.waterfall_json`."""
    colour = COLOURS[Stage(stage)]
    marks = []
    for kind, opacity in (("spans", 0.35), ("path", 1.0)):
        for span in waterfall[kind]:
            start_ms, end_ms = max(0.0, span["start_ms"]), min(axis_ms, span["end_ms"])
            if span["stage"] == stage and start_ms < end_ms:
                start, width = 100 * start_ms / axis_ms, 100 * (end_ms - start_ms) / axis_ms
                marks.append(_rect(start, width, 2, _ROW_PX - 4, colour, stage, opacity))
    began_before = any(
        span["stage"] == stage and span["start_ms"] < 0 for span in waterfall["spans"]
    )
    if began_before:
        marks.append(_letters(0, _ROW_PX - 3, "\N{BLACK LEFT-POINTING SMALL TRIANGLE}"))
    marks.append(_rule(100 * limit_ms / axis_ms, 0, _ROW_PX))
    return _drawing(_ROW_PX, None, marks)


def stage_bar(
    stage: Stage, full_ms: float, pale_ms: float, axis_ms: float, allowed_ms: float
) -> Html:
    """Bar with two figures of a stage, and a line at its allowance."""
    colour = COLOURS[stage]
    marks = [
        _rect(0, 100 * pale_ms / axis_ms, 2, _ROW_PX - 4, colour, stage.value, 0.35),
        _rect(0, 100 * full_ms / axis_ms, 2, _ROW_PX - 4, colour, stage.value),
        _rule(100 * allowed_ms / axis_ms, 0, _ROW_PX),
    ]
    return _drawing(_ROW_PX, None, marks)


def stacked_bar(parts_ms: Mapping[Stage, float], axis_ms: float, limit_ms: float) -> Html:
    """Stacked bar of the stages, with a line at the budget."""
    marks, at_ms = [], 0.0
    for stage, part_ms in parts_ms.items():
        start, width = 100 * at_ms / axis_ms, 100 * part_ms / axis_ms
        bar = _rect(start, width, 2, 2 * _ROW_PX - 4, COLOURS[stage], stage.value)
        marks.append(tag("g", tag("title", f"{stage.value}: {part_ms:.1f} ms"), bar))
        at_ms += part_ms
    marks.append(_rule(100 * limit_ms / axis_ms, 0, 2 * _ROW_PX))
    return _drawing(2 * _ROW_PX, None, marks)


def swatch(colour: str, class_: str) -> Html:
    """Square of one colour, for a legend."""
    square = tag("rect", width=10, height=10, fill=colour, class_=class_)
    return tag("svg", square, width=10, height=10, aria_hidden="true", class_="swatch")


def stage_name(stage: Stage) -> Html:
    """Name of a stage, with its colour."""
    return joined([swatch(COLOURS[stage], stage.value), Html(" "), tag("span", stage.value)])


def _drawing(height_px: int, name: str | None, marks: Sequence[Html]) -> Html:
    """An SVG. One without a name is hidden from screen readers: the table around it has its
    figures."""
    if name is None:
        return tag("svg", *marks, width="100%", height=height_px, aria_hidden="true")
    return tag("svg", *marks, width="100%", height=height_px, role="img", aria_label=name)


def _rect(
    start: float,
    width: float,
    top_px: float,
    height_px: float,
    colour: str,
    class_: str,
    opacity: float | None = None,
) -> Html:
    if width <= 0 or height_px <= 0:
        return NOTHING
    return tag(
        "rect",
        x=f"{start:.2f}%",
        width=f"{min(width, 100 - start):.2f}%",
        y=top_px,
        height=height_px,
        fill=colour,
        class_=class_,
        fill_opacity=opacity,
    )


def _rule(at: float, top_px: float, bottom_px: float) -> Html:
    x = f"{min(at, 99.8):.2f}%"
    return tag(
        "line", x1=x, x2=x, y1=top_px, y2=bottom_px, stroke=LINE, stroke_width=1.5, class_="rule"
    )


def _letters(
    at: float, baseline_px: float, text: str, anchor: str = "start", class_: str = "soft"
) -> Html:
    return tag(
        "text",
        text,
        x=f"{at:.2f}%",
        y=baseline_px,
        text_anchor=anchor,
        font_size=12,
        fill=SOFT,
        class_=class_,
    )


def legend(entries: Iterable[tuple[str, str, str]]) -> Html:
    """Legend of `(colour, class, text)` entries."""
    items = (tag("li", swatch(colour, class_), " ", words) for colour, class_, words in entries)
    return tag("ul", joined(items), class_="legend")
