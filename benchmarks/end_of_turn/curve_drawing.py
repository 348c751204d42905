"""Drawing of a trade-off: cut-ins against the caller's wait, one panel for each kind of turn.

`halfsec bench turns --virtual --svg FILE` draws its own curves. Those of a fit:

    python -m benchmarks.end_of_turn.curve_drawing RESULT.json FILE.svg
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

SIZE_PX: Final = (400, 250)
"""Width and height of a panel, with its labels."""
PLOT_PX: Final = (52, 40, 330, 160)
"""Left, top, width and height of a panel's axes."""
MAX_WAIT_MS: Final = 1600
"""Longest median wait that is drawn: nobody waits longer for an answer."""
LEGEND_COLUMNS: Final = 4
COLOURS: Final = ("#2f80ed", "#d35400", "#7b8794", "#219653", "#8e44ad")
KINDS: Final = {
    "command": "read without a pause",
    "hesitant": "spliced pauses of 200-900 ms",
    "halting": "halting readers, own pauses",
    "numbers": "names, numbers, addresses",
    "all": "all turns",
}
"""Titles of the kinds of turns in the fit's data; others keep their names."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One threshold: what callers wait, and how often they are cut in on."""

    wait_ms: float
    """Median of the waits."""
    cut_ins: float
    """Share of the turns, 0 to 1."""
    label: str = ""
    """Name of a threshold that is shipped; "": of others."""


Panels = Mapping[str, Mapping[str, Sequence[CurvePoint]]]
"""Curves by name, in panels by kind of turn."""


def draw(panels: Panels, title: str) -> str:
    """SVG of all panels, two in a row, with one legend. Points without a wait are left out."""
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colours = dict(zip(names, COLOURS, strict=False))
    if len(colours) < len(names):
        raise ValueError(f"{len(names)} curves; there are colours for {len(COLOURS)}")
    width, height = SIZE_PX
    rows = -(-len(panels) // 2)
    legend = -(-len(names) // LEGEND_COLUMNS)
    total = (2 * width, rows * height + 14 + 20 * legend)
    marks = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{total[0]}" height="{total[1]}" rx="8" fill="#ffffff"/>',
    ]
    for index, (kind, curves) in enumerate(panels.items()):
        x, y = (index % 2) * width, (index // 2) * height
        marks.append(f'<g transform="translate({x} {y})">')
        marks += _panel(KINDS.get(kind, kind), curves, colours)
        marks.append("</g>")
    for index, name in enumerate(names):
        x, y = 30 + index % LEGEND_COLUMNS * 185, rows * height + 14 + index // LEGEND_COLUMNS * 20
        marks.append(f'<rect x="{x}" y="{y - 9}" width="18" height="4" fill="{colours[name]}"/>')
        marks.append(_text(x + 24, y, name, "start"))
    return "\n".join([*marks, "</svg>", ""])


def _panel(
    title: str, curves: Mapping[str, Sequence[CurvePoint]], colours: Mapping[str, str]
) -> Iterator[str]:
    left, top, width, height = PLOT_PX
    every = [
        point for points in curves.values() for point in points if point.wait_ms <= MAX_WAIT_MS
    ]
    longest = _ceiling(max((point.wait_ms for point in every), default=1000), 200)
    most = _ceiling(100 * max((point.cut_ins for point in every), default=0.1), 10)

    def at(point: CurvePoint) -> tuple[float, float]:
        share = 100 * point.cut_ins / most
        return left + width * point.wait_ms / longest, top + height * (1 - share)

    placed: list[Place] = []
    yield _text(left, 22, title, "start", bold=True)
    for step in range(5):
        y = top + height * (1 - step / 4)
        yield f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="#e4e7eb"/>'
        yield _text(left - 6, y + 4, f"{most * step / 4:g} %", "end")
        yield _text(left + width * step / 4, top + height + 16, f"{longest * step / 4:g}", "middle")
    yield _text(left + width, top + height + 32, "median wait, ms; cut-ins upwards", "end")
    for name, every_point in curves.items():
        points = [point for point in every_point if point.wait_ms <= longest]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, points))
        colour = colours[name]
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        labelled = [(*at(point), point.label) for point in points if point.label]
        for x, y, _ in labelled:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'
        for x, y, label in _without_overlap(labelled):
            placed.append(_free(x + 7, y - 6, len(label), placed))
            yield _text(*placed[-1][:2], label, "start")


def _without_overlap(labels: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Join the labels of neighbours that would be written over each other."""
    joined: list[tuple[float, float, str]] = []
    for x, y, label in labels:
        if (
            joined
            and abs(x - joined[-1][0]) < 7 * len(joined[-1][2])
            and abs(y - joined[-1][1]) < 14
        ):
            joined[-1] = (*joined[-1][:2], f"{joined[-1][2]}, {label}")
        else:
            joined.append((x, y, label))
    return joined


Place = tuple[float, float, int]
"""Left and baseline of a label, and its characters."""


def _free(x: float, y: float, length: int, placed: Sequence[Place]) -> Place:
    """Place above a point at which the label of no other curve stands."""
    while any(
        abs(y - other_y) < 14 and x < other_x + 7 * other_length and other_x < x + 7 * length
        for other_x, other_y, other_length in placed
    ):
        y -= 14
    return x, y, length


def _ceiling(value: float, step: int) -> float:
    return max(step, -(-value // step) * step)


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#1f2933"{weight}>'
        f"{escape(text)}</text>"
    )


def fit_panels(result: Mapping[str, Any]) -> dict[str, dict[str, list[CurvePoint]]]:
    """Panels of a fit's result: its curves, and the prices that are shipped as labels."""
    prices = result["prices_ms"]
    panels: dict[str, dict[str, list[CurvePoint]]] = {}
    for name, points in result["curves"].items():
        for kind in next(iter(points.values())):
            curve = [
                CurvePoint(one[kind]["p50_ms"], one[kind]["cut_in_rate"]) for one in points.values()
            ]
            panels.setdefault(kind, {})[name] = curve
    for kind, curves in panels.items():
        shipped = []
        for eagerness in prices:
            found = result["held_back"][f"{eagerness} fitted, language model 1"][kind]
            shipped.append(CurvePoint(found["p50_ms"], found["cut_in_rate"], eagerness))
        curves["shipped"] = sorted(shipped, key=lambda point: point.wait_ms)
    return panels


def simulation_panels(curves: Mapping[str, Any]) -> dict[str, dict[str, list[CurvePoint]]]:
    """Panels of the curves of `halfsec bench turns --virtual`: each point's `mark` is its label."""
    panels: dict[str, dict[str, list[CurvePoint]]] = {}
    for name, points in curves.items():
        for point in points:
            for kind, part in {"all": point, **point["kinds"]}.items():
                curve = panels.setdefault(kind, {}).setdefault(name, [])
                if part["turns"] and part["p50"] is not None:
                    share = part["cut_ins"] / part["turns"]
                    curve.append(CurvePoint(part["p50"], share, point.get("mark", "")))
    return panels


def main(arguments: Sequence[str]) -> int:
    """Draw a fit's result. Returns 0."""
    parser = argparse.ArgumentParser(prog="benchmarks.end_of_turn.curve_drawing")
    parser.add_argument("result", type=Path, help="JSON of benchmarks.end_of_turn.fit")
    parser.add_argument("svg", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    result = json.loads(options.result.read_text(encoding="utf-8"))
    title = "Cut-ins against the median wait, over thresholds"
    options.svg.write_text(draw(fit_panels(result), title), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
