"""The dashboard and the fake server behind it, as pytest fixtures.

Register both modules: `pytest_plugins = ["tests.support.browser.fixtures",
"tests.support.browser.latency_fixtures"]`.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser.fake_latency import FakeLatency
from tests.support.browser.fixtures import Watched
from tests.support.browser.pages import Launch, Open


@pytest.fixture(scope="module")
def chromium(launch: Launch) -> Browser:
    return launch()


@pytest.fixture
def latency() -> Iterator[FakeLatency]:
    fake = FakeLatency()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def dashboard(chromium: Browser, latency: FakeLatency) -> Iterator[Open]:
    """Opens it and checks, at the end, that it stayed quiet and kept to its server."""
    opened: list[tuple[Page, Watched, bool]] = []

    def start(address: str = "", *, expect_errors: bool = False, **options: Any) -> Page:
        look = {"viewport": {"width": 1280, "height": 800}, **options}
        page = chromium.new_context(**look).new_page()
        opened.append((page, Watched(page), expect_errors))
        page.goto(f"{latency.url}dashboard{address}")
        return page

    yield start
    for page, watch, expect_errors in opened:
        page.context.close()
        assert expect_errors or watch.errors == []
        assert [url for url in watch.requests if latency.url not in url] == []
