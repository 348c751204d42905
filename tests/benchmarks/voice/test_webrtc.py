"""`halfsec bench webrtc`: the words understood, the report, the gates, a run with a server."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.errors import BenchError
from benchmarks.callers.lossy_line import DatagramPath, LineQuality
from benchmarks.signals.recordings import TurnRecording
from benchmarks.voice import webrtc
from benchmarks.voice.harness import HeldCall
from tests.support.models import model_path

pytestmark = pytest.mark.slow

RECORDINGS = Path(__file__).parents[2] / "recordings"


def row(*turns: tuple[str, str, float | None]) -> webrtc.RowCalls:
    """Calls of a turn each: name of the recording, transcript, ms at the ear."""
    calls = webrtc.RowCalls()
    for name, text, e2e_ms in turns:
        recording = TurnRecording(Path(f"{name}.wav"), np.zeros(8, np.int16), 16_000, None)
        spoken = SpokenTurn(1, np.zeros(0, np.int16), 0)
        spoken.caller_text, spoken.e2e_ear_ms = text, e2e_ms
        calls.held.append(HeldCall([recording], [spoken]))
    return calls


TEXTS = {"known": "All circuits are busy now."}
OTHER = "Change to which folder?"


def result_of(clean_ms: float | None, worst_text: str) -> dict[str, Any]:
    """Two turns in each row: of one recording the text is known."""
    heard = "All circuits are busy now"
    calls = {name: row(("known", heard, 500.0), ("other", OTHER, 520.0)) for name in ROWS}
    calls[webrtc.CLEAN.name] = row(("known", heard, clean_ms), ("other", OTHER, clean_ms))
    calls[webrtc.WORST.name] = row(("known", worst_text, 600.0), ("other", OTHER, None))
    path = DatagramPath(webrtc.WORST, 1)
    for number in range(200):
        path.arrival_ns(number * 20_000_000)
    calls[webrtc.WORST.name].paths.append(path)
    turns = webrtc.understood(calls, TEXTS)
    rows = {name: webrtc.figures(each, turns[name]) for name, each in calls.items()}
    return {"machine": "a machine", "date": "today", "rows": rows}


ROWS = (webrtc.SOCKET, *(line.name for line in webrtc.LINES))


def test_lines() -> None:
    assert [(line.loss, line.jitter_ms) for line in webrtc.LINES] == [
        (0.0, 0.0),
        (0.01, 60.0),
        (0.03, 60.0),
        (0.05, 60.0),
    ]


def test_words_are_compared_with_the_text_else_with_those_over_the_socket() -> None:
    calls = {
        webrtc.SOCKET: row(("known", "all circuits", 1.0), ("other", OTHER, 1.0), ("dumb", "", 1)),
        "line": row(("known", "busy", 1.0), ("other", "", None), ("dumb", "words", 1.0)),
    }
    turns = webrtc.understood(calls, TEXTS)
    assert [(turn.recording, turn.said, turn.heard) for turn in turns["line"]] == [
        ("known", TEXTS["known"], "busy"),
        ("other", OTHER, ""),
    ]
    assert [turn.heard for turn in turns[webrtc.SOCKET]] == ["all circuits", OTHER]
    figures = webrtc.figures(calls["line"], turns["line"])
    assert figures["words"] == {"words": 9, "errors": 8, "rate": 8 / 9}


def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of(530.0, "All circuits busy now")
    webrtc.show(result)
    told = capsys.readouterr().out.splitlines()
    (worst,) = (line for line in told if line.startswith(webrtc.WORST.name))
    packets = result["rows"][webrtc.WORST.name]["packets"]
    assert 0 < packets["lost"] < packets["packets"] == 200
    shown = worst.removeprefix(webrtc.WORST.name).split()
    assert shown[:4] == ["2", "1", "600", "600"]
    assert shown[6:10] == ["9", "1", "11.1", "%"]
    assert shown[10:] == ["200", str(packets["lost"]), str(packets["overtaken"])]


def test_gates() -> None:
    good = result_of(560.0, "All circuits are busy now.")
    assert webrtc.missed_gates(good, 60.0, 2.0) == []
    slow = webrtc.missed_gates(result_of(561.0, TEXTS["known"]), 60.0, 2.0)
    assert slow == ["GATE MISSED: p50 of the clean line over the WebSocket's: 61.0 ms > 60 ms"]
    deaf = webrtc.missed_gates(result_of(500.0, "All circuits busy now"), 60.0, 2.0)
    assert deaf == [
        "GATE MISSED: word error rate with 5 % lost over the clean line's: 11.1 points > 2 points"
    ]
    assert len(webrtc.missed_gates(result_of(None, ""), 60.0, 2.0)) == 2


def test_texts_lie_beside_the_recordings_or_in_a_file(tmp_path: Path) -> None:
    texts = webrtc.find_texts([RECORDINGS / "vm-changeto.wav"], None)
    assert texts["vm-changeto"] == "Change to which folder?"
    assert webrtc.find_texts([tmp_path], None) == {}
    given = tmp_path / "texts.txt"
    given.write_text("conf-locked: This conference is locked!\nvm-changeto: Change.\n")
    found = webrtc.find_texts([RECORDINGS], given)
    assert webrtc.with_text([RECORDINGS], found, 3) == [RECORDINGS / "conf-locked.wav"]
    with pytest.raises(BenchError, match="no recording has a text of 5 words"):
        webrtc.with_text([RECORDINGS], found, 5)
    with pytest.raises(BenchError, match="not readable as transcripts"):
        webrtc.find_texts([RECORDINGS], tmp_path / "missing.json")


@pytest.mark.models
def test_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn over the socket, and on two lines."""
    lines = (webrtc.CLEAN, LineQuality(webrtc.WORST.name, 0.05, 60.0))
    monkeypatch.setattr(webrtc, "LINES", lines)
    for name in ("whisper-tiny.en", "smollm2-135m-instruct", "silero-vad"):
        model_path(name)
    saved = tmp_path / "webrtc.json"
    one = RECORDINGS / "vm-nobodyavail.wav"
    gates = ["--gate-p50-over", "1e9", "--gate-words-over", "1e9"]
    status = webrtc.main([str(one), "--turns", "1", *gates, "--json", str(saved), "--note", "none"])
    result = json.loads(saved.read_text())
    assert list(result["rows"]) == [webrtc.SOCKET, *(line.name for line in lines)]
    for row in result["rows"].values():
        assert (row["summary"]["turns"], row["missed"], row["errors"]) == (1, 0, [])
        (turn,) = row["transcripts"]
        assert turn["said"] == "Nobody is available to take your call at the moment."
        assert row["words"]["words"] == 10
        assert row["words"]["errors"] <= 5, "most words are understood"
        assert row["stages"]["endpoint"]["exposed_ms"] > 0
    packets = {name: row["packets"]["packets"] for name, row in result["rows"].items()}
    assert packets[webrtc.SOCKET] == packets[webrtc.CLEAN.name] == 0
    assert packets[webrtc.WORST.name] > 100
    assert (status, result["note"]) == (0, "none")
    assert "WebSocket" in capsys.readouterr().out
