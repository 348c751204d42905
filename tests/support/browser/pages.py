"""Shared parts of the page tests: flags of the browser, and the page's own sound."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Browser, Locator, Page, expect

from benchmarks.callers import browser as chromium
from tests.clients.peers import environment
from tests.support.browser.fake_server import WEB_DEMO, WIRE_RATE_HZ, FakeCall, Pcm

SAMPLE = WEB_DEMO / "sample-question.wav"

INSECURE_HOST = "halfsec.test"
"""Resolves to this machine but is not localhost, so the browser does not trust plain http."""

AUTOPLAY = chromium.AUTOPLAY
FAKE_DEVICE = "--use-fake-device-for-media-stream"
ALLOW = "--use-fake-ui-for-media-stream"
DENY = "--use-fake-ui-for-media-stream=deny"

Launch = Callable[..., Browser]
Open = Callable[..., Page]


def recording(page: Page) -> tuple[npt.NDArray[np.float32], int]:
    """All the page gave to the loudspeaker: float32 [n], and its rate in Hz."""
    sound = chromium.recorded(page)
    return sound.played, sound.rate_hz


def correlation(heard: npt.NDArray[Any], sent: npt.NDArray[Any]) -> float:
    """Highest normalized cross-correlation of `sent` with any stretch of `heard`, 0..1."""
    size = 1 << int(np.ceil(np.log2(len(heard) + len(sent))))
    heard = heard.astype(np.float64)
    sent = sent.astype(np.float64)
    products = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(sent, size)), size)
    energy = np.concatenate([[0.0], np.cumsum(heard**2)])
    numerators = products[: max(1, len(heard) - len(sent) + 1)]
    windows = energy[len(sent) :][: len(numerators)] - energy[: len(numerators)]
    scale = np.sqrt(np.maximum(windows, 1e-3 * windows.max()) * np.sum(sent**2))
    return float(np.max(numerators / scale))


def tone(seconds: float) -> Pcm:
    """A quiet hum at 24 kHz, for replies whose sound does not matter."""
    t = np.arange(int(seconds * WIRE_RATE_HZ)) / WIRE_RATE_HZ
    return np.asarray(2_000 * np.sin(2 * np.pi * 220 * t), dtype=np.int16)


def remembering(open_page: Open, **preferences: Any) -> Page:
    """The page in a browser that remembers these."""
    page = open_page()
    stored = json.dumps(preferences)
    page.evaluate("(text) => localStorage.setItem('halfsec.settings', text)", stored)
    page.reload()
    expect(page.locator("#server")).to_have_text("Ready")
    return page


def settings_of(page: Page) -> Locator:
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog", name="Settings")
    expect(dialog).to_be_visible()
    return dialog


def talk(page: Page) -> Locator:
    return page.locator("#talk")


def updates(call: FakeCall) -> list[dict[str, Any]]:
    """Fields that were set, without the type that stands in each."""
    found = [dict(event["session"]) for event in call.of_type("session.update")]
    assert {each.pop("type") for each in found} <= {"realtime"}
    return found


def axe_violations(page: Page) -> list[str]:
    """Violations that axe-core finds on the page as it stands, a line each: the rule, and where."""
    there = environment(Path(__file__).parent)
    page.add_script_tag(path=there / "node_modules" / "axe-core" / "axe.min.js")
    found = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{each['id']}: {' | '.join(str(node['html']) for node in each['nodes'])}" for each in found
    ]


def head_figure(page: Page, name: str) -> str:
    """Text of the dashboard's head row, once it has any."""
    value = page.locator(f'#head [data-figure="{name}"] .value')
    expect(value).not_to_have_text("\N{EN DASH}")
    return value.inner_text()


def shown_turns(page: Page) -> list[str]:
    """The dashboard's rows in sight and a few beyond, as "session · turn", from the top."""
    return page.locator(".turns-body .turn-session").all_inner_texts()
