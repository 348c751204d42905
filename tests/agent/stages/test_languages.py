"""Models of a call's language: which recognizer gets its jobs, and what is loaded when."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import asr
import tts
from agent.calls.registry import CallRegistry
from agent.calls.session_check import check_session
from agent.config.layers import load_config
from agent.config.schema import Config
from agent.errors import ClientError, StageError
from agent.http.endpoints.metrics import Metrics
from agent.session.api.settings import SessionSettings
from agent.session.spoken_voice import NO_VOICE, with_spoken_voice
from agent.stages.loading import Loading
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.model_thread import ModelThread
from agent.stages.registry import Stages
from agent.stages.remote.remote_recognizer import RemoteRecognizer
from agent.stages.transcription_jobs import LanguageFinding, LocalDecoder
from asr.recognition.transcripts import DecodeJob
from latency_budget.account.clock import SystemClock
from tests.support.fakes.recognizer import ScriptedRecognizer
from tts.voices.engine import RawSpeech


class Listening(ScriptedRecognizer):
    """Notes the language of each pass."""

    def __init__(self, *languages: str) -> None:
        super().__init__("ja")
        self.languages = languages  # type: ignore[assignment]
        self.asked: list[str | None] = []

    def steps(
        self, pcm: asr.Pcm, options: asr.TranscriptionOptions = asr.AS_LOADED
    ) -> Iterator[asr.Hypothesis]:
        self.asked.append(options.language)
        yield from super().steps(pcm, options)


class Humming:
    """A synthesis engine without a model."""

    rate_hz = 16_000

    def speak(self, line: str, speed: float = 1.0) -> RawSpeech:
        return RawSpeech((np.sin(np.arange(8000) / 5) / 4).astype(np.float32))


def job(number: int) -> DecodeJob:
    pcm = np.full(16_000, 0.1, np.float32)
    return DecodeJob("final", number, 1, 0, pcm)


@asynccontextmanager
async def staged(
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    main: Listening,
    other: Callable[[], Listening],
    settings: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[tuple[Stages, list[str]]]:
    loaded: list[str] = []

    def multilingual(self: Loading) -> asr.Recognizer:
        loaded.append("multilingual")
        return other()

    def voice(self: Loading, name: str) -> Callable[[], tts.Voice]:
        def load() -> tts.Voice:
            loaded.append(name)
            return tts.voice.PostprocessedVoice(Humming(), name)

        return load

    monkeypatch.setattr(Loading, "recognizer", lambda self: main)
    monkeypatch.setattr(Loading, "multilingual", multilingual)
    monkeypatch.setattr(Loading, "voice", voice)
    config = load_config({"agent.preset": "embedded", **settings})
    stages = Stages(config, ModelStore(home, {}), SystemClock())
    await stages.recognizer.start()
    try:
        yield stages, loaded
    finally:
        await stages.recognizer.close()
        await stages.close()


async def exported_ready(stages: Stages) -> dict[str, float]:
    """Values of halfsec_stage_ready, by stage."""
    families = await Metrics(stages, CallRegistry(Config(), SystemClock())).families()
    (ready,) = (each for each in families if each.name == "halfsec_stage_ready")
    return {sample.labels["stage"]: sample.value for sample in ready.samples}


async def test_english_calls_load_nothing_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with staged(monkeypatch, tmp_path, Listening("en"), Listening) as (stages, loaded):
        assert await stages.prepare_language("en", "hibari") == "hibari"
        assert loaded == []


async def test_the_first_call_loads_what_its_language_needs_and_the_others_share_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    english, other = Listening("en"), Listening("en", "de", "fr")
    async with staged(monkeypatch, tmp_path, english, lambda: other) as (stages, loaded):
        voices = await asyncio.gather(
            *(stages.prepare_language(each, "hibari") for each in ("de", "de", "fr"))
        )
        assert voices == ["pico-de", "pico-de", "pico-fr"]
        assert sorted(loaded) == ["multilingual", "pico-de", "pico-fr"]
        assert stages.voice_stage("pico-de").name == "pico-de"
        for number, language in enumerate(("de", "en", "fr"), 1):
            decoder = LocalDecoder(stages.recognizer, stages._recognizer_of)
            decoder.set_options(asr.TranscriptionOptions(language))
            await decoder.decode(job(number), 0)
        assert (english.asked, other.asked) == ([None], ["de", "fr"])


async def test_what_is_loaded_or_refused_at_once_needs_no_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = Listening("en", "de", "fr")
    async with staged(monkeypatch, tmp_path, Listening("en"), lambda: other) as (stages, _):
        assert stages.is_prepared("en", "hibari")
        assert stages.is_prepared("en", "alloy")
        assert stages.is_prepared("tlh", "hibari"), "it is refused"
        assert not stages.is_prepared("de", "hibari")
        assert not stages.is_prepared("de", NO_VOICE)
        await stages.prepare_language("de", "hibari")
        assert stages.is_prepared("de", "hibari")
        assert stages.is_prepared("de", "alloy")
        assert not stages.is_prepared("fr", "hibari"), "its voice is missing"
        assert stages.is_prepared("fr", "my-own-voice")
        assert stages.is_prepared("fr", NO_VOICE)


async def test_a_load_that_fails_unexpectedly_is_the_answer_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def build() -> Listening:
        raise RuntimeError("bad magic number")

    async with staged(monkeypatch, tmp_path, Listening("en"), build) as (stages, _):
        with pytest.raises(ClientError, match="RuntimeError: bad magic number") as caught:
            await stages.prepare_language("de", "hibari")
        assert caught.value.param == "session.audio.input.transcription.language"
        assert not stages.is_prepared("de", "hibari")
    assert "what calls in 'de' need can't be loaded" in caplog.text


async def test_clients_that_ask_and_leave_start_one_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, release = threading.Event(), threading.Event()

    def build() -> Listening:
        begun.set()
        assert release.wait(30)
        return Listening("en", "de")

    async with staged(monkeypatch, tmp_path, Listening("en"), build) as (stages, loaded):
        for _ in range(6):
            asked = asyncio.get_running_loop().create_task(stages.prepare_language("de", "hibari"))
            assert await asyncio.to_thread(begun.wait, 30)
            await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
            assert asked.cancelled()
        staying = asyncio.get_running_loop().create_task(stages.prepare_language("de", "hibari"))
        await asyncio.sleep(0)
        release.set()
        assert await staying == "pico-de"
        assert loaded == ["multilingual", "pico-de"]
        assert not stages._loads


async def test_a_load_that_all_have_left_ends_with_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, release = threading.Event(), threading.Event()

    def build() -> Listening:
        begun.set()
        assert release.wait(30)
        return Listening("en", "de")

    async with staged(monkeypatch, tmp_path, Listening("en"), build) as (stages, _):
        asked = asyncio.get_running_loop().create_task(stages.prepare_language("de", "hibari"))
        assert await asyncio.to_thread(begun.wait, 30)
        asked.cancel()
        await asyncio.wait([asked])
        (load,) = stages._loads.values()
        release.set()
    assert load.done()
    assert not stages._loads


async def test_what_nobody_recognizes_is_refused_and_loads_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = Listening("en", "de")
    async with staged(monkeypatch, tmp_path, Listening("en"), lambda: other) as (stages, loaded):
        for language in ("de", "pt"):  # of Whisper's languages, as long as it is not loaded
            stages.check_language(asr.TranscriptionOptions(language))
        with pytest.raises(ClientError, match="knows en"):
            stages.check_language(asr.TranscriptionOptions("tlh"))
        with pytest.raises(ClientError, match="knows en"):
            await stages.prepare_language("tlh", "hibari")
        assert loaded == []
        with pytest.raises(ClientError, match="knows en, de") as refused:
            await stages.prepare_language("pt", "hibari")
        assert refused.value.param == "session.audio.input.transcription.language"
        assert loaded == ["multilingual"]
        with pytest.raises(ClientError, match="knows en, de"):
            stages.check_language(asr.TranscriptionOptions("pt"))


def test_without_a_multilingual_recognizer_there_is_one_language(tmp_path: Path) -> None:
    config = load_config({"agent.preset": "embedded", "asr.multilingual_model": ""})
    stages = Stages(config, ModelStore(tmp_path, {}), SystemClock())
    assert stages.known_languages() == (), "not known before the recognizer is loaded"
    stages.recognizer.model = Listening("en")
    assert stages.known_languages() == ("en",)


def test_another_server_is_asked_for_the_languages_of_the_settings(tmp_path: Path) -> None:
    config = load_config(
        {"asr.model": "openai:http://127.0.0.1:9/v1#whisper", "agents.paris.language": "fr"}
    )
    stages = Stages(config, ModelStore(tmp_path, {}), SystemClock())
    assert stages.known_languages() == stages._decoder().languages == ("en", "fr")


async def test_what_stands_in_for_another_server_hears_the_calls_language(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also in the server's own language, in which the session of a call changes nothing."""
    english, other = Listening("en"), Listening("en", "de")
    settings = {
        "asr.model": "openai:http://127.0.0.1:9/v1#whisper",
        "asr.language": "de",
        "asr.fallback_model": "whisper-tiny.en",
    }
    async with staged(monkeypatch, tmp_path, english, lambda: other, settings) as (stages, _):
        decoder = stages._decoder()
        assert isinstance(decoder, RemoteRecognizer)
        local = decoder._local
        assert local is not None
        decoder.set_options(asr.TranscriptionOptions("de"))
        assert not local.is_ready(), "one that knows English alone does not stand in"
        assert await stages.prepare_language("de", "pico-de") == "pico-de"
        decoder = stages._decoder()
        assert isinstance(decoder, RemoteRecognizer)
        decoder.set_options(asr.TranscriptionOptions("de"))
        local = decoder._local
        assert local is not None
        assert local.is_ready()
        await local.decode(job(1), 0)
        assert (english.asked, other.asked) == ([], ["de"])


async def test_trouble_of_what_a_language_needs_is_seen_and_refuses_no_other_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    builds = iter((Listening("en", "de"),))

    def build() -> Listening:
        if (built := next(builds, None)) is None:
            raise asr.ModelError("it is gone")
        return built

    def fail(model: object) -> None:
        raise RuntimeError("damaged")

    async with staged(monkeypatch, tmp_path, Listening("en"), build) as (stages, _):
        await stages.prepare_language("de", "hibari")
        for name in ("asr languages", "voice pico-de"):
            assert stages.threads()[name].only_computes, "sleeping threads would be a hang"
        stages._progress = dict.fromkeys(("vad", "asr", "turn", "llm", "voice hibari"), "ready")
        assert (stages.is_troubled, stages.status) == (False, "ready")
        started = dict.fromkeys(("vad", "asr", "turn", "llm", "voice hibari"), 1.0)
        working = {**started, "asr languages": 1.0, "voice pico-de": 1.0}
        assert await exported_ready(stages) == working
        with pytest.raises(StageError):
            await stages.multilingual.call(fail, timeout_s=30)
        while stages.multilingual.broken is None:  # noqa: ASYNC110 - a thread builds it
            await asyncio.sleep(0.01)
        assert (stages.is_troubled, stages.status) == (True, "ready")
        assert await exported_ready(stages) == {**working, "asr languages": 0.0}
        assert await stages.prepare_language("de", "hibari") == "pico-de"
        assert "pt" in stages.known_languages(), "while it is built anew, nothing is refused"


async def test_a_recognizer_that_stands_in_hears_its_own_language(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Listening("en")
    async with staged(monkeypatch, tmp_path, own, Listening) as (stages, _):
        decoder = LocalDecoder(stages.recognizer)
        for number, language in enumerate(("de", "en"), 1):
            decoder.set_options(asr.TranscriptionOptions(language))
            await decoder.decode(job(number), 0)
        assert own.asked == [None, None]


async def test_a_recognizer_that_knows_the_language_hears_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Listening("en", "de")
    async with staged(monkeypatch, tmp_path, own, Listening) as (stages, loaded):
        assert await stages.prepare_language("de", "my-own-voice") == "my-own-voice"
        decoder = LocalDecoder(stages.recognizer, stages._recognizer_of)
        decoder.set_options(asr.TranscriptionOptions("de"))
        await decoder.decode(job(1), 0)
        assert (own.asked, loaded) == (["de"], [])


async def test_a_stock_clients_voice_stands_for_the_services_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = Listening("en", "de")
    async with staged(monkeypatch, tmp_path, Listening("en"), lambda: other) as (stages, _):
        assert await stages.prepare_language("en", "alloy") == "alloy"
        assert await stages.prepare_language("de", "alloy") == "pico-de"


async def test_a_language_without_a_profile_keeps_its_voice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = Listening("en", "pt")
    async with staged(monkeypatch, tmp_path, Listening("en"), lambda: other) as (stages, loaded):
        assert await stages.prepare_language("pt", "hibari") == "hibari"
        assert loaded == ["multilingual"]


async def test_a_missing_model_is_the_answer_and_may_come_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = [True]

    def build() -> Listening:
        if missing[0]:
            raise asr.ModelError("it is missing. To get it: halfsec models fetch whisper-base")
        return Listening("en", "de")

    async with staged(monkeypatch, tmp_path, Listening("en"), build) as (stages, loaded):
        with pytest.raises(ClientError, match="halfsec models fetch whisper-base") as caught:
            await stages.prepare_language("de", "hibari")
        assert caught.value.param == "session.audio.input.transcription.language"
        assert "asr languages" not in stages.threads()
        missing[0] = False
        assert await stages.prepare_language("de", "hibari") == "pico-de"
        assert loaded == ["multilingual", "multilingual", "pico-de"]


@pytest.mark.parametrize("reason", ["no model", "not there"])
async def test_where_no_language_can_be_found_the_answer_names_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reason: str
) -> None:
    def build() -> Listening:
        raise asr.ModelError("it is missing. To get it: halfsec models fetch whisper-base")

    settings = {"asr.multilingual_model": ""} if reason == "no model" else {}
    async with staged(monkeypatch, tmp_path, Listening("en"), build, settings) as (stages, _):
        assert stages.is_prepared("auto", NO_VOICE) == (reason == "no model"), "refused at once"
        found = SessionSettings(agent_language="auto")
        assert found.finds_language
        with pytest.raises(ClientError, match="can't be found here") as caught:
            await with_spoken_voice(stages.prepare_language, found)
        assert "'de'" not in caught.value.message
        wanted = "asr.multilingual_model is empty" if reason == "no model" else "fetch whisper-base"
        assert wanted in caught.value.message


async def test_what_finding_the_language_costs_is_counted() -> None:
    class Finding(Listening):
        """Finds the language of each pass in 7 ms, where it is asked to."""

        finds_language = True

        def transcribe(
            self,
            pcm: asr.Pcm,
            *,
            fallback: bool = True,
            options: asr.TranscriptionOptions = asr.AS_LOADED,
        ) -> asr.Hypothesis:
            language_ms = 7.0 if options.candidates else 0.0
            return asr.Hypothesis("ja", language="de", language_prob=0.9, language_ms=language_ms)

    model = Finding("en", "de")
    thread: ModelThread[Any] = ModelThread("asr", lambda: model)
    finding = LanguageFinding()
    await thread.start()
    try:
        for candidates in (("en", "de"), ()):
            decoder = LocalDecoder(thread, finding=finding)
            decoder.set_options(asr.TranscriptionOptions("en", candidates=candidates))
            early = replace(job(1), kind="early", last_voiced_sample=9)
            for each in (early, replace(early, kind="final"), replace(job(2), kind="final")):
                await decoder.decode(each, 0)
    finally:
        await thread.close()
    assert (finding.num_passes, finding.ms) == (2, 14.0), "the first final takes the words over"


def test_the_words_of_another_language_are_not_taken_over() -> None:
    recognizer = Listening("en", "de")
    decoder = LocalDecoder(recognizer)  # type: ignore[arg-type]
    before = decoder._early
    decoder.set_options(asr.TranscriptionOptions("de"))
    assert decoder._early is not before


async def test_a_session_whose_language_has_no_voice_here_is_refused_if_it_speaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(self: Loading, name: str) -> Callable[[], tts.Voice]:
        def load() -> tts.Voice:
            raise tts.VoiceError("pip install 'halfsec[languages]'")

        return load

    other = Listening("en", "de")
    async with staged(monkeypatch, tmp_path, Listening("en"), lambda: other) as (stages, _):
        stages._progress = dict.fromkeys(("asr", "voice hibari"), "ready")
        monkeypatch.setattr(stages._load, "voice", missing.__get__(stages._load))
        german = SessionSettings(transcription={"language": "de"})
        await check_session(stages, german.changed(output_modality="text"))
        await check_session(stages, german.changed(transcribes_only=True))
        with pytest.raises(ClientError, match=r"halfsec\[languages\]") as refused:
            await check_session(stages, german)
        assert refused.value.param == "session.audio.input.transcription.language"
