"""Settings of a language model on another server."""

import pytest

from agent.config.layers import load_config
from agent.config.remote_model import RemoteAddress
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.stages.model_store.catalogue import ModelStore, needed_models
from agent.stages.remote.model_server import api_key_of

ADDRESS = "openai:http://gpu-box:8000/v1#Qwen/Qwen3-8B"


def never(num_calls: int) -> None:
    raise AssertionError("the machine was measured")


def config_with(**settings: object) -> Config:
    flags = {"llm_engine.model": ADDRESS}
    return load_config(flags | {f"llm_engine.{key}": value for key, value in settings.items()})


def test_an_address_is_a_url_and_a_name() -> None:
    assert RemoteAddress.parse(ADDRESS) == RemoteAddress("http://gpu-box:8000/v1", "Qwen/Qwen3-8B")
    slash = RemoteAddress.parse("openai:https://[::1]:8000/v1/#a")
    assert slash == RemoteAddress("https://[::1]:8000/v1", "a")
    assert RemoteAddress.parse("smollm2-135m-instruct") is None


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("openai:http://user:s3cret@gpu-box/v1#m", "credentials"),
        ("openai:http://s3cret@gpu-box/v1#m", "credentials"),
        ("openai:http://gpu-box/v1?api_key=s3cret#m", "credentials"),
        ("openai:http://gpu-box/v1", "behind a #"),
        ("openai:http://gpu-box/v1# ", "behind a #"),
        ("openai:gpu-box:8000#m", "address of a server"),
        ("openai:ftp://gpu-box/v1#m", "address of a server"),
        ("openai:http://#m", "address of a server"),
        ("openai:http://gpu-box:99999/v1#m", "address of a server"),
        ("openai:http://[::1/v1#m", "address of a server"),
        ("openai:http://gpu box/v1#m", "address of a server"),
    ],
)
def test_an_address_that_is_none_is_refused_without_quoting_it(model: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config({"llm_engine.model": model})
    assert caught.value.key == "llm_engine.model"
    assert "s3cret" not in caught.value.message


def test_auto_does_not_measure_the_machine() -> None:
    config = load_config({"llm_engine.model": ADDRESS}, choose=never)  # type: ignore[arg-type]
    assert config.agent.preset == "embedded-1.5b"
    assert config.answering_model() == {
        "name": "Qwen/Qwen3-8B",
        "preset": "embedded-1.5b",
        "why": "the language model is on another server",
    }


def test_nothing_is_needed_here_for_a_model_elsewhere() -> None:
    needed = needed_models(config_with())
    assert needed == ["silero-vad", "whisper-tiny.en", "smart-turn", "hibari"]
    store = ModelStore()
    from agent.cli.models import wanted_models

    assert wanted_models(config_with(), store) == needed
    on_gpu = load_config({"llm_engine.model": ADDRESS, "agent.preset": "gpu-8b"})
    assert not on_gpu.llm_engine.on_gpu


@pytest.mark.parametrize("name", ["small_model", "draft_model", "draft_heads"])
def test_models_beside_it_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="has no effect") as caught:
        config_with(**{name: "smollm2-135m-instruct"})
    assert caught.value.key == f"llm_engine.{name}"
    with pytest.raises(ConfigError, match="can't be on another server"):
        load_config({f"llm_engine.{name}": ADDRESS})


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config_with(api_key_env="MODEL_KEY").llm_engine
    monkeypatch.setenv("MODEL_KEY", " sk-1 ")
    assert api_key_of(settings) == "sk-1"
    assert api_key_of(config_with().llm_engine) == ""
    monkeypatch.setenv("MODEL_KEY", "sk-1\nX-Header: 1")
    with pytest.raises(ConfigError, match="MODEL_KEY, which holds characters") as caught:
        api_key_of(settings)
    assert "sk-1" not in caught.value.message
    monkeypatch.delenv("MODEL_KEY")
    with pytest.raises(ConfigError, match="MODEL_KEY, which is not set"):
        api_key_of(settings)
    with pytest.raises(ConfigError, match="is for a model on another server"):
        load_config({"llm_engine.api_key_env": "MODEL_KEY"})
    with pytest.raises(ConfigError, match="name of an environment variable") as caught:
        config_with(api_key_env="sk-1")
    assert "sk-1" not in caught.value.message
