"""Contract of recognizers: what every recognizer does, ours and those of plug-ins.

    import asr

    def test_my_engine() -> None:
        asr.check_recognizer(MyEngine())

Needs no test framework; `halfsec check-plugin NAME` prints the same checks. About 40 s of audio are
recognized.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, cast

import numpy as np

from asr.audio.samples import RATE_HZ, Pcm
from asr.recognition.engine import RecognitionEngine
from asr.recognition.engine_recognizer import EngineRecognizer
from asr.recognition.recognizer import Recognizer, TranscriptionOptions, is_language_code
from asr.recognition.transcripts import Hypothesis
from engine_plugins.contract import CheckResult, raise_broken, require, run_checks

SAMPLE: Final = Path(__file__).resolve().parents[1] / "web_demo" / "sample-question.wav"
"""A question in English that comes with halfsec."""

LONGEST_S: Final = 27
"""Longest stretch that is checked. Nothing longer than 28 s reaches a recognizer's `steps`."""


def check_recognizer(
    recognizer: Recognizer | RecognitionEngine, speech: Pcm | None = None
) -> list[CheckResult]:
    """Run the contract. Returns the checks; raises ContractError with those that failed.

    `speech`: one utterance, float32 [n] at 16 kHz, at most 20 s (`asr.read_file`); None: a question
    in English.
    """
    results = list(recognizer_checks(recognizer, speech))
    raise_broken(results)
    return results


def recognizer_checks(
    recognizer: Recognizer | RecognitionEngine, speech: Pcm | None = None
) -> Iterator[CheckResult]:
    """Run the contract check by check."""
    if speech is None:
        from asr.audio.files import read_file

        speech = read_file(SAMPLE)
    if hasattr(recognizer, "transcribe"):
        made: Recognizer = cast(Recognizer, recognizer)
    else:
        made = EngineRecognizer(recognizer, type(recognizer).__name__)
    checks: dict[str, Callable[[Recognizer, Pcm], None]] = {
        "names its languages": _languages,
        "can be warmed": lambda recognizer, _: recognizer.warm(),
        "speech gives words, the same ones each time": _same_words,
        "less than 50 ms gives no words": _no_words,
        "damaged samples are taken for silence": _damaged,
        "the last step is the transcript": _last_step,
        "words have times, in order and within the audio": _word_times,
        "takes a language and a prompt": _options,
        f"takes {LONGEST_S} s at once": _longest,
    }
    yield from run_checks((name, partial(check, made, speech)) for name, check in checks.items())


def _languages(recognizer: Recognizer, speech: Pcm) -> None:
    codes = recognizer.languages
    require(codes, "`languages` is empty; the first must be the language of loading")
    wrong = [code for code in codes if not is_language_code(code)]
    require(not wrong, f'{wrong[:3]} are no language codes like "en"')


def _same_words(recognizer: Recognizer, speech: Pcm) -> None:
    first = recognizer.transcribe(speech)
    require(first.text, "the speech gives an empty text")
    require(first.text == first.text.strip(), f"the text has blanks at its ends: {first.text!r}")
    require(first.tokens, "the speech gives no tokens")
    require(
        not first.is_garbage,
        f"the speech gives {first.text[:20]!r} with a log-probability of {first.avg_logprob}, "
        "which a call takes for a failure",
    )
    seconds = len(speech) / RATE_HZ
    require(
        abs(first.audio_s - seconds) < 0.001,
        f"`audio_s` is {first.audio_s:.3f}, and the audio has {seconds:.3f} s",
    )
    again = recognizer.transcribe(speech, fallback=False).text
    require(again == first.text, f"a second pass gives {again!r}, the first gave {first.text!r}")


def _no_words(recognizer: Recognizer, speech: Pcm) -> None:
    for num_samples in (0, 1, RATE_HZ // 25):
        pcm = np.zeros(num_samples, np.float32)
        for text in (recognizer.transcribe(pcm).text, _last(recognizer, pcm).text):
            require(not text, f"{num_samples} samples of silence give {text!r}")


def _damaged(recognizer: Recognizer, speech: Pcm) -> None:
    silent = recognizer.transcribe(np.zeros(RATE_HZ, np.float32)).text
    broken = recognizer.transcribe(np.full(RATE_HZ, np.nan, np.float32)).text
    require(broken == silent, f"samples that are no numbers give {broken!r}, silence {silent!r}")


def _last_step(recognizer: Recognizer, speech: Pcm) -> None:
    whole, last = recognizer.transcribe(speech).text, _last(recognizer, speech).text
    require(last == whole, f"the last step gives {last!r}, `transcribe` {whole!r}")


def _word_times(recognizer: Recognizer, speech: Pcm) -> None:
    last = _last(recognizer, speech)
    words = recognizer.word_times(speech, last.tokens)
    text = "".join(word.text for word in words).strip()
    require(text == last.text, f"the words make up {text!r}, and the text is {last.text!r}")
    edges = [edge for word in words for edge in (word.first_sample, word.end_sample)]
    require(edges == sorted(edges), f"the words' samples are not in order: {edges}")
    require(
        edges and edges[0] >= 0 and edges[-1] <= len(speech),
        f"words at {edges[:1]} to {edges[-1:]} of {len(speech)} samples",
    )
    require(edges[0] < edges[-1], "all words are at the same sample")
    tokens = [token for word in words for token in word.tokens]
    require(tokens == list(last.tokens), "the words' tokens are not those of the transcript")
    require(not recognizer.word_times(speech, ()), "no tokens have words")


def _options(recognizer: Recognizer, speech: Pcm) -> None:
    require(
        recognizer.num_prompt_tokens(TranscriptionOptions()) == 0, "no prompt counts for tokens"
    )
    options = TranscriptionOptions(recognizer.languages[0], "A question about a country.")
    require(_last(recognizer, speech, options).text, "the speech gives an empty text with a prompt")


def _longest(recognizer: Recognizer, speech: Pcm) -> None:
    quiet = np.zeros(max(0, LONGEST_S * RATE_HZ - len(speech)), np.float32)
    text = _last(recognizer, np.concatenate([speech, quiet])).text
    require(text, "speech with silence behind it gives an empty text")


def _last(
    recognizer: Recognizer, pcm: Pcm, options: TranscriptionOptions | None = None
) -> Hypothesis:
    steps = list(recognizer.steps(pcm, options or TranscriptionOptions()))
    require(steps, "`steps` yields nothing")
    return steps[-1]
