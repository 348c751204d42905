"""The end-of-turn model: features against the reference, windows, errors that say what to do."""

from pathlib import Path

import numpy as np
import pytest

from asr.audio import RATE_HZ, Pcm
from asr.errors import ModelError
from asr.files import read_file
from asr.turn_model import TRAINED_S, WINDOW_S, TurnModel
from asr.turn_window import shortened
from tests.models import model_path

RECORDINGS = Path(__file__).parent / "recordings"
NAMES = ("vm-nobodyavail.wav", "ill-disposed.wav", "conf-locked.wav")

pytestmark = pytest.mark.models


def model_file() -> Path:
    return model_path("smart-turn") / "smart-turn-v3.2-cpu.onnx"


@pytest.fixture(scope="module")
def turn() -> TurnModel:
    return TurnModel.load(model_file())


@pytest.fixture(scope="module")
def whole() -> TurnModel:
    return TurnModel.load(model_file(), window_s=TRAINED_S)


def spoken(name: str) -> Pcm:
    return np.concatenate([read_file(RECORDINGS / name), np.zeros(RATE_HZ // 10, np.float32)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gain", [0.01, 1.0])
def test_features_are_those_of_the_reference(whole: TurnModel, name: str, gain: float) -> None:
    """The network's own: Whisper's log-mel of 8 s, padded in front, normalized as a whole."""
    from transformers import WhisperFeatureExtractor

    pcm = np.float32(gain) * spoken(name)[-TRAINED_S * RATE_HZ :]
    padded = np.pad(pcm, (TRAINED_S * RATE_HZ - len(pcm), 0))
    reference = WhisperFeatureExtractor(chunk_length=TRAINED_S)(  # type: ignore[no-untyped-call]
        padded, sampling_rate=RATE_HZ, do_normalize=True, return_tensors="np"
    ).input_features[0]
    features = whole.features(pcm)
    assert features.shape == reference.shape == (80, 800)
    assert np.abs(features - reference).max() < 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_short_window_sees_the_newest_of_the_same(
    turn: TurnModel, whole: TurnModel, name: str
) -> None:
    short, long = turn.features(spoken(name)), whole.features(spoken(name))
    assert short.shape == (80, 100 * WINDOW_S)
    inside = slice(3, -1)  # the first frames reach before the window
    assert np.abs(short[:, inside] - long[:, -100 * WINDOW_S :][:, inside]).max() < 1e-3


@pytest.mark.parametrize("window_s", [1, 2, 3, 6])
def test_a_window_of_any_length_runs(window_s: int) -> None:
    model = TurnModel.load(model_file(), window_s=window_s)
    assert 0 <= model.probability(spoken(NAMES[0])) <= 1


def test_whole_sentences_and_beginnings(turn: TurnModel) -> None:
    over, cut = [], []
    for name in NAMES:
        pcm = read_file(RECORDINGS / name)
        pause = np.zeros(RATE_HZ // 10, np.float32)
        over.append(turn.probability(np.concatenate([pcm, pause])))
        cut += [
            turn.probability(np.concatenate([pcm[: int(part * len(pcm))], pause]))
            for part in (0.35, 0.5, 0.65)
        ]
    print("whole", over, "cut", cut)
    assert np.mean(over) > np.mean(cut) + 0.2


def test_any_audio_gives_a_probability(turn: TurnModel) -> None:
    rng = np.random.default_rng(1)
    for pcm in (
        np.zeros(0, np.float32),
        np.zeros(1, np.float32),
        np.zeros(20 * RATE_HZ, np.float32),
        np.full(RATE_HZ, np.nan, np.float32),
        np.full(RATE_HZ, 0.5, np.float32),
        rng.standard_normal(12 * RATE_HZ).astype(np.float32) * 100,
    ):
        assert 0 <= turn.probability(pcm) <= 1
    with pytest.raises(ValueError, match=r"float32 \[n\]"):
        turn.probability(np.zeros((2, 100), np.float32))


def test_only_the_newest_counts_and_nothing_is_remembered(turn: TurnModel) -> None:
    pcm = spoken(NAMES[0])
    first = turn.probability(pcm)
    turn.probability(spoken(NAMES[1]))
    assert turn.probability(pcm) == first
    long = np.concatenate([np.zeros(9 * RATE_HZ, np.float32), pcm])
    assert np.array_equal(turn.features(long[-TRAINED_S * RATE_HZ :]), turn.features(long))


def test_a_file_that_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing; run `halfsec models fetch smart-turn`"):
        TurnModel.load(tmp_path / "none.onnx")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(model_file().read_bytes()[:100_000])
    for window_s in (WINDOW_S, TRAINED_S):
        with pytest.raises(ModelError, match="delete it and run"):
            TurnModel.load(damaged, window_s=window_s)


def test_another_model() -> None:
    vad = model_path("silero-vad") / "silero_vad.onnx"
    with pytest.raises(ModelError, match=r"silero_vad\.onnx: not"):
        TurnModel.load(vad)
    with pytest.raises(ModelError, match="not Smart Turn version 3"):
        TurnModel.load(vad, window_s=TRAINED_S)
    with pytest.raises(ValueError, match="400 positions"):
        shortened(vad, 4)
