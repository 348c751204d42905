"""The end-of-turn model: features against the reference, windows, errors that say what to do."""

import math
from pathlib import Path

import numpy as np
import pytest

from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, Pcm
from asr.errors import ModelError
from asr.speech_detection.turn_model import EMBEDDING, TRAINED_S, WINDOW_S, TurnModel
from asr.speech_detection.turn_model_graph import states_graph
from asr.speech_detection.turn_model_head import TurnModelHead
from tests.support.models import model_path

RECORDINGS = Path(__file__).parents[2] / "recordings"
NAMES = ("vm-nobodyavail.wav", "ill-disposed.wav", "conf-locked.wav")

pytestmark = pytest.mark.models


def model_file() -> Path:
    return model_path("smart-turn") / "smart-turn-v3.2-cpu.onnx"


@pytest.fixture(scope="module")
def turn() -> TurnModel:
    return TurnModel.load(model_file())


def spoken(name: str) -> Pcm:
    return np.concatenate([read_file(RECORDINGS / name), np.zeros(RATE_HZ // 10, np.float32)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gain", [0.01, 1.0])
def test_features_are_those_of_the_reference(turn: TurnModel, name: str, gain: float) -> None:
    """The network's own: Whisper's log-mel of 8 s, padded in front, normalized as a whole; of them
    the newest. The first frames reach before the window."""
    from transformers import WhisperFeatureExtractor

    pcm = np.float32(gain) * spoken(name)[-TRAINED_S * RATE_HZ :]
    padded = np.pad(pcm, (TRAINED_S * RATE_HZ - len(pcm), 0))
    reference = WhisperFeatureExtractor(chunk_length=TRAINED_S)(  # type: ignore[no-untyped-call]
        padded, sampling_rate=RATE_HZ, do_normalize=True, return_tensors="np"
    ).input_features[0]
    features = turn.features(pcm)
    assert reference.shape == (80, 800)
    assert features.shape == (80, 100 * WINDOW_S)
    inside = slice(3, -1)
    newest = reference[:, -100 * WINDOW_S :]
    assert np.abs(features[:, inside] - newest[:, inside]).max() < 1e-3


def test_the_head_takes_the_states(turn: TurnModel) -> None:
    embedding = turn.embedding(spoken(NAMES[0]))
    assert embedding.shape == (EMBEDDING,)
    assert embedding.dtype == np.float32
    hidden = np.full((1, EMBEDDING), 0.5, np.float32)
    one = np.ones(1, np.float32)
    offset = np.float32(100 - 0.5 * embedding.sum())  # far from where the unit is off
    head = TurnModelHead(hidden, offset * one, one, -1.0)
    other = TurnModel.load(model_file(), head=head)
    assert other.log_odds(spoken(NAMES[0])) == pytest.approx(99.0, rel=1e-4)


def test_a_head_of_another_model() -> None:
    one = np.ones(1, np.float32)
    with pytest.raises(ModelError, match="takes 3072 numbers, this one 2"):
        TurnModel.load(model_file(), head=TurnModelHead(np.ones((1, 2), np.float32), one, one, 0.0))


def test_whole_sentences_and_beginnings(turn: TurnModel) -> None:
    over, cut = [], []
    for name in NAMES:
        pcm = read_file(RECORDINGS / name)
        pause = np.zeros(RATE_HZ // 10, np.float32)
        over.append(turn.log_odds(np.concatenate([pcm, pause])))
        cut += [
            turn.log_odds(np.concatenate([pcm[: int(part * len(pcm))], pause]))
            for part in (0.35, 0.5, 0.65)
        ]
    print("whole", over, "cut", cut)
    assert np.mean(over) > np.mean(cut) + 1


def test_any_audio_gives_a_number(turn: TurnModel) -> None:
    rng = np.random.default_rng(1)
    for pcm in (
        np.zeros(0, np.float32),
        np.zeros(1, np.float32),
        np.zeros(20 * RATE_HZ, np.float32),
        np.full(RATE_HZ, np.nan, np.float32),
        np.full(RATE_HZ, 0.5, np.float32),
        rng.standard_normal(12 * RATE_HZ).astype(np.float32) * 100,
    ):
        assert math.isfinite(turn.log_odds(pcm))
    with pytest.raises(ValueError, match=r"float32 \[n\]"):
        turn.log_odds(np.zeros((2, 100), np.float32))


def test_only_the_newest_counts_and_nothing_is_remembered(turn: TurnModel) -> None:
    pcm = spoken(NAMES[0])
    first = turn.log_odds(pcm)
    turn.log_odds(spoken(NAMES[1]))
    assert turn.log_odds(pcm) == first
    long = np.concatenate([np.zeros(9 * RATE_HZ, np.float32), pcm])
    assert np.array_equal(turn.features(long[-TRAINED_S * RATE_HZ :]), turn.features(long))


def test_a_file_that_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing; run `halfsec models fetch smart-turn`"):
        TurnModel.load(tmp_path / "none.onnx")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(model_file().read_bytes()[:100_000])
    with pytest.raises(ModelError, match="delete it and run"):
        TurnModel.load(damaged)


def test_another_model() -> None:
    vad = model_path("silero-vad") / "silero_vad.onnx"
    with pytest.raises(ModelError, match=r"silero_vad\.onnx: not Smart Turn version 3"):
        TurnModel.load(vad)
    with pytest.raises(ValueError, match="400 positions"):
        states_graph(vad, 4)
