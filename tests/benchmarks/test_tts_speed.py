"""The comparison of voices, and the two command lines."""

import json
import wave
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tts import speed as bench
from benchmarks.tts.speed import compare, table, whole_piece
from latency_budget.account.clock import ManualClock
from tests.support.models import model_path
from tests.tts.test_voice import HummingEngine
from tts import __main__ as command
from tts.load import load_voice
from tts.resample import Pcm
from tts.voice import PostprocessedVoice, SpeechChunk, leading_silence_ms
from tts.voices.engine import RawSpeech

pytestmark = pytest.mark.slow


class SlowEngine(HummingEngine):
    """Takes 100 ms for every line, by its own clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        self._clock.advance_ms(100)
        return super().speak(line, speed)


def test_a_row_adds_up() -> None:
    clock = ManualClock()
    voice = PostprocessedVoice(SlowEngine(clock), "humming")
    sentences = ("Hello there.", "One. Two.")
    heard: list[int] = []

    def transcribe(pcm: Pcm) -> str:
        heard.append(len(pcm))
        return "hello there" if len(heard) == 1 else "1, three!"

    (row,) = compare([voice], transcribe, sentences=sentences, clock=clock)
    assert row.voice == "humming"
    assert row.num_sentences == 2
    assert row.ms_per_sentence == 150
    assert row.first_audible_ms == pytest.approx(100 + row.leading_silence_ms)
    assert 5 < row.leading_silence_ms < 20
    assert row.rtf == pytest.approx(0.3 / row.speech_s)
    assert row.word_error_rate == 0.25
    assert sum(heard) == pytest.approx(row.speech_s * 16_000, abs=5)


def test_without_a_recognizer_there_is_no_error_rate() -> None:
    rows = compare([PostprocessedVoice(HummingEngine(), "humming")], sentences=("Hello.",))
    assert rows[0].word_error_rate is None
    assert "humming" in table(rows)
    assert table(rows).splitlines()[1].endswith("-")


def test_silence_is_counted_to_the_first_audible_sample() -> None:
    quiet = SpeechChunk(np.zeros(800, np.int16), 8_000, (0, 1), (), False)
    late = np.zeros(800, np.int16)
    late[400] = -400
    loud = SpeechChunk(late, 8_000, (1, 2), (), True)
    assert leading_silence_ms([quiet, loud]) == 150
    assert leading_silence_ms([quiet]) == 0
    assert whole_piece("Hi").span == (0, 2)


@pytest.mark.models
def test_the_bench_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert bench.main(["hibari", "--json", "--models", str(tmp_path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["voice"] == "hibari"
    assert row["num_sentences"] == len(bench.SENTENCES)
    assert row["leading_silence_ms"] < 50
    assert bench.main(["nobody"]) == 2
    assert capsys.readouterr().err.startswith("bench tts: there is no voice 'nobody'")


@pytest.mark.models
def test_a_recognizer_understands_the_voice(monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole way: normalized, trimmed, levelled, resampled. Lost onsets would show here.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from faster_whisper import WhisperModel

    path = str(model_path("whisper-tiny.en"))
    model = WhisperModel(path, compute_type="int8", cpu_threads=2)

    def transcribe(pcm: Pcm) -> str:
        samples = np.concatenate([pcm, np.zeros(8_000, np.int16)]).astype(np.float32) / 32768
        segments, _ = model.transcribe(samples, language="en", beam_size=1)
        return " ".join(segment.text for segment in segments)

    voice = load_voice("hibari", Path("nowhere"))
    (row,) = compare([voice], transcribe, sentences=bench.SENTENCES[2:8])
    assert row.word_error_rate is not None
    assert row.word_error_rate <= 0.1


@pytest.mark.models
def test_the_command_writes_a_wav(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    assert command.main(["Sure, it costs $5.", str(out), "--rate", "8000"]) == 0
    assert capsys.readouterr().out.startswith("first audible after ")
    with wave.open(str(out)) as spoken:
        assert spoken.getframerate() == 8_000
        assert spoken.getnchannels() == 1
        assert 1 < spoken.getnframes() / 8_000 < 5
        pcm = np.frombuffer(spoken.readframes(spoken.getnframes()), "<i2")
    assert np.abs(pcm.astype(np.int32)).max() > 3_000


def test_a_voice_that_fails_leaves_no_part_of_a_wav(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(HummingEngine):
        def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
            if len(self.lines) == 2:
                raise RuntimeError("no memory")
            return super().speak(line, speed)

    voice = PostprocessedVoice(Failing(), "failing")
    monkeypatch.setattr(command, "load_voice", lambda name, models_dir: voice)
    out = tmp_path / "out.wav"
    assert command.main(["One is enough. Two is too many.", str(out)]) == 2
    assert "no memory" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.models
def test_nothing_to_say_writes_an_empty_wav(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.wav"
    assert command.main(["😀", str(out)]) == 0
    assert "nothing to say" in capsys.readouterr().out
    with wave.open(str(out)) as spoken:
        assert spoken.getnframes() == 0


@pytest.mark.models
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Hi", "{tmp}/no/out.wav"], "cannot write"),
        (["Hi", "{tmp}"], "cannot write"),
        (["Hi", "{tmp}/out.wav", "--voice", "nobody"], "no voice 'nobody'"),
        (["Hi", "{tmp}/out.wav", "--rate", "1"], "--rate 1"),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    assert command.main([argument.format(tmp=tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
