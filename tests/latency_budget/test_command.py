"""`python -m latency_budget` and its benchmark, as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.latency.ledger_cost import measure
from latency_budget import ManualClock, Mark, MarkName, SessionId, TraceWriter, TurnId
from latency_budget.__main__ import main

ROOT = Path(__file__).parents[2]
MS = 1_000_000


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    """Two turns; the first answered after 300 ms, the second never."""
    trace = TraceWriter(
        SessionId("call-1"), started_unix_ns=0, config_fingerprint="f", max_records=5
    )
    trace.append(0, "event", 0, "session_started")
    for turn, name, at_ms in (
        (1, "caller_last_voiced", 1000),
        (1, "audio_received", 1020),
        (1, "released", 1300),
        (2, "caller_last_voiced", 5000),
        (2, "audio_received", 5020),
    ):
        trace.append_mark(Mark(TurnId(turn), MarkName(name), at_ms * MS))
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(trace.lines()))
    return path


def test_text(trace_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace_path), "--width", "70"]) == 0
    printed = capsys.readouterr().out
    assert "session call-1" in printed
    assert "the first 1 records of the session are not in this trace" in printed
    assert "turn 1: 300.0 ms at the server" in printed
    assert "turn 2: not answered" in printed
    assert "2 turns, 1 answered" in printed
    assert "turn 1: ? predicted, ready after " in printed


def test_json(trace_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["session", "turns", "summary", "errors", "policy"]
    assert [turn["turn"] for turn in report["policy"]["turns"]] == [1, 2]
    assert [turn["e2e_server_ms"] for turn in report["turns"]] == [300.0, None]
    assert report["summary"]["p50"] == 300.0


def test_the_newest_turns_of_a_trace(trace_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace_path), "--json", "--last", "1"]) == 0
    assert [turn["turn"] for turn in json.loads(capsys.readouterr().out)["turns"]] == [2]
    assert main([str(trace_path), "--profile", "cpu"]) == 2
    assert "only a store has turns to choose from" in capsys.readouterr().err


def test_as_a_program_on_a_terminal_without_blocks(trace_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "latency_budget", str(trace_path)],
        cwd=ROOT,
        env={"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "turn 1: 300.0 ms" in done.stdout


def test_a_reader_that_went_away_is_no_error(trace_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "latency_budget", str(trace_path)],
        cwd=ROOT,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: the trace is empty"),
        (b"RIFF\xff\xfe\x00\x00WAVEfmt ", "not UTF-8 text, so this is not a trace"),
        (b"\x00" * (3 << 20), "line 1: longer than 1048576 characters: not a trace"),
        (b"hello\n", "line 1: not JSON, so this is not a trace"),
        (None, "the trace holds no marks: no turn was timed in this session"),
    ],
)
def test_what_is_no_trace_gives_one_line_and_status_2(
    trace_path: Path, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    header = trace_path.read_bytes().splitlines(keepends=True)[0]
    trace_path.write_bytes(header if content is None else content)
    assert main([str(trace_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"{trace_path}: {message}\n"


def test_a_truncated_trace_is_refused(trace_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace_path.write_bytes(trace_path.read_bytes()[:-15])
    assert main([str(trace_path)]) == 2
    assert "line 6: cut off in the middle of a record" in capsys.readouterr().err


def test_a_missing_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_the_benchmark_reads_only_the_clock_it_is_given() -> None:
    assert measure(ManualClock(), rounds=3) == (0, 0)
