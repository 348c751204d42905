"""References to models on other servers, and the settings around them."""

import pytest

from agent.config.auto_preset import PresetChoice
from agent.config.layers import load_config
from agent.config.remote_models import RemoteModel, RemoteSection, parse_remote, shown_model
from agent.errors import ConfigError
from agent.stages.model_store.catalogue import needed_models
from agent.stages.remote.api_server import server_options

MODEL = "openai:http://gpu-box:8000/v1#Qwen/Qwen3-8B"


def never(num_calls: int) -> PresetChoice:
    raise AssertionError("nothing is measured")


@pytest.mark.parametrize(
    ("reference", "url", "name"),
    [
        (MODEL, "http://gpu-box:8000/v1", "Qwen/Qwen3-8B"),
        ("openai:https://api.example.com/v1/#llama3:8b", "https://api.example.com/v1", "llama3:8b"),
        ("openai:http://[::1]:8000#a#b", "http://[::1]:8000", "a#b"),
    ],
)
def test_a_reference_is_read(reference: str, url: str, name: str) -> None:
    assert parse_remote(reference) == RemoteModel(url, name)
    assert shown_model(reference) == name


@pytest.mark.parametrize(
    "reference",
    [
        "openai:",
        "openai:gpu-box#x",
        "openai:http://gpu-box:8000/v1",
        "openai:http://gpu-box:8000/v1#",
        "openai:ftp://gpu-box/v1#x",
        "openai:http://gpu-box:99999/v1#x",
        "openai:http://gpu-box:port/v1#x",
        "openai:http:///v1#x",
        "openai:http://gpu-box/v1#x y",
        "openai:http://hunter2:hunter2@gpu-box/v1#x",
        "openai:http://hunter2@gpu-box/v1#x",
        "openai:http://gpu-box/v1?key=hunter2#x",
        "openai:http://gpu-box/v1\n#x",
    ],
)
def test_one_that_is_wrong_or_holds_a_secret_is_refused_without_repeating_it(
    reference: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"llm_engine.model": reference})
    assert caught.value.key == "llm_engine.model"
    assert "(command line)" in caught.value.message
    assert "hunter2" not in caught.value.message
    assert ("password" in caught.value.message) == ("hunter2" in reference)


def test_auto_measures_nothing_for_a_model_elsewhere() -> None:
    config = load_config({"llm_engine.model": MODEL}, choose=never)
    assert config.agent.preset == "remote"
    assert not config.llm_engine.has_engine
    assert config.answering_model() == {
        "name": "Qwen/Qwen3-8B",
        "preset": "remote",
        "why": "the language model is on another server",
    }
    assert needed_models(config) == ["silero-vad", "whisper-tiny.en", "smart-turn", "hibari"]
    chosen = load_config({"llm_engine.model": MODEL, "agent.preset": "embedded"}, choose=never)
    assert chosen.agent.preset == "embedded"


def test_a_later_layer_brings_the_model_back() -> None:
    file_text = f'[llm_engine]\nmodel = "{MODEL}"\n'
    asked: list[int] = []

    def choose(num_calls: int) -> PresetChoice:
        asked.append(num_calls)
        return PresetChoice("embedded", "it runs")

    assert load_config(file_text=file_text, choose=never).llm_engine.remote is not None
    local = {"llm_engine.model": "smollm2-135m-instruct"}
    assert load_config(local, file_text=file_text, choose=choose).llm_engine.remote is None
    assert len(asked) == 1


def test_the_smaller_model_is_one_of_this_process() -> None:
    given = {"llm_engine.model": MODEL, "llm_engine.small_model": "smollm2-135m-instruct"}
    config = load_config(given, choose=never)
    assert config.llm_engine.has_engine
    assert "smollm2-135m-instruct" in needed_models(config)
    with pytest.raises(ConfigError, match=r"small_model .* must be a model of this process"):
        load_config({"llm_engine.small_model": MODEL})
    with pytest.raises(ConfigError, match=r"draft_model .* drafts for a model of this process"):
        load_config({"llm_engine.model": MODEL, "llm_engine.draft_model": "smollm2-135m-instruct"})


def test_a_gpu_is_not_needed_for_a_model_elsewhere() -> None:
    given = {"llm_engine.model": MODEL, "llm_engine.dtype": "fp8"}
    assert not load_config(given).llm_engine.on_gpu
    small = {**given, "llm_engine.small_model": "smollm2-135m-instruct"}
    assert load_config(small).llm_engine.on_gpu


def test_secrets_are_named_in_the_settings_and_stand_in_the_environment() -> None:
    config = load_config(
        {
            "llm_engine.model": MODEL,
            "llm_engine.remote_key_env": "MY_KEY",
            "llm_engine.remote_headers": '{ X-Tenant = "MY_TENANT" }',
            "llm_engine.remote_extra_body": "{ top_k = 3 }",
        }
    )
    options = server_options(config, {"MY_KEY": "sk-1", "MY_TENANT": "t-2"})
    assert (options.key, dict(options.headers)) == ("sk-1", {"X-Tenant": "t-2"})
    assert options.extra_body == {"top_k": 3}
    assert "sk-1" not in repr(options)
    assert "t-2" not in repr(options)


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({}, "MY_KEY, which is not set"),
        ({"MY_KEY": ""}, "MY_KEY, which is not set"),
        ({"MY_KEY": "hunter2\n"}, "MY_KEY, whose value can't be sent"),
    ],
)
def test_a_key_that_is_missing_or_broken_is_a_wrong_setting(
    env: dict[str, str], problem: str
) -> None:
    config = load_config({"llm_engine.model": MODEL, "llm_engine.remote_key_env": "MY_KEY"})
    with pytest.raises(ConfigError, match=problem) as caught:
        server_options(config, env)
    assert "hunter2" not in caught.value.message


def test_a_value_that_json_does_not_know_is_a_wrong_setting() -> None:
    file_text = f'[llm_engine]\nmodel = "{MODEL}"\nremote_extra_body = {{ day = 2026-01-01 }}\n'
    with pytest.raises(ConfigError, match="remote_extra_body"):
        server_options(load_config(file_text=file_text), {})


VOICE = "openai:http://gpu-box:8880/v1#nova"


def test_recognizer_and_voices_elsewhere_need_no_model_here() -> None:
    config = load_config(
        {
            "asr.model": "openai:http://gpu-box:8001/v1#whisper",
            "tts.voice": VOICE,
            "agents.sales.voice": "openai:http://gpu-box:8880/v1#alloy",
        }
    )
    assert config.asr.remote == RemoteModel("http://gpu-box:8001/v1", "whisper")
    assert config.voices == (VOICE, "openai:http://gpu-box:8880/v1#alloy")
    assert config.local_voices == ("hibari",)
    needed = needed_models(config)
    assert [name for name in needed if name != "smollm2-135m-instruct"] == [
        "silero-vad",
        "smart-turn",
        "hibari",
    ]
    alone = load_config({"tts.voice": VOICE, "tts.fallback_voice": ""})
    assert alone.local_voices == ()
    with_fallback = load_config(
        {
            "asr.model": "openai:http://gpu-box:8001/v1#whisper",
            "asr.fallback_model": "whisper-tiny.en",
        }
    )
    assert "whisper-tiny.en" in needed_models(with_fallback)
    assert load_config({"tts.fallback_voice": "piper-joe"}).local_voices == ("hibari",)


@pytest.mark.parametrize("key", ["asr.model", "tts.voice", "agents.sales.voice"])
@pytest.mark.parametrize(
    "reference", ["openai:http://hunter2@gpu-box/v1#x", "openai:http://gpu-box/v1#"]
)
def test_a_wrong_reference_names_its_setting_and_is_not_repeated(key: str, reference: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({key: reference})
    assert caught.value.key == key
    assert "hunter2" not in caught.value.message
    section = "asr" if key == "asr.model" else "tts"
    assert (f"{section}.remote_key_env" in caught.value.message) == ("hunter2" in reference)


def test_what_answers_in_an_emergency_is_here() -> None:
    for key in ("asr.fallback_model", "tts.fallback_voice"):
        with pytest.raises(ConfigError, match="must be a model of this process") as caught:
            load_config({key: VOICE})
        assert caught.value.key == key


def test_two_voices_of_one_name_can_not_be_told_apart() -> None:
    other = "openai:http://other-box:8880/v1#nova"
    with pytest.raises(ConfigError, match="has the name of another voice, 'nova'"):
        load_config({"tts.voice": VOICE, "agents.sales.voice": other})
    with pytest.raises(ConfigError, match="has the name of another voice, 'hibari'"):
        load_config({"agents.sales.voice": "openai:http://other-box/v1#hibari"})


@pytest.mark.parametrize("section", ["asr", "tts"])
def test_each_section_has_its_own_secrets(section: RemoteSection) -> None:
    config = load_config(
        {
            f"{section}.remote_key_env": "MY_KEY",
            f"{section}.remote_headers": '{ X-Tenant = "MY_TENANT" }',
            f"{section}.remote_timeout_s": 3,
            "llm_engine.remote_key_env": "ANOTHER",
        }
    )
    options = server_options(config, {"MY_KEY": "sk-1", "MY_TENANT": "t-2"}, section)
    assert (options.key, dict(options.headers), options.timeout_s) == (
        "sk-1",
        {"X-Tenant": "t-2"},
        3,
    )
    assert "sk-1" not in repr(options)
    with pytest.raises(ConfigError, match=f"{section}.remote_key_env names .* MY_KEY"):
        server_options(config, {}, section)
