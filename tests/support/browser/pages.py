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

FADE_MS = 6
"""After the last sample before a gap or the end, in ms: 5, rounded up."""

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


def correlations(heard: npt.NDArray[Any], sent: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Normalized cross-correlation of `sent` with each stretch of `heard`, -1..1."""
    size = 1 << int(np.ceil(np.log2(len(heard) + len(sent))))
    heard = heard.astype(np.float64)
    sent = sent.astype(np.float64)
    products = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(sent, size)), size)
    energy = np.concatenate([[0.0], np.cumsum(heard**2)])
    numerators = products[: max(1, len(heard) - len(sent) + 1)]
    windows = energy[len(sent) :][: len(numerators)] - energy[: len(numerators)]
    scale = np.sqrt(np.maximum(windows, 1e-3 * windows.max()) * np.sum(sent**2))
    return np.asarray(numerators / scale, dtype=np.float64)


def correlation(heard: npt.NDArray[Any], sent: npt.NDArray[Any]) -> float:
    """Highest normalized cross-correlation of `sent` with any stretch of `heard`, 0..1."""
    return float(np.max(correlations(heard, sent)))


def check_played(
    heard: npt.NDArray[Any], sent: npt.NDArray[Any], rate_hz: int, num_gaps: int
) -> None:
    """Raise AssertionError unless `heard` is each sample of `sent` once and in order, in silence,
    with silence inserted in at most `num_gaps` places. Both at `rate_hz`; `sent` is noise."""
    ms = rate_hz // 1000
    num_sounding = int(np.count_nonzero(np.abs(heard) > 1e-6))
    longest = len(sent) + (num_gaps + 1) * FADE_MS * ms
    assert len(sent) - ms <= num_sounding <= longest + ms, (num_sounding, len(sent), num_gaps)

    block = 20 * ms
    lags: list[int] = []
    for start in range(0, len(sent) - block + 1, block):
        alike = correlations(heard, sent[start : start + block])
        if alike.max() > 0.98:
            lags.append(int(np.argmax(alike)) - start)
    num_blocks = len(sent) // block
    assert len(lags) >= num_blocks - 2 * num_gaps, f"{num_blocks - len(lags)} blocks are missing"
    assert len(lags) > num_blocks / 2, f"{num_gaps} gaps hide what was played"
    steps = np.diff(lags)
    assert np.all(steps >= 0), f"out of order: {lags}"
    assert np.count_nonzero(steps) <= num_gaps, f"more than {num_gaps} gaps: {lags}"


def tone(seconds: float) -> Pcm:
    """A quiet hum at 24 kHz, for replies whose sound does not matter."""
    t = np.arange(int(seconds * WIRE_RATE_HZ)) / WIRE_RATE_HZ
    return np.asarray(2_000 * np.sin(2 * np.pi * 220 * t), dtype=np.int16)


def noise(seconds: float) -> Pcm:
    """Noise below 8 kHz at 24 kHz: loud nearly everywhere, and no two stretches are alike."""
    spectrum = np.fft.rfft(np.random.default_rng(7).normal(size=int(seconds * WIRE_RATE_HZ)))
    spectrum[int(8_000 * seconds) :] = 0
    wave = np.fft.irfft(spectrum)
    return np.asarray(12_000 * wave / np.abs(wave).max(), dtype=np.int16)


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
