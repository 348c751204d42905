"""Chromium, the fake server and a page, as pytest fixtures.

Register with `pytest_plugins = ["tests.support.browser.fixtures"]`. Playwright's own loop lives
only as long as the module, so that asynchronous tests of other modules are not disturbed.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from agent.errors import BenchError
from benchmarks.callers.browser import FLAGS, RECORDER, find_browser
from tests.support.browser.fake_server import WAIT_S, FakeServer
from tests.support.browser.pages import (
    ALLOW,
    AUTOPLAY,
    FAKE_DEVICE,
    INSECURE_HOST,
    SAMPLE,
    Launch,
    Open,
)

NAMES = f"--host-resolver-rules=MAP {INSECURE_HOST} 127.0.0.1"


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    """Starts Chromium with further flags. Skips where there is none, or fails if it must be."""
    try:
        path = find_browser()
    except BenchError as error:
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
    expect.set_options(timeout=1000 * WAIT_S)
    with sync_playwright() as playwright:
        browsers: list[Browser] = []

        def start(*flags: str) -> Browser:
            browser = playwright.chromium.launch(
                executable_path=path,
                args=[*FLAGS, NAMES, *flags],
                ignore_default_args=["--mute-audio"],
            )
            browsers.append(browser)
            return browser

        yield start
        for browser in browsers:
            browser.close()


@pytest.fixture(scope="module")
def spoken_question(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sound of the fake microphone: a second of silence, then the sample question, 48 kHz."""
    pcm, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    speech = soxr.resample(pcm, rate_hz, 48_000)
    path = tmp_path_factory.mktemp("microphone") / "question.wav"
    padded = np.concatenate([np.zeros(48_000), speech, np.zeros(48_000)])
    soundfile.write(path, padded, 48_000, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def browser(launch: Launch, spoken_question: Path) -> Browser:
    """Browser whose microphone plays the sample question, with permission to use it."""
    capture = f"--use-file-for-fake-audio-capture={spoken_question}%noloop"
    return launch(AUTOPLAY, FAKE_DEVICE, ALLOW, capture)


@pytest.fixture(scope="module")
def talking_browser(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """Browser whose microphone asks the sample question every ten seconds."""
    pcm, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    speech = soxr.resample(pcm, rate_hz, 48_000)
    path: Path = tmp_path_factory.mktemp("microphone") / "question.wav"
    sound = np.concatenate([np.zeros(48_000 * 2), speech, np.zeros(48_000 * 6)])
    soundfile.write(path, sound, 48_000, subtype="PCM_16")
    return launch(AUTOPLAY, FAKE_DEVICE, ALLOW, f"--use-file-for-fake-audio-capture={path}")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    fake.start()
    yield fake
    fake.stop()
    assert fake.script_errors == []


class Watched:
    """Fail if a page wrote errors to the console or asked another host for anything."""

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)


@pytest.fixture
def open_page(browser: Browser, server: FakeServer) -> Iterator[Open]:
    """Opens the page and checks, at the end, that it stayed quiet and kept to its server."""
    contexts: list[BrowserContext] = []
    watched: list[tuple[Watched, bool]] = []

    def start(
        url: str | None = None,
        *,
        using: Browser | None = None,
        expect_errors: bool = False,
        **options: Any,
    ) -> Page:
        context = (using or browser).new_context(**options)
        contexts.append(context)
        context.add_init_script(path=RECORDER)
        page = context.new_page()
        watched.append((Watched(page), expect_errors))
        page.goto(url or server.url)
        return page

    yield start
    for context in contexts:
        context.close()
    for watch, expect_errors in watched:
        assert expect_errors or watch.errors == []
        own = (f"127.0.0.1:{server.port}/", f"{INSECURE_HOST}:{server.port}/")
        assert [url for url in watch.requests if not url.split("//")[1].startswith(own)] == []
