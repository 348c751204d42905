"""Reported latencies compared with a recording: a scripted call as a file, the comparison, the
report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from agent.client import events as ev
from agent.client.simulated_caller.stereo_recording import stereo
from benchmarks.voice.stereo_check import (
    Account,
    StereoCall,
    missed_stereo,
    recorded_call,
    show_stereo,
    stereo_figures,
)
from benchmarks.voice.stereo_latency import FileTurn, FileTurns
from tests.support.session.scripted_call import (
    ANSWERED,
    MS,
    RATE_HZ,
    Scene,
    Script,
    audio,
    done,
    heard,
    loud,
    speech,
)
from tests.support.session.scripted_call import started as begun


async def test_each_sample_stands_where_it_was_spoken_or_played(tmp_path: Path) -> None:
    scene = Scene(ANSWERED)
    async with scene.running() as caller:
        await caller.ask(speech(400), RATE_HZ)
    sound = stereo(caller.microphone, caller.loudspeaker)
    assert caller.microphone.started_ns == 5 * MS
    assert sound[:9600, 0].tolist() == speech(400).tolist()
    assert not sound[9600:, 0].any()
    # Its 10 ms of silence arrive with frame 29, at 605 ms: 600 after the microphone's beginning.
    first = RATE_HZ * 610 // 1000
    assert not sound[:first, 1].any()
    assert (sound[first : first + RATE_HZ * 140 // 1000, 1] == 5000).all()
    call = recorded_call(caller, tmp_path / "call-001.wav")
    written, rate_hz = soundfile.read(tmp_path / "call-001.wav", dtype="int16")
    assert (rate_hz, written.tolist()) == (RATE_HZ, sound.tolist())
    (turn,) = call.found.turns
    assert turn.waited_ms == pytest.approx(210)
    (account,) = call.accounts
    assert account.client_ms == 210
    assert account.onset_s == pytest.approx(0.61)
    assert account.report is not None
    assert account.report["turn"] == 7


async def test_a_reply_that_was_stopped_is_silent_in_the_file() -> None:
    script: Script = {
        29: [begun(), audio(loud(2000))],
        51: [heard, done(1, "cancelled", "turn_detected")],
    }
    scene = Scene(script)
    async with scene.running() as caller:
        caller.say(np.concatenate([speech(400), np.zeros(24_000, np.int16)]), RATE_HZ)
        await caller.wait_quiet(2.0)
    played = np.flatnonzero(stereo(caller.microphone, caller.loudspeaker)[:, 1])
    assert (played[0], played[-1]) == (RATE_HZ * 6 // 10, RATE_HZ * 104 // 100 - 1)


async def test_sound_from_before_the_microphone_is_cut_off() -> None:
    scene = Scene({})
    scene.caller.loudspeaker.push("r", "i", loud(20), RATE_HZ, 0)
    async with scene.running() as caller:
        await caller.wait_quiet(0.1)
    sound = stereo(caller.microphone, caller.loudspeaker)
    assert np.flatnonzero(sound[:, 1])[-1] == RATE_HZ * 15 // 1000 - 1


async def test_where_a_pause_was_taken_for_the_end_it_is_not_guessed_whose_account_it_is(
    tmp_path: Path,
) -> None:
    def told(now: int) -> ev.ClientEvent:
        return ev.TurnReport({"turn": 2, "stages": {}}, now)

    script: Script = {
        29: [begun(), audio(loud(100)), done()],
        40: [begun(2), audio(loud(100), 2), done(2), told],
    }
    scene = Scene(script)
    async with scene.running() as caller:
        await caller.ask(speech(400), RATE_HZ)
    call = recorded_call(caller, tmp_path / "call.wav")
    assert [account.report for account in call.accounts] == [None, None]


def report(turn: int, endpoint_ms: float, transport_ms: float, **more: Any) -> dict[str, Any]:
    stages = {
        "endpoint": {"spent_ms": endpoint_ms, "exposed_ms": endpoint_ms},
        "transport": {"spent_ms": transport_ms, "exposed_ms": transport_ms},
    }
    whole = {"turn": turn, "e2e_ear_ms": endpoint_ms + transport_ms, "cut_in": False}
    return {**whole, "stages": stages, **more}


def test_what_agrees_what_differs_and_what_cannot_be_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turns = tuple(
        FileTurn(onset - waited, onset, False)
        for onset, waited in [(5, 0.5), (10, 0.4), (15, 0.3), (20, 0.6), (25, 0.5), (30, 0.5)]
    )
    accounts = [
        Account(1, 5.001, 501, report(1, 470, 15)),
        Account(2, 10, 401, report(2, 425, 10)),
        Account(3, 15, None, report(3, 0, 0)),
        Account(4, 20, 600, report(4, 590, 0, e2e_ear_ms=None)),
        Account(5, 25, 500, None),
        Account(6, 28, 500, report(6, 490, 10)),
    ]
    figures = stereo_figures([StereoCall("a.wav", FileTurns(turns, (31.0,), (1.0,)), accounts)])
    assert figures is not None
    assert [row["difference_ms"] for row in figures["turns"]] == pytest.approx([-15, 35])
    assert [row["client_difference_ms"] for row in figures["turns"]] == pytest.approx([1, 1])
    assert (figures["compared"], figures["within_20_ms"]) == (2, 1)
    assert figures["difference_ms"]["p50"] == pytest.approx(15)
    assert figures["difference_ms"]["max"] == pytest.approx(35)
    why = [row["why"] for row in figures["not_compared"]]
    for at_s, reason in zip(
        (15, 20, 25, 30, 28, 31, 1),
        ("a cut-in", "no report of playback", "took a pause", "no reply", "no answer there",
         "no answer followed", "the agent spoke first"),
        strict=True,
    ):  # fmt: skip
        (row,) = [row for row in figures["not_compared"] if row["at_s"] == at_s]
        assert reason in row["why"]
    assert len(why) == 7
    show_stereo(figures)
    printed = capsys.readouterr().out
    for part in ("-15.0", "+35.0", "not compared: a cut-in", "1 of 2 turns", "35.0 (most)"):
        assert part in printed
    assert missed_stereo(figures, 35) == []
    assert missed_stereo(figures, 20) == [
        "GATE MISSED: 1 of 2 turns agree with the recording within 20 ms; 95 % have to"
    ]


def test_nothing_recorded() -> None:
    assert stereo_figures([]) is None
    assert missed_stereo(None, None) == []
    assert missed_stereo(None, 20) != [], "a gate on nothing is missed"
    silent = stereo_figures([StereoCall("a.wav", FileTurns((), (), ()), [])])
    assert missed_stereo(silent, 20) != []
    show_stereo(None)
    show_stereo(silent)


def test_one_turn_in_twenty_may_differ() -> None:
    turns = tuple(FileTurn(at - 0.5, at, False) for at in range(1, 21))
    accounts = [Account(at, at, 500, report(at, 500, 0)) for at in range(1, 21)]
    accounts[3] = Account(4, 4, 500, report(4, 600, 0))
    figures = stereo_figures([StereoCall("a.wav", FileTurns(turns, (), ()), accounts)])
    assert missed_stereo(figures, 20) == []
    accounts[4] = Account(5, 5, 500, report(5, 600, 0))
    figures = stereo_figures([StereoCall("a.wav", FileTurns(turns, (), ()), accounts)])
    assert missed_stereo(figures, 20) != []
