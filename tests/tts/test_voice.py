"""Contract of every voice, for a fake engine and for both real ones."""

import shutil
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import hibari.voices
import numpy as np
import onnxruntime
import pytest

from benchmarks.faults.damaged_models import damage
from benchmarks.soak.allocator import allocated
from latency_budget.account.marks import AUDIBLE
from tests.support.models import model_path
from tts import (
    SpeakablePiece,
    SpeechChunk,
    Voice,
    VoiceError,
    available_voices,
    check_voice,
    load_voice,
)
from tts.loudness import TARGET_DBFS, active_dbfs
from tts.onnx_session import LONG_INPUT, open_session
from tts.text.normalize import spoken_words
from tts.voice import MAX_SENTENCE_CHARS, PostprocessedVoice, split_sentences
from tts.voices.engine import RawSpeech
from tts.word_times import PhonemeGroup


class HummingEngine:
    """60 ms of tone a letter, between silences, of changing loudness; tells durations."""

    rate_hz = 16_000

    def __init__(self) -> None:
        self.lines: list[str] = []

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        self.lines.append(line)
        letter, at = round(960 / speed), 3_200
        groups: list[PhonemeGroup] = []
        for word in line.split():
            groups.append(PhonemeGroup(at, at + letter * len(word)))
            at += letter * len(word)
        time_s = np.arange(at - 3_200) / self.rate_hz
        amplitude = (0.1, 0.12, 0.15)[len(self.lines) % 3]
        tone = (amplitude * np.sin(2 * np.pi * 200 * time_s)).astype(np.float32)
        quiet = np.zeros(3_200, np.float32)
        return RawSpeech(np.concatenate([quiet, tone, quiet]), groups)


class BrokenEngine:
    rate_hz = 16_000

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        raise RuntimeError(f"no weights\nfor {line}")


class MuteEngine(BrokenEngine):
    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        return RawSpeech(np.zeros(len(line), np.float32))


def piece(text: str, first_char: int = 0) -> SpeakablePiece:
    return SpeakablePiece(text, (first_char, first_char + len(text)), 0)


def _fake() -> Voice:
    return PostprocessedVoice(HummingEngine())


def _hibari() -> Voice:
    return load_voice("hibari", Path("nowhere"))


def _piper() -> Voice:
    pytest.importorskip("piper")
    return load_voice("piper-joe", model_path("piper-joe").parent)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(_fake, id="fake"),
        pytest.param(_hibari, id="hibari", marks=pytest.mark.models),
        pytest.param(_piper, id="piper", marks=pytest.mark.models),
    ],
)
def voice(request: pytest.FixtureRequest) -> Voice:
    load: Callable[[], Voice] = request.param
    loaded = load()
    loaded.warm()
    return loaded


def speak(voice: Voice, text: str, first_char: int = 0) -> list[SpeechChunk]:
    return list(voice.synthesize(piece(text, first_char)))


def test_the_contract_that_comes_with_halfsec(voice: Voice) -> None:
    assert len(check_voice(voice)) == 9


TWO_SENTENCES = "Sure, that's $29.99 on **Friday**. What time works for you? "


def test_chunks_cover_the_piece_in_order(voice: Voice) -> None:
    chunks = speak(voice, TWO_SENTENCES, first_char=100)
    assert [chunk.is_last for chunk in chunks] == [False, True]
    assert chunks[0].text_span == (100, 100 + TWO_SENTENCES.index("What"))
    assert chunks[1].text_span == (chunks[0].text_span[1], 100 + len(TWO_SENTENCES))
    for chunk in chunks:
        assert chunk.pcm.dtype == np.int16
        assert chunk.pcm.ndim == 1
        assert chunk.rate_hz == voice.rate_hz
        assert 300 < chunk.duration_ms < 10_000


def test_it_is_audible_at_once_and_joins_without_a_click(voice: Voice) -> None:
    for chunk in speak(voice, TWO_SENTENCES):
        audible = np.flatnonzero(np.abs(chunk.pcm.astype(np.int32)) > AUDIBLE)
        assert audible[0] < 0.05 * chunk.rate_hz
        assert chunk.pcm[0] == 0
        assert chunk.pcm[-1] == 0
        assert np.abs(chunk.pcm.astype(np.int32)).max() < 32_000


def test_the_pause_follows_the_punctuation(voice: Voice) -> None:
    def quiet_end_ms(text: str) -> float:
        (chunk,) = speak(voice, text)
        loud = np.flatnonzero(np.abs(chunk.pcm.astype(np.int32)) > 30)
        return 1000 * (len(chunk.pcm) - int(loud[-1])) / chunk.rate_hz

    no_mark, comma, stop = (quiet_end_ms(f"We are open now{mark}") for mark in ("", ",", "."))
    assert no_mark < comma < stop
    assert 200 < stop < 320


def test_every_piece_is_as_loud(voice: Voice) -> None:
    for text in ("Yes.", "I can help you with that.", "It takes twenty minutes by car, or by bus."):
        (chunk,) = speak(voice, text)
        measured = active_dbfs((chunk.pcm / 32767).astype(np.float32), chunk.rate_hz)
        assert measured == pytest.approx(TARGET_DBFS, abs=1.5)


def test_words_have_times(voice: Voice) -> None:
    text = "I can help you with that."
    (chunk,) = speak(voice, text, first_char=7)
    times = chunk.word_times
    assert [text[t.text_span[0] - 7 : t.text_span[1] - 7] for t in times] == text[:-1].split()
    starts = [time.start_sample for time in times]
    assert starts == sorted(starts)
    assert all(0 <= time.start_sample < time.end_sample <= len(chunk.pcm) for time in times)
    assert times[0].start_sample < 0.05 * chunk.rate_hz
    assert not any(time.is_estimated for time in times)


def test_of_a_piece_that_begins_within_code_the_rest_is_spoken(voice: Voice) -> None:
    text = "x = 1\n``` That is all."
    begun = SpeakablePiece(text, (7, 7 + len(text)), 1, fence="```")
    (chunk,) = voice.synthesize(begun)
    words = [text[t.text_span[0] - 7 : t.text_span[1] - 7] for t in chunk.word_times]
    assert words == ["That", "is", "all"]
    assert chunk.text_span == begun.span


@pytest.mark.parametrize(
    "text", ["", "  \n", "...", "?!", "😀 ❤️", "**", "\u200b\ud800", "```\nx=1\n```"]
)
def test_nothing_to_say_is_silence_not_an_error(voice: Voice, text: str) -> None:
    assert speak(voice, text) == []


@pytest.mark.parametrize(
    "text", ["a", "Xqzzt brwlf!", "@#$%^&", "é", "\x00 ok \x07", "你好。", "3.14159265358979"]
)
def test_odd_text_is_no_error(voice: Voice, text: str) -> None:
    for chunk in speak(voice, text):
        assert chunk.text_span == (0, len(text))


def test_a_long_text_comes_in_parts_and_can_be_stopped(voice: Voice) -> None:
    text = "well and then we walked on to see what was there and " * 190
    assert len(text) > 10_000
    chunks = voice.synthesize(piece(text))
    first = next(chunks)
    second = next(chunks)
    assert first.text_span[0] == 0
    assert second.text_span[0] == first.text_span[1]
    assert second.text_span[1] < 600
    assert not second.is_last
    assert first.duration_ms < 30_000


def test_the_same_text_is_cut_the_same(voice: Voice) -> None:
    first, second = (speak(voice, TWO_SENTENCES) for _ in range(2))
    assert [chunk.text_span for chunk in first] == [chunk.text_span for chunk in second]


def test_10000_characters_reach_the_end() -> None:
    engine = HummingEngine()
    voice = PostprocessedVoice(engine)
    text = "and then we walked on, to see " * 334
    chunks = speak(voice, text)
    assert chunks[0].text_span[0] == 0
    assert chunks[-1].text_span[1] == len(text)
    assert all(a.text_span[1] == b.text_span[0] for a, b in pairwise(chunks))
    assert max(map(len, engine.lines)) <= MAX_SENTENCE_CHARS + 20
    # Parted at the marks, where a pause belongs.
    assert all(line.endswith(",") for line in engine.lines[1:-1])


@pytest.mark.parametrize(("speed", "limit"), [(0.25, 60), (0.5, 120), (1.5, 240)])
def test_slow_speech_goes_to_the_engine_in_shorter_sentences(speed: float, limit: int) -> None:
    engine = HummingEngine()
    text = "and then we walked on, to see " * 40
    piece = SpeakablePiece(text, (0, len(text)), 0)
    chunks = list(PostprocessedVoice(engine).synthesize(piece, speed))
    assert chunks[-1].text_span[1] == len(text)
    assert limit // 2 < max(map(len, engine.lines[1:])) <= limit + 20


def test_an_engine_may_take_less_at_once() -> None:
    engine = HummingEngine()
    speak(PostprocessedVoice(engine, max_sentence_chars=80), "and then we walked on, to see " * 40)
    assert max(map(len, engine.lines[1:])) <= 100


def test_sentences_are_parted_between_tokens() -> None:
    words = spoken_words("$1,234,567.89 " * 30)
    for sentence, following in pairwise(split_sentences(words)):
        assert sentence[-1].end <= following[0].start
    one_token = spoken_words("9" * 500)
    assert sum(map(len, split_sentences(one_token))) == len(one_token)


def test_a_voice_that_raises_is_a_voice_error() -> None:
    with pytest.raises(VoiceError, match=r"^the voice broken could not speak \d+ .*: no weights$"):
        speak(PostprocessedVoice(BrokenEngine(), "broken"), "Hello.")


def test_text_that_the_rules_fail_on_is_spoken_as_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(text: str, language: str) -> NoReturn:
        raise KeyError("secret")

    monkeypatch.setattr("tts.voice.spoken_words", fail)
    engine = HummingEngine()
    voice = PostprocessedVoice(engine, language="de")
    for _ in range(2):
        chunks = speak(voice, "Um 8 Uhr. Ja.")
        assert [chunk.text_span for chunk in chunks] == [(0, 10), (10, 13)]
    assert engine.lines[1:] == ["Um 8 Uhr.", "Ja."] * 2
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text


def test_a_voice_that_is_silent_says_so_when_warmed() -> None:
    with pytest.raises(VoiceError, match="model file intact"):
        PostprocessedVoice(MuteEngine()).warm()


def test_unknown_voice_error_lists_the_voices(tmp_path: Path) -> None:
    (tmp_path / "joe").mkdir()
    (tmp_path / "joe" / "joe.onnx").touch()
    (tmp_path / "joe" / "joe.onnx.json").touch()
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "model.onnx").touch()
    assert available_voices(tmp_path) == ("hibari", "joe")
    with pytest.raises(VoiceError, match=r"'alexa'.*hibari, joe$"):
        load_voice("alexa", tmp_path)
    with pytest.raises(VoiceError, match=r"Voices that exist: hibari$"):
        load_voice("alexa", tmp_path / "missing")
    with pytest.raises(VoiceError, match="hibari-heart"):
        load_voice("hibari-nobody", tmp_path)
    with pytest.raises(VoiceError, match="one thread"):
        load_voice("hibari", tmp_path, threads=0)


@pytest.mark.parametrize(("harm", "said"), [("damage", "damaged"), ("unlink", "missing")])
@pytest.mark.parametrize("name", ["hibari.onnx", "oov.onnx", "vocab.json"])
def test_a_voice_with_other_files_than_its_package_was_built_with_is_refused(
    name: str, harm: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "hibari"
    shutil.copytree(Path(hibari.__file__).parent, copy)
    monkeypatch.setattr(hibari, "__file__", str(copy / "__init__.py"))
    load_voice("hibari", tmp_path)
    file = copy / "assets" / name
    if harm == "unlink":
        file.unlink()
    else:
        damage(file)
    message = rf"hibari cannot be loaded \({name} is {said}\).*--force-reinstall hibari-tts"
    with pytest.raises(VoiceError, match=message):
        load_voice("hibari", tmp_path)


def test_a_hibari_voice_that_was_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIBARI_HOME", str(tmp_path))
    with pytest.raises(VoiceError, match=r"not on this machine.*--voice emma"):
        load_voice("hibari-emma", tmp_path)


def test_a_broken_piper_model(tmp_path: Path) -> None:
    pytest.importorskip("piper")
    (tmp_path / "joe").mkdir()
    (tmp_path / "joe" / "joe.onnx").write_bytes(b"no model")
    (tmp_path / "joe" / "joe.onnx.json").write_text("{}")
    with pytest.raises(VoiceError, match=r"cannot be loaded from .*joe\.onnx"):
        load_voice("joe", tmp_path)


def test_piper_missing_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "joe").mkdir()
    (tmp_path / "joe" / "joe.onnx").touch()
    (tmp_path / "joe" / "joe.onnx.json").touch()
    monkeypatch.setitem(sys.modules, "piper", None)
    with pytest.raises(VoiceError, match=r"GPL-3.*pip install 'halfsec\[piper\]'"):
        load_voice("joe", tmp_path)


@pytest.mark.models
def test_durations_appear_without_changing_the_model() -> None:
    model = Path(hibari.voices.voice_path(hibari.voices.DEFAULT, download_missing=False))
    plain = [output.name for output in open_session(model, threads=1).get_outputs()]
    extra = open_session(model, threads=1, extra_output="/Round_output_0").get_outputs()
    assert [output.name for output in extra] == [*plain, "/Round_output_0"]
    unknown = open_session(model, threads=1, extra_output="/no_such_tensor").get_outputs()
    assert [output.name for output in unknown] == plain


@pytest.mark.models
def test_nothing_is_kept_for_each_length_of_a_sentence() -> None:
    if allocated() is None:
        pytest.skip("the C library does not say what it has allocated")
    model = Path(hibari.voices.voice_path(hibari.voices.DEFAULT, download_missing=False))
    session = open_session(model, threads=1)

    def speak(num_phonemes: int) -> None:
        ids = np.full((1, num_phonemes), 5, np.int64)
        session.run(None, {"ids": ids, "speed": np.ones(1, np.float32)})

    speak(60)  # the longest: scratch memory is as large as it gets
    before = allocated()
    for num_phonemes in range(4, 54):
        speak(num_phonemes)
    after = allocated()
    assert before is not None
    assert after is not None
    assert after.heap_bytes - before.heap_bytes < 64 << 10


@pytest.mark.models
def test_scratch_memory_of_a_long_sentence_is_given_back() -> None:
    model = Path(hibari.voices.voice_path(hibari.voices.DEFAULT, download_missing=False))

    def kept(options: onnxruntime.RunOptions | None) -> int:
        """Bytes that a long run leaves in use."""
        session = open_session(model, threads=1)
        ids = np.full((1, LONG_INPUT + 100), 5, np.int64)
        before = held()
        session.run(None, {"ids": ids, "speed": np.ones(1, np.float32)}, options)
        return held() - before

    def held() -> int:
        state = allocated()
        if state is None:
            pytest.skip("the C library does not say what it has allocated")
        return state.heap_bytes + state.mapped_bytes

    # What the outputs lie in stays until the next long run: 12 of 29 MB.
    assert kept(None) < kept(onnxruntime.RunOptions()) - (8 << 20)
