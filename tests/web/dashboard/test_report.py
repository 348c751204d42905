"""The report's page in a real browser: from a file, in every size and scheme, under any policy.

The pictures land in the test's folder, or in HALFSEC_PICTURES, to be looked at by people.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from latency_budget.__main__ import main
from latency_budget.reporting.html_charts import COLOURS
from tests.latency_budget.test_thresholds import run, store_of
from tests.support.browser.pages import Launch
from tests.web.test_pictures import LOOKS, contrast

pytest_plugins = ["tests.support.browser.fixtures"]
pytestmark = pytest.mark.browser

STYLE = Path(__file__).parents[3] / "latency_budget" / "reporting" / "html_report.css"
SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1120, "height": 760}},
    "phone": {"viewport": {"width": 390, "height": 780}, "has_touch": True},
}


@pytest.fixture(scope="module")
def chromium(launch: Launch) -> Browser:
    return launch()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With everything in it."""
    folder = tmp_path_factory.mktemp("report")
    first = store_of(folder / "first.sqlite", run(450, 60, 60, 1))
    second = store_of(folder / "second.sqlite", run(480, 60, 60, 2))
    target = folder / "report.html"
    gate = "e2e.p95<=500 cutin<=0.02"
    assert main([str(first), "--compare", str(second), "--gate", gate, "--html", str(target)]) == 1
    return target


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context()
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_it_looks_right(
    chromium: Browser, path: Path, tmp_path: Path, size: str, scheme: str
) -> None:
    look: dict[str, Any] = {"color_scheme": scheme, **SIZES[size]}
    context = chromium.new_context(**look)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    folder = Path(os.environ.get("HALFSEC_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"report-{size}-{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert said == []
    assert asked == [path.as_uri()]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(247, 246, 243)" if scheme == "light" else "rgb(18, 21, 20)")
    for bar in page.locator("figure rect.in-time").all():
        box = bar.bounding_box()
        assert box is not None
        assert box["height"] > 0
    context.close()


def test_the_drawing_is_to_scale(page: Page, path: Path) -> None:
    """The line of the budget stands between the bars on its two sides."""
    page.goto(path.as_uri())
    figure = page.locator("figure svg").first
    line = figure.locator("line").bounding_box()
    assert line is not None
    for bar in figure.locator("g").all():
        found = re.match(r"(\d+)", bar.locator("title").text_content() or "")
        box = bar.bounding_box()
        if found is not None and box is not None and box["height"]:
            is_left = box["x"] + box["width"] / 2 < line["x"]
            assert is_left == (int(found[1]) < 500)


def test_all_of_it_is_reached_by_keyboard(page: Page, path: Path) -> None:
    page.goto(path.as_uri())
    reached = []
    for _ in range(page.locator("a, summary, [tabindex]").count()):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') ??"
                          " document.activeElement.textContent")
        )  # fmt: skip
    assert reached[:2] == ["Gate", "Summary"]
    assert "From the caller's last word to the first audible sound of the answer, in ms" in reached
    place = reached.index("First run. The bars as a table")
    page.evaluate("document.activeElement.blur()")
    page.goto(path.as_uri())
    for _ in range(place + 1):
        page.keyboard.press("Tab")
    rows = page.locator("details").first.locator("tbody tr").first
    expect(rows).to_be_hidden()
    page.keyboard.press("Enter")
    expect(rows).to_be_visible()


def test_a_policy_that_forbids_its_style_leaves_drawings_and_tables(page: Page, path: Path) -> None:
    def serve(route: Route) -> None:
        headers = {"content-security-policy": "default-src 'none'"}
        route.fulfill(path=path, content_type="text/html", headers=headers)

    page.route("http://halfsec.test/report.html", serve)
    page.goto("http://halfsec.test/report.html")
    assert page.evaluate("getComputedStyle(document.body).marginTop") == "8px", "the sheet is off"
    assert page.evaluate(
        "document.querySelector('rect.in-time').getBoundingClientRect().height > 0"
    )
    assert page.evaluate("getComputedStyle(document.querySelector('rect.late')).fill") == (
        "rgb(179, 64, 14)"
    )
    expect(page.get_by_role("table").first).to_be_visible()


def test_words_can_be_read_in_both_schemes() -> None:
    style = STYLE.read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    )
    for scheme in (light, light | dark):
        for ground in ("ground", "surface"):
            for ink in ("ink", "ink-soft", "accent", "good", "bad"):
                assert contrast(scheme[ink], scheme[ground]) >= 4.5, (ink, ground)
    brighter = set(re.findall(r"(?m)^  \.(\w+) \{\n    fill", style))
    assert brighter == {stage.value for stage in COLOURS} - {"capture"}
