"""Barge-ins and missed gates as `bench web` counts them."""

from typing import Any

import numpy as np
import pytest

from agent.errors import BenchError
from benchmarks.callers.browser import PageSound, find_browser
from benchmarks.voice.web import BargeIn, WebFigures, compare, find_barge_in, show, verdicts

pytestmark = pytest.mark.slow

RATE_HZ = 1000
"""So that a sample is a millisecond."""


def sound(played: list[tuple[int, int]], captured: list[tuple[int, int]]) -> PageSound:
    """Loud in these stretches, for ten seconds."""
    channels = []
    for stretches in (played, captured):
        channel = np.zeros(10 * RATE_HZ, np.float32)
        for first, end in stretches:
            channel[first:end] = 0.1
        channels.append(channel)
    return PageSound(channels[0], channels[1], RATE_HZ, 0.0)


def duck(frame: int) -> dict[str, Any]:
    return {"type": "halfsec.duck", "frame": frame}


def test_a_barge_in_lasts_from_the_voice_to_the_last_sound() -> None:
    spoken_over = sound([(1000, 2300), (5000, 6000)], [(2000, 2900)])
    found = find_barge_in(spoken_over, 1900, [duck(1500), duck(2150), duck(5100)])
    assert found == BargeIn(ducked_ms=150.0, silent_ms=299.0)
    assert found.stopped_ms == 150.0
    assert find_barge_in(spoken_over, 1900, []) == BargeIn(None, 299.0)


def test_pauses_between_words_are_no_silence() -> None:
    spoken_over = sound([(1000, 2100), (2300, 2600), (3000, 4000)], [(2000, 2900)])
    assert find_barge_in(spoken_over, 0, []) == BargeIn(None, 599.0)


def test_who_speaks_after_the_agent_interrupts_nobody() -> None:
    assert find_barge_in(sound([(1000, 1500), (4000, 5000)], [(2000, 2900)]), 0, []) is None
    assert find_barge_in(sound([(1000, 1500)], []), 0, []) is None


def figures(**changes: Any) -> WebFigures:
    turn = {"recorded_ms": 480.0, "page_ms": 481.0, "dashboard_ms": 481.0}
    return WebFigures(turns=[turn], barge_ins=[BargeIn(200.0, 900.0)], **changes)


def test_what_holds_misses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(pages={"/": {"kB": 60.0, "usable_ms": 400.0}})
    assert verdicts(found) == []
    show(found)
    assert "60 kB loaded, usable after 400 ms" in capsys.readouterr().out


def test_gates_are_missed_by_what_is_late_apart_thrown_or_not_measured() -> None:
    late = figures()
    late.barge_ins.append(BargeIn(None, 251.0))
    late.turns.append({"recorded_ms": None, "page_ms": 500.0, "dashboard_ms": 521.0})
    late.console.append("TypeError: x is undefined")
    barge_ins, turns, thrown = verdicts(late)
    assert "1 of 2 barge-ins" in barge_ins
    assert "1 of 2 turns" in turns
    assert "TypeError: x is undefined" in thrown
    assert len(verdicts(WebFigures())) == 2


def test_answers_are_compared_where_both_sides_know_the_same() -> None:
    with pytest.raises(ValueError, match="the page tells of 1 answers, the dashboard of 2"):
        compare([480.0, 500.0], [480.0], [480.0, 500.0])
    assert compare([480.0, 30.0], [481.0], [481.0]) == [
        {"recorded_ms": None, "page_ms": 481.0, "dashboard_ms": 481.0}
    ]


def test_without_a_browser_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFSEC_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(BenchError, match=r"there is no /nowhere/chromium.*HALFSEC_CHROMIUM"):
        find_browser()
