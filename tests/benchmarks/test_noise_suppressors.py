"""Suppressors in front of the detector: all of the sound comes back, late by a known time."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asr
from agent.errors import BenchError
from asr.stream.asr_stream import Listener
from benchmarks.signals.noise_suppressors import (
    SUPPRESSORS,
    GtcrnSuppressor,
    NoiseSuppressor,
    WebrtcSuppressor,
)
from tests.benchmarks.test_simulation import Float32

RNG = np.random.default_rng(1)
SOUND: Float32 = (0.1 * RNG.standard_normal(512 * 20)).astype(np.float32)


@dataclass
class Cleaned:
    audio: bytes


class Echo:
    """WebRTC's processor, which suppresses nothing."""

    def Process10ms(self, audio: bytes) -> Cleaned:
        assert len(audio) == 320
        return Cleaned(audio)


class Unchanged:
    """GTCRN's session, which passes the spectrum on and counts in a cache."""

    def run(self, outputs: None, inputs: dict[str, Any]) -> list[Any]:
        assert inputs["mix"].shape == (1, 257, 1, 2)
        assert inputs["inter_cache"].shape == (2, 1, 33, 16)
        caches = [inputs[name] for name in ("conv_cache", "tra_cache", "inter_cache")]
        return [inputs["mix"], *(each + 1 for each in caches)]


@pytest.mark.parametrize(
    ("suppressor", "delay"),
    [(WebrtcSuppressor(Echo()), 160), (GtcrnSuppressor(Unchanged()), 256)],
    ids=["webrtc", "gtcrn"],
)
def test_frames_come_back_whole_and_late(suppressor: NoiseSuppressor, delay: int) -> None:
    frames = [suppressor.process(frame) for frame in SOUND.reshape(-1, 512)]
    assert {len(frame) for frame in frames} == {512}
    heard = np.concatenate(frames)
    assert heard[:delay] == pytest.approx(np.zeros(delay), abs=1e-6)
    assert heard[delay:] == pytest.approx(SOUND[:-delay], abs=1e-4)


def test_the_detector_hears_what_the_suppressor_leaves_and_the_recognizer_what_came() -> None:
    class Half:
        def process(self, pcm: Float32) -> Float32:
            return pcm * np.float32(0.5)

    class Level:
        def __init__(self) -> None:
            self.heard: list[float] = []

        def probability(self, frame: Float32, state: asr.VadState) -> float:
            self.heard.append(float(np.abs(frame).max()))
            return 1.0

    voice = np.resize(np.array([0.5, -0.5], np.float32), 512 * 20)
    for suppress, level in ((None, 0.5), (Half().process, 0.25)):
        detector = Level()
        listener = Listener(asr.ListenerConfig(), detector, suppress)
        (begun, *_) = listener.feed(voice).events
        assert isinstance(begun, asr.SpeechStarted)
        assert detector.heard[:4] == pytest.approx([level] * 4)
        job = listener.finalize(begun.utterance, len(voice))
        assert job is not None
        assert np.abs(job.pcm).max() == 0.5


def test_a_model_that_is_not_there_is_asked_for() -> None:
    with pytest.raises(BenchError, match="gtcrn_simple"):
        SUPPRESSORS["gtcrn"](Path("none.onnx"))
