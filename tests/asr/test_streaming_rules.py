"""The transcriber's own decisions, with a scripted detector and recognizer."""

import numpy as np
import numpy.typing as npt
import pytest

from asr.recognition.transcripts import FinalTranscript, Hypothesis, PartialTranscript
from asr.speech_detection.endpointing import SpeechPaused, SpeechResumed
from asr.speech_detection.vad import FRAME, VadState
from asr.stream.streaming import AsrEvent, StreamingConfig, StreamingTranscriber
from asr.stream.utterance import ListenerConfig

Pcm = npt.NDArray[np.float32]


class ScriptedVad:
    """Voiced where the script has `#`; silent after its end."""

    def __init__(self, script: str) -> None:
        self.heard = 0
        self._script = script

    def probability(self, frame: Pcm, state: VadState) -> float:
        self.heard += 1
        return 0.9 if self._script[self.heard - 1 : self.heard] == "#" else 0.1


class CountingRecognizer:
    """Hears the same text every time."""

    def __init__(self, text: str) -> None:
        self.passes: list[int] = []
        self._text = text

    def transcribe(self, pcm: Pcm, *, fallback: bool = True) -> Hypothesis:
        self.passes.append(len(pcm))
        return Hypothesis(self._text)


def run(script: str, recognizer: CountingRecognizer, loud_frames: int) -> list[AsrEvent]:
    """The script's detector over audio that is loud at first, then silent."""
    config = StreamingConfig(listener=ListenerConfig(partial_interval_ms=0))
    transcriber = StreamingTranscriber(recognizer, ScriptedVad(script), config)
    pcm = np.zeros(len(script) * FRAME, np.float32)
    pcm[: loud_frames * FRAME] = np.sin(np.arange(loud_frames * FRAME) / 5)
    return transcriber.feed(pcm) + transcriber.flush()


def test_what_the_detector_still_takes_for_speech_is_silence_where_it_is_not_loud() -> None:
    recognizer = CountingRecognizer("hello")
    events = run("#" * 16 + "....##" + "." * 30, recognizer, loud_frames=12)
    paused = [event for event in events if isinstance(event, SpeechPaused)]
    assert [event.at_sample for event in paused] == [12 * FRAME]
    assert not any(isinstance(event, SpeechResumed) for event in events)
    assert [e.text for e in events if isinstance(e, FinalTranscript)] == ["hello"]
    assert len(recognizer.passes) == 1


def test_speech_that_goes_on_is_decoded_again() -> None:
    recognizer = CountingRecognizer("hello")
    run("#" * 12 + "...." + "#" * 8 + "." * 30, recognizer, loud_frames=24)
    assert len(recognizer.passes) == 2


def test_the_end_of_the_stream_needs_no_second_pass() -> None:
    recognizer = CountingRecognizer("hello")
    events = run("#" * 12 + "....", recognizer, loud_frames=12)
    assert isinstance(events[-1], FinalTranscript)
    assert len(recognizer.passes) == 1


def test_utterance_without_words_is_not_reported() -> None:
    events = run("#" * 12 + "." * 30, CountingRecognizer(""), loud_frames=12)
    assert not any(isinstance(event, FinalTranscript) for event in events)


def test_partials_go_on_behind_one_that_failed() -> None:
    class Failing(CountingRecognizer):
        def transcribe(self, pcm: Pcm, *, fallback: bool = True) -> Hypothesis:
            hypothesis = super().transcribe(pcm, fallback=fallback)
            if len(self.passes) == 1:
                raise RuntimeError("out of memory")
            return hypothesis

    transcriber = StreamingTranscriber(Failing("hello"), ScriptedVad("#" * 96))
    pcm = np.sin(np.arange(48 * FRAME) / 5).astype(np.float32)
    with pytest.raises(RuntimeError, match="out of memory"):
        transcriber.feed(pcm)
    events = transcriber.feed(pcm)
    assert any(isinstance(event, PartialTranscript) for event in events)


def test_no_sample_is_lost_between_rates_or_at_the_end() -> None:
    vad = ScriptedVad("")
    transcriber = StreamingTranscriber(CountingRecognizer(""), vad)
    transcriber.feed(np.zeros(24_000, np.float32), 24_000)
    transcriber.feed(np.zeros(8_138, np.float32), 8_000)
    transcriber.flush()
    # 16,000 + 16,276 samples: 20 more than 63 frames.
    assert vad.heard == 64
