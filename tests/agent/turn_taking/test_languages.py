"""Turn-taking in languages other than English: the wait, backchannels, and who decides."""

import pytest

import languages
from agent.session.api.settings import SessionSettings
from agent.turn_taking.backchannel import meaning, takes_floor
from agent.turn_taking.end_of_turn import NOT_IDLE, TurnRules, required_silence_ms, rules_of
from agent.turn_taking.end_of_turn_model import Evidence, shipped_score
from agent.turn_taking.sound_rule import BOUNDS_MS, wait_by_sound_ms
from agent.turn_taking.thresholds import DANGLING_MS

GERMAN = languages.turn_words("de")


def test_a_language_with_word_features_uses_the_fitted_score() -> None:
    evidence = Evidence("I'd like to go home.", sound=2.0)
    expected = shipped_score().wait_ms(evidence, "auto")
    assert required_silence_ms(TurnRules(language="en"), evidence) == expected


@pytest.mark.parametrize("language", ["de", "es", "fr", "pt"])
def test_other_languages_go_by_the_sound_alone(language: str) -> None:
    rules = TurnRules(language=language)
    waits = [required_silence_ms(rules, Evidence("x x", sound=sound)) for sound in (-2, 0, 2)]
    assert waits == [1200, 815, 600]
    assert required_silence_ms(rules, Evidence("x x")) == 1000


def test_neither_the_number_of_words_nor_the_language_model_counts() -> None:
    plain = wait_by_sound_ms(Evidence("ja", sound=1.0), "auto", GERMAN)
    assert plain == wait_by_sound_ms(
        Evidence("ich möchte gern nach Hause gehen.", 1.0, message_end=-9.0), "auto", GERMAN
    )


@pytest.mark.parametrize("sound", [float("nan"), float("inf")])
def test_a_sound_that_is_no_number_is_not_known(sound: float) -> None:
    assert wait_by_sound_ms(Evidence("ja", sound=sound), "auto", GERMAN) == 1000


@pytest.mark.parametrize("eagerness", BOUNDS_MS)
def test_waits_keep_to_their_bounds(eagerness: str) -> None:
    least, most = BOUNDS_MS[eagerness]  # type: ignore[index]
    for sound in (-100.0, -1.0, 0.0, 1.0, 100.0):
        wait = wait_by_sound_ms(Evidence("ja", sound=sound), eagerness, GERMAN)  # type: ignore[arg-type]
        assert least <= wait <= most


def test_an_explicit_silence_is_literal_in_every_language() -> None:
    assert required_silence_ms(TurnRules(silence_ms=350, language="de"), Evidence("und")) == 350


@pytest.mark.parametrize(
    ("language", "text"),
    [("de", "ich komme und"), ("es", "quiero ir a"), ("fr", "je voudrais le"), ("de", "null drei")],
)
def test_no_turn_ends_at_a_dangling_word_or_in_a_number(language: str, text: str) -> None:
    rules = TurnRules(language=language)
    assert required_silence_ms(rules, Evidence(text, sound=6.0)) == DANGLING_MS


def test_a_callers_long_pauses_make_the_wait_longer() -> None:
    usual = wait_by_sound_ms(Evidence("ja", 0.0), "auto", GERMAN)
    assert wait_by_sound_ms(Evidence("ja", 0.0, own_pause_ms=700), "auto", GERMAN) == usual + 200


@pytest.mark.parametrize(
    ("language", "text"),
    [("de", "Ja, genau."), ("es", "Claro, claro."), ("fr", "Oui, d'accord."), ("en", "Yeah.")],
)
def test_backchannels_take_no_turn(language: str, text: str) -> None:
    known = languages.turn_words(language)
    assert meaning(text, "Ich sehe nach", " was da ist.", known) == "listening"
    assert not takes_floor(text, "Ich sehe nach", " was da ist.", known)


@pytest.mark.parametrize(("language", "word"), [("de", "Stopp"), ("es", "Espera"), ("fr", "Non")])
def test_one_word_interrupts(language: str, word: str) -> None:
    known = languages.turn_words(language)
    assert takes_floor(word, "", "", known)
    assert meaning(word, "", "", known) == "words"


def test_without_a_profile_every_word_takes_the_turn() -> None:
    assert meaning("Sim.", "", "", languages.turn_words("pt")) == "words"


def test_the_rules_have_the_calls_language() -> None:
    assert rules_of(SessionSettings(agent_language="fr"), NOT_IDLE).language == "fr"
    asked = SessionSettings(transcription={"language": "de-AT"})
    assert (asked.language, rules_of(asked, NOT_IDLE).language) == ("de", "de")
    assert SessionSettings(transcription={"model": "x"}, agent_language="es").language == "es"
