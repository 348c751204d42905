import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tts
from asr.audio.conversion import Resampler
from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, Pcm
from asr.errors import ModelError
from asr.recognition.recognizer import TranscriptionOptions
from asr.recognition.whisper import (
    FULL_WINDOW,
    MAX_PIECE_S,
    MIN_PIECE_S,
    WhisperTranscriber,
    WindowPolicy,
    pieces,
)
from benchmarks.asr.scoring import normalized, word_errors
from tests.support.models import model_path

RECORDINGS = Path(__file__).parents[1] / "recordings"
TEXTS: dict[str, str] = json.loads((RECORDINGS / "transcripts.json").read_text())
EXACT = [
    "all-circuits-busy-now.wav",
    "auth-incorrect.wav",
    "conf-locked.wav",
    "vm-changeto.wav",
    "vm-nobodyavail.wav",
]


@pytest.fixture(scope="module")
def whisper() -> WhisperTranscriber:
    return WhisperTranscriber.load(model_path("whisper-tiny.en"))


# --- windows ---


def test_the_window_follows_the_audio_between_floor_and_full() -> None:
    policy = WindowPolicy()
    assert policy.window_s(0.5) == 10
    assert policy.window_s(7.8) == 10
    assert policy.window_s(12) == 15
    assert policy.window_s(28) == 30
    assert FULL_WINDOW.window_s(1) == 30


def test_long_audio_is_cut_where_it_is_quiet() -> None:
    rng = np.random.default_rng(0)
    pcm = rng.uniform(-0.5, 0.5, 70 * RATE_HZ).astype(np.float32)
    for pause_s in (22.0, 47.0):
        at = round(pause_s * RATE_HZ)
        pcm[at : at + RATE_HZ // 2] = 0
    parts = list(pieces(pcm))
    assert np.array_equal(np.concatenate(parts), pcm)
    assert [round(len(piece) / RATE_HZ) for piece in parts] == [22, 25, 23]
    assert all(MIN_PIECE_S <= len(piece) / RATE_HZ <= MAX_PIECE_S for piece in parts)


# --- recognition ---


@pytest.mark.models
@pytest.mark.parametrize("name", EXACT)
def test_telephone_prompts_are_understood(whisper: WhisperTranscriber, name: str) -> None:
    hypothesis = whisper.transcribe(read_file(RECORDINGS / name))
    assert normalized(hypothesis.text) == normalized(TEXTS[name])
    assert hypothesis.window_s == 10
    assert not hypothesis.fell_back
    assert hypothesis.avg_logprob > -0.5
    assert hypothesis.no_speech_prob < 0.5


@pytest.mark.models
def test_the_short_window_loses_nothing_on_the_recordings(whisper: WhisperTranscriber) -> None:
    full = WhisperTranscriber.load(model_path("whisper-tiny.en"), window=FULL_WINDOW)
    audio = [read_file(RECORDINGS / name) for name in TEXTS]
    short_errors = word_errors(TEXTS.values(), [whisper.transcribe(pcm).text for pcm in audio])
    full_errors = word_errors(TEXTS.values(), [full.transcribe(pcm).text for pcm in audio])
    assert short_errors.errors <= full_errors.errors + 1


@pytest.mark.models
def test_the_same_audio_gives_the_same_words(whisper: WhisperTranscriber) -> None:
    pcm = read_file(RECORDINGS / "vm-savefolder.wav")
    one, two = whisper.transcribe(pcm), whisper.transcribe(pcm)
    assert (one.text, one.tokens, one.avg_logprob) == (two.text, two.tokens, two.avg_logprob)


@pytest.mark.models
def test_audio_longer_than_a_window(whisper: WhisperTranscriber) -> None:
    names = [name for name in EXACT for _ in range(3)]
    parts = [part for name in names for part in (read_file(RECORDINGS / name), np.zeros(12_000))]
    pcm = np.concatenate(parts).astype(np.float32)
    assert len(pcm) / RATE_HZ > MAX_PIECE_S
    hypothesis = whisper.transcribe(pcm)
    expected = " ".join(TEXTS[name] for name in names)
    assert word_errors([expected], [hypothesis.text]).rate < 0.15
    assert hypothesis.audio_s == pytest.approx(len(pcm) / RATE_HZ)


@pytest.mark.models
@pytest.mark.parametrize("samples", [0, 1, 799])
def test_audio_too_short_for_a_word(whisper: WhisperTranscriber, samples: int) -> None:
    assert whisper.transcribe(np.ones(samples, np.float32)).text == ""


@pytest.mark.models
def test_nan_and_clipping_do_no_harm(whisper: WhisperTranscriber) -> None:
    pcm = read_file(RECORDINGS / "conf-locked.wav").copy()
    pcm[1000:1010] = np.nan
    clipped = np.clip(8 * pcm, -1, 1)
    assert normalized(whisper.transcribe(pcm).text) == normalized(TEXTS["conf-locked.wav"])
    assert "conference" in whisper.transcribe(clipped).text


@pytest.mark.models
def test_a_degenerate_text_is_decoded_again_with_wider_windows() -> None:
    # A window that ends where the audio ends is what makes Whisper lose its way.
    policy = WindowPolicy(floor_s=0.0, lead_s=0.0, margin_s=0.0)
    cramped = WhisperTranscriber.load(model_path("whisper-tiny.en"), window=policy)
    audio = {name: read_file(RECORDINGS / name) for name in TEXTS}
    hypotheses = {name: cramped.transcribe(pcm) for name, pcm in audio.items()}
    again = {name: one for name, one in hypotheses.items() if one.fell_back}
    assert again
    for name, hypothesis in again.items():
        assert hypothesis.window_s in (15, 30)
        assert word_errors([TEXTS[name]], [hypothesis.text]).rate < 0.4
        assert cramped.transcribe(audio[name], fallback=False).text == ""


@pytest.mark.models
def test_noise_gets_no_answer_or_a_dropped_one(whisper: WhisperTranscriber) -> None:
    noise = 0.01 * np.random.default_rng(3).standard_normal(2 * RATE_HZ).astype(np.float32)
    hypothesis = whisper.transcribe(noise)
    assert hypothesis.text == "" or len(hypothesis.text.split()) <= 3


# --- models that cannot be used ---


def copied(tmp_path: Path) -> Path:
    source = model_path("whisper-tiny.en")
    for path in source.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such directory"):
        WhisperTranscriber.load(tmp_path / "nowhere")


@pytest.mark.models
@pytest.mark.parametrize("name", ["model.bin", "config.json", "tokenizer.json"])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    folder = copied(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ModelError, match=rf"{name} is missing; get the model again"):
        WhisperTranscriber.load(folder)


@pytest.mark.models
@pytest.mark.parametrize("name", ["model.bin", "config.json", "tokenizer.json", "vocabulary.txt"])
def test_a_file_that_was_cut_short(tmp_path: Path, name: str) -> None:
    folder = copied(tmp_path)
    whole = (folder / name).read_bytes()
    (folder / name).unlink()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=rf"{name}.*damaged or cut short"):
        WhisperTranscriber.load(folder)


@pytest.mark.models
def test_an_unknown_compute_type() -> None:
    with pytest.raises(ModelError, match="int3"):
        WhisperTranscriber.load(model_path("whisper-tiny.en"), compute_type="int3")


@pytest.mark.models
def test_a_model_of_another_kind(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    (folder / "model.bin").unlink()
    shutil.copy(model_path("silero-vad") / "silero_vad.onnx", folder / "model.bin")
    with pytest.raises(ModelError, match=r"model\.bin cannot be read"):
        WhisperTranscriber.load(folder)


# --- prompts ---


def spoken(text: str) -> Pcm:
    """A text in the default voice, at 16 kHz."""
    voice = tts.load_voice("hibari", Path("nowhere"))
    chunks = list(voice.synthesize(tts.SpeakablePiece(text, (0, len(text)), 0)))
    resampler = Resampler(voice.rate_hz)
    pcm = resampler.push(np.concatenate([chunk.pcm for chunk in chunks]))
    return np.concatenate([pcm, resampler.flush()])


def test_a_prompt_says_how_a_name_is_written(whisper: WhisperTranscriber) -> None:
    pcm = spoken("Please call Anja Kaczmarek at Halfsec.")
    assert "Halfsec" not in whisper.transcribe(pcm).text
    options = TranscriptionOptions(prompt="Anja Kaczmarek, Halfsec.")
    found = whisper.transcribe(pcm, options=options).text
    assert "Kaczmarek" in found
    assert "Halfsec" in found
