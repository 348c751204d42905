"""Settings of the calls' languages."""

import pytest

from agent.config.layers import load_config
from agent.config.reload import reload_config
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.stages.model_store.catalogue import needed_models
from languages import PROFILES


def made(text: str) -> Config:
    preset = {} if "preset" in text else {"agent.preset": "embedded"}
    return load_config(preset, {}, text)


GERMAN = '[agent]\npreset = "embedded"\nlanguage = "de"\n'


def test_english_without_a_setting() -> None:
    config = made("")
    assert (config.own_language, config.call_languages, config.voices) == (
        "en",
        ("en",),
        ("hibari",),
    )
    assert "whisper-base" not in needed_models(config)


def test_a_language_brings_recognizer_voice_and_sentences() -> None:
    config = made(GERMAN)
    _, profile = config.profile(None)
    assert config.language(profile) == "de"
    assert config.voice(profile) == "pico-de"
    assert "whisper-base" in needed_models(config)
    assert config.sentences("de").idle_prompt == PROFILES["de"].sentences.idle_prompt
    assert config.telephony_in("de").announcement == PROFILES["de"].sentences.announcement


def test_the_recognizers_language_is_one_that_it_knows() -> None:
    with pytest.raises(ConfigError, match=r"asr\.language .*no recognizer here knows the language"):
        made('[asr]\nlanguage = "xx"\n')
    elsewhere = "openai:http://127.0.0.1:9/v1#whisper"
    assert made(f'[asr]\nlanguage = "xx"\nmodel = "{elsewhere}"\n').asr.language == "xx"


def test_agents_have_languages_of_their_own() -> None:
    config = made('[agents.paris]\nlanguage = "fr"\n[agents.madrid]\nlanguage = "es"\nvoice="x"\n')
    assert config.call_languages == ("en", "fr", "es")
    assert config.voices == ("hibari", "pico-fr", "x")


def test_the_operators_own_sentences_are_of_the_servers_language() -> None:
    config = made(f'{GERMAN}idle_prompt = "Hallo?"\nopeners = ["Also,"]\n')
    assert config.sentences("de").idle_prompt == "Hallo?"
    assert config.sentences("de").openers == ("Also,",)
    assert config.sentences("fr").idle_prompt == PROFILES["fr"].sentences.idle_prompt
    assert config.sentences("fr").openers == PROFILES["fr"].sentences.openers
    assert config.sentences("pt").idle_prompt == "Hallo?"


def test_what_is_switched_off_is_off_in_every_language() -> None:
    config = made('[agent]\ntool_wait = ""\n[telephony]\nlimit_notice = ""\n')
    for language in PROFILES:
        assert config.sentences(language).tool_wait == ""
        assert config.sentences(language).openers == ()
        assert config.telephony_in(language).limit_notice == ""


@pytest.mark.parametrize("section", ["agent", "agents.front"])
@pytest.mark.parametrize("language", ["xx", "German", "de-DE"])
def test_a_language_that_no_recognizer_knows(section: str, language: str) -> None:
    with pytest.raises(ConfigError, match=r"no recognizer here knows.*de \(German\)") as caught:
        made(f'[{section}]\nlanguage = "{language}"\n')
    assert caught.value.key == f"{section}.language"


@pytest.mark.parametrize("section", ["agent", "agents.default"])
def test_a_language_that_is_found_begins_in_english(section: str) -> None:
    config = made(f'[{section}]\nlanguage = "auto"\n')
    _, profile = config.profile(None)
    assert config.finds_language(profile)
    assert (config.language(profile), config.voice(profile)) == ("en", "hibari")
    assert set(config.call_languages) == set(PROFILES)
    assert "whisper-base" in needed_models(config)


def test_a_reload_keeps_agents_whose_language_is_found() -> None:
    before = made('[agents.front]\nlanguage = "auto"\n')
    assert reload_config(before, before, before).needs_restart == ()
    english = made("[agents.front]\n")
    assert reload_config(english, english, before).needs_restart == ("agents.front.language",)


def test_an_agent_of_one_language_finds_none() -> None:
    config = made('[agent]\nlanguage = "auto"\n[agents.paris]\nlanguage = "fr"\n')
    assert not config.finds_language(config.agents["paris"])
    assert config.language(config.agents["paris"]) == "fr"


@pytest.mark.parametrize("recognizer", ["openai:http://gpu-box:8000/v1#whisper", "moonshine:tiny"])
def test_a_recognizer_of_others_finds_no_language(recognizer: str) -> None:
    with pytest.raises(ConfigError, match=r"only Whisper in this process finds .*named. Complete"):
        made(f'[agent]\nlanguage = "auto"\n[asr]\nmodel = "{recognizer}"\n')


def test_another_language_without_a_profile_keeps_the_voice() -> None:
    config = made('[agent]\nlanguage = "pt"\n')
    assert config.voices == ("hibari",)


def test_a_voice_of_unknown_language_stays() -> None:
    config = made(f'{GERMAN}[tts]\nvoice = "piper-thorsten"\n')
    assert config.voices == ("piper-thorsten",)
