"""Page of a soak, as one SVG: a chart of each metric with its fitted line, and one of latencies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

WIDTH: Final = 460
HEIGHT: Final = 150
LEFT: Final = 64
TOP: Final = 34
BOTTOM: Final = 22
GAP: Final = 20
HEAD: Final = 56
COLUMNS: Final = 2
MAX_POINTS: Final = 400
"""Points drawn in a chart; of more, every n-th."""

Json = dict[str, Any]


def svg_page(result: Json) -> str:
    """The page of a result of `halfsec bench soak`."""
    samples = result["samples"]
    charts = [
        _chart(
            trend["name"],
            _verdict(trend),
            [(each["at_s"], each["values"][trend["name"]]) for each in _having(samples, trend)],
            bad=trend["grows"],
        )
        for trend in result["trends"]
        if not trend["name"].startswith("heap: ")
    ]
    latencies = [(visit["at_s"], ms) for visit in result["visits"] for ms in visit["latencies_ms"]]
    charts.append(_chart("latency, ms (every kind)", _drift(result["drift"]), latencies,
                         bad=result["drift"]["drifts"], dots=True))  # fmt: skip
    rows = -(-len(charts) // COLUMNS)
    width = COLUMNS * (WIDTH + GAP) + GAP
    height = HEAD + rows * (HEIGHT + GAP)
    title = f"Soak of {result['minutes']:.0f} min, {result['callers']} callers"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{GAP}" y="24" font-size="16">{escape(title)}</text>',
        f'<text x="{GAP}" y="42" fill="#555">{escape(result["machine"])}, {result["date"]}</text>',
    ]
    for number, chart in enumerate(charts):
        x = GAP + number % COLUMNS * (WIDTH + GAP)
        y = HEAD + number // COLUMNS * (HEIGHT + GAP)
        lines += [f'<g transform="translate({x} {y})">', *chart, "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def save_page(result: Json, path: Path) -> None:
    """Write the page."""
    path.write_text(svg_page(result), encoding="utf-8")


def _having(samples: Sequence[Json], trend: Mapping[str, Any]) -> list[Json]:
    return [each for each in samples if trend["name"] in each["values"]]


def _verdict(trend: Mapping[str, Any]) -> str:
    if trend["per_hour"] is None:
        return "not judged: too few samples"
    interval = f"{trend['low']:.3g} to {trend['high']:.3g}"
    return f"{'GROWS ' if trend['grows'] else ''}{trend['per_hour']:.3g} an hour ({interval})"


def _drift(drift: Mapping[str, Any]) -> str:
    if drift["ratio"] is None:
        return "not judged: too few latencies"
    interval = f"{drift['low']:.2f} to {drift['high']:.2f}"
    mark = "DRIFTS " if drift["drifts"] else ""
    return f"{mark}last tenth / first: {drift['ratio']:.2f} ({interval})"


def _chart(
    name: str, note: str, points: Sequence[tuple[float, float]], *, bad: bool, dots: bool = False
) -> list[str]:
    colour = "#b00020" if bad else "#1a5fb4"
    lines = [
        f'<text x="0" y="12" font-size="13">{escape(name)}</text>',
        f'<text x="0" y="26" fill="{colour if bad else "#555"}">{escape(note)}</text>',
    ]
    if not points:
        return [*lines, f'<text x="{LEFT}" y="{HEIGHT / 2:.0f}">no samples</text>']
    points = points[:: -(-len(points) // MAX_POINTS)]
    end_s = max(max(at_s for at_s, _ in points), 1.0)
    low, high = min(value for _, value in points), max(value for _, value in points)
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    inner, across = HEIGHT - TOP - BOTTOM, WIDTH - LEFT

    def place(at_s: float, value: float) -> tuple[float, float]:
        return LEFT + across * at_s / end_s, TOP + inner * (high - value) / (high - low)

    for value in (low, high):
        _, y = place(0.0, value)
        lines.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.5g}</text>')
    lines.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">0</text>')
    lines.append(
        f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{end_s / 60:.0f} min</text>'
    )
    placed = [place(*point) for point in points]
    if dots:
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.5" fill="{colour}"/>' for x, y in placed]
    else:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return lines
