"""The turn model's answer on its way to the machine, and a turn model that has none."""

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import asr
from agent.session.api.settings import SemanticVad
from agent.session.ports.stage_ports import SpeechResult
from agent.stages.model_thread import ModelThread
from agent.stages.speech_input import SpeechInput, endpointing_for
from agent.stages.transcription_jobs import LocalDecoder
from agent.turn_taking import events as ev
from latency_budget.account.clock import ManualClock
from tests.agent.stages.test_transcription_jobs_early import (
    PATIENCE_S,
    RATE_HZ,
    Detector,
    Recognizer,
    quiet,
    said,
)


class Judge:
    def __init__(self, log_odds: float | None) -> None:
        self._log_odds = log_odds

    def log_odds(self, pcm: npt.NDArray[np.float32]) -> float:
        if self._log_odds is None:
            raise RuntimeError("no opinion")
        return self._log_odds


async def heard_of_a_pause(judge: Judge) -> list[ev.Event]:
    """What the machine is told of one utterance, until its words are known and `judge` is done."""
    recognizer_model = Recognizer()
    recognizer_model.may_go_on.set()
    stages: list[ModelThread[Any]] = [
        ModelThread("vad", Detector),
        ModelThread("asr", lambda: recognizer_model),
        ModelThread("turn", lambda: judge),
    ]
    for stage in stages:
        await stage.start()
    detector, recognizer, turn = stages
    listening = asr.ListenerConfig(endpointing=endpointing_for(SemanticVad(), 80))
    hearing = SpeechInput(listening, detector, LocalDecoder(recognizer), turn, ManualClock(), 80)
    told: list[ev.Event] = []
    has_words = asyncio.Event()

    def tell(heard: SpeechResult) -> None:
        if heard.event is not None:
            told.append(heard.event)
        if isinstance(heard.event, ev.SpeechPaused):
            hearing.transcribe(heard.event.utterance, 1)
        elif isinstance(heard.event, ev.TranscriptReady):
            has_words.set()

    running = asyncio.get_running_loop().create_task(hearing.run(tell))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await hearing.feed(np.concatenate([said(1.0), quiet(0.5)]), RATE_HZ)
            await has_words.wait()
            await turn.call(lambda model: None, timeout_s=PATIENCE_S)  # behind its own question
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for stage in stages:
            await stage.close()
    return told


async def test_turn_model_result_is_reported() -> None:
    told = await heard_of_a_pause(Judge(1.23456))
    assert ev.PauseJudged(1, 1, 1.235) in told


@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
async def test_a_score_that_is_no_number_leaves_the_words(garbage: float) -> None:
    told = await heard_of_a_pause(Judge(garbage))
    assert not any(isinstance(event, ev.PauseJudged) for event in told)
    assert any(isinstance(event, ev.TranscriptReady) for event in told)


async def test_a_turn_model_that_fails_leaves_the_words() -> None:
    told = await heard_of_a_pause(Judge(None))
    assert not [event for event in told if isinstance(event, ev.PauseJudged | ev.TranscriptFailed)]
    assert [event.text for event in told if isinstance(event, ev.TranscriptReady)]
