from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ
from asr.errors import ModelError
from asr.speech_detection.vad import FRAME, SileroVad, VadState
from tests.support.models import model_path

RECORDINGS = Path(__file__).parents[2] / "recordings"

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def vad() -> SileroVad:
    return SileroVad.load(model_path("silero-vad") / "silero_vad.onnx")


def probabilities(vad: SileroVad, pcm: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    state = VadState()
    starts = range(0, len(pcm) - FRAME + 1, FRAME)
    return np.array([vad.probability(pcm[start : start + FRAME], state) for start in starts])


@pytest.mark.parametrize("name", ["vm-nobodyavail.wav", "ill-disposed.wav"])
@pytest.mark.parametrize("gain", [0.02, 1.0, 20.0])
def test_speech_is_detected_quiet_loud_and_clipped(vad: SileroVad, name: str, gain: float) -> None:
    pcm = np.clip(gain * read_file(RECORDINGS / name), -1, 1)
    assert (probabilities(vad, pcm) > 0.5).mean() > 0.7


def test_speech_is_detected_with_dc_offset(vad: SileroVad) -> None:
    pcm = read_file(RECORDINGS / "conf-locked.wav") + np.float32(0.2)
    assert (probabilities(vad, pcm) > 0.5).mean() > 0.7


def not_speech() -> dict[str, npt.NDArray[np.float64]]:
    rng = np.random.default_rng(7)
    seconds = np.arange(4 * RATE_HZ) / RATE_HZ
    notes = rng.choice([262, 294, 330, 349, 392, 440], 16)
    melody = np.cumsum(np.repeat(notes, RATE_HZ // 4)) / RATE_HZ
    chord = np.sin(2 * np.pi * np.outer([220, 277, 330], seconds)).sum(axis=0)
    return {
        "silence": np.zeros(len(seconds)),
        "dc": np.full(len(seconds), 0.5),
        "white noise": 0.3 * rng.standard_normal(len(seconds)),
        "brown noise": np.cumsum(rng.standard_normal(len(seconds))) / 300,
        "mains hum": 0.4 * np.sin(2 * np.pi * 50 * seconds),
        "melody": 0.3 * np.sin(2 * np.pi * melody),
        "beating chord": 0.15 * chord * (np.sin(2 * np.pi * 2 * seconds) > 0),
        "square wave": 0.9 * np.sign(np.sin(2 * np.pi * 440 * seconds)),
    }


@pytest.mark.parametrize("name", not_speech())
def test_non_speech_is_not_detected(vad: SileroVad, name: str) -> None:
    # A click (each onset of the chord) may look like speech for a frame or two, not for an onset.
    assert (probabilities(vad, not_speech()[name].astype(np.float32)) >= 0.5).sum() <= 2


def test_calls_share_a_session_and_nothing_else(vad: SileroVad) -> None:
    one = read_file(RECORDINGS / "vm-changeto.wav")
    two = read_file(RECORDINGS / "vm-savefolder.wav")
    alone = probabilities(vad, one)
    states = VadState(), VadState()
    together = []
    for start in range(0, min(len(one), len(two)) - FRAME + 1, FRAME):
        together.append(vad.probability(one[start : start + FRAME], states[0]))
        vad.probability(two[start : start + FRAME], states[1])
    assert together == alone[: len(together)].tolist()


def test_a_frame_of_another_size_is_refused(vad: SileroVad) -> None:
    with pytest.raises(ValueError, match=r"float32 \[512\]"):
        vad.probability(np.zeros(480, np.float32), VadState())


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"silero_vad\.onnx: the voice detector is missing"):
        SileroVad.load(tmp_path / "silero_vad.onnx")


@pytest.mark.parametrize("keep", [0, 10, 500_000])
def test_a_damaged_model(tmp_path: Path, keep: int) -> None:
    whole = (model_path("silero-vad") / "silero_vad.onnx").read_bytes()
    path = tmp_path / "silero_vad.onnx"
    path.write_bytes(whole[:keep])
    with pytest.raises(ModelError, match="damaged or cut short"):
        SileroVad.load(path)


def test_another_model() -> None:
    with pytest.raises(ModelError, match="not silero VAD"):
        SileroVad.load(model_path("piper-joe") / "en_US-joe-medium.onnx")
