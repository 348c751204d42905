"""Retries of Whisper and the result that is kept, with a scripted runtime."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from asr.audio.samples import RATE_HZ
from asr.recognition.recognizer import TranscriptionOptions
from asr.recognition.whisper import FOREIGN_BEAM, WhisperTranscriber, WindowPolicy


@dataclass
class Answer:
    """What the runtime gives back: a text of words "w1 w2", their mean log probability."""

    words: list[int]
    score: float = -0.2
    no_speech_prob: float = 0.0

    @property
    def sequences_ids(self) -> list[list[int]]:
        return [self.words]

    @property
    def scores(self) -> list[float]:
        return [self.score * (len(self.words) + 1) / max(1, len(self.words))]


@dataclass
class Runtime:
    """A ctranslate2 model, faster-whisper's tokenizer and features in one."""

    answers: list[Answer]
    windows_s: list[float] = field(default_factory=list)
    audio: list[npt.NDArray[np.float32]] = field(default_factory=list)
    max_tokens: int = 0
    prompts: list[list[int]] = field(default_factory=list)
    beams: list[int] = field(default_factory=list)
    language_code: str = "en"
    sot_sequence: tuple[int, ...] = (1, 2)
    no_timestamps: int = 3

    def __call__(self, pcm: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        self.audio.append(pcm)
        return np.zeros((80, len(pcm) // 160), np.float32)

    def encode(self, features: object, to_cpu: bool) -> object:
        self.windows_s.append(features.shape[2] / 100)  # type: ignore[attr-defined]
        return features

    def generate(self, encoded: object, prompts: list[list[int]], **options: int) -> list[Answer]:
        self.max_tokens = options["max_length"] // 2  # the rest is for the prompt
        self.prompts += prompts
        self.beams.append(options["beam_size"])
        return [self.answers.pop(0)]

    def decode(self, tokens: list[int]) -> str:
        return " ".join(f"w{token}" for token in tokens)


class PromptTokenizer:
    """A tokenizer whose tokens of a prompt are the lengths of its words."""

    language_code, sot_prev, sot_sequence, no_timestamps = "en", 9, (1, 2), 3

    def encode(self, text: str) -> list[int]:
        return [100 + len(word) for word in text.split()]

    def decode(self, tokens: list[int]) -> str:
        return " ".join(f"w{token}" for token in tokens)


def transcribed(
    *answers: Answer, seconds: float = 2.0, fallback: bool = True
) -> tuple[str, Runtime]:
    runtime = Runtime(list(answers))
    whisper = WhisperTranscriber(runtime, runtime, runtime)
    return whisper.transcribe(ones(seconds), fallback=fallback).text, runtime


def taken_from_a_file(*answers: Answer, seconds: float = 2.0) -> tuple[str, Runtime]:
    """The same without a caller who waits."""
    runtime = Runtime(list(answers))
    *_, last = WhisperTranscriber(runtime, runtime, runtime).steps(ones(seconds))
    return last.text, runtime


def ones(seconds: float) -> npt.NDArray[np.float32]:
    return np.ones(round(seconds * RATE_HZ), np.float32)


GOOD = Answer([1, 2, 3])
LOOP = Answer([7] * 8)
UNLIKELY = Answer([4, 5], score=-1.5)


def test_a_good_text_is_decoded_once() -> None:
    text, runtime = transcribed(GOOD)
    assert (text, runtime.windows_s) == ("w1 w2 w3", [10])


@pytest.mark.parametrize(("language", "beam"), [("en", 1), ("fr", FOREIGN_BEAM)])
def test_several_texts_are_followed_in_other_languages_than_english(
    language: str, beam: int
) -> None:
    runtime = Runtime([GOOD], language_code=language)
    whisper = WhisperTranscriber(runtime, runtime, runtime)
    assert whisper.transcribe(np.ones(2 * RATE_HZ, np.float32), fallback=False).text == "w1 w2 w3"
    assert runtime.beams == [beam]


def test_the_audio_stands_behind_a_lead_of_silence() -> None:
    _, runtime = transcribed(GOOD)
    (padded,) = runtime.audio
    lead = round(WindowPolicy().lead_s * RATE_HZ)
    assert len(padded) == 10 * RATE_HZ
    assert np.flatnonzero(padded)[[0, -1]].tolist() == [lead, lead + 2 * RATE_HZ - 1]


def test_tokens_are_bounded_by_the_time_there_is() -> None:
    _, runtime = transcribed(GOOD, seconds=5)
    assert runtime.max_tokens == 40


@pytest.mark.parametrize("bad", [LOOP, UNLIKELY, Answer(list(range(100, 130)))])
def test_a_bad_text_is_decoded_again_with_wider_windows(bad: Answer) -> None:
    assert transcribed(bad, GOOD)[0] == "w1 w2 w3"
    text, runtime = taken_from_a_file(bad, bad, GOOD)
    assert (text, runtime.windows_s) == ("w1 w2 w3", [10, 15, 30])


@pytest.mark.parametrize("bad", [LOOP, UNLIKELY])
def test_a_caller_waits_for_one_wider_window(bad: Answer) -> None:
    assert transcribed(bad, bad)[1].windows_s == [10, 15]
    assert transcribed(bad, bad, seconds=16)[1].windows_s == [19, 30]


def test_audio_beyond_the_first_retry_goes_straight_to_the_full_window() -> None:
    assert transcribed(LOOP, GOOD, seconds=16)[1].windows_s == [19, 30]


def test_of_bad_texts_an_unlikely_one_is_better_than_a_loop() -> None:
    assert transcribed(LOOP, UNLIKELY)[0] == "w4 w5"
    assert transcribed(LOOP, LOOP)[0] == "w7"
    assert taken_from_a_file(LOOP, UNLIKELY, LOOP)[0] == "w4 w5"


def test_a_partial_is_not_worth_a_second_try() -> None:
    text, runtime = transcribed(LOOP, fallback=False)
    assert (text, runtime.windows_s) == ("", [10])


def test_an_answer_to_noise_is_dropped() -> None:
    assert transcribed(Answer([1, 2], score=-1.1, no_speech_prob=0.9))[0] == ""
    assert transcribed(Answer([1, 2], score=-1.1, no_speech_prob=0.3))[0] == "w1 w2"
    assert transcribed(Answer([1, 2], score=-0.3, no_speech_prob=0.9))[0] == "w1 w2"


def test_the_last_try_at_a_loop_is_made_without_the_prompt() -> None:
    """It may be what the text loops on."""
    tokenizer, options = PromptTokenizer(), TranscriptionOptions(prompt="one three")
    prompted = [9, 103, 105, 1, 2, 3]
    runtime = Runtime([LOOP, LOOP, GOOD])
    *_, found = WhisperTranscriber(runtime, tokenizer, runtime).steps(ones(2), options)
    assert found.text == "w1 w2 w3"
    assert runtime.prompts == [prompted, prompted, [1, 2, 3]]
    waited_for = Runtime([LOOP, GOOD])
    found = WhisperTranscriber(waited_for, tokenizer, waited_for).transcribe(
        ones(2), options=options
    )
    assert found.text == "w1 w2 w3"
    assert waited_for.prompts == [prompted, [1, 2, 3]]
    unsure = Runtime([UNLIKELY] * 2)
    WhisperTranscriber(unsure, tokenizer, unsure).transcribe(ones(2), options=options)
    assert unsure.prompts == [prompted] * 2, "a style that is unlikely stays asked for"
