"""Sentences of each language, from a real voice to the real recognizer."""

import re
from types import SimpleNamespace

import pytest

pytest.importorskip("num2words", reason="the extra `languages` is not installed")
pytest.importorskip("py_nanotts", reason="the extra `languages` is not installed")

import asr
import tts
from agent.stages.model_store.catalogue import ModelStore
from benchmarks.languages.round_trip import load_sentences, spoken
from benchmarks.languages.sentence_errors import NormalizedSentence, compared
from languages import PROFILES
from tts.voices.pico import PicoEngine

ENGLISH = ["What time do you open on Saturday?", "I would like to book a table for four."]
LANGUAGES = sorted(PROFILES.keys() - {"en"})


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_voice_speaks_and_is_silent_where_there_is_nothing_to_say(language: str) -> None:
    voice = tts.load_voice(PROFILES[language].voice, ModelStore().directory)
    pcm = spoken(voice, PROFILES[language].sentences.idle_prompt)
    assert 0.5 < len(pcm) / asr.RATE_HZ < 6
    for text in ("", "?!", "<volume level='0'>", "\x00"):
        piece = tts.SpeakablePiece(text, (0, len(text)), 0)
        assert all(chunk.text_span == (0, len(text)) for chunk in voice.synthesize(piece))
    faster = sum(c.duration_ms for c in voice.synthesize(_piece(language), speed=1.5))
    assert faster < 0.9 * sum(c.duration_ms for c in voice.synthesize(_piece(language)))


def _piece(language: str) -> tts.SpeakablePiece:
    text = PROFILES[language].sentences.calibration
    return tts.SpeakablePiece(text, (0, len(text)), 0)


def test_the_bench_has_enough_sentences_in_each_language() -> None:
    known = load_sentences()
    assert sorted(known) == LANGUAGES
    assert min(len(set(sentences)) for sentences in known.values()) >= 20


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_words_of_the_bench_are_those_that_the_voice_is_given(language: str) -> None:
    for sentence in load_sentences()[language]:
        assert not re.search(r"\d", sentence.spoken), "digits are written out by hand"
        said = compared(sentence, sentence.written, language)
        assert said.errors == 0, sentence


@pytest.mark.parametrize(
    ("written", "given", "heard"),
    [
        ("Ma sœur voit un bœuf.", "Ma soeur voit un boeuf.", "ma soeur voit un boeuf"),
        ("Œuvre", "Oeuvre", "oeuvre"),
    ],
)
def test_the_voice_reads_a_ligature_as_its_letters(
    written: str, given: str, heard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pico's samples, and their number, are not the same for one text from call to call."""
    engine, texts = PicoEngine("pico-fr"), []
    speak = engine._pico.speak

    def noted(text: str, **options: object) -> bytes:
        texts.append(text)
        return bytes(speak(text, **options))

    monkeypatch.setattr(engine, "_pico", SimpleNamespace(speak=noted))
    assert len(engine.speak(written).samples) > 0
    assert texts == [given]
    assert compared(NormalizedSentence(written, written), heard, "fr").errors == 0


def test_an_error_of_the_normalizer_counts() -> None:
    sentence = NormalizedSentence("1 Stunde", "zwei Stunden")
    assert compared(sentence, sentence.written, "de").errors == 2


@pytest.fixture(scope="module")
def recognizer() -> asr.Recognizer:
    store = ModelStore()
    if store.presence("whisper-base") != "present":
        pytest.skip("whisper-base is not on this machine: halfsec models fetch whisper-base")
    return asr.load_recognizer(store.locate("whisper-base"))


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("language", sorted(PROFILES))
def test_the_language_is_found(recognizer: asr.Recognizer, language: str) -> None:
    assert isinstance(recognizer, asr.FindsLanguage)
    assert recognizer.finds_language
    voice = tts.load_voice(PROFILES[language].voice, ModelStore().directory)
    known = load_sentences()
    sentences = [each.written for each in known[language][:4]] if language in known else ENGLISH
    options = asr.TranscriptionOptions("en", candidates=tuple(PROFILES))
    for sentence in sentences:
        heard = recognizer.transcribe(spoken(voice, sentence), options=options)
        assert (heard.language, heard.text != "") == (language, True), sentence
        assert heard.language_prob > 0.7
        assert 0 < heard.language_ms <= heard.decode_ms
        given = recognizer.transcribe(
            spoken(voice, sentence), options=asr.TranscriptionOptions(language)
        )
        assert given.language == ""


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("language", LANGUAGES)
def test_sentences_are_understood(recognizer: asr.Recognizer, language: str) -> None:
    """Of one sentence alone another processor's rounding may decide; the bench has all of them."""
    voice = tts.load_voice(PROFILES[language].voice, ModelStore().directory)
    sentences = [s for s in load_sentences()[language] if s.written == s.spoken][:5]
    results = []
    for sentence in sentences:
        heard = recognizer.transcribe(
            spoken(voice, sentence.written), options=asr.TranscriptionOptions(language)
        ).text
        results.append(compared(sentence, heard, language))
    assert sum(r.errors for r in results) <= 0.15 * sum(r.words for r in results), results
