"""`halfsec bench web`: the pages in a real browser whose microphone plays recordings.

All sound is recorded at the browser's loudspeaker and microphone, on one time axis
(`benchmarks/callers/browser_recorder.js`), and compared with the figures that the two pages show.
The gates: a caller who interrupts hears the agent stop within 250 ms, each time; the page, the
dashboard and the recording agree on each wait within 20 ms. Also printed: the kilobytes that each
page loads, and the time until it can be used.
"""

import argparse
import io
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import numpy as np
import soundfile

from agent.client.simulated_caller.summary import percentiles_ms
from agent.errors import BenchError
from benchmarks.callers.browser import (
    MICROPHONE,
    PageSound,
    chromium,
    recorded,
    recording_context,
    speak,
)
from benchmarks.callers.server_process import own_server
from benchmarks.signals.recordings import TurnRecording, find_recordings

from .options import positive
from .report import heading, in_ms, save
from .stereo_latency import AUDIBLE_SHARE, find_turns, first_voiced

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BARGE_IN_MS: Final = 250.0
AGREES_MS: Final = 20.0

DASHBOARD: Final = "dashboard"
USABLE: Final = {
    "": "!document.querySelector('#talk').disabled",
    DASHBOARD: "!document.querySelector('#head').hasAttribute('aria-busy')",
}
"""JavaScript expression by path: true once the page can be used."""

WARM_MS: Final = 180_000
ANSWER_MS: Final = 20_000
BARGE_IN_AFTER_MS: Final = 900
"""Time in ms of a reply that is heard before the caller speaks over it."""
LISTENING: Final = "body[data-phase=listening]"
SPEAKING: Final = "body[data-phase=speaking]"
EVERY: Final = 3
"""Interval of barge-ins: every third recording is said over the answer to the one before."""
SILENT_S: Final = 0.3
"""Silence in s that ends a sound; pauses between words are shorter."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BargeIn:
    """Times in ms from the caller's first voiced sample over the agent to the agent's stop."""

    ducked_ms: float | None
    """Time until the agent was turned down; None if it was silenced at once."""
    silent_ms: float | None
    """Time until the last audible sample; None if the reply continued to its end."""

    @property
    def stopped_ms(self) -> float | None:
        """Time until what a caller perceives as the stop."""
        known = [ms for ms in (self.ducked_ms, self.silent_ms) if ms is not None]
        return min(known, default=None)


@dataclass(slots=True)
class WebFigures:
    """Figures of the two pages."""

    pages: dict[str, Json] = field(default_factory=dict)
    """Kilobytes loaded and ms until the page could be used, by path."""
    turns: list[Json] = field(default_factory=list)
    """`{recorded_ms, page_ms, dashboard_ms}` of each answer that all three hold. Words said over an
    answer have no `recorded_ms`."""
    not_compared: list[str] = field(default_factory=list)
    """Calls in which the pages show different numbers of answers."""
    barge_ins: list[BargeIn] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    """Errors that the pages threw."""
    sessions: set[str] = field(default_factory=set)
    """Session ids of the calls that were compared."""


def measure(address: str, calls: Sequence[Sequence[TurnRecording]]) -> WebFigures:
    """Hold the calls, one after the other, in the page at `address`. Raises BenchError."""
    from playwright.sync_api import Error

    found = WebFigures()
    with chromium() as browser:
        try:
            _note_loading(browser, address, found)
            for recordings in calls:
                _hold(browser, address, recordings, found)
        except Error as error:
            raise BenchError(f"The page did not do what was expected: {error.message}") from None
    return found


def _note_loading(browser: "Browser", address: str, found: WebFigures) -> None:
    """Measure kilobytes and time until the pages can be used, with an empty cache."""
    for path, usable in USABLE.items():
        with closing(browser.new_context()) as context:
            page = context.new_page()
            page.goto(address + path)
            page.wait_for_function(f"() => {usable}", timeout=WARM_MS)
            usable_ms = page.evaluate("performance.now()")
            loaded = page.evaluate(
                """() => performance.getEntries().reduce(
                    (sum, entry) => sum + (entry.encodedBodySize ?? 0), 0)"""
            )
            found.pages["/" + path] = {"kB": loaded / 1000, "usable_ms": usable_ms}


def _hold(
    browser: "Browser", address: str, recordings: Sequence[TurnRecording], found: WebFigures
) -> None:
    with closing(recording_context(browser, permissions=["microphone"])) as context:
        context.add_init_script(path=MICROPHONE)
        page = context.new_page()
        page.on("pageerror", lambda error: found.console.append(str(error)))
        page.goto(address)
        page.wait_for_function(f"() => {USABLE['']}", timeout=WARM_MS)
        page.get_by_role("button", name="Press and talk").click()
        began = _converse(page, recordings)
        sound = recorded(page)
        wire = page.evaluate("globalThis.wireFrames")
        found.barge_ins += [
            barge_in
            for frame in began[EVERY::EVERY]
            if (barge_in := find_barge_in(sound, frame, wire)) is not None
        ]
        answers = find_turns(sound.captured, sound.played, sound.rate_hz).turns
        waits: list[float | None] = [1000 * sound.latency_s + each.waited_ms for each in answers]
        for number in range(EVERY, len(waits), EVERY):
            waits[number] = None  # the recording also holds the previous answer, turned down
        on_page = _told_by_page(page)
        page.goto(address + DASHBOARD)  # which ends the call
        try:
            found.turns += compare(waits, on_page, _told_by_dashboard(page, found.sessions))
        except ValueError as error:
            found.not_compared.append(str(error))


def _converse(page: "Page", recordings: Sequence[TurnRecording]) -> list[int]:
    """Say the recordings, some over the previous answer. Returns the recorder's sample at which
    each began."""
    page.wait_for_selector(LISTENING)
    began = [_say(page, recordings[0])]
    for number, recording in enumerate(recordings[1:], 1):
        page.wait_for_selector(SPEAKING, timeout=ANSWER_MS)
        if number % EVERY == 0:
            page.wait_for_timeout(BARGE_IN_AFTER_MS)
        else:
            page.wait_for_selector(LISTENING, timeout=ANSWER_MS)
        began.append(_say(page, recording))
    page.wait_for_selector(SPEAKING, timeout=ANSWER_MS)
    page.wait_for_selector(LISTENING, timeout=ANSWER_MS)
    return began


def _say(page: "Page", recording: TurnRecording) -> int:
    """Say one recording to its end. Returns the recorder's sample at which it began."""
    frame = page.evaluate(
        """() => Math.round(recordedContext.currentTime * recordedRate) - firstFrame"""
    )
    wav = io.BytesIO()
    soundfile.write(wav, recording.pcm, recording.rate_hz, format="WAV", subtype="PCM_16")
    speak(page, wav.getvalue())
    return int(frame)


def _told_by_page(page: "Page") -> list[float]:
    """Waits that the page shows, in order, in ms."""
    shown = [
        row.get_attribute("data-wait-ms") for row in page.locator(".message.agent .turn").all()
    ]
    return [float(text) for text in shown if text]


def _told_by_dashboard(page: "Page", known: set[str]) -> list[float]:
    """Waits of the call that is not in `known`, in order, in ms. Adds the call to `known`."""
    page.wait_for_function(f"() => {USABLE[DASHBOARD]}", timeout=ANSWER_MS)
    page.wait_for_selector(".turn-row", timeout=ANSWER_MS)
    rows = page.evaluate(
        """() => [...document.querySelectorAll('.turns-body .turn-row')].map((row) => [
            ...row.querySelector('.turn-session').textContent.split(' · '),
            row.querySelector('.turn-wait').textContent,
        ])"""
    )
    waits = {
        int(turn): float(wait.split()[0])
        for session, turn, wait in rows
        if session not in known and wait[:1].isdigit()
    }
    known |= {session for session, _, _ in rows}
    return [waits[turn] for turn in sorted(waits)]


def find_barge_in(sound: PageSound, from_frame: int, wire: Sequence[Json]) -> BargeIn | None:
    """Find the agent's stop after the caller's first voiced sample from `from_frame` on. None if
    the agent was silent already. `wire`: `{type, frame}` of the server's events about it."""
    onset = first_voiced(sound.captured, sound.rate_hz, from_frame)
    if onset is None:
        return None
    pause = round(SILENT_S * sound.rate_hz)
    before = max(0, onset - pause)
    audible = before + np.flatnonzero(np.abs(sound.played[before:]) > AUDIBLE_SHARE)
    if not len(audible) or audible[0] >= onset:
        return None
    gaps = np.flatnonzero(np.diff(audible) > pause)
    after = [int(audible[gap]) for gap in gaps if audible[gap] >= onset] or [int(audible[-1])]
    ducks = [
        event["frame"]
        for event in wire
        if event["type"] == "halfsec.duck" and onset <= event["frame"] <= after[0]
    ]
    ms = 1000 / sound.rate_hz
    ducked_ms = (ducks[0] - onset) * ms if ducks else None
    return BargeIn(ducked_ms, max(0, after[0] - onset) * ms)


def compare(
    recorded_ms: Sequence[float | None], page_ms: Sequence[float], dashboard_ms: Sequence[float]
) -> list[Json]:
    """Row for each answer of a call. If the recording holds other answers than the pages, as with a
    reply that continued after the caller's words, it is left out of the comparison. Raises
    ValueError if the pages do not show the same answers."""
    if len(page_ms) != len(dashboard_ms):
        raise ValueError(
            f"the page tells of {len(page_ms)} answers, the dashboard of {len(dashboard_ms)}"
        )
    if len(recorded_ms) != len(page_ms):
        recorded_ms = [None] * len(page_ms)
    return [
        {"recorded_ms": heard, "page_ms": on_page, "dashboard_ms": on_dashboard}
        for heard, on_page, on_dashboard in zip(recorded_ms, page_ms, dashboard_ms, strict=True)
    ]


def verdicts(found: WebFigures) -> list[str]:
    """Gates missed, in words. A figure that was not measured misses its gate."""
    missed = []
    stopped = [each.stopped_ms for each in found.barge_ins]
    slow = [ms for ms in stopped if ms is None or ms > BARGE_IN_MS]
    if not stopped or slow:
        missed.append(
            f"{len(slow)} of {len(stopped)} barge-ins were not heard to work within "
            f"{BARGE_IN_MS:g} ms"
        )
    apart = [row for row in found.turns if abs(row["page_ms"] - row["dashboard_ms"]) > AGREES_MS]
    if not found.turns or apart:
        missed.append(
            f"page and dashboard differ by more than {AGREES_MS:g} ms in {len(apart)} of "
            f"{len(found.turns)} turns"
        )
    if found.console:
        missed.append(f"the pages' console has {len(found.console)} errors: {found.console[0]}")
    return missed


def show(found: WebFigures) -> None:
    """Print the tables."""
    for path, page in found.pages.items():
        print(f"{path:<12}{page['kB']:>7.0f} kB loaded, usable after {page['usable_ms']:.0f} ms")
    print(f"\n{'ms':<36}{'p50':>7}{'p95':>7}{'most':>7}")
    for title, values in _rows(found):
        times = percentiles_ms(values)
        most = max((ms for ms in values if ms is not None), default=None)
        print(f"{title:<36}{in_ms(times['p50']):>7}{in_ms(times['p95']):>7}{in_ms(most):>7}")
    for line in found.not_compared:
        print(f"a call was not compared: {line}")


def _rows(found: WebFigures) -> list[tuple[str, list[float | None]]]:
    turns = found.turns
    from_recording = [
        abs(row["page_ms"] - row["recorded_ms"]) for row in turns if row["recorded_ms"] is not None
    ]
    from_page = [abs(row["dashboard_ms"] - row["page_ms"]) for row in turns]
    return [
        ("last word to first sound, page", [row["page_ms"] for row in turns]),
        ("the recording's from that", list(from_recording)),
        ("the dashboard's from that", list(from_page)),
        ("barge-in, turned down after", [each.ducked_ms for each in found.barge_ins]),
        ("barge-in, silent after", [each.silent_ms for each in found.barge_ins]),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 if no gate is missed."""
    options = _parser().parse_args(argv)
    recordings = find_recordings(options.recordings, options.turns, options.seed)
    recordings = [recordings[n % len(recordings)] for n in range(options.turns)]
    step = options.turns_a_call
    calls = [recordings[start : start + step] for start in range(0, len(recordings), step)]
    with own_server(options.serve_args.split()) as server:
        found = measure(f"http://{urlsplit(server.url).netloc}/", calls)
    show(found)
    missed = verdicts(found)
    for line in missed:
        print(f"GATE MISSED: {line}")
    figures = {**asdict(found), "sessions": len(found.sessions), "missed": missed}
    save({**heading("web", vars(options)), **figures}, options.json)
    return int(bool(missed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfsec bench web",
        description="Talk to the page in a real browser, and compare what is heard with the "
        f"figures of page and dashboard. Fails if a barge-in takes more than {BARGE_IN_MS:g} ms, "
        f"or the pages differ by more than {AGREES_MS:g} ms.",
        epilog="example: halfsec bench web DIR --turns 12",
    )
    add = parser.add_argument
    add("recordings", nargs="+", type=Path, help="files or folders")
    add("--turns", type=positive, default=12, help="how many are said (%(default)s)")
    add("--turns-a-call", type=positive, default=6, help="in each call (%(default)s)")
    add("--seed", type=int, default=1, help="which recordings, in which order (%(default)s)")
    add("--serve-args", default="", help='for the server that is started: "--preset cpu"')
    add("--json", type=Path, metavar="FILE", help="save the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
