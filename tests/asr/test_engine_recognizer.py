"""A recognizer made of an engine: lengths, word times, and engines that return something else."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asr
from asr import (
    AS_LOADED,
    RATE_HZ,
    ModelError,
    Pcm,
    RawTranscript,
    RecognizedWord,
    TranscriptionOptions,
)
from asr.recognition.engine_recognizer import EngineRecognizer
from engine_plugins.contract import ContractError
from tests.support.plugins import Install

pytest_plugins = ["tests.support.plugin_fixtures"]


class ScriptedEngine:
    """Hears the same text in any audio that is not silent."""

    languages = ("en", "de")

    def __init__(
        self, text: str = "Hello there, you.", words: Sequence[RecognizedWord] = ()
    ) -> None:
        self.heard: list[tuple[int, TranscriptionOptions]] = []
        self._result = RawTranscript(text, words, avg_logprob=-0.5)

    def recognize(self, pcm: Pcm, options: TranscriptionOptions) -> RawTranscript:
        self.heard.append((len(pcm), options))
        assert np.isfinite(pcm).all()
        return self._result if pcm.any() else RawTranscript("")


def recognizer(engine: Any) -> EngineRecognizer:
    return EngineRecognizer(engine, "scripted:x")


def noise(seconds: float) -> Pcm:
    return np.full(int(seconds * RATE_HZ), 0.1, np.float32)


def words_of(engine: ScriptedEngine) -> list[tuple[str, int, int]]:
    made = recognizer(engine)
    *_, last = made.steps(noise(1))
    return [
        (word.text, word.first_sample, word.end_sample)
        for word in made.word_times(noise(1), last.tokens)
    ]


def test_an_engine_passes_the_contract() -> None:
    results = asr.check_recognizer(ScriptedEngine(), noise(2))
    assert len(results) == 9


def test_long_audio_is_cut_and_short_audio_is_not_heard() -> None:
    engine = ScriptedEngine()
    made = recognizer(engine)
    found = made.transcribe(noise(60))
    assert [length <= 28 * RATE_HZ for length, _ in engine.heard] == [True] * len(engine.heard)
    assert sum(length for length, _ in engine.heard) == 60 * RATE_HZ
    num_parts = len(engine.heard)
    assert found.text == " ".join(["Hello there, you."] * num_parts)
    assert found.tokens == tuple(range(3 * num_parts))
    assert found.audio_s == 60
    assert found.avg_logprob == -0.5
    assert made.transcribe(noise(0.04)).text == ""
    assert made.transcribe(noise(0)).audio_s == 0
    assert len(engine.heard) == num_parts


def test_long_audio_of_which_a_piece_failed_counts_as_failed() -> None:
    class Failing(ScriptedEngine):
        def recognize(self, pcm: Pcm, options: TranscriptionOptions) -> RawTranscript:
            whole = super().recognize(pcm, options)
            failed = replace(whole, avg_logprob=float("nan"))
            return failed if len(self.heard) == 2 else whole

    assert recognizer(Failing()).transcribe(noise(60)).is_garbage


def test_options_reach_the_engine() -> None:
    engine = ScriptedEngine()
    options = TranscriptionOptions("de", "Two words")
    made = recognizer(engine)
    list(made.steps(noise(1), options))
    made.transcribe(noise(1))
    assert [each for _, each in engine.heard] == [options, AS_LOADED]
    assert made.num_prompt_tokens(options) == 2


def test_words_keep_the_engines_times_and_the_texts_punctuation() -> None:
    words = [
        RecognizedWord("Hello", 100, 2_000),
        RecognizedWord(" there", 1_900, 5_000),
        RecognizedWord("you", 6_000, 99_000),
    ]
    assert words_of(ScriptedEngine(words=words)) == [
        (" Hello", 100, 2_000),
        (" there", 2_000, 5_000),
        (", you.", 6_000, RATE_HZ),
    ]


def test_words_of_a_script_without_blanks() -> None:
    words = [RecognizedWord("你", 0, 800), RecognizedWord("好", 800, 1_600)]
    assert words_of(ScriptedEngine("你好。", words)) == [(" 你", 0, 800), ("好。", 800, 1_600)]


@pytest.mark.parametrize(
    "words", [(), (RecognizedWord("Hello", 0, 9),), (RecognizedWord("other", 0, 9),) * 3]
)
def test_times_are_estimated_where_the_words_are_not_the_texts(
    words: Sequence[RecognizedWord],
) -> None:
    found = words_of(ScriptedEngine(words=words))
    assert [text for text, _, _ in found] == [" Hello", " there,", " you."]
    edges = [edge for _, first, end in found for edge in (first, end)]
    assert edges == sorted(edges)
    assert (edges[0], edges[-1]) == (0, RATE_HZ)


def test_times_right_after_the_text_cost_no_second_pass() -> None:
    engine = ScriptedEngine()
    made, pcm = recognizer(engine), noise(1)
    *_, last = made.steps(pcm)
    assert len(made.word_times(pcm, last.tokens)) == 3
    assert len(engine.heard) == 1
    assert len(made.word_times(noise(1), last.tokens)) == 3
    assert len(engine.heard) == 2


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("Hello", "returned str: `recognize\\(\\)` must return asr.RawTranscript"),
        (RawTranscript(None), "returned NoneType"),  # type: ignore[arg-type]
        (RawTranscript("Hi", None), "returned a RawTranscript whose words"),  # type: ignore[arg-type]
        (RawTranscript("Hi", avg_logprob=None), "returned a .* no numbers"),  # type: ignore[arg-type]
        (OSError("no\nmemory"), "could not recognize 1.0 s of audio: OSError$"),
    ],
)
def test_an_engine_that_returns_something_else_is_named(result: object, said: str) -> None:
    class Wrong(ScriptedEngine):
        def recognize(self, pcm: Pcm, options: TranscriptionOptions) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

    with pytest.raises(ModelError, match=f"the recognizer scripted:x {said}"):
        recognizer(Wrong()).transcribe(noise(1))


@pytest.mark.parametrize("languages", ["en", (), (1,), ("en", "de-AT")])
def test_languages_that_are_no_list_of_codes(languages: Any) -> None:
    engine = ScriptedEngine()
    engine.languages = languages
    with pytest.raises(ModelError, match="scripted:x: `languages`"):
        recognizer(engine)


def test_the_contract_names_what_is_broken() -> None:
    class Forgetful(ScriptedEngine):
        def recognize(self, pcm: Pcm, options: TranscriptionOptions) -> RawTranscript:
            super().recognize(pcm, options)
            return RawTranscript("Hello" if len(self.heard) % 2 else "Bye")

    with pytest.raises(ContractError) as caught:
        asr.check_recognizer(Forgetful(), noise(2))
    broken = {each.check: each.problem for each in caught.value.broken}
    assert "the first gave" in broken["speech gives words, the same ones each time"]
    assert "can be warmed" not in broken


SOURCE = """
    import asr

    class Engine:
        def __init__(self, argument, options):
            self.languages = (options.language,)
            self.text = f"{argument} {options.threads} {options.device} {options.compute_type}"

        def recognize(self, pcm, options):
            return asr.RawTranscript(self.text if pcm.any() else "")
"""


def test_a_plugin_is_loaded_with_the_settings(install: Install, tmp_path: Path) -> None:
    install("mine", "halfsec.recognizers", "mine = mine_recognizer:Engine", SOURCE)
    loaded = asr.load_recognizer(
        "mine:tiny", threads=3, device="cuda", compute_type="float16", language="de"
    )
    assert loaded.languages == ("de",)
    assert loaded.transcribe(noise(1)).text == "tiny 3 cuda float16"
    with pytest.raises(ModelError, match="nowhere"):
        asr.load_recognizer(tmp_path / "mine:nowhere")  # a path is never a plug-in


def test_the_contract_wants_a_probability_that_is_a_number() -> None:
    class Unsure(ScriptedEngine):
        def recognize(self, pcm: Pcm, options: TranscriptionOptions) -> RawTranscript:
            super().recognize(pcm, options)
            return RawTranscript("Hello", avg_logprob=float("nan"))

    with pytest.raises(ContractError, match="'Hello' with a log-probability of nan"):
        asr.check_recognizer(Unsure(), noise(2))
