"""The caller of recordings, on a clock turned by hand and a call that is a script."""

import asyncio
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from agent.client import events as ev
from agent.client.errors import CallEndedError
from agent.client.simulated_caller.caller import SimulatedCaller
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn_record import Outcome
from tests.support.session.scripted_call import (
    ANSWERED,
    MS,
    RATE_HZ,
    Int16,
    Scene,
    Script,
    ScriptedCall,
    audio,
    done,
    heard,
    loud,
    speech,
    started,
)


async def test_exchange_is_timed_at_playback() -> None:
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
        "reopened": False,
        "outcome": None,
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
    assert not exchange.interrupted, "the caller was going on"
    assert exchange.outcome is Outcome.CUT_IN
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


@pytest.mark.parametrize(
    ("script", "ducked_ms", "silenced_ms", "stopped_ms"),
    [
        # The second recording begins at 1005 ms; frame 55 goes at 1125, and the fall takes 20.
        ({55: ["duck"], 70: ["stop"]}, 140.0, 420.0, 140.0),
        ({55: ["duck"], 60: ["unduck"], 70: ["stop"]}, None, 420.0, 420.0),
        ({55: ["duck"], 60: ["unduck"], 65: ["duck"], 70: ["stop"]}, 340.0, 420.0, 340.0),
        ({70: ["stop"], 72: ["duck"]}, None, 420.0, 420.0),
    ],
    ids=["ducked", "loud again", "ducked twice", "stopped at once"],
)
async def test_barge_in_is_detected_when_the_reply_is_ducked(
    script: dict[int, list[str]],
    ducked_ms: float | None,
    silenced_ms: float,
    stopped_ms: float,
) -> None:
    told: dict[str, list[Callable[[int], ev.ClientEvent]]] = {
        "duck": [lambda now: ev.Duck("i1", now)],
        "unduck": [lambda now: ev.Unduck("i1", now)],
        "stop": [heard, done(1, "cancelled", "turn_detected")],
    }
    scene = Scene(
        {29: [started(), audio(loud(3000))]}
        | {
            frame: [each for name in names for each in told[name]]
            for frame, names in script.items()
        }
    )
    pause = np.zeros(RATE_HZ * 6 // 10, np.int16)
    async with scene.running() as caller:
        first = caller.say(np.concatenate([speech(400), pause]), RATE_HZ)
        second = caller.say(speech(600), RATE_HZ)
        await caller.wait_until(lambda now_ns: now_ns > 1600 * MS, 3.0)
    assert (second.ducked_ms, second.silenced_ms) == (ducked_ms, silenced_ms)
    assert second.stopped_ms == stopped_ms
    assert first.stopped_ms is None


async def test_rest_of_the_answer_is_cancelled_after_the_cut() -> None:
    """The rest of the answer is cancelled, and what is left of the recording stays unsaid."""
    script: Script = {29: [started(), audio(loud(3000))], 41: [done(1, "cancelled", None)]}
    scene = Scene(script)
    scene.caller = SimulatedCaller(
        scene.call, clock=scene.clock, sleep=scene.sleep, cut_after_s=0.2
    )
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
    scene.caller = SimulatedCaller(
        scene.call, clock=scene.clock, sleep=scene.sleep, cut_after_s=0.2
    )
    async with scene.running() as caller:
        exchange = await caller.ask(speech(1000), RATE_HZ)
    assert scene.call.cancelled == []
    assert exchange.cut_in


async def test_a_cancel_that_comes_too_late_is_no_error() -> None:
    def late(now: int) -> ev.ClientEvent:
        return ev.ServerError("Too late.", "response_cancel_not_active", None, None, now)

    script: Script = {29: [started(), audio(loud(1000))], 40: [done(), late]}
    scene = Scene(script)
    scene.caller = SimulatedCaller(
        scene.call, clock=scene.clock, sleep=scene.sleep, cut_after_s=0.2
    )
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


async def test_without_extensions_a_barge_in_sends_a_truncation() -> None:
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


async def test_what_was_due_while_nothing_got_through_is_not_said_later() -> None:
    class Stuck(ScriptedCall):
        """The network takes nothing for five seconds, then it is known to be gone, and back."""

        async def send_audio(self, pcm: Int16, rate_hz: int) -> bool:
            if len(self.frames) == 10 and clock.now_ns() < 5_000 * MS:
                clock.advance_ms(5_000)
                return False
            return await super().send_audio(pcm, rate_hz)

    clock = ManualClock()

    async def instantly(seconds: float) -> None:
        clock.advance_ms(seconds * 1000)
        await asyncio.sleep(0)

    call = Stuck(clock, {200: [lambda now: ev.Closed(1000, "", now)]})
    caller = SimulatedCaller(call, clock=clock, sleep=instantly)
    caller.say(speech(8_000), RATE_HZ)
    await caller.run()
    times = [at_ms for at_ms, _ in call.frames]
    assert times[:10] == list(range(20, 220, 20))
    assert times[10] >= 5_220
    gaps = {after - before for before, after in itertools.pairwise(times[10:])}
    assert gaps == {20}, "no burst"


def reconnecting(now: int) -> ev.ClientEvent:
    return ev.Reconnecting("connection lost", now)


def resumed(now: int) -> ev.ClientEvent:
    return ev.Resumed([], 0, 0, True, now)


async def test_interrupted_caller_stops_reports_playback_and_waits() -> None:
    script: Script = {25: [started(), audio(loud(1000))], 45: [reconnecting], 70: [resumed]}
    scene = Scene(script | {90: [started(2), audio(loud(100), 2), done(2)]})
    async with scene.running() as caller:
        exchange = await caller.ask(speech(400), RATE_HZ)
    assert scene.call.truncated == [("i1", 400)]
    assert exchange.replies == ["r1", "r2"]
    assert exchange.reply_s == pytest.approx(0.5)
    assert caller.num_resumed == 1
    assert exchange.errors == []


async def test_lost_connection_still_plays_received_audio() -> None:
    class Broken(ScriptedCall):
        async def send_audio(self, pcm: Int16, rate_hz: int) -> bool:
            await super().send_audio(pcm, rate_hz)
            if len(self.frames) == 5:
                self._events.put_nowait(ev.Closed(None, "connection lost", 0))
                raise CallEndedError("gone")
            return True

    clock = ManualClock()

    async def instantly(seconds: float) -> None:
        clock.advance_ms(seconds * 1000)
        await asyncio.sleep(0)

    caller = SimulatedCaller(Broken(clock, {}), clock=clock, sleep=instantly)
    await caller.run()
    assert caller.closed == ev.Closed(None, "connection lost", 0)
