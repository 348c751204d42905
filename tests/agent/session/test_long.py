"""Ten minutes of one caller who never stops: real session and ears, faster than real time."""

import asyncio
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

import asr
from agent.config.schema import AgentProfile
from agent.session import session
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.settings import SemanticVad
from agent.stages.model_thread import ModelThread
from agent.stages.speech_input import SpeechInput, endpointing_for
from agent.stages.transcription_jobs import LocalDecoder
from latency_budget.account.clock import SystemClock
from tests.support.fakes.stages import FakeChat, FakeVoice
from tests.support.session.session_call import Call

MINUTES: Final = 10
SECOND: Final = asr.RATE_HZ
MAX_BYTES: Final = 4 * 120 * SECOND * 4
"""What a listener may hold: two minutes of float32, in a buffer of up to four times that."""


class Loudness:
    """Hears what is loud."""

    def probability(self, frame: npt.NDArray[np.float32], state: asr.VadState) -> float:
        return 0.95 if np.abs(frame).max() > 0.1 else 0.0


class Counting:
    """A word for each second; never the end of a sentence."""

    languages = ("en",)

    def __init__(self) -> None:
        self.longest_s = 0.0

    def transcribe(self, pcm: npt.NDArray[np.float32], *, fallback: bool) -> asr.Hypothesis:
        seconds = len(pcm) / SECOND
        self.longest_s = max(self.longest_s, seconds)
        return asr.Hypothesis(" ".join(["and"] * max(1, int(seconds))))


class Patient:
    """Hears no end of a turn."""

    def log_odds(self, pcm: npt.NDArray[np.float32]) -> float:
        return -6.0


def talking(seconds: int) -> npt.NDArray[np.int16]:
    """With a breath of 150 ms every two seconds."""
    two = np.tile(np.array([9000, -9000], np.int16), SECOND)
    two[-int(0.15 * SECOND) :] = 0
    return np.tile(two, seconds // 2)


async def test_endless_utterance_is_bounded_and_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A busy machine may take a while between two pieces, which is no caller who was cut off.
    monkeypatch.setattr(session, "STALL_NS", 1 << 60)
    recognizer_model = Counting()
    detector: ModelThread[Any] = ModelThread("vad", Loudness)
    recognizer: ModelThread[Any] = ModelThread("asr", lambda: recognizer_model)
    await detector.start()
    await recognizer.start()
    judge: ModelThread[Any] = ModelThread("turn", Patient)
    await judge.start()
    listening = asr.ListenerConfig(endpointing=endpointing_for(SemanticVad(), 80))
    hearing = SpeechInput(listening, detector, LocalDecoder(recognizer), judge, SystemClock(), 80)
    call = Call(FakeChat(["Well."]), FakeVoice(), AgentProfile(), hearing=hearing)
    running = asyncio.get_running_loop().create_task(call.session.run())
    counts = hearing._guarded.stream.counts
    shown: list[int] = []
    try:
        async with asyncio.timeout(120):
            await call.until(say.SessionCreated)
            for _ in range(MINUTES):
                for _ in range(30):
                    await call.session.handle(ask.AppendAudio(talking(2), SECOND))
                    await hearing._queue.drained()
                    stream = hearing._guarded.stream
                    while stream._pending is not None:  # noqa: ASYNC110 - nothing tells of it
                        await asyncio.sleep(0.001)
                texts = [
                    each.fields["text"] for each in call.notices if isinstance(each, say.Extension)
                ]
                shown.append(max(len(text.split()) for text in texts))
            assert call.of(say.SpeechStopped) == [], "the turn is still the caller's"
            await call.session.handle(ask.AppendAudio(np.zeros(4 * SECOND, np.int16), SECOND))
            await call.until(say.ReplyEnded)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await detector.close()
        await recognizer.close()
        await judge.close()
    assert shown == sorted(set(shown)), "the transcript grows by the minute"
    assert shown[-1] > 60 * (MINUTES - 1)
    assert len(call.of(say.SpeechStarted)) == len(call.of(say.AudioCommitted)) == 1
    committed = call.of(say.TranscriptCompleted)[0]
    assert isinstance(committed, say.TranscriptCompleted)
    assert len(committed.transcript.split()) > 60 * MINUTES - 40
    assert committed.audio_s > 60 * MINUTES - 5
    assert recognizer_model.longest_s < 40, "no pass sees more than the rest that is not settled"
    assert counts.lost_samples == 0
    assert counts.peak_bytes < MAX_BYTES
