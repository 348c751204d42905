"""The caller of recordings, on a clock turned by hand and a call that is a script."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import numpy.typing as npt
import pytest

from agent import client_events as ev
from agent.caller import Caller
from agent.client_errors import CallEndedError
from latency_budget.clock import ManualClock

MS = 1_000_000
RATE_HZ = 24_000
Int16 = npt.NDArray[np.int16]

Script = dict[int, list[Callable[[int], ev.ClientEvent]]]
"""What the server sends when it gets frame n (from 0), given the time."""


class ScriptedCall:
    """Stands for `agent.client.Call`."""

    extensions = True
    input_rate_hz = RATE_HZ

    def __init__(self, clock: ManualClock, script: Script) -> None:
        self.frames: list[tuple[int, Int16]] = []
        self.reports: list[tuple[int, str, int]] = []
        self.truncated: list[tuple[str, int]] = []
        self.cancelled: list[int] = []
        """Before which frames."""
        self._clock = clock
        self._script = script
        self._events: asyncio.Queue[ev.ClientEvent] = asyncio.Queue()

    async def events(self) -> AsyncIterator[ev.ClientEvent]:
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, ev.Closed):
                return

    async def send_audio(self, pcm: Int16, rate_hz: int) -> None:
        assert rate_hz == RATE_HZ
        for event in self._script.get(len(self.frames), []):
            self._events.put_nowait(event(self._clock.now_ns()))
        self.frames.append((self._clock.now_ns() // MS, pcm))

    async def report_playback(self, item_id: str, played_ms: int) -> None:
        self.reports.append((self._clock.now_ns() // MS, item_id, played_ms))

    async def truncate(self, item_id: str, audio_end_ms: int) -> None:
        self.truncated.append((item_id, audio_end_ms))

    async def cancel(self) -> None:
        self.cancelled.append(len(self.frames))


class Scene:
    """A caller on a scripted call; time passes as the caller sleeps."""

    def __init__(self, script: Script, *, extensions: bool = True, late_ms: int = 0) -> None:
        self.clock = ManualClock(5 * MS)
        self.call = ScriptedCall(self.clock, script)
        self.call.extensions = extensions
        self.seen: list[ev.ClientEvent] = []
        self._late_ms = late_ms
        self.caller = Caller(
            self.call, clock=self.clock, sleep=self.sleep, on_event=self.seen.append
        )

    async def sleep(self, seconds: float) -> None:
        for advance_ms in (0, seconds * 1000 + self._late_ms):
            self.clock.advance_ms(advance_ms)
            for _ in range(20):  # let everything else happen at this point in time
                await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Caller]:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.caller.run())
            yield self.caller
            self.caller.stop()


def speech(ms: int, rate_hz: int = RATE_HZ) -> Int16:
    count = rate_hz * ms // 1000
    return (np.sin(np.arange(count) * 2 * np.pi * 300 / rate_hz) * 8000).astype(np.int16)


def loud(ms: int) -> Int16:
    return np.full(RATE_HZ * ms // 1000, 5000, np.int16)


def started(number: int = 1) -> Callable[[int], ev.ClientEvent]:
    return lambda now: ev.ReplyStarted(f"r{number}", now)


def audio(pcm: Int16, number: int = 1) -> Callable[[int], ev.ClientEvent]:
    return lambda now: ev.ReplyAudio(f"r{number}", f"i{number}", pcm, RATE_HZ, now)


def done(
    number: int = 1, status: str = "completed", reason: str | None = None
) -> Callable[[int], ev.ClientEvent]:
    return lambda now: ev.ReplyDone(f"r{number}", status, reason, "Yes.", None, {}, now)


def heard(now: int) -> ev.ClientEvent:
    return ev.SpeechStarted("u1", 0, now)


def understood(now: int) -> ev.ClientEvent:
    return ev.Transcript("u1", "hello", now)


def report(now: int) -> ev.ClientEvent:
    turn = {"turn": 7, "e2e_server_ms": 90.0, "paced_ms": 30.0, "stages": {"asr": {}}}
    return ev.TurnReport(turn, now)


ANSWERED: Script = {
    2: [heard],
    # 400 ms of speech are frames 0..19; the reply comes with frame 29.
    29: [understood, started(), audio(np.zeros(240, np.int16)), audio(loud(100))],
    32: [audio(loud(40)), done(), report],
}


async def test_an_exchange_is_timed_at_the_ear() -> None:
    scene = Scene(ANSWERED)
    async with scene.running() as caller:
        exchange = await caller.ask(speech(400), RATE_HZ)
    # Speech begins with the first frame at 5 ms and its last sample is spoken at 405; frame 29 is
    # sent at 605, its answer plays 10 ms of silence first.
    assert exchange.started_ns == 5 * MS
    assert exchange.last_voiced_ns == 405 * MS
    assert exchange.e2e_ear_ms == 210.0
    assert not exchange.cut_in
    assert not exchange.interrupted
    assert exchange.turn_json() == {
        "turn": 7,
        "caller_text": "hello",
        "agent_text": "Yes.",
        "e2e_ear_ms": 210.0,
        "e2e_server_ms": 90.0,
        "e2e_raw_ms": 180.0,
        "paced_ms": 30.0,
        "opener": False,
        "cut_in": False,
        "interrupted": False,
        "stages": {"asr": {}},
        "reply_s": pytest.approx(0.15),
    }
    assert len(caller.loudspeaker.recording(RATE_HZ)) == 240 + 2400 + 960 + 1
    assert [type(event) for event in scene.seen][:2] == [ev.SpeechStarted, ev.Transcript]


async def test_frames_leave_every_20_ms_from_the_start_and_then_silence() -> None:
    scene = Scene(ANSWERED)
    async with scene.running() as caller:
        await caller.ask(speech(395), RATE_HZ)
    times = [at_ms for at_ms, _ in scene.call.frames]
    assert times == [25 + 20 * n for n in range(len(times))]
    sent = np.concatenate([pcm for _, pcm in scene.call.frames])
    assert sent[:9480].tolist() == speech(395).tolist()
    assert not sent[9480:].any()
    assert {len(pcm) for _, pcm in scene.call.frames} == {480}


async def test_a_clock_that_oversleeps_does_not_drift() -> None:
    scene = Scene(ANSWERED, late_ms=7)
    async with scene.running() as caller:
        await caller.ask(speech(400), RATE_HZ)
    times = [at_ms for at_ms, _ in scene.call.frames]
    assert times == [25 + 7 + 20 * n for n in range(len(times))]


async def test_recordings_of_another_rate_are_brought_to_the_calls() -> None:
    scene = Scene(ANSWERED)
    async with scene.running() as caller:
        exchange = await caller.ask(speech(400, 8_000), 8_000)
    assert len(exchange.pcm) == 9600
    assert exchange.last_voiced_ns == 405 * MS


async def test_silence_behind_the_speech_does_not_move_the_last_voiced_sample() -> None:
    scene = Scene(ANSWERED)
    async with scene.running() as caller:
        exchange = await caller.ask(
            np.concatenate([speech(400), np.zeros(12_000, np.int16)]), RATE_HZ
        )
    assert exchange.last_voiced_ns == 405 * MS


async def test_an_answer_into_the_speech_is_a_cut_in() -> None:
    script: Script = {
        2: [heard],
        10: [started(), audio(loud(40))],
        12: [heard, done(1, "cancelled", "turn_detected")],
        29: [started(2), audio(loud(100), 2), done(2)],
    }
    scene = Scene(script)
    async with scene.running() as caller:
        exchange = await caller.ask(speech(400), RATE_HZ)
    assert exchange.cut_in
    assert exchange.interrupted
    assert exchange.replies == ["r1", "r2"]
    assert exchange.e2e_ear_ms == 200.0


async def test_a_barge_in_silences_the_loudspeaker_and_says_how_far_it_got() -> None:
    script: Script = {
        29: [started(), audio(loud(2000))],
        51: [heard, done(1, "cancelled", "turn_detected")],
        70: [started(2), audio(loud(60), 2), done(2)],
    }
    scene = Scene(script)
    async with scene.running() as caller:
        caller.say(np.concatenate([speech(400), np.zeros(24_000 * 6 // 10, np.int16)]), RATE_HZ)
        second = await caller.ask(speech(300), RATE_HZ)
    first = caller.exchanges[0]
    # Frame 29 goes at 605 ms, frame 51 at 1045: 440 ms of the reply were heard.
    assert (1045, "i1", 440) in scene.call.reports
    assert first.reply_s == pytest.approx(0.44)
    assert first.interrupted
    assert second.replies == ["r2"]
    assert second.e2e_ear_ms == 1425.0 - (second.last_voiced_ns or 0) / MS


async def test_how_long_a_barge_in_takes_to_silence_the_loudspeaker() -> None:
    """From the first voiced sample of the caller's; a cut-in is none."""
    script: Script = {
        10: [started(), audio(loud(40))],
        12: [heard, done(1, "cancelled", "turn_detected")],
        29: [started(2), audio(loud(2000), 2)],
        51: [heard, done(2, "cancelled", "turn_detected")],
    }
    scene = Scene(script)
    pause = np.zeros(RATE_HZ * 6 // 10, np.int16)
    async with scene.running() as caller:
        first = caller.say(np.concatenate([speech(400), pause]), RATE_HZ)
        second = caller.say(np.concatenate([pause[:960], speech(300)]), RATE_HZ)
        await caller.wait_until(lambda now_ns: second.silenced_ms is not None, 3.0)
    # The second begins at 1005 ms with 40 of silence; frame 51 goes at 1045.
    assert second.onset_samples == 960
    assert second.silenced_ms == 0.0
    assert first.silenced_ms is None
    assert (first.reopened, second.reopened) == (True, False)


async def test_enough_was_heard_of_an_answer() -> None:
    """The rest of the answer is cancelled, and what is left of the recording stays unsaid."""
    script: Script = {29: [started(), audio(loud(3000))], 41: [done(1, "cancelled", None)]}
    scene = Scene(script)
    scene.caller = Caller(scene.call, clock=scene.clock, sleep=scene.sleep, cut_after_s=0.2)
    tail = np.zeros(RATE_HZ * 4, np.int16)
    async with scene.running() as caller:
        exchange = await caller.ask(np.concatenate([speech(400), tail]), RATE_HZ)
    # Audible at 605 ms; frame 39 goes at 805 and is followed by the cancel.
    assert scene.call.cancelled == [40]
    assert exchange.reply_s == pytest.approx(0.24)
    assert not exchange.interrupted
    assert exchange.answered
    assert len(scene.call.frames) < 70


async def test_an_answer_that_came_too_early_is_left_to_the_barge_in() -> None:
    script: Script = {2: [started(), audio(loud(3000))], 60: [done(1, "cancelled", None)]}
    scene = Scene(script)
    scene.caller = Caller(scene.call, clock=scene.clock, sleep=scene.sleep, cut_after_s=0.2)
    async with scene.running() as caller:
        exchange = await caller.ask(speech(1000), RATE_HZ)
    assert scene.call.cancelled == []
    assert exchange.cut_in


async def test_a_cancel_that_comes_too_late_is_no_error() -> None:
    def late(now: int) -> ev.ClientEvent:
        return ev.ServerError("Too late.", "response_cancel_not_active", None, None, now)

    script: Script = {29: [started(), audio(loud(1000))], 40: [done(), late]}
    scene = Scene(script)
    scene.caller = Caller(scene.call, clock=scene.clock, sleep=scene.sleep, cut_after_s=0.2)
    async with scene.running() as caller:
        exchange = await caller.ask(speech(400), RATE_HZ)
    assert scene.call.cancelled == [40]
    assert exchange.errors == []


async def test_where_a_label_says_that_the_speech_ends() -> None:
    scene = Scene(ANSWERED)
    async with scene.running() as caller:
        exchange = caller.say(speech(400), RATE_HZ, voiced_s=0.3)
        await caller.wait_quiet(5.0)
    assert exchange.last_voiced_ns == 305 * MS
    assert exchange.e2e_ear_ms == 310.0


async def test_without_extensions_a_barge_in_is_told_by_truncation() -> None:
    script: Script = {29: [started(), audio(loud(500))], 40: [heard, done(1, "cancelled")]}
    script[50] = [started(2), done(2)]
    scene = Scene(script, extensions=False)
    async with scene.running() as caller:
        await caller.ask(speech(400), RATE_HZ)
    assert scene.call.truncated == [("i1", 220)]
    assert scene.call.reports == []


async def test_playback_is_reported_as_it_goes_and_at_its_end() -> None:
    script: Script = {29: [started(), audio(loud(500)), done()]}
    scene = Scene(script)
    async with scene.running() as caller:
        await caller.ask(speech(400), RATE_HZ)
    assert scene.call.reports == [
        (625, "i1", 20),
        (825, "i1", 220),
        (1025, "i1", 420),
        (1105, "i1", 500),
    ]


async def test_a_greeting_belongs_to_no_exchange() -> None:
    script: Script = {0: [started(9), audio(loud(100), 9), done(9)]}
    scene = Scene(script)
    async with scene.running() as caller:
        assert await caller.wait_quiet(5.0)
        assert caller.exchanges == []
    assert scene.clock.now_ns() // MS == 25 + 100 + 300


async def test_patience_has_an_end() -> None:
    scene = Scene({2: [heard]})
    async with scene.running() as caller:
        exchange = await caller.ask(speech(400), RATE_HZ, patience_s=2.0)
    assert not exchange.answered
    assert exchange.e2e_ear_ms is None
    assert scene.clock.now_ns() // MS == 25 + 2400


async def test_silence_expects_no_answer() -> None:
    scene = Scene({})
    async with scene.running() as caller:
        exchange = await caller.ask(np.zeros(4800, np.int16), RATE_HZ)
    assert exchange.last_voiced_ns is None
    assert scene.clock.now_ns() // MS < 1000


async def test_errors_and_failed_replies_are_kept_with_the_exchange() -> None:
    def failed(now: int) -> ev.ClientEvent:
        return ev.ReplyDone("r1", "failed", None, "", "The voice is gone.", {}, now)

    def complaint(now: int) -> ev.ClientEvent:
        return ev.ServerError("No.", None, None, None, now)

    scene = Scene({25: [complaint, started(), failed]})
    async with scene.running() as caller:
        exchange = await caller.ask(speech(400), RATE_HZ)
    assert exchange.errors == ["No.", "The voice is gone."]


async def test_the_end_of_the_call_ends_the_caller() -> None:
    scene = Scene({10: [lambda now: ev.Closed(1012, "restarting", now)]})
    async with asyncio.TaskGroup() as group:
        group.create_task(scene.caller.run())
        with pytest.raises(CallEndedError, match="1012 restarting"):
            await scene.caller.ask(speech(400), RATE_HZ)
    assert scene.caller.closed is not None
    assert len(scene.call.frames) <= 12


async def test_a_call_that_breaks_while_speaking_is_heard_to_its_end() -> None:
    class Broken(ScriptedCall):
        async def send_audio(self, pcm: Int16, rate_hz: int) -> None:
            await super().send_audio(pcm, rate_hz)
            if len(self.frames) == 5:
                self._events.put_nowait(ev.Closed(None, "connection lost", 0))
                raise CallEndedError("gone")

    clock = ManualClock()

    async def instantly(seconds: float) -> None:
        clock.advance_ms(seconds * 1000)
        await asyncio.sleep(0)

    caller = Caller(Broken(clock, {}), clock=clock, sleep=instantly)
    await caller.run()
    assert caller.closed == ev.Closed(None, "connection lost", 0)
