"""Whole sessions in virtual time, and what is in the recordings of them, sample for sample."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

from agent.calls.call import stretch_ns
from agent.calls.recording import Recorder
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.turn_taking import events as ev
from latency_budget.account.clock import ManualClock
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
