"""The contract of `asr.Recognizer`, for the engine that `load_recognizer` loads and for a fake."""

from pathlib import Path

import numpy as np
import pytest

from asr import (
    RATE_HZ,
    EndOfTurnModel,
    ModelError,
    Pcm,
    Recognizer,
    TranscriptionOptions,
    VadState,
    VoiceDetector,
    check_recognizer,
    load_end_of_turn_model,
    load_recognizer,
    load_voice_detector,
    read_file,
)
from asr.speech_detection.vad import FRAME
from tests.support.fakes.recognizer import ScriptedRecognizer
from tests.support.models import model_path

RECORDING = Path(__file__).parents[1] / "recordings" / "vm-nobodyavail.wav"


@pytest.fixture(scope="module", params=["whisper", "scripted"])
def recognizer(request: pytest.FixtureRequest) -> Recognizer:
    if request.param == "scripted":
        return ScriptedRecognizer()
    return load_recognizer(model_path("whisper-tiny.en"))


@pytest.fixture(scope="module")
def speech() -> Pcm:
    return read_file(RECORDING)


def test_speech_gives_the_same_words_each_time(recognizer: Recognizer, speech: Pcm) -> None:
    recognizer.warm()
    first = recognizer.transcribe(speech)
    assert first.text == first.text.strip() != ""
    assert first.tokens
    assert first.audio_s == pytest.approx(len(speech) / RATE_HZ)
    assert recognizer.transcribe(speech, fallback=False).text == first.text


def test_the_contract_that_comes_with_halfsec(recognizer: Recognizer, speech: Pcm) -> None:
    assert len(check_recognizer(recognizer, speech)) == 9


@pytest.mark.parametrize("num_samples", [0, 1, RATE_HZ // 25])
def test_less_than_a_word_gives_no_words(recognizer: Recognizer, num_samples: int) -> None:
    pcm = np.zeros(num_samples, np.float32)
    assert recognizer.transcribe(pcm).text == ""
    *_, last = recognizer.steps(pcm)
    assert last.text == ""


def test_damaged_samples_are_silence(recognizer: Recognizer) -> None:
    broken = np.full(RATE_HZ, np.nan, np.float32)
    silence = np.zeros(RATE_HZ, np.float32)
    assert recognizer.transcribe(broken).text == recognizer.transcribe(silence).text


def test_the_last_step_is_the_transcript(recognizer: Recognizer, speech: Pcm) -> None:
    *_, last = recognizer.steps(speech)
    assert last.text == recognizer.transcribe(speech).text


def test_word_times_are_in_order_and_within_the_audio(recognizer: Recognizer, speech: Pcm) -> None:
    hypothesis = recognizer.transcribe(speech)
    words = recognizer.word_times(speech, hypothesis.tokens)
    assert "".join(word.text for word in words).strip() == hypothesis.text
    edges = [edge for word in words for edge in (word.first_sample, word.end_sample)]
    assert edges == sorted(edges)
    assert 0 <= edges[0] < edges[-1] <= len(speech)
    assert [token for word in words for token in word.tokens] == list(hypothesis.tokens)
    assert recognizer.word_times(speech, ()) == []


def test_options(recognizer: Recognizer, speech: Pcm) -> None:
    assert recognizer.num_prompt_tokens(TranscriptionOptions()) == 0
    options = TranscriptionOptions(recognizer.languages[0], "Nobody is here.")
    assert recognizer.num_prompt_tokens(options) >= 3
    *_, last = recognizer.steps(speech, options)
    assert last.text


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    for load in (load_recognizer, load_voice_detector, load_end_of_turn_model):
        with pytest.raises(ModelError, match="nowhere"):
            load(tmp_path / "nowhere")


# --- the other two models ---


class LoudnessDetector:
    """A voice detector that hears speech in every loud frame."""

    def probability(self, frame: Pcm, state: VadState) -> float:
        return 0.9 if np.abs(frame).max() > 0.05 else 0.0


@pytest.fixture(scope="module", params=["silero", "loudness"])
def detector(request: pytest.FixtureRequest) -> VoiceDetector:
    if request.param == "loudness":
        return LoudnessDetector()
    return load_voice_detector(model_path("silero-vad") / "silero_vad.onnx")


def test_a_detector_hears_speech_and_not_silence(detector: VoiceDetector, speech: Pcm) -> None:
    quiet = [detector.probability(np.zeros(FRAME, np.float32), VadState()) for _ in range(3)]
    assert all(0 <= each < 0.3 for each in quiet)
    state = VadState()
    frames = speech[: len(speech) // FRAME * FRAME].reshape(-1, FRAME)
    heard = [detector.probability(frame, state) for frame in frames]
    assert max(heard) > 0.8
    state = VadState()
    assert heard == [detector.probability(frame, state) for frame in frames], "all is in the state"


class LengthModel:
    """An end-of-turn model that believes in long turns."""

    def log_odds(self, pcm: Pcm) -> float:
        return len(pcm) / RATE_HZ - 1.0

    def warm(self) -> None: ...


@pytest.fixture(scope="module", params=["smart-turn", "length"])
def turn_model(request: pytest.FixtureRequest) -> EndOfTurnModel:
    if request.param == "length":
        return LengthModel()
    return load_end_of_turn_model(model_path("smart-turn") / "smart-turn-v3.2-cpu.onnx")


def test_any_turn_has_finite_log_odds(turn_model: EndOfTurnModel, speech: Pcm) -> None:
    turn_model.warm()
    for pcm in (speech, speech[:1], speech[:0], np.tile(speech, 5)):
        odds = turn_model.log_odds(pcm)
        assert np.isfinite(odds)
        assert odds == turn_model.log_odds(pcm), "one turn leaves nothing for the next"
