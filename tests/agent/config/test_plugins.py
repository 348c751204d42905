"""Settings that name plug-ins, and what follows from them before anything is loaded."""

from pathlib import Path

import pytest

from agent.cli import doctor
from agent.config.layers import load_config
from agent.config.presets import PRESETS
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.http.openai.models import ModelList
from agent.server.startup_checks.preflight import check_models, gpu_problem
from agent.stages.model_store.catalogue import ModelStore, ModelStoreError, needed_models
from latency_budget.account.budget import PROFILES
from tests.agent.config.test_remote_models import never
from tests.support.plugins import Install

pytest_plugins = ["tests.support.plugin_fixtures"]

ALL = {"asr.model": "mine:tiny", "tts.voice": "mine:low", "llm_engine.model": "mine:/models/x.bin"}


def config(**more: object) -> Config:
    return load_config({**ALL, **more}, choose=never)


def test_a_chat_plugin_takes_the_preset_for_models_elsewhere() -> None:
    made = config()
    assert made.agent.preset == "remote"
    assert made.answering_model()["why"] == "the language model is of a plug-in"
    assert not made.llm_engine.is_own
    assert not made.llm_engine.has_engine
    assert made.llm_engine.remote is None
    assert config(**{"llm_engine.small_model": "smollm2-135m-instruct"}).llm_engine.has_engine


def test_plugins_need_no_models_of_the_list() -> None:
    assert needed_models(config()) == ["silero-vad", "smart-turn"]


@pytest.mark.parametrize("key", ["small_model", "draft_model"])
def test_models_beside_it_are_of_this_process(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} .* must be a model of this process"):
        load_config({f"llm_engine.{key}": "mine:x"})


def test_it_has_no_drafts() -> None:
    with pytest.raises(ConfigError, match=r"drafts .* and llm_engine\.model is of a plug-in"):
        config(**{"llm_engine.draft_model": "smollm2-135m-instruct"})


def test_a_gpu_of_a_recognizer_is_its_own_business() -> None:
    assert gpu_problem(config(**{"asr.device": "cuda"})) is None


def test_every_preset_has_a_budget_and_names_no_plugin() -> None:
    assert set(PRESETS) == set(PROFILES)
    for name in PRESETS:
        made = load_config({"agent.preset": name})
        assert needed_models(made)[1] == made.asr.model


def test_missing_plugins_are_found_before_the_start(tmp_path: Path, install: Install) -> None:
    install("mine", "halfsec.voices", "mine = mine_voice:load")
    install("mine", "halfsec.recognizers", "mine = mine_voice:load")
    with pytest.raises(ModelStoreError) as caught:
        check_models(config(), ModelStore(tmp_path))
    assert "Not on this machine: silero-vad, smart-turn. " in caught.value.message
    assert "There is no chat plug-in 'mine'" in caught.value.message
    assert "voice plug-in" not in caught.value.message
    install("mine", "halfsec.chats", "mine = mine_voice:load")
    with pytest.raises(ModelStoreError) as caught:
        check_models(config(), ModelStore(tmp_path))
    assert "plug-in" not in caught.value.message


def test_the_doctor_names_each(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path / "home"))
    install("mine", "halfsec.voices", "mine = mine_voice:load")
    found = {each.name: each for each in doctor._models(config())}
    assert found["mine:low"].value == "the voice plug-in 'mine' (mine_voice:load of mine 1.0)"
    assert found["mine:low"].verdict == "ok"
    assert found["mine:tiny"].verdict == "WRONG"
    assert "no recognizer plug-in 'mine'" in found["mine:tiny"].value


def test_the_list_of_models_shows_no_folders() -> None:
    listed = ModelList(config())._models
    assert {"mine:tiny", "mine:low", "mine:x.bin"} <= listed.keys()
    assert listed["mine:low"]["kind"] == "voice"
