"""What `halfsec doctor` and `halfsec models fetch` make of a language model on another server."""

import asyncio
from pathlib import Path

import pytest

from agent.cli import doctor
from agent.cli.doctor import Finding
from agent.cli.models import wanted_models
from agent.config.layers import load_config
from agent.config.schema import Config
from agent.stages.model_store.catalogue import ModelStore
from tests.agent.stages.remote.test_remote_chat import HELLO, one_token
from tests.agent.stages.remote.test_remote_voice import whole
from tests.support.service.model_servers import error, scripted_server
from tests.support.service.realtime_recognizer import realtime_recognizer, uploaded

SECRET = "sk-very-secret"


def config_of(url: str, **settings: str) -> Config:
    return load_config(
        {
            "llm_engine.model": f"openai:{url}#qwen3-8b",
            "agent.port": 0,
            **{f"llm_engine.{key}": value for key, value in settings.items()},
        }
    )


async def finding(config: Config) -> Finding:
    """What is found of the server. The command has an event loop of its own."""
    return await asyncio.to_thread(doctor._model_server, config)


async def test_one_that_answers_and_keeps_prompts() -> None:
    async with scripted_server(one_token(0), one_token(250), HELLO) as server:
        found = await finding(config_of(server.url))
        assert found == Finding("qwen3-8b", f"at {server.url}; it keeps prompts", "ok")


async def test_what_a_server_refuses_is_named() -> None:
    refused = error(400, "stream_options: Extra inputs are not permitted")
    async with scripted_server(one_token(0), one_token(250), refused, HELLO) as server:
        found = await finding(config_of(server.url))
        shown = f"at {server.url}; it refuses stream_options; it keeps prompts"
        assert found == Finding("qwen3-8b", shown, "ok")


async def test_one_that_fails_is_no_obstacle_to_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", SECRET)
    async with scripted_server(error(404, f"no model for {SECRET}")) as server:
        found = await finding(config_of(server.url, remote_key_env="MODEL_KEY"))
        assert found.verdict == "note"
        assert "the model server has no model 'qwen3-8b' at this address (404)" in found.value
        assert SECRET not in f"{found}"
        assert f"Bearer {SECRET}" in server.heads[0]


async def test_a_key_that_is_not_set_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_KEY", raising=False)
    found = await finding(config_of("http://gpu-box/v1", remote_key_env="MODEL_KEY"))
    assert found.verdict == "WRONG"
    assert "MODEL_KEY, which is not set" in found.value


def test_the_report_names_the_server_and_no_model_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    monkeypatch.setenv("MODEL_KEY", SECRET)
    config = config_of("http://127.0.0.1:9/v1", remote_key_env="MODEL_KEY")
    sections = {section.title: section.findings for section in doctor.examine(config)}
    names = [each.name for each in sections["Models"]]
    assert names == ["silero-vad", "whisper-tiny.en", "smart-turn", "hibari"]
    assert [each.name for each in sections["Model server"]] == ["qwen3-8b"]
    assert "can't be reached" in sections["Model server"][0].value
    assert SECRET not in str(sections)


def test_nothing_of_a_language_model_is_fetched(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    for preset in ("auto", "embedded"):
        config = load_config(
            {"agent.preset": preset, "llm_engine.model": "openai:http://gpu-box/v1#qwen3-8b"}
        )
        stages = {store.catalogue[name].stage for name in wanted_models(config, store)}
        assert "llm" not in stages
        assert "asr" in stages


async def test_servers_of_recognizer_and_voice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", SECRET)
    async with realtime_recognizer(uploaded("")) as hears, scripted_server(whole()) as speaks:
        config = load_config(
            {
                "asr.model": f"openai:{hears.http.url}#whisper",
                "tts.voice": f"openai:{speaks.url}#nova",
                "tts.remote_key_env": "MODEL_KEY",
            }
        )
        found = await asyncio.to_thread(doctor._recognition_server, config)
        assert found == Finding("whisper", f"at {hears.http.url}, by Realtime sessions", "ok")
        voices = await asyncio.to_thread(lambda: list(doctor._speech_servers(config)))
        assert voices == [Finding("nova", f"at {speaks.url}", "ok")]
        speaks.answers = [error(401, f"bad key {SECRET}")]
        (voice,) = await asyncio.to_thread(lambda: list(doctor._speech_servers(config)))
        assert (voice.verdict, voice.remedy) == ("note", "until it answers, hibari speaks")
        assert "rejects the key of tts.remote_key_env" in voice.value
        assert SECRET not in f"{voice}"
        hears.http.sockets_at = None
        found = await asyncio.to_thread(doctor._recognition_server, config)
        assert (found.verdict, "uploads" in found.value) == ("note", True)
