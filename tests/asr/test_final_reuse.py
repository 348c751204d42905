"""Early passes: when the listener asks for one, and which finals take its words over."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, Pcm
from asr.recognition.final_reuse import FinalReuse
from asr.recognition.transcripts import DecodeJob, FinalTranscript, Hypothesis
from asr.recognition.whisper import WhisperTranscriber
from asr.speech_detection.endpointing import SpeechPaused
from asr.speech_detection.vad import SileroVad, VadState
from asr.stream.asr_stream import Listener
from asr.stream.streaming import StreamingConfig, StreamingTranscriber
from asr.stream.utterance import ListenerConfig
from benchmarks.asr.scoring import normalized
from tests.asr.test_files import RECORDINGS
from tests.asr.test_stream import LoudnessVad, feed, listener, said, silence
from tests.support.models import model_path


@dataclass
class Recognizer:
    """Says how often it was asked, and notes whether wider windows were allowed."""

    texts: list[str] = field(default_factory=list)
    fallbacks: list[bool] = field(default_factory=list)

    def transcribe(self, pcm: Pcm, *, fallback: bool = True) -> Hypothesis:
        self.fallbacks.append(fallback)
        text = self.texts.pop(0) if self.texts else f"pass {len(self.fallbacks)}"
        return Hypothesis(text, tokens=(1,), encode_ms=40.0, decode_ms=50.0)


def early_of(jobs: list[DecodeJob]) -> list[DecodeJob]:
    return [job for job in jobs if job.kind == "early"]


def heard(ears: Listener, *stretches: Pcm) -> tuple[DecodeJob, DecodeJob]:
    """The early pass and the final at the pause that ends this audio."""
    events, jobs = feed(ears, *stretches, silence(0.16))
    pause = [event for event in events if isinstance(event, SpeechPaused)][-1]
    final = ears.finalize(1, pause.at_sample)
    assert final is not None
    return early_of(jobs)[-1], final


# --- when one is due ---


def test_an_early_pass_is_due_when_the_voice_has_just_dropped() -> None:
    early, final = heard(listener(), said(1.024))
    assert early.end_sample == round(1.056 * RATE_HZ)
    assert early.end_sample < final.end_sample
    assert early.last_voiced_sample == final.last_voiced_sample is not None


def test_one_for_each_silence_whatever_its_length() -> None:
    _, jobs = feed(listener(), said(0.512), silence(0.064), said(0.512), silence(1.024))
    assert len(early_of(jobs)) == 2


def test_none_without_words_in_a_pause_or_where_they_are_turned_off() -> None:
    assert early_of(feed(listener(), said(0.128), silence(0.5))[1]) == []
    ears = listener()
    feed(ears, said(1), silence(0.5))
    assert early_of(feed(ears, said(0.032), silence(0.5))[1]) == []
    for off in ({"early_ms": 0}, {"partial_interval_ms": 0}):
        assert early_of(feed(listener(**off), said(1), silence(1))[1]) == []


def test_a_partial_that_is_due_in_silence_is_an_early_pass() -> None:
    class Slow(LoudnessVad):
        """Hears the voice for five frames more."""

        def __init__(self) -> None:
            self.left = 0

        def probability(self, frame: Pcm, state: VadState) -> float:
            self.left = 5 if super().probability(frame, state) > 0.5 else self.left - 1
            return 0.95 if self.left > 0 else 0.02

    ears = Listener(ListenerConfig(early_ms=0), Slow())
    _, jobs = feed(ears, said(0.576), silence(0.5))
    assert [job.kind for job in jobs] == ["early"]
    assert jobs[0].last_voiced_sample is not None


def test_none_in_a_room_as_loud_as_the_voice() -> None:
    # The detector hears the pauses; the level does not, and no final could take the words over.
    words = said(1.024)
    noise = said(0.064) * np.float32(0.15)
    ears = listener()
    _, jobs = feed(ears, words, noise, words)
    assert jobs
    assert early_of(jobs) == []


def test_an_early_pass_counts_as_a_partial() -> None:
    ears = listener()
    _, jobs = feed(ears, said(0.512), silence(0.064), said(0.512))
    assert [job.kind for job in jobs] == ["early"]
    late = listener(early_ms=0)
    assert [job.kind for job in feed(late, said(0.512), silence(0.064), said(0.512))[1]] == [
        "partial"
    ]


# --- what finals make of it ---


def test_a_final_over_the_same_words_takes_them_over() -> None:
    early, final = heard(listener(), said(1.024))
    recognizer, words = Recognizer(), FinalReuse()
    known = words.recognize(recognizer, early)
    taken = words.recognize(recognizer, final)
    assert (taken.text, taken.tokens, taken.taken_over) == (known.text, known.tokens, True)
    assert (taken.encode_ms, taken.decode_ms) == (0.0, 0.0)
    assert recognizer.fallbacks == [False]


def test_so_does_a_later_final_if_only_silence_came() -> None:
    ears = listener()
    _, final = heard(ears, said(1.024))
    recognizer, words = Recognizer(), FinalReuse()
    assert not words.recognize(recognizer, final).taken_over
    feed(ears, silence(0.5))
    later = ears.finalize(1, ears.position)
    assert later is not None
    assert later.end_sample > final.end_sample
    assert words.recognize(recognizer, later).text == "pass 1"
    assert recognizer.fallbacks == [True]


def test_words_that_came_after_are_decoded() -> None:
    ears = listener()
    _, jobs = feed(ears, said(0.512), silence(0.064))
    (first,) = early_of(jobs)
    _, final = heard(ears, said(0.512))
    recognizer, words = Recognizer(), FinalReuse()
    words.recognize(recognizer, first)
    assert words.recognize(recognizer, final).text == "pass 2"


def test_a_partial_in_between_does_not_make_them_forgotten() -> None:
    early, final = heard(listener(), said(1.024))
    (partial,) = listener().feed(said(1)).jobs
    recognizer, words = Recognizer(), FinalReuse()
    for job in (early, partial):
        words.recognize(recognizer, job)
    assert words.recognize(recognizer, final).text == "pass 1"


def test_a_text_that_was_not_believed_is_not_taken_over() -> None:
    early, final = heard(listener(), said(1.024))
    recognizer, words = Recognizer(texts=["", "with a wider window"]), FinalReuse()
    words.recognize(recognizer, early)
    assert words.recognize(recognizer, final).text == "with a wider window"
    assert recognizer.fallbacks == [False, True]


@pytest.mark.parametrize("kind", ["utterance", "first_sample", "last_voiced_sample"])
def test_other_audio_is_decoded(kind: str) -> None:
    early, final = heard(listener(), said(1.024))
    recognizer, words = Recognizer(), FinalReuse()
    words.recognize(recognizer, early)
    other = replace(final, **{kind: getattr(final, kind) + 1})
    assert not words.recognize(recognizer, other).taken_over


def test_a_pass_that_failed_leaves_nothing_behind() -> None:
    class Broken:
        def transcribe(self, pcm: Pcm, *, fallback: bool = True) -> Hypothesis:
            raise RuntimeError("no")

    early, final = heard(listener(), said(1.024))
    recognizer, words = Recognizer(), FinalReuse()
    with pytest.raises(RuntimeError):
        words.recognize(Broken(), early)
    assert words.recognize(recognizer, final).text == "pass 1"


# --- with the real models ---


@pytest.mark.models
def test_words_that_are_taken_over_are_those_of_a_final() -> None:
    whisper = WhisperTranscriber.load(model_path("whisper-tiny.en"))
    vad = SileroVad.load(model_path("silero-vad") / "silero_vad.onnx")

    def texts(early_ms: int, pcm: Pcm) -> tuple[list[list[str]], int]:
        recognizer = Counting(whisper)
        config = StreamingConfig(listener=ListenerConfig(early_ms=early_ms))
        stream = StreamingTranscriber(recognizer, vad, config)
        events = stream.feed(np.concatenate([pcm, np.zeros(RATE_HZ, np.float32)])) + stream.flush()
        finals = [one.text for one in events if isinstance(one, FinalTranscript)]
        return [normalized(text) for text in finals], recognizer.finals

    saved = 0
    for name in ("conf-locked.wav", "auth-incorrect.wav", "vm-changeto.wav"):
        pcm = read_file(RECORDINGS / name)
        early, few = texts(32, pcm)
        late, many = texts(0, pcm)
        assert early == late
        saved += many - few
    assert saved >= 3


class Counting:
    def __init__(self, whisper: WhisperTranscriber) -> None:
        self.finals = 0
        self._whisper = whisper

    def transcribe(self, pcm: Pcm, *, fallback: bool = True) -> Hypothesis:
        self.finals += fallback
        return self._whisper.transcribe(pcm, fallback=fallback)
