"""The recording that a real server makes of a real call, against the accounts of the same call."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from agent.__main__ import main
from agent.calls.recording import Recorder
from benchmarks.voice.stereo_latency import FRAME_S, read_turns
from latency_budget.account.clock import SystemClock
from tests.support.service.live import LiveServer
from tests.support.service.live_call import RECORDINGS

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

SAID: Final = RECORDINGS / "vm-savefolder.wav"


@pytest.fixture
def recorder(
    live: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Recorder]:
    """Of the calls that begin from here on."""
    made = Recorder(tmp_path / "calls", SystemClock())
    monkeypatch.setattr(live.calls, "recorder", made)
    made.start()
    yield made
    made.close()


def test_recording_agrees_with_the_turn_records(
    live: LiveServer, recorder: Recorder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Measured in the file by what knows nothing of the accounts, the wait is the one at the
    caller's ear, but for the frames in which a voice ends softly."""
    assert main(["talk", str(SAID), "--url", live.url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    live.settle()
    recorder.close()
    path = f"/v1/sessions/{told['session']}/recording"
    with httpx.Client(timeout=60, base_url=live.http, trust_env=False) as http:
        answer = http.get(path)
        (turn,) = http.get(f"/v1/latency/turns?session={told['session']}").json()["turns"]
    assert answer.status_code == 200
    file = tmp_path / "heard.wav"
    file.write_bytes(answer.content)
    (measured,) = read_turns(file).turns
    difference_s = measured.waited_ms / 1000 - told["turns"][0]["e2e_ear_ms"] / 1000
    assert abs(difference_s) <= 2 * FRAME_S
    assert turn["recording"]["from_s"] <= measured.voiced_s
    assert measured.onset_s <= turn["recording"]["to_s"]
