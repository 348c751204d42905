"""Drawings of cut-ins against waits."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.end_of_turn import curve_drawing
from benchmarks.end_of_turn.curve_drawing import CurvePoint, draw, fit_panels, simulation_panels

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}text")]


def test_less_wait_is_left_and_fewer_cut_ins_are_below() -> None:
    points = [CurvePoint(200, 0.10), CurvePoint(400, 0.05, "shipped"), CurvePoint(800, 0.0)]
    svg = draw({"all": {"one <silence>": points}}, "A & B")
    root = ET.fromstring(svg)
    (line,) = root.iter(f"{SVG}polyline")
    places = [tuple(map(float, each.split(","))) for each in line.attrib["points"].split()]
    left, top, width, height = curve_drawing.PLOT_PX
    assert places == [
        (left + width / 4, top),
        (left + width / 2, top + height / 2),
        (left + width, top + height),
    ]
    assert len(list(root.iter(f"{SVG}circle"))) == 1
    assert {"shipped", "one <silence>", "all turns", "10 %", "800"} <= set(texts(svg))
    assert root.attrib["aria-label"] == "A & B"


def test_labels_in_one_place_are_joined() -> None:
    points = [CurvePoint(400, 0.05, "auto"), CurvePoint(402, 0.05, "medium"), CurvePoint(900, 0)]
    found = texts(draw({"all": {"x": points}}, "t"))
    assert "auto, medium" in found
    assert "auto" not in found


def test_labels_of_two_curves_stand_above_each_other() -> None:
    curves = {
        "x": [CurvePoint(400, 0.05, "auto"), CurvePoint(900, 0)],
        "y": [CurvePoint(410, 0.05, "500 ms")],
    }
    root = ET.fromstring(draw({"all": curves}, "t"))
    heights = {each.text: float(each.attrib["y"]) for each in root.iter(f"{SVG}text")}
    assert heights["auto"] - heights["500 ms"] == 14


def test_waits_that_nobody_would_bear_are_not_drawn() -> None:
    points = [CurvePoint(400, 0.1), CurvePoint(800, 0.05, "0.5"), CurvePoint(3000, 0)]
    root = ET.fromstring(draw({"all": {"x": points}}, "t"))
    (line,) = root.iter(f"{SVG}polyline")
    assert len(line.attrib["points"].split()) == 2
    assert "800" in texts(ET.tostring(root, encoding="unicode"))


def test_more_curves_than_colours_are_refused() -> None:
    curves = {str(index): [CurvePoint(1, 0)] for index in range(6)}
    with pytest.raises(ValueError, match="6 curves; there are colours for 5"):
        draw({"all": curves}, "t")


def test_a_simulation_s_curves_have_a_panel_for_each_kind() -> None:
    part = {"turns": 4, "cut_ins": 1, "p50": 500.0}
    none = {"turns": 1, "cut_ins": 1, "p50": None}
    kinds = {"command": part, "hesitant": none}
    curves = {
        "halfsec, as shipped": [{**part, "eagerness": "auto", "mark": "auto", "kinds": kinds}],
        "one silence": [{**part, "silence_ms": 300, "mark": "", "kinds": kinds}],
    }
    panels = simulation_panels(curves)
    assert list(panels) == ["all", "command", "hesitant"]
    assert panels["all"]["halfsec, as shipped"] == [CurvePoint(500, 0.25, "auto")]
    assert panels["all"]["one silence"] == [CurvePoint(500, 0.25)]
    assert panels["hesitant"]["one silence"] == []
    ET.fromstring(draw(panels, "t"))


def test_a_legend_of_five_has_two_rows() -> None:
    curves = {str(index): [CurvePoint(1, 0)] for index in range(5)}
    root = ET.fromstring(draw({"all": curves}, "t"))
    height = float(root.attrib["viewBox"].split()[3])
    places = {
        each.text: (float(each.attrib["x"]), float(each.attrib["y"]))
        for each in root.iter(f"{SVG}text")
    }
    assert len({places[name] for name in curves}) == 5
    assert places["0"][0] == places["4"][0]
    assert places["0"][1] < places["4"][1] < height
    assert max(x for x, _ in places.values()) < float(root.attrib["viewBox"].split()[2])


def test_the_page_s_drawing_is_that_of_the_committed_result(tmp_path: Path) -> None:
    result = ROOT / "benchmarks/results/end-of-turn-epyc-2core-2026-11-28.json"
    panels = fit_panels(json.loads(result.read_text()))
    shipped = {point.label for point in panels["all"]["shipped"]}
    assert shipped == {"high", "auto", "medium", "low"}
    drawn = tmp_path / "curves.svg"
    assert curve_drawing.main([str(result), str(drawn)]) == 0
    assert drawn.read_text() == (ROOT / "docs/drawings/end-of-turn-curves.svg").read_text()
