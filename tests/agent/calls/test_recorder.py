"""Recordings as files: whole at any moment, and nothing wrong with a disk is felt by a call."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.calls import recording as call_recording
from agent.calls.recording import MAX_WAITING_S, PROBE_EVERY, CallRecording, Recorder
from agent.session.ports.playback import Outgoing, Playback
from latency_budget.account.clock import ManualClock
from tests.agent.calls.test_recording import FRAME, MS, RATE_HZ, Int16, noise, read
from tests.support.full_disk import files_limited_to


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(5_000 * MS)


@pytest.fixture
def recorder(tmp_path: Path, clock: ManualClock) -> Iterator[Recorder]:
    made = Recorder(tmp_path / "calls", clock)
    yield made
    for recording in made._open.values():
        recording.end(clock.now_ns())
    made.step()


def feed(recording: CallRecording, clock: ManualClock, seconds: float) -> Int16:
    """A caller's words, in real time."""
    words = noise(round(seconds * RATE_HZ))
    for first in range(0, len(words), FRAME):
        clock.advance_ms(20)
        recording.caller(words[first : first + FRAME], RATE_HZ, clock.now_ns())
    return words


def test_file_is_always_valid_and_private_to_its_owner(
    recorder: Recorder, clock: ManualClock
) -> None:
    recording = recorder.begin("sess_a")
    words = np.zeros(0, np.int16)
    for _ in range(12):
        words = np.concatenate([words, feed(recording, clock, 0.5)])
        recorder.step()
        if recording.path.exists():
            so_far = read(recording.path)
            assert len(words) - 3.1 * RATE_HZ < len(so_far) < len(words)
            assert np.array_equal(so_far[:, 0], words[: len(so_far)])
    assert recorder.is_open(recording.path)
    recording.end(clock.now_ns())
    recorder.step()
    assert np.array_equal(read(recording.path)[:, 0], words)
    assert not recorder.is_open(recording.path)
    assert recording.path.stat().st_mode & 0o077 == 0
    assert recording.path.parent.stat().st_mode & 0o077 == 0


def test_file_of_a_killed_process_is_readable(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from tests.agent.calls.test_recorder import MS, ManualClock, Recorder, feed
clock = ManualClock(5_000 * MS)
recorder = Recorder(Path({str(tmp_path)!r}), clock)
recording = recorder.begin("sess_a")
for _ in range(10):
    feed(recording, clock, 1)
    recorder.step()
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3])
    assert killed.returncode == -signal.SIGKILL
    assert 6 * RATE_HZ <= len(read(tmp_path / "sess_a.wav")) <= 10 * RATE_HZ


def test_call_without_audio_leaves_no_file(recorder: Recorder, clock: ManualClock) -> None:
    recording = recorder.begin("sess_a")
    recorder.step()
    recording.end(clock.now_ns())
    recorder.step()
    assert not recording.path.exists()
    assert recorder.find("sess_a") is None
    assert not recorder.is_open(recording.path)


def test_a_recording_ends_at_its_largest_size(tmp_path: Path, clock: ManualClock) -> None:
    recorder = Recorder(tmp_path, clock, max_mb=1)
    recording = recorder.begin("sess_a")
    for _ in range(8):
        words = feed(recording, clock, 2)
        recorder.step()
    assert len(words)
    assert len(read(recording.path)) == 250_000
    assert recording.is_over
    assert recording.stretch(clock.now_ns(), clock.now_ns()) is None
    assert recorder.problem is None


def test_full_disk_ends_only_the_recording(
    recorder: Recorder, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    recording = recorder.begin("sess_a")
    feed(recording, clock, 6)
    recorder.step()
    so_far = read(recording.path)
    feed(recording, clock, 1)
    with files_limited_to(recording.path.stat().st_size):
        recorder.step()
    assert recorder.problem is not None
    assert "File too large; it ends there" in recorder.problem
    assert np.array_equal(read(recording.path), so_far)
    feed(recording, clock, 60)  # the call goes on
    assert recording.lost_s == 0
    assert recording.stretch(0, clock.now_ns()) is None
    other = recorder.begin("sess_b")
    feed(other, clock, 6)
    recorder.step()
    assert len(read(other.path))
    assert recorder.problem is None
    assert len(caplog.records) == 2


@pytest.mark.parametrize("what", ["a file", "nothing"])
def test_unwritable_directory(tmp_path: Path, clock: ManualClock, what: str) -> None:
    """Known before the first call, and forgotten once it is put right."""
    directory = tmp_path / "calls"
    if what == "a file":
        directory.write_text("")
    else:
        directory = Path("/proc/halfsec/calls")
    recorder = Recorder(directory, clock)
    recorder.step()
    assert recorder.problem is not None
    assert str(directory) in recorder.problem
    recording = recorder.begin("sess_a")
    feed(recording, clock, 6)
    recorder.step()
    assert recording.is_over
    assert "sess_a.wav can't be written" in recorder.problem
    if what == "a file":
        directory.unlink()
        for _ in range(PROBE_EVERY):
            recorder.step()
        assert recorder.problem is None
        assert list(directory.iterdir()) == []


def test_slow_disk_does_not_block_the_call(
    recorder: Recorder, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the thread hangs in a write a call hands its sound over all the same, and what finds
    no room is missing as silence."""
    is_writing, may_go_on = threading.Event(), threading.Event()
    append = call_recording._WaveFile.append

    def slow(self: Any, sound: Int16) -> None:
        is_writing.set()
        assert may_go_on.wait(30)
        append(self, sound)

    monkeypatch.setattr(call_recording._WaveFile, "append", slow)
    recording = recorder.begin("sess_a")
    words = feed(recording, clock, 6)
    thread = threading.Thread(target=recorder.step)
    thread.start()
    assert is_writing.wait(30)
    words = np.concatenate([words, feed(recording, clock, MAX_WAITING_S + 10)])
    assert recording.lost_s == pytest.approx(10, abs=0.1)
    assert recorder.problem is not None
    assert "written too slowly: 10 s of sound are missing" in recorder.problem
    assert len(recording._steps) <= MAX_WAITING_S * 50 + 1
    may_go_on.set()
    thread.join(30)
    recorder.step()
    words = np.concatenate([words, feed(recording, clock, 5)])
    recording.end(clock.now_ns())
    recorder.step()
    sound = read(recording.path)[:, 0]
    assert len(sound) == len(words)
    assert np.array_equal(sound[-5 * RATE_HZ :], words[-5 * RATE_HZ :])
    kept = np.count_nonzero(sound == words) / RATE_HZ
    assert kept == pytest.approx(6 + MAX_WAITING_S + 5, abs=0.1)
    assert recorder.problem is None


def test_many_tiny_frames_take_no_more_memory(recorder: Recorder, clock: ManualClock) -> None:
    recording = recorder.begin("sess_a")
    playback = Playback(RATE_HZ, 400)
    for _ in range(10_000):
        recording.caller(noise(1), RATE_HZ, clock.now_ns())
        recording.agent(playback, Outgoing(noise(1), 0, clock.now_ns(), None))
        recording.heard(playback, 0, 0)
        recording.cut(playback, 0)
    assert len(recording._steps) <= MAX_WAITING_S * 100 + 1


@pytest.fixture
def wall() -> Callable[[], int]:
    return lambda: 1_800_000_000 * 10**9


def test_only_old_recordings_are_deleted(
    tmp_path: Path, clock: ManualClock, wall: Callable[[], int]
) -> None:
    day_s = 86_400
    recorder = Recorder(tmp_path, clock, max_days=30, wall_ns=wall)
    for name, days in (
        ("sess_old.wav", 31), ("sess_new.wav", 29), ("sess_live.wav", 31), ("notes.wav", 400),
        ("sess_old.txt", 400), ("sess_4.wav", 4), ("sess_old.20261126T204512Z.wav", 31),
        ("sess_new.20261126T204512Z.wav", 29), ("sess_old.mine.wav", 400),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(b"x")
        at_s = wall() // 10**9 - days * day_s
        os.utime(tmp_path / name, (at_s, at_s))
    recorder.begin("sess_live")
    recorder.step()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        "sess_4.wav", "sess_new.wav", "sess_live.wav", "notes.wav", "sess_old.txt",
        "sess_new.20261126T204512Z.wav", "sess_old.mine.wav",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["../keys", "..", "", "a/b", "a.wav", "x" * 65, "a\0b", "sess_é"])
def test_names_can_not_leave_the_directory(recorder: Recorder, tmp_path: Path, name: str) -> None:
    (tmp_path / "keys.wav").write_bytes(b"secret")
    (tmp_path / "calls").mkdir()
    assert recorder.find(name) is None


@pytest.fixture
def running(recorder: Recorder) -> Iterator[Recorder]:
    recorder.start()
    yield recorder
    recorder.close()


def test_shutdown_writes_the_remaining_audio(running: Recorder, clock: ManualClock) -> None:
    recording = running.begin("sess_a")
    words = feed(recording, clock, 2)
    running.close()
    assert np.array_equal(read(recording.path)[:, 0], words)
