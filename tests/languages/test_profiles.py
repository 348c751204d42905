"""Profiles of the languages: complete, and in the forms that those who use them rely on."""

from dataclasses import fields

import pytest

import languages
from languages import PROFILES, LanguageProfile, Sentences

OTHERS = [profile for code, profile in PROFILES.items() if code != "en"]


@pytest.fixture(params=list(PROFILES.values()), ids=list(PROFILES))
def profile(request: pytest.FixtureRequest) -> LanguageProfile:
    assert isinstance(request.param, LanguageProfile)
    return request.param


def test_the_complete_languages() -> None:
    assert sorted(PROFILES) == ["de", "en", "es", "fr"]
    assert languages.complete_names() == "de (German), en (English), es (Spanish), fr (French)"


def test_every_sentence_is_there_and_of_its_own(profile: LanguageProfile) -> None:
    english = PROFILES["en"].sentences
    for each in fields(Sentences):
        said = getattr(profile.sentences, each.name)
        assert said, each.name
        assert all(part.strip() == part for part in ((said,) if isinstance(said, str) else said))
        assert profile.code == "en" or said != getattr(english, each.name), each.name


def test_openers_end_with_a_comma(profile: LanguageProfile) -> None:
    assert all(opener.endswith(",") for opener in profile.sentences.openers)


@pytest.mark.parametrize("other", OTHERS, ids=lambda profile: profile.code)
def test_other_languages_have_what_english_has_in_code(other: LanguageProfile) -> None:
    assert other.writing is not None
    assert len(other.writing.months) == 12
    assert other.answer_in
    assert other.voice == f"pico-{other.code}"
    words = other.turn_words
    assert min(map(len, (words.backchannels, words.interruptions, words.dangling))) >= 10
    assert len(words.digits) >= 10
    assert not other.has_word_features


def test_words_are_in_lower_case(profile: LanguageProfile) -> None:
    words = profile.turn_words
    listed = [word for part in words.backchannels for word in part]
    listed += [*words.interruptions, *words.dangling, *words.digits, *profile.spoken_openers]
    assert [word for word in listed if word != word.lower()] == []


def test_no_interruption_is_a_backchannel(profile: LanguageProfile) -> None:
    words = profile.turn_words
    assert not {part[0] for part in words.backchannels if len(part) == 1} & words.interruptions


@pytest.mark.parametrize(
    ("tag", "code"), [("de", "de"), ("de-AT", "de"), ("ES_mx", "es"), (" fr ", "fr")]
)
def test_language_tags(tag: str, code: str) -> None:
    assert languages.code_of(tag) == code


def test_languages_that_can_only_be_recognized() -> None:
    assert languages.is_known("pt")
    assert not languages.is_complete("pt")
    assert languages.turn_words("pt") == languages.NO_WORDS
    assert not languages.is_known("xx")
    assert PROFILES.keys() <= languages.RECOGNIZED
