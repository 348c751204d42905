import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soxr

from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ
from asr.errors import AudioError, ModelError
from asr.recognition.transcripts import FinalTranscript, PartialTranscript
from asr.recognition.whisper import WhisperTranscriber
from asr.speech_detection.endpointing import SpeechPaused, SpeechStarted
from asr.speech_detection.vad import SileroVad
from asr.stream.streaming import AsrEvent, StreamingConfig, StreamingTranscriber
from asr.stream.utterance import ListenerConfig
from benchmarks.asr.scoring import normalized
from tests.asr.speech_detection.test_vad import not_speech
from tests.support.models import model_path

RECORDINGS = Path(__file__).parents[1] / "recordings"
TEXTS: dict[str, str] = json.loads((RECORDINGS / "transcripts.json").read_text())

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def whisper() -> WhisperTranscriber:
    return WhisperTranscriber.load(model_path("whisper-tiny.en"))


@pytest.fixture(scope="module")
def vad() -> SileroVad:
    return SileroVad.load(model_path("silero-vad") / "silero_vad.onnx")


@pytest.fixture
def transcriber(whisper: WhisperTranscriber, vad: SileroVad) -> StreamingTranscriber:
    return StreamingTranscriber(whisper, vad)


def spoken(*names: str, pause_s: float = 0.8) -> npt.NDArray[np.float32]:
    gap = np.zeros(round(pause_s * RATE_HZ), np.float32)
    parts = [part for name in names for part in (read_file(RECORDINGS / name), gap)]
    return np.concatenate([gap, *parts])


def finals(events: list[AsrEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, FinalTranscript)]


def fed(
    transcriber: StreamingTranscriber, pcm: npt.NDArray[np.float32], size: int
) -> list[AsrEvent]:
    events: list[AsrEvent] = []
    for start in range(0, len(pcm), size):
        events += transcriber.feed(pcm[start : start + size])
    return events + transcriber.flush()


def test_each_utterance_gets_partials_and_one_final(transcriber: StreamingTranscriber) -> None:
    names = ["vm-changeto.wav", "vm-nobodyavail.wav", "all-circuits-busy-now.wav"]
    events = fed(transcriber, spoken(*names), 320)
    assert [normalized(text) for text in finals(events)] == [normalized(TEXTS[n]) for n in names]
    for utterance in (1, 2, 3):
        own = [event for event in events if event.utterance == utterance]
        assert isinstance(own[0], SpeechStarted)
        assert isinstance(own[-1], FinalTranscript)
        partials = [event for event in own if isinstance(event, PartialTranscript)]
        assert partials
        stable = ""
        for partial in partials:
            assert partial.text.startswith(stable)
            stable = partial.text[: partial.stable_chars]


def test_times_are_those_of_the_audio(transcriber: StreamingTranscriber) -> None:
    events = fed(transcriber, spoken("vm-nobodyavail.wav", pause_s=1.0), 1600)
    (final,) = (event for event in events if isinstance(event, FinalTranscript))
    (paused,) = (event for event in events if isinstance(event, SpeechPaused))
    assert 1.0 < final.first_sample / RATE_HZ < 1.3
    assert final.last_voiced_sample is not None
    assert 3.4 < final.last_voiced_sample / RATE_HZ < 3.8
    assert abs(paused.at_sample - final.last_voiced_sample) < 0.2 * RATE_HZ


@pytest.mark.parametrize("size", [1, 511, 4096, 10**9])
def test_any_cut_gives_the_same_events(
    whisper: WhisperTranscriber, vad: SileroVad, size: int
) -> None:
    pcm = spoken("vm-changeto.wav", pause_s=0.6)
    expected = fed(StreamingTranscriber(whisper, vad), pcm, 320)
    assert fed(StreamingTranscriber(whisper, vad), pcm, size) == expected


@pytest.mark.parametrize("rate_hz", [8000, 22050, 44100, 48000])
@pytest.mark.parametrize("kind", ["int16 stereo", "float64 mono"])
def test_any_rate_and_type(transcriber: StreamingTranscriber, rate_hz: int, kind: str) -> None:
    pcm: npt.NDArray[np.generic] = soxr.resample(spoken("conf-locked.wav"), RATE_HZ, rate_hz)
    if kind == "int16 stereo":
        left = (np.clip(pcm, -1, 1) * 32767).astype(np.int16)
        pcm = np.stack([left, np.zeros_like(left)], axis=1)
    else:
        pcm = pcm.astype(np.float64)
    events: list[AsrEvent] = []
    for start in range(0, len(pcm), rate_hz // 50):
        events += transcriber.feed(pcm[start : start + rate_hz // 50], rate_hz)
    events += transcriber.flush()
    assert [normalized(text) for text in finals(events)] == [normalized(TEXTS["conf-locked.wav"])]


def test_the_rate_may_change_between_calls(transcriber: StreamingTranscriber) -> None:
    first = soxr.resample(spoken("conf-locked.wav"), RATE_HZ, 24000)
    events = transcriber.feed(first, 24000)
    events += transcriber.feed(soxr.resample(spoken("vm-changeto.wav"), RATE_HZ, 8000), 8000)
    events += transcriber.flush()
    expected = [TEXTS["conf-locked.wav"], TEXTS["vm-changeto.wav"]]
    assert [normalized(text) for text in finals(events)] == list(map(normalized, expected))


def test_speech_that_ends_with_the_stream_is_not_lost(transcriber: StreamingTranscriber) -> None:
    pcm = read_file(RECORDINGS / "all-circuits-busy-now.wav")
    events = transcriber.feed(pcm)
    assert finals(events) == []
    assert finals(transcriber.flush()) == ["All circuits are busy now."]
    assert finals(transcriber.feed(pcm) + transcriber.flush()) == ["All circuits are busy now."]


def test_a_pause_within_a_sentence_does_not_cut_it(transcriber: StreamingTranscriber) -> None:
    pcm = read_file(RECORDINGS / "vm-nobodyavail.wav")
    cut = round(1.05 * RATE_HZ)
    hesitant = np.concatenate([pcm[:cut], np.zeros(round(0.35 * RATE_HZ), np.float32), pcm[cut:]])
    events = fed(transcriber, np.concatenate([hesitant, np.zeros(16_000, np.float32)]), 320)
    assert sum(isinstance(event, SpeechPaused) for event in events) >= 2
    (text,) = finals(events)
    assert normalized(text)[:4] == ["nobody", "is", "available", "to"]


@pytest.mark.parametrize("name", not_speech())
def test_what_is_no_speech_gives_no_transcript(
    transcriber: StreamingTranscriber, name: str
) -> None:
    events = fed(transcriber, np.tile(not_speech()[name], 3).astype(np.float32), 1600)
    assert [e for e in events if isinstance(e, PartialTranscript | FinalTranscript)] == []


@pytest.mark.parametrize("damage", ["clipped", "dc", "nan", "quiet"])
def test_bad_audio_is_still_understood(transcriber: StreamingTranscriber, damage: str) -> None:
    pcm = spoken("all-circuits-busy-now.wav")
    if damage == "clipped":
        pcm = np.clip(10 * pcm, -1, 1)
    elif damage == "dc":
        pcm = pcm + np.float32(0.3)
    elif damage == "nan":
        pcm[20_000:20_050] = np.nan
        pcm[30_000] = np.inf
    else:
        pcm = pcm * np.float32(0.02)
    (text,) = finals(fed(transcriber, pcm, 1600))
    assert "circuits are busy now" in text.lower()


def test_other_audio_is_refused_and_the_stream_goes_on(transcriber: StreamingTranscriber) -> None:
    with pytest.raises(AudioError, match="100 Hz is not supported"):
        transcriber.feed(np.zeros(10, np.float32), 100)
    with pytest.raises(AudioError, match="uint8"):
        transcriber.feed(np.zeros(10, np.uint8))
    assert finals(fed(transcriber, spoken("vm-changeto.wav"), 1600))


def test_a_silence_is_needed_to_cut() -> None:
    with pytest.raises(ValueError, match="endpointing cannot be None"):
        StreamingConfig(listener=ListenerConfig(endpointing=None))


def test_models_are_loaded_by_path(tmp_path: Path) -> None:
    vad_path = model_path("silero-vad") / "silero_vad.onnx"
    transcriber = StreamingTranscriber.load(model_path("whisper-tiny.en"), vad_path, threads=1)
    assert transcriber.flush() == []
    with pytest.raises(ModelError, match="no such directory"):
        StreamingTranscriber.load(tmp_path / "none", vad_path)
