"""A sentence of each language, from a real voice to the real recognizer."""

import pytest

pytest.importorskip("num2words", reason="the extra `languages` is not installed")
pytest.importorskip("py_nanotts", reason="the extra `languages` is not installed")

import asr
import tts
from agent.stages.model_store.catalogue import ModelStore
from benchmarks.tts.languages import compared, load_sentences, spoken
from languages import PROFILES

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


@pytest.fixture(scope="module")
def recognizer() -> asr.Recognizer:
    store = ModelStore()
    if store.presence("whisper-base") != "present":
        pytest.skip("whisper-base is not on this machine: halfsec models fetch whisper-base")
    return asr.load_recognizer(store.locate("whisper-base"))


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_sentence_is_understood(recognizer: asr.Recognizer, language: str) -> None:
    voice = tts.load_voice(PROFILES[language].voice, ModelStore().directory)
    sentence = load_sentences()[language][1]
    heard = recognizer.transcribe(
        spoken(voice, sentence), options=asr.TranscriptionOptions(language)
    ).text
    result = compared(sentence, heard, language)
    assert result.errors <= 1, heard
