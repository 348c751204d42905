"""Contract of voices: what every voice does, ours and those of plug-ins.

    import tts

    def test_my_engine() -> None:
        tts.check_voice(MyEngine())

Needs no test framework; `halfsec check-plugin NAME` prints the same checks. Some 15 sentences are
synthesized.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np

from engine_plugins.contract import CheckResult, raise_broken, require, run_checks
from latency_budget.account.marks import AUDIBLE
from tts.voices.engine import SynthesisEngine
from tts.voices.plugin import MAX_RATE_HZ, MIN_RATE_HZ, CheckedEngine

from .text_chunker import SpeakablePiece
from .voice import PostprocessedVoice, SpeechChunk, Voice

TWO_SENTENCES: Final = "Sure, that's $29.99 on **Friday**. What time works for you? "
NOTHING: Final = ("", "  \n", "...", "?!", "😀 ❤️", "**", "\u200b\ud800", "```\nx=1\n```")
"""Texts without anything to say."""
ODD: Final = ("a", "Xqzzt brwlf!", "@#$%^&", "é", "\x00 ok \x07", "你好。", "3.14159265358979")
MAX_LEAD_S: Final = 0.05
"""Latest first sound: silence in front is latency."""


def check_voice(voice: Voice | SynthesisEngine) -> list[CheckResult]:
    """Run the contract. Returns the checks; raises ContractError with those that failed, and
    VoiceError for an engine with an impossible rate."""
    results = list(voice_checks(voice))
    raise_broken(results)
    return results


def voice_checks(voice: Voice | SynthesisEngine) -> Iterator[CheckResult]:
    """Run the contract check by check."""
    if hasattr(voice, "synthesize"):
        made: Voice = cast(Voice, voice)
    else:
        name = type(voice).__name__
        made = PostprocessedVoice(CheckedEngine(voice, name), name)
    checks: dict[str, Callable[[Voice], None]] = {
        "has a name and a rate": _name_and_rate,
        "can be warmed": lambda voice: voice.warm(),
        "chunks cover the text in order": _chunks,
        "is audible at once, begins and ends in silence, does not clip": _edges,
        "words have times, in order and within the audio": _word_times,
        "the same text is cut the same": _repeated,
        "speaks faster when it is asked to": _faster,
        "nothing to say is silence": _nothing,
        "odd text is no error": _odd,
    }
    yield from run_checks((name, partial(check, made)) for name, check in checks.items())


def _name_and_rate(voice: Voice) -> None:
    require(voice.name, "`name` is empty")
    rate_hz: Any = voice.rate_hz
    require(
        isinstance(rate_hz, int) and MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ,
        f"`rate_hz` is {rate_hz!r}, not a whole number from {MIN_RATE_HZ} to {MAX_RATE_HZ}",
    )


def _chunks(voice: Voice) -> None:
    chunks = _spoken(voice, TWO_SENTENCES, first_char=100)
    require(len(chunks) >= 1, "two sentences give no speech")
    require(
        [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True],
        "`is_last` must be true of the last chunk alone",
    )
    spans = [chunk.text_span for chunk in chunks]
    end = 100 + len(TWO_SENTENCES)
    is_whole = spans[0][0] == 100 and spans[-1][1] == end
    is_joined = all(one[1] == other[0] for one, other in pairwise(spans))
    require(is_whole and is_joined, f"the spans {spans} do not cover 100 to {end}")
    for chunk in chunks:
        require(chunk.pcm.dtype == np.int16 and chunk.pcm.ndim == 1, "`pcm` must be int16 [n]")
        require(chunk.rate_hz == voice.rate_hz, "a chunk's rate is not the voice's")
    duration_s = sum(chunk.duration_ms for chunk in chunks) / 1000
    require(1 < duration_s < 20, f"two sentences take {duration_s:.1f} s: is the rate right?")


def _edges(voice: Voice) -> None:
    for chunk in _spoken(voice, TWO_SENTENCES):
        level = np.abs(chunk.pcm.astype(np.int32))
        audible = np.flatnonzero(level > AUDIBLE)
        require(len(audible), "a sentence is not audible")
        lead_s = float(audible[0]) / chunk.rate_hz
        require(lead_s < MAX_LEAD_S, f"the first sound comes after {lead_s:.2f} s")
        require(level[0] == level[-1] == 0, "a chunk does not begin and end with 0: it clicks")
        require(level.max() < 32_000, "the samples are clipped")


def _word_times(voice: Voice) -> None:
    text = "I can help you with that."
    chunks = _spoken(voice, text, first_char=7)
    times = [time for chunk in chunks for time in chunk.word_times]
    words = [text[time.text_span[0] - 7 : time.text_span[1] - 7] for time in times]
    require(words == text[:-1].split(), f"the times are those of {words}")
    for chunk in chunks:
        starts = [time.start_sample for time in chunk.word_times]
        require(starts == sorted(starts), "the words' samples are not in order")
        inside = all(0 <= t.start_sample < t.end_sample <= len(chunk.pcm) for t in chunk.word_times)
        require(inside, "a word is outside of its chunk, or has no samples")


def _repeated(voice: Voice) -> None:
    first, second = ([chunk.text_span for chunk in _spoken(voice, TWO_SENTENCES)] for _ in range(2))
    require(first == second, f"the spans are {first}, then {second}")


def _faster(voice: Voice) -> None:
    text = "It takes twenty minutes by car, or by bus."
    plain, fast = (
        sum(chunk.duration_ms for chunk in _spoken(voice, text, speed=speed)) for speed in (1, 1.5)
    )
    require(
        fast < 0.9 * plain,
        f"a sentence takes {plain:.0f} ms, and {fast:.0f} ms at speed 1.5: is `speed` used?",
    )


def _nothing(voice: Voice) -> None:
    for text in NOTHING:
        require(not _spoken(voice, text), f"{text!r} is spoken")


def _odd(voice: Voice) -> None:
    for text in ODD:
        for chunk in _spoken(voice, text):
            require(chunk.text_span == (0, len(text)), f"{text!r} has the span {chunk.text_span}")


def _spoken(voice: Voice, text: str, first_char: int = 0, speed: float = 1.0) -> list[SpeechChunk]:
    span = (first_char, first_char + len(text))
    return list(voice.synthesize(SpeakablePiece(text, span, 0), speed))
