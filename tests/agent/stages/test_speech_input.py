"""The ears of one call, with a detector that hears what is loud and fails on command."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

import asr
from agent.session.api.settings import SemanticVad
from agent.session.ports.stage_ports import FULL_EFFORT, Effort, SpeechResult
from agent.stages import speech_input as hearing_module
from agent.stages.audio_pace import BURST_S, FASTEST
from agent.stages.call_audio import MAX_JOB, MAX_WAITING, AudioQueue
from agent.stages.model_thread import ModelThread
from agent.stages.speech_input import SpeechInput, endpointing_for
from agent.stages.transcription_jobs import LocalDecoder
from agent.turn_taking import events as ev
from latency_budget.account.clock import ManualClock

RATE_HZ: Final = 16_000
PATIENCE_S: Final = 60.0
Int16 = npt.NDArray[np.int16]


def loud(seconds: float) -> Int16:
    return np.tile(np.array([9000, -9000], np.int16), int(seconds * RATE_HZ) // 2)


def quiet(seconds: float) -> Int16:
    return np.zeros(int(seconds * RATE_HZ), np.int16)


class Detector:
    """Every object of it is one more that the stage has built."""

    built = 0
    hold: "threading.Event | None" = None
    """Set: the first detector waits for it in its next frame."""
    held = threading.Event()
    came_back = threading.Event()

    def __init__(self) -> None:
        type(self).built += 1
        self._is_first = type(self).built == 1
        self.num_frames = 0

    def probability(self, frame: npt.NDArray[np.float32], state: asr.VadState) -> float:
        assert frame.shape == (512,)
        hold = type(self).hold
        if self._is_first and hold is not None:
            self.held.set()
            hold.wait(PATIENCE_S)
            state.lstm = np.full_like(state.lstm, 7.0)
            self.came_back.set()
        self.num_frames += 1
        return 0.9 if np.abs(frame).max() > 0.1 else 0.0


class Recognizer:
    def transcribe(self, pcm: npt.NDArray[np.float32], *, fallback: bool) -> asr.Hypothesis:
        raise RuntimeError("nobody listens to words here")


class Judge:
    def log_odds(self, pcm: npt.NDArray[np.float32]) -> float:
        raise RuntimeError("nobody asks here")


class Ears:
    """A `SpeechInput` that runs, and what it tells."""

    def __init__(self, detector: ModelThread[Any], recognizer: ModelThread[Any]) -> None:
        self.clock = ManualClock()
        self.detector = detector
        listening = asr.ListenerConfig(
            endpointing=endpointing_for(SemanticVad(), 96), partial_interval_ms=0
        )
        judge: ModelThread[Any] = ModelThread("turn", Judge)  # nobody pauses here
        self.hearing = SpeechInput(
            listening, detector, LocalDecoder(recognizer), judge, self.clock, 96
        )
        self.told: list[SpeechResult] = []
        self._came = asyncio.Condition()

    def tell(self, heard: SpeechResult) -> None:
        self.told.append(heard)

    def events(self) -> list[str]:
        kinds = [type(each.event).__name__ for each in self.told if each.event is not None]
        return [kind for kind in kinds if kind != "SilenceGrew"]

    async def hear(self, pcm: Int16) -> None:
        """Feed it, and wait until it has been listened to."""
        async with asyncio.timeout(PATIENCE_S):
            await self.hearing.feed(pcm, RATE_HZ)
            await self.hearing._queue.drained()


@asynccontextmanager
async def ears() -> AsyncIterator[Ears]:
    Detector.built, Detector.hold = 0, None
    Detector.held.clear()
    Detector.came_back.clear()
    detector: ModelThread[Any] = ModelThread("vad", Detector)
    recognizer: ModelThread[Any] = ModelThread("asr", Recognizer)
    await detector.start()
    await recognizer.start()
    made = Ears(detector, recognizer)
    running = asyncio.get_running_loop().create_task(made.hearing.run(made.tell))
    try:
        yield made
    finally:
        if Detector.hold is not None:
            Detector.hold.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await detector.close()
        await recognizer.close()


# --- how much at once ---


async def test_a_frame_of_minutes_is_cut_into_jobs_of_a_second() -> None:
    inbox = AudioQueue()
    pcm = np.arange(120 * 8_000, dtype=np.int64).astype(np.int16)
    writing = asyncio.get_running_loop().create_task(inbox.put((pcm, 8_000)))
    taken: list[Int16] = []
    while sum(map(len, taken)) < len(pcm):
        batch = await inbox.take()
        assert sum(len(each) * 2 for each, _ in batch) <= MAX_JOB
        taken += [each for each, _ in batch]
        await inbox.done()
    await writing
    assert np.array_equal(np.concatenate(taken), pcm)
    assert inbox.idle


@pytest.mark.parametrize("frame", [1, 160, 16_000])
async def test_audio_above_the_recognition_rate_waits(frame: int) -> None:
    inbox = AudioQueue()
    pcm = np.zeros(frame, np.int16)

    async def send() -> None:
        while True:
            await inbox.put((pcm, RATE_HZ))

    sending = asyncio.get_running_loop().create_task(send())
    for _ in range(MAX_WAITING // 160 * 8):
        await asyncio.sleep(0)
    assert not inbox.idle
    assert MAX_WAITING <= inbox._waiting <= MAX_WAITING + MAX_JOB
    assert len(inbox._pieces) <= MAX_WAITING // 160
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def test_small_frames_are_listened_to_together_and_in_order() -> None:
    inbox = AudioQueue()
    for number in range(100):
        await inbox.put((np.full(320, number, np.int16), RATE_HZ))
    first = await inbox.take()
    assert [int(pcm[0]) for pcm, _ in first] == list(range(50))
    await inbox.done()
    assert [int(pcm[0]) for pcm, _ in await inbox.take()] == list(range(50, 100))


# --- late and lost ---


async def test_a_burst_gives_the_events_of_real_time() -> None:
    async with ears() as made:
        sound = np.concatenate([quiet(1), loud(1), quiet(1), loud(2), quiet(1)])
        await made.hear(sound)
        assert made.events() == ["SpeechStarted", "SpeechPaused", "SpeechResumed", "SpeechPaused"]


@pytest.mark.parametrize(
    ("effort", "pauses", "skipped"),
    [
        (FULL_EFFORT, 2, set()),
        (Effort(skips_partials=True), 2, {"partial"}),
        (Effort(skips_partials=True, pauses_later=True), 1, {"partial", "early"}),
    ],
)
async def test_where_passes_are_slow_a_short_pause_is_none(
    effort: Effort, pauses: int, skipped: set[str]
) -> None:
    async with ears() as made:
        await made.hear(quiet(0.96))
        made.hearing.set_detection(SemanticVad(), effort)
        await made.hear(np.concatenate([loud(0.96), quiet(0.112), loud(1), quiet(1)]))
        assert made.events().count("SpeechPaused") == pauses
        assert made.hearing._jobs.skips == skipped


async def test_beside_another_call_a_fast_sender_is_told_and_has_few_passes() -> None:
    async with ears() as made:
        other = made.hearing._pace.join()
        await made.hear(loud(BURST_S))
        assert not any(each.slowed_to for each in made.told)
        async with asyncio.timeout(PATIENCE_S):
            await made.hearing.feed(loud(1), RATE_HZ)
            await made.hearing.feed(loud(1), RATE_HZ)
            while not made.hearing._jobs.skips:
                await asyncio.sleep(0.01)
                made.clock.advance_ms(1)
            assert made.hearing._jobs.skips == {"partial", "early"}
            assert [each.slowed_to for each in made.told if each.slowed_to] == [FASTEST]
            other.leave()
            await made.hearing._queue.drained()
        await made.hear(loud(1))
        assert not made.hearing._jobs.skips
        assert [each.slowed_to for each in made.told if each.slowed_to] == [FASTEST]


async def test_words_after_a_pause_are_recognized_when_the_audio_stops() -> None:
    async with ears() as made:
        await made.hear(np.concatenate([loud(1), quiet(0.3), loud(1)]))
        assert made.events() == ["SpeechStarted", "SpeechPaused", "SpeechResumed"]
        assert made.hearing.end_sample(made.hearing.utterance) == int(2.3 * RATE_HZ)


async def test_a_pause_in_an_utterance_that_has_ended_meanwhile() -> None:
    async with ears() as made:
        await made.hear(loud(1))
        utterance = made.hearing.utterance
        assert made.hearing.end_sample(utterance) == RATE_HZ
        assert made.hearing.duration_s(utterance) > 0.5  # the machine took it for complete
        await made.hear(quiet(1))
        assert made.events() == ["SpeechStarted", "SpeechPaused"]
        assert made.hearing.duration_s(utterance) == 0


async def test_audio_that_waits_to_be_listened_to_has_not_stalled() -> None:
    async with ears() as made:
        Detector.hold = threading.Event()
        feeding = asyncio.get_running_loop().create_task(made.hearing.feed(loud(30), RATE_HZ))
        await asyncio.to_thread(Detector.held.wait, PATIENCE_S)
        made.clock.advance_ms(10_000)
        assert made.hearing.last_audio_ns == made.clock.now_ns()
        Detector.hold.set()
        Detector.hold = None
        await feeding
        await made.hearing._queue.drained()
        heard_ns = made.clock.now_ns()
        made.clock.advance_ms(1_000)
        assert made.hearing.last_audio_ns == heard_ns


async def test_a_thread_that_hung_leaves_the_stream_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = set(threading.enumerate())
    async with ears() as made:
        await made.hear(quiet(0.512))
        guarded = made.hearing._guarded
        stream = guarded.stream
        Detector.hold = hold = threading.Event()
        with monkeypatch.context() as patch:
            patch.setattr(hearing_module, "LISTEN_TIMEOUT_S", 0.1)
            await made.hear(quiet(0.512))
        assert Detector.held.is_set()
        await made.hear(loud(1))
        before = (stream.position, stream._audio.end_of_frames)
        lstm = guarded._vad_state.lstm.copy()
        hold.set()
        await asyncio.to_thread(Detector.came_back.wait, PATIENCE_S)
        for thread in set(threading.enumerate()) - others:
            if thread.name == "stage-vad" and thread is not made.detector._thread:
                await asyncio.to_thread(thread.join, PATIENCE_S)
        assert (stream.position, stream._audio.end_of_frames) == before
        assert np.array_equal(guarded._vad_state.lstm, lstm)
        await made.hear(quiet(1))
        assert made.events() == ["SpeechStarted", "SpeechPaused"]
        assert made.detector.restarts == 1


async def test_a_detector_that_fails_takes_no_event_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def once_broken(self: Detector, frame: npt.NDArray[np.float32], state: asr.VadState) -> float:
        self.num_frames += 1
        if self._is_first and self.num_frames == 20:
            raise RuntimeError("something broke")
        return 0.9 if np.abs(frame).max() > 0.1 else 0.0

    async with ears() as made:
        monkeypatch.setattr(Detector, "probability", once_broken)
        await made.hear(loud(1))
        await made.hear(quiet(1))
        assert made.events() == ["SpeechStarted", "SpeechPaused"]


async def test_a_recording_too_long_for_push_to_talk_is_refused_once() -> None:
    async with ears() as made:
        await made.hear(quiet(0.5))
        made.hearing.set_detection(None)
        limit_s = asr.ListenerConfig().max_buffer_s
        await made.hear(quiet(limit_s + 5))
        assert len([heard for heard in made.told if heard.refused is not None]) == 1
        await made.hearing.clear()
        await made.hear(quiet(1))
        assert isinstance(await made.hearing.commit(), int)
        assert not any(isinstance(heard.event, ev.SpeechStarted) for heard in made.told)


async def test_a_commit_behind_a_turn_that_was_detected_is_of_no_other_utterance() -> None:
    """The turn-taking machine refuses it then; another number would be a message without words."""
    async with ears() as made:
        await made.hear(quiet(1))
        assert await made.hearing.commit() == 0
        await made.hear(np.concatenate([loud(1), quiet(1)]))
        made.hearing.close(1)
        await made.hear(quiet(0.5))
        assert await made.hearing.commit() == 1
        await made.hear(loud(1))
        assert made.hearing.utterance == 2
        assert await made.hearing.commit() == 2


async def test_a_commit_of_detected_speech_lasts_as_long_as_that() -> None:
    async with ears() as made:
        await made.hear(np.concatenate([quiet(4), loud(1)]))
        assert await made.hearing.commit() == 1
        assert made.hearing.duration_s(1) == pytest.approx(1, abs=0.1)


async def test_speech_in_audio_that_is_forgotten_meanwhile_has_not_begun() -> None:
    """Whoever is told that it began would wait for its end, and be told of another beginning."""
    async with ears() as made:
        Detector.hold = hold = threading.Event()
        await made.hearing.feed(loud(0.5), RATE_HZ)
        await asyncio.to_thread(Detector.held.wait, PATIENCE_S)
        made.hearing.set_detection(None)
        made.hearing.set_detection(SemanticVad())
        hold.set()
        await made.hearing._queue.drained()
        assert made.events() == []
        await made.hear(np.concatenate([loud(1), quiet(1)]))
        assert made.events() == ["SpeechStarted", "SpeechPaused"]


# --- the agent's voice ---


def played_at(made: Ears) -> list[int]:
    return [first_sample for first_sample, _ in made.hearing._guarded.stream.echo._played]


async def test_what_the_agent_says_while_the_client_sends_nothing_comes_before_later_audio() -> (
    None
):
    async with ears() as made:
        for _ in range(50):
            made.clock.advance_ms(20)
            await made.hear(quiet(0.02))
        made.clock.advance_ms(1000)
        for _ in range(20):  # two seconds of the agent's voice, which end two before the audio
            made.hearing.played(loud(0.1), RATE_HZ, made.clock.now_ns())
            made.clock.advance_ms(100)
        made.clock.advance_ms(2000)
        await made.hear(quiet(0.02))
        assert max(played_at(made)) < made.hearing.received - 2 * RATE_HZ
        assert made.hearing._guarded.stream.echo.level(int(made.hearing.received)) == 0


async def test_what_the_agent_is_saying_when_the_client_sends_again_counts_as_ever() -> None:
    async with ears() as made:
        await made.hear(quiet(0.02))
        made.clock.advance_ms(5000)
        now_ns = made.clock.now_ns()
        made.hearing.played(loud(0.032), RATE_HZ, now_ns + 100_000_000)  # sent ahead
        await made.hear(quiet(0.02))
        made.hearing.played(loud(0.032), RATE_HZ, now_ns + 132_000_000)
        made.clock.advance_ms(20)
        await made.hear(quiet(0.02))
        # 20 ms had arrived before the gap, and 20 after it.
        assert played_at(made) == [640 + 1600, 640 + 1600 + 512]


async def test_the_agents_voice_without_audio_of_the_caller_is_bounded() -> None:
    async with ears() as made:
        await made.hear(quiet(0.02))
        for _ in range(1000):
            made.hearing.played(loud(0.02), RATE_HZ, made.clock.now_ns())
            made.clock.advance_ms(20)
        assert len(made.hearing._played) == hearing_module.MAX_PLAYED


# --- the end ---


async def test_what_is_asked_of_a_call_that_is_over_does_nothing() -> None:
    async with ears() as made:
        await made.hear(quiet(0.02))
    made.hearing.close(1)
    made.hearing.played(loud(0.02), RATE_HZ, made.clock.now_ns())
    assert not made.hearing._played
