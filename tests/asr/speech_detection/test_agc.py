"""Quiet voices: what the detector hears of them, and who else hears nothing of that."""

import numpy as np
import numpy.typing as npt
import pytest

from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ
from asr.speech_detection import agc
from asr.speech_detection.agc import MAX_GAIN_DB, RISE_DB, SUSPECTED, WANTED_DB, AutomaticGain
from asr.speech_detection.vad import FRAME, SileroVad, VadState
from asr.stream.asr_stream import Listener
from asr.stream.utterance import ListenerConfig
from benchmarks.asr.command import by_telephone
from benchmarks.asr.latency import at_level
from tests.asr.test_files import RECORDINGS
from tests.support.models import model_path

Pcm = npt.NDArray[np.float32]


def at_db(level_db: float) -> Pcm:
    """A frame of this root mean square."""
    noise = np.random.default_rng(1).normal(0, 1, FRAME)
    frame: Pcm = (noise / np.sqrt(np.mean(noise**2)) * 10 ** (level_db / 20)).astype(np.float32)
    return frame


def level_db(frame: Pcm) -> float:
    return float(10 * np.log10(np.mean(np.square(frame, dtype=np.float64))))


@pytest.mark.parametrize("level", [-60.0, -45.0, -30.0])
def test_a_quiet_voice_is_raised_step_by_step(level: float) -> None:
    ears, frame, before_db = AutomaticGain(), at_db(level), level
    for _ in range(20):
        ears.note(frame, 0.9)
        now_db = level_db(ears.apply(frame))
        assert before_db - 0.01 <= now_db <= before_db + RISE_DB + 0.01
        before_db = now_db
    assert before_db == pytest.approx(min(WANTED_DB, level + MAX_GAIN_DB), abs=0.01)


def test_others_are_left_as_they_are() -> None:
    ears = AutomaticGain()
    loud, faint = at_db(-15), at_db(-50)
    for _ in range(50):
        ears.note(loud, 0.9)
        assert ears.apply(loud) is loud
    ears = AutomaticGain()
    for _ in range(50):
        ears.note(faint, SUSPECTED - 0.01)  # noise
        assert ears.apply(faint) is faint


def test_a_louder_voice_is_lowered_at_once_and_never_beyond_full_scale() -> None:
    ears = AutomaticGain()
    for _ in range(20):
        ears.note(at_db(-50), 0.9)
    loud = at_db(-6)
    assert np.abs(ears.apply(loud)).max() == 1.0
    assert np.abs(loud).max() > 1.0, "what came is as it was"
    ears.note(loud, 0.9)
    assert ears.gain_db == 0.0


def test_a_voice_that_falls_is_followed_and_a_bang_forgotten() -> None:
    ears = AutomaticGain()
    ears.note(at_db(-10), 0.9)
    for _ in range(60 * RATE_HZ // FRAME):
        ears.note(at_db(-50), 0.9)
    assert ears.gain_db == MAX_GAIN_DB


class Noting:
    """A detector that is told what it hears, and keeps it."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    def probability(self, frame: Pcm, state: VadState) -> float:
        self.heard.append(level_db(frame))
        return 0.9


def listening(detector: Noting, *, agent_speaks: bool) -> Listener:
    ears = Listener(ListenerConfig(partial_interval_ms=0), detector)
    for number in range(40):
        if agent_speaks:
            ears.echo.played(number * FRAME, [0.1])
        ears.feed(at_db(-45))
    return ears


def test_the_detector_alone_hears_a_raised_voice() -> None:
    detector = Noting()
    ears = listening(detector, agent_speaks=False)
    assert detector.heard[0] == pytest.approx(-45, abs=0.1)
    assert detector.heard[-1] == pytest.approx(-45 + MAX_GAIN_DB, abs=0.1)
    job = ears.finalize(1, ears.position)
    assert job is not None
    assert level_db(job.pcm[FRAME : 30 * FRAME]) == pytest.approx(-45, abs=0.1)


def test_nothing_is_learned_while_the_agent_speaks() -> None:
    detector = Noting()
    listening(detector, agent_speaks=True)
    assert detector.heard[-1] == pytest.approx(-45, abs=0.1)


class Counting:
    """A detector, and how many frames it took for speech."""

    def __init__(self) -> None:
        self.voiced = 0
        self._vad = SileroVad.load(model_path("silero-vad") / "silero_vad.onnx")

    def probability(self, frame: Pcm, state: VadState) -> float:
        probability = self._vad.probability(frame, state)
        self.voiced += probability >= 0.5
        return probability


@pytest.mark.models
def test_agc_raises_only_quiet_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def voiced(level: float) -> int:
        detector = Counting()
        ears = Listener(ListenerConfig(partial_interval_ms=0), detector)
        for path in sorted(RECORDINGS.glob("*.wav")):
            ears.feed(np.zeros(RATE_HZ, np.float32))
            ears.feed(by_telephone(at_level(read_file(path), level)))
        return detector.voiced

    quiet, usual = voiced(-58), voiced(-20)
    monkeypatch.setattr(agc, "MAX_GAIN_DB", 0.0)
    assert voiced(-20) == usual
    assert voiced(-58) < 0.95 * quiet
    assert quiet > 0.9 * usual
