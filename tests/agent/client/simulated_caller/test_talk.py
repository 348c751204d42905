"""`halfsec talk` against the real service, and with all that can be wrong about its files."""

import json
import socket
from pathlib import Path

import numpy as np
import pytest
import soundfile

from agent.__main__ import main
from agent.cli.replay import replay
from latency_budget.reporting.trace import read_trace
from tests.support.service.live import LiveServer
from tests.support.service.live_call import RECORDINGS, overlap, recording, transcript

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

SAID = "all-circuits-busy-now"


def talk(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, list[str]]:
    """Exit status, output, and the lines of complaint."""
    status = main(["talk", *map(str, arguments)])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return status, told.out, told.err.splitlines()


def test_a_call_is_played_shown_and_saved(
    live: LiveServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """From a telephone recording: 8 kHz."""
    out, trace = tmp_path / "reply.wav", tmp_path / "trace.jsonl"
    status, text, complaints = talk(
        *(capsys, RECORDINGS / f"{SAID}.wav", "--url", live.url),
        *("--out", out, "--trace", trace),
    )
    assert (status, complaints) == (0, [])
    heard = next(line for line in text.splitlines() if line.startswith("caller: "))
    assert overlap(transcript(SAID), heard) >= 0.6
    assert "agent:  " in text
    for stage in ("endpoint", "asr", "llm_prefill", "llm_clause", "tts", "transport"):
        assert stage in text
    assert "at the ear" in text
    assert str(out) in text
    pcm, rate_hz = soundfile.read(out, dtype="int16")
    assert rate_hz == 24_000
    assert np.abs(pcm.astype(int)).max() > 1000
    with trace.open() as lines:
        assert replay(read_trace(lines)).difference is None


def test_a_report_as_json_from_studio_audio(
    live: LiveServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """48 kHz, two channels, floats beyond full scale."""
    mono = recording(SAID, 48_000).astype(np.float32) / 32768
    path = tmp_path / "studio.wav"
    soundfile.write(path, np.stack([3 * mono, 3 * mono], axis=1), 48_000, subtype="FLOAT")
    status, text, complaints = talk(capsys, path, "--url", live.url, "--json")
    assert (status, complaints) == (0, [])
    report = json.loads(text)
    assert report["session"].startswith("sess_")
    assert report["errors"] == []
    (turn,) = report["turns"]
    assert overlap(transcript(SAID), turn["caller_text"]) >= 0.6
    assert turn["agent_text"]
    assert turn["reply_s"] > 0.3
    assert not turn["cut_in"]
    assert turn["e2e_ear_ms"] > 0
    assert turn["stages"]["tts"].keys() == {"spent_ms", "exposed_ms"}
    summary = report["summary"]
    assert (summary["turns"], summary["answered"]) == (1, 1)
    assert summary["p50"] == pytest.approx(turn["e2e_ear_ms"])
    print(f"{turn['e2e_ear_ms']:.0f} ms at the ear, {turn['e2e_server_ms']:.0f} ms at the server")


def test_silence_is_not_answered(
    live: LiveServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "silence.wav"
    soundfile.write(path, np.zeros(8_000, np.int16), 8_000)
    status, text, complaints = talk(capsys, path, "--url", live.url, "--agent", "pirate")
    assert (status, complaints) == (1, [])
    assert "was not answered" in text
    assert "agent:  Ahoy" in text


def test_unknown_agent_is_reported(
    live: LiveServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "silence.wav"
    soundfile.write(path, np.zeros(8_000, np.int16), 8_000)
    _, _, (line,) = talk(capsys, path, "--url", live.url, "--agent", "pirat")
    assert line.startswith("The server has no agent 'pirat', so its default one answered.")
    assert line.endswith("Did you mean pirate?")


# --- what can't be played ---


def write_bad(directory: Path, kind: str) -> Path:
    path = directory / f"{kind.replace(' ', '-')}.wav"
    whole = (RECORDINGS / f"{SAID}.wav").read_bytes()
    match kind:
        case "no wav":
            path.write_text("This is a letter, not a recording.\n" * 40)
        case "zero bytes":
            path.write_bytes(b"")
        case "no samples":
            soundfile.write(path, np.zeros(0, np.int16), 8_000)
        case "only a header":
            path.write_bytes(whole[:20])
        case "a directory":
            path.mkdir()
    return path


@pytest.mark.parametrize(
    "kind", ["no wav", "zero bytes", "no samples", "only a header", "a directory", "missing"]
)
def test_a_file_that_is_no_recording(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    path = write_bad(tmp_path, kind)
    status, _, (line,) = talk(capsys, path, "--url", "ws://127.0.0.1:9/")
    assert status == 2
    assert str(path) in line


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = RECORDINGS / f"{SAID}.wav"
    url = f"ws://127.0.0.1:{port}/v1/realtime"
    status, _, (line,) = talk(capsys, path, "--url", url, "--wait", 0)
    assert status == 2
    assert str(port) in line
    assert "running" in line


def test_waiting_is_reported_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.client.call.RETRY_S", 0.0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"ws://127.0.0.1:{port}/v1/realtime"
    options = ("--url", url, "--wait", 0.5)
    status, _, (waiting, error) = talk(capsys, RECORDINGS / f"{SAID}.wav", *options)
    assert status == 2
    assert "Waiting up to 0.5 s." in waiting
    assert error.startswith("halfsec: Nothing listens")


def test_the_server_of_the_settings_is_called_where_none_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("PORT", str(port))
    status, _, (line,) = talk(capsys, RECORDINGS / f"{SAID}.wav", "--wait", 0)
    assert status == 2
    assert f"ws://127.0.0.1:{port}/v1/realtime" in line
    assert "--url" in line


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1/", "ws://127.0.0.1:notaport/"])
def test_no_address(capsys: pytest.CaptureFixture[str], url: str) -> None:
    status, _, (line,) = talk(capsys, RECORDINGS / f"{SAID}.wav", "--url", url)
    assert status == 2
    assert url in line


@pytest.mark.parametrize("option", ["--out", "--trace"])
@pytest.mark.parametrize("place", ["no/such/directory/reply.wav", "."])
def test_what_can_not_be_written_is_said_before_the_call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, place: str
) -> None:
    path = tmp_path / place
    status, _, (line,) = talk(
        capsys, RECORDINGS / f"{SAID}.wav", "--url", "ws://127.0.0.1:9/", option, path
    )
    assert status == 2
    assert str(path) in line
    assert "write" in line
