"""Chromium under Playwright, with a microphone that plays recordings and a sound recorder.

Playwright is no part of the service: `pip install 'halfsec[dev]'` brings it.
"""

import base64
import contextlib
import json
import os
import shutil
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from agent.errors import BenchError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

HERE: Final = Path(__file__).parent
RECORDER: Final = HERE / "browser_recorder.js"
RECORDER_WORKLET: Final = HERE / "browser_recorder_worklet.js"
MICROPHONE: Final = HERE / "browser_microphone.js"

FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-features=HttpsUpgrades",
)
AUTOPLAY: Final = "--autoplay-policy=no-user-gesture-required"

Sound = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PageSound:
    """Sound that a page played and sound of its microphone, on one time axis."""

    played: Sound
    """float32 [n], given to the output device."""
    captured: Sound
    """float32 [n], taken from the microphone."""
    rate_hz: int
    latency_s: float
    """Output latency in s from the device to the loudspeaker, as the browser reports it."""


def find_browser() -> Path:
    """Path of Chromium: HALFSEC_CHROMIUM, or the system's. Raises BenchError."""
    named = os.environ.get("HALFSEC_CHROMIUM")
    found = [named] if named else [shutil.which(name) for name in NAMES]
    for path in found:
        if path is not None and Path(path).exists():
            return Path(path)
    reason = f"there is no {named}" if named else "none of " + ", ".join(NAMES) + " is installed"
    raise BenchError(
        f"No browser: {reason}. Install one (Debian: apt-get install chromium), or name it in "
        "HALFSEC_CHROMIUM."
    )


@contextlib.contextmanager
def chromium(*flags: str) -> Iterator["Browser"]:
    """Run a browser for the length of the block. Raises BenchError."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        reason = "No Playwright, which drives the browser: pip install playwright"
        raise BenchError(reason) from None
    path = find_browser()
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=path,
                args=[*FLAGS, AUTOPLAY, *flags],
                ignore_default_args=["--mute-audio"],
            )
        except Error as error:
            raise BenchError(f"{path} does not start: {error.message}") from None
        with contextlib.closing(browser):
            yield browser


def recording_context(browser: "Browser", **options: Any) -> "BrowserContext":
    """Browser context whose pages are recorded. Servers don't serve the recorder: it comes in a
    data address, past the pages' content security policy."""
    context = browser.new_context(bypass_csp=True, **options)
    code = RECORDER_WORKLET.read_text(encoding="utf-8")
    address = "data:text/javascript," + urllib.parse.quote(code)
    context.add_init_script(script=f"globalThis.recorderUrl = {json.dumps(address)};")
    context.add_init_script(path=RECORDER)
    return context


def recorded(page: "Page") -> PageSound:
    """Everything recorded of a page so far."""
    played, captured = (_samples(page, name) for name in ("recordedChunks", "capturedChunks"))
    num = min(len(played), len(captured))
    rate_hz = page.evaluate("globalThis.recordedRate ?? 0")
    latency_s = page.evaluate(
        "globalThis.recordedContext?.outputLatency || globalThis.recordedContext?.baseLatency || 0"
    )
    return PageSound(played[:num], captured[:num], int(rate_hz), float(latency_s))


def _samples(page: "Page", name: str) -> Sound:
    text = page.evaluate(
        """(name) => {
            let text = '';
            for (const chunk of globalThis[name]) {
                text += String.fromCharCode(...new Uint8Array(chunk.buffer));
            }
            return btoa(text);
        }""",
        name,
    )
    return np.frombuffer(base64.b64decode(text), dtype=np.float32)


def speak(page: "Page", wav: bytes) -> None:
    """Play `wav` into the microphone of a page with MICROPHONE injected. Returns at its end."""
    page.evaluate("(sound) => globalThis.speak(sound)", base64.b64encode(wav).decode())
