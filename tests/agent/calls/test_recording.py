"""Whole sessions in virtual time, and what is in the recordings of them, sample for sample."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from agent.calls.call import stretch_ns
from agent.calls.recording import HEADER_BYTES, Recorder
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.turn_taking import events as ev
from latency_budget.account.clock import ManualClock
from latency_budget.storage.retention import NS_PER_DAY
from tests.support.full_disk import files_limited_to
from tests.support.session.overlap_call import begin, listen
from tests.support.session.session_call import call_with
from tests.support.session.virtual_time import run

RATE_HZ = 24_000
MS = 1_000_000
FRAME = 480
"""20 ms."""
REPLY = "Your table for two is booked for nine. You will sit by the window tonight."
CHAR_SAMPLES = 1200
Int16 = npt.NDArray[np.int16]


def noise(num_samples: int, seed: int = 1) -> Int16:
    return np.random.default_rng(seed).integers(-9000, 9000, num_samples).astype(np.int16)


def read(path: Path) -> Int16:
    sound, rate_hz = soundfile.read(path, dtype="int16")
    assert rate_hz == RATE_HZ
    return np.asarray(sound)


def runs(channel: Int16) -> list[tuple[int, int]]:
    """First sample and length of each stretch of sound."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (channel != 0).astype(int), [0]])))
    return [(int(first), int(end - first)) for first, end in edges.reshape(-1, 2)]


class Taped:
    """A session in virtual time whose caller sends audio all along, and its recording."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.recorder = Recorder(directory, clock)
        self.recording = self.recorder.begin("sess_a")
        self.words = noise(RATE_HZ * 30)
        self.began_ns = clock.now_ns()

    async def feed(self, call: Any) -> None:
        """Frames of 20 ms in real time; the disk is written all along."""
        for first in range(0, len(self.words), FRAME):
            await asyncio.sleep(0.02)
            await call.session.handle(ask.AppendAudio(self.words[first : first + FRAME], RATE_HZ))
            if first % (RATE_HZ // 2) == 0:
                self.recorder.step()

    def finish(self) -> Int16:
        self.recording.end(self.clock.now_ns())
        self.recorder.step()
        return read(self.recording.path)

    def sample(self, at_ns: int) -> int:
        return round((at_ns - self.began_ns) * RATE_HZ / 1e9)


def test_barge_in_is_recorded_as_the_caller_heard_it(tmp_path: Path) -> None:
    """The reply stops in the file where the caller spoke over it, and the next one lies where it
    was played, though much more had been sent."""
    found: list[tuple[Taped, Int16, int, int, list[Any]]] = []

    async def test(clock: ManualClock) -> None:
        tape = Taped(tmp_path, clock)
        async with (
            call_with(REPLY, "Sure.", clock=clock, recording=tape.recording) as call,
            asyncio.TaskGroup() as group,
        ):
            listen(call)
            feeding = group.create_task(tape.feed(call))
            await asyncio.sleep(1)
            call.ears.say("Is it booked?")
            await call.until(say.ReplyAudio)
            released_ns = clock.now_ns()
            await asyncio.sleep(1.7)
            number = begin(call, "No, wait, cancel it.")
            await call.until(say.ReplyEnded)
            cut_ns = clock.now_ns()
            await asyncio.sleep(0.5)
            call.ears.hear(ev.SpeechPaused(number, 16_000))
            call.ears.hear(ev.SilenceGrew(number, 5000))
            await call.until(say.ReplyEnded, 2)
            await asyncio.sleep(2)
            feeding.cancel()
            turns = list(call.turns)
        found.append((tape, tape.finish(), released_ns, cut_ns, turns))

    run(test)
    ((tape, sound, released_ns, cut_ns, turns),) = found
    num_fed = len(sound)
    assert np.array_equal(sound[:, 0], tape.words[:num_fed])
    first, second = runs(sound[:, 1])
    assert abs(first[0] - tape.sample(released_ns)) <= 1
    assert abs(first[1] - round((cut_ns - released_ns) * RATE_HZ / 1e9)) <= 1
    assert second[1] == len("Sure.") * CHAR_SAMPLES
    assert len(REPLY) * CHAR_SAMPLES > first[1] + RATE_HZ
    at_ns = stretch_ns(turns[0])
    assert at_ns is not None
    place = tape.sample(at_ns[0]), tape.sample(at_ns[1])
    assert place[0] <= first[0]
    assert sum(first) <= place[1] <= second[0]


def test_reply_is_placed_at_the_reported_playback_time(tmp_path: Path) -> None:
    found: list[tuple[Taped, Int16, int]] = []

    async def test(clock: ManualClock) -> None:
        tape = Taped(tmp_path, clock)
        async with (
            call_with(REPLY, clock=clock, recording=tape.recording) as call,
            asyncio.TaskGroup() as group,
        ):
            listen(call)
            feeding = group.create_task(tape.feed(call))
            await asyncio.sleep(1)
            call.ears.say("Is it booked?")
            (started,) = await call.until(say.ReplyStarted)
            assert isinstance(started, say.ReplyStarted)
            await call.until(say.ReplyAudio)
            released_ns = clock.now_ns()
            await asyncio.sleep(0.29)
            await call.session.handle(ask.PlaybackReport(started.item_id, 200))
            await call.until(say.ReplyEnded)
            await asyncio.sleep(2)
            feeding.cancel()
        found.append((tape, tape.finish(), released_ns))

    run(test)
    ((tape, sound, released_ns),) = found
    ((first, length),) = runs(sound[:, 1])
    assert abs(first - tape.sample(released_ns) - 90 * RATE_HZ // 1000) <= 1
    assert length == len(REPLY) * CHAR_SAMPLES


def test_lost_connection_ends_the_recorded_reply(tmp_path: Path) -> None:
    found: list[tuple[Taped, Int16, int, int]] = []

    async def test(clock: ManualClock) -> None:
        tape = Taped(tmp_path, clock)
        async with call_with(REPLY, clock=clock, recording=tape.recording) as call:
            await call.session.handle(ask.AppendAudio(tape.words[:FRAME], RATE_HZ))
            call.ears.say("Is it booked?")
            await call.until(say.ReplyAudio)
            released_ns = clock.now_ns()
            await asyncio.sleep(1)
            call.session.client_lost()
            lost_ns = clock.now_ns()
            await asyncio.sleep(1)
        found.append((tape, tape.finish(), released_ns, lost_ns))

    run(test)
    ((_, sound, released_ns, lost_ns),) = found
    ((_, length),) = runs(sound[:, 1])
    assert abs(length - round((lost_ns - released_ns) * RATE_HZ / 1e9)) <= 1


def recorded(directory: Path, seconds: list[float], max_file_bytes: int | None) -> Recorder:
    """A recorder whose call has this much of the caller's sound, written piece by piece; the disk
    is full from the second piece on, or from the first where there is one only."""
    clock = ManualClock(10**12)
    recorder = Recorder(directory, clock)
    recording = recorder.begin("sess_full")
    for place, length_s in enumerate(seconds):
        recording.caller(noise(int(length_s * RATE_HZ)), RATE_HZ, clock.now_ns())
        clock.advance_ms(length_s * 1000)
        is_last = place == len(seconds) - 1
        if is_last:
            recording.end(clock.now_ns())
        full = is_last and max_file_bytes is not None
        with files_limited_to(max_file_bytes or 0) if full else contextlib.nullcontext():
            recorder.step()
    return recorder


@pytest.mark.parametrize("max_file_bytes", [0, 20, 44, 1000])
def test_a_full_disk_leaves_no_recording_without_sound(tmp_path: Path, max_file_bytes: int) -> None:
    recorder = recorded(tmp_path, [1], max_file_bytes)
    assert list(tmp_path.iterdir()) == []
    assert "can't be written" in (recorder.problem or "")
    assert recorder.find("sess_full") is None


@pytest.mark.parametrize("more_bytes", [0, 1, 1000])
def test_a_recording_on_a_disk_that_fills_up_is_whole(tmp_path: Path, more_bytes: int) -> None:
    recorded(tmp_path / "whole", [20], None)
    all_of_it = read(tmp_path / "whole" / "sess_full.wav")
    clock = ManualClock(10**12)
    recorder = Recorder(tmp_path / "full", clock)
    recording = recorder.begin("sess_full")
    sound = noise(20 * RATE_HZ)
    path = tmp_path / "full" / "sess_full.wav"
    for half in (sound[: 10 * RATE_HZ], sound[10 * RATE_HZ :]):
        recording.caller(half, RATE_HZ, clock.now_ns())
        clock.advance_ms(10_000)
        if path.exists():
            recording.end(clock.now_ns())
            with files_limited_to(path.stat().st_size + more_bytes):
                recorder.step()
        else:
            recorder.step()
    assert path.stat().st_mode & 0o777 == 0o600
    part = read(path)
    assert 0 < len(part) < len(all_of_it)
    assert np.array_equal(part, all_of_it[: len(part)])
    assert path.stat().st_size == HEADER_BYTES + part.nbytes


def test_a_clock_that_steps_ahead_deletes_a_week_of_recordings_at_most(tmp_path: Path) -> None:
    now_ns = 20_000 * NS_PER_DAY
    for age in range(20):
        path = tmp_path / f"sess_{age}.wav"
        path.touch()
        os.utime(path, ns=(now_ns - age * NS_PER_DAY,) * 2)
    ahead_ns = now_ns + 40 * NS_PER_DAY
    Recorder(tmp_path, ManualClock(), max_days=20, wall_ns=lambda: ahead_ns).step()
    kept = {path.stem for path in tmp_path.iterdir()}
    assert kept == {f"sess_{age}" for age in range(14)}
