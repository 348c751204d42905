"""The fitted end-of-turn decision: features, bounds, and the weights that ship."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.turn_taking.dialogue.agent_question import question_of
from agent.turn_taking.end_of_turn_model import (
    ALL_KNOWN,
    EAGERNESS,
    SILENCE,
    VERSION,
    WORDS_RULE,
    Evidence,
    PauseHistory,
    Release,
    ScoreVersionError,
    TurnScore,
    features,
    is_mid_number,
    known_of,
    num_digits,
    score_or_rule,
    shipped_score,
    word_class,
)
from agent.turn_taking.thresholds import DANGLING_MS, MAX_NUMBER_MS, OPENER_COST_SHARE
from benchmarks.end_of_turn.fit import newton

RELEASE = Release(log_odds=1.0, least_ms=250, most_ms=900)
SCORE = TurnScore(
    {
        "words": {"closed": 2.0, SILENCE: 2.0},
        "sound": {"sound": 1.0, "closed": 0.5, SILENCE: 2.0},
        "message_end": {"message_end": 1.0, "one": 3.0, SILENCE: 2.0},
        "sound, message_end": {"sound": 1.0, "message_end": 1.0, "one": 3.0, SILENCE: 2.0},
    },
    dict.fromkeys(EAGERNESS, RELEASE),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "none"),
        (" ... ", "none"),
        ("Switch the light off.", "closed"),
        ("What time is it?", "question"),
        ("Stop!", "question"),
        ("Switch off the", "dangling"),
        ("Switch off the.", "dangling"),
        ("The thing is...", "dangling"),
        ("I'd like to go to Par-", "dangling"),
        ("If this is correct,", "comma"),
        ("I would like to.", "leaning"),
        ("what is it for", "leaning"),
        ("call the office", "bare"),
        ("my number is 5 5", "spelled"),
        ("my number is 555-12", "spelled"),
        ("it is spelled a b", "spelled"),
        ("Press one.", "closed"),
        ("Which one? And?", "question"),
    ],
)
def test_how_words_end(text: str, expected: str) -> None:
    assert word_class(text) == expected


def test_mid_number_takes_two() -> None:
    assert is_mid_number("my number is 5 5")
    assert not is_mid_number("room 5")
    assert not is_mid_number("my number is 5 5.")
    assert not is_mid_number("")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("my number is 888-511-2931.", 10),
        ("it's 8 8 8 5 1 1", 6),
        ("s a f f r o n", 7),
        ("double five one", 2),
        ("press one to go on", 0),
        ("", 0),
    ],
)
def test_digits_and_letters_at_the_end_are_counted(text: str, number: int) -> None:
    assert num_digits(text) == number


def test_a_turn_is_over_when_its_odds_pass_the_threshold() -> None:
    evidence = Evidence("call me", 0.4)
    wait_ms = SCORE.wait_ms(evidence, "auto")
    assert RELEASE.least_ms < wait_ms < RELEASE.most_ms
    assert SCORE.log_odds(evidence, wait_ms - 1) < RELEASE.log_odds
    assert SCORE.log_odds(evidence, wait_ms) >= RELEASE.log_odds


def test_an_opener_takes_the_odds_of_its_own_cost() -> None:
    """A quarter of the cost takes a quarter of the odds."""
    evidence = Evidence("call me", -0.6)
    wait_ms = SCORE.opener_wait_ms(evidence, "auto")
    assert wait_ms is not None
    assert RELEASE.least_ms < wait_ms < SCORE.wait_ms(evidence, "auto")
    enough = math.exp(RELEASE.log_odds) * OPENER_COST_SHARE
    assert math.exp(SCORE.log_odds(evidence, wait_ms - 1)) < enough
    assert math.exp(SCORE.log_odds(evidence, wait_ms)) >= enough


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("Switch off the", ""),
        ("my number is 5 5", ""),
        ("5 5", "What's your four digit PIN?"),
        ("S M", "Could you spell your name?"),
    ],
)
def test_no_opener_where_a_rule_makes_the_wait(words: str, asked: str) -> None:
    question = question_of(asked, is_greeting=False, language="en")
    evidence = Evidence(words, 0.4, question=question)
    assert shipped_score().opener_wait_ms(evidence, "auto") is None


def test_no_opener_without_the_fitted_weights(tmp_path: Path) -> None:
    evidence = Evidence("call me.", 0.4)
    assert shipped_score().opener_wait_ms(evidence, "auto") is not None
    assert score_or_rule(tmp_path / "none.json").opener_wait_ms(evidence, "auto") is None


def test_the_surer_the_sooner_between_two_bounds() -> None:
    waits = [SCORE.wait_ms(Evidence("call me", sound), "auto") for sound in (-6, -1, 0, 1, 6)]
    assert waits == sorted(waits, reverse=True)
    assert (waits[0], waits[-1]) == (900, 250)
    assert len(set(waits)) > 3


def test_each_combination_of_evidence_has_its_weights() -> None:
    sounds, ends = (None, 0.5), (None, -2.5)
    found = {
        known_of(Evidence("Yes.", sound, message_end=end)): SCORE.log_odds(
            Evidence("Yes.", sound, message_end=end)
        )
        for sound in sounds
        for end in ends
    }
    assert found == {"words": 2.0, "sound": 1.0, "message_end": 0.5, "sound, message_end": 1.0}
    assert tuple(sorted(found)) == tuple(sorted(ALL_KNOWN))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_known(value: float) -> None:
    evidence = Evidence("Yes.", value, message_end=value)
    assert known_of(evidence) == "words"
    assert SCORE.wait_ms(evidence, "auto") == SCORE.wait_ms(Evidence("Yes."), "auto")


def test_a_number_may_take_longer_than_the_most() -> None:
    unsure = {known: {"one": -9.0, SILENCE: 1.0} for known in ALL_KNOWN}
    score = replace(SCORE, weights=unsure)
    assert score.wait_ms(Evidence("I would like", -6.0), "auto") == RELEASE.most_ms
    assert score.wait_ms(Evidence("my number is 5 5", -6.0), "auto") == MAX_NUMBER_MS


def test_words_that_no_turn_ends_with_get_longer() -> None:
    assert SCORE.wait_ms(Evidence("I would like the", 6.0), "auto") == DANGLING_MS


def test_the_patient_never_wait_less() -> None:
    releases = {**SCORE.releases, "high": Release(3.0, 800, 2000)}
    score = replace(SCORE, releases=releases)
    waits = [score.wait_ms(Evidence("Yes.", 6.0), each) for each in EAGERNESS]
    assert waits == [800] * 4


def test_no_witness_outvotes_all_others() -> None:
    assert features(Evidence("Yes.", 50.0))["sound"] == features(Evidence("Yes.", 6.0))["sound"]
    unlikely, never = (features(Evidence("Yes.", message_end=each)) for each in (-10.0, -99.0))
    assert unlikely == never


EVIDENCE = st.builds(
    Evidence,
    words=st.text(max_size=40) | st.sampled_from(["Yes.", "And the", "at 5 5 5", "Really?"]),
    sound=st.none() | st.floats(-100, 100),
    own_pause_ms=st.integers(0, 5000),
    message_end=st.none() | st.floats(-100, 0),
)


@settings(derandomize=True)
@given(EVIDENCE)
def test_no_evidence_makes_a_caller_wait_for_ever(evidence: Evidence) -> None:
    waits = [shipped_score().wait_ms(evidence, each) for each in EAGERNESS]
    assert waits == sorted(waits), "the eager commit first"
    assert all(isinstance(wait, int) and wait >= 200 for wait in waits)
    most_ms = shipped_score().releases["low"].most_ms
    assert waits[-1] <= max(most_ms, MAX_NUMBER_MS if is_mid_number(evidence.words) else 0)


@settings(derandomize=True)
@given(EVIDENCE, st.floats(0, 10))
def test_a_turn_that_sounds_more_over_is_over_no_later(evidence: Evidence, more: float) -> None:
    if evidence.sound is not None:
        surer = replace(evidence, sound=evidence.sound + more)
        assert shipped_score().wait_ms(surer, "auto") <= shipped_score().wait_ms(evidence, "auto")


@settings(derandomize=True)
@given(EVIDENCE, st.floats(0, 5))
def test_words_that_the_model_takes_for_an_end_are_over_no_later(
    evidence: Evidence, more: float
) -> None:
    if evidence.message_end is not None:
        surer = replace(evidence, message_end=min(0.0, evidence.message_end + more))
        assert shipped_score().wait_ms(surer, "auto") <= shipped_score().wait_ms(evidence, "auto")


def shipped_data() -> dict[str, object]:
    weights = {known: {"sound": 1.0, SILENCE: 2.0} for known in ALL_KNOWN}
    release = {"log_odds": 1.0, "least_ms": 100, "most_ms": 700}
    return {"version": VERSION, "weights": weights, "releases": dict.fromkeys(EAGERNESS, release)}


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    path.write_text(json.dumps(shipped_data()), encoding="utf-8")
    score = score_or_rule(path)
    assert score.problem is None
    assert score.log_odds(Evidence("Yes.", 2.5)) == 2.5
    assert score.wait_ms(Evidence("Yes.", 6.0), "auto") == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, f"has version 1, this needs {VERSION}: install"),
        ({"version": None}, "has version None"),
        ({"weights": {}}, "can't be read"),
        ({"weights": {known: {SILENCE: -1.0} for known in ALL_KNOWN}}, "silence is positive"),
        ({"weights": {known: {SILENCE: math.nan} for known in ALL_KNOWN}}, "silence is positive"),
        ({"releases": {"auto": {"log_odds": 1.0}}}, "can't be read"),
    ],
)
def test_weights_that_cannot_be_used_leave_words_and_silence(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = tmp_path / "score.json"
    path.write_text(json.dumps(shipped_data() | changes), encoding="utf-8")
    with pytest.raises(ScoreVersionError, match=message):
        TurnScore.load(path)
    score = score_or_rule(path)
    assert score == WORDS_RULE
    assert score.problem is not None
    assert message in score.problem


def test_the_rule_by_words_needs_no_model() -> None:
    def waits(sound: float | None = None, end: float | None = None) -> list[int]:
        found = [
            Evidence(text, sound, message_end=end)
            for text in ("Call me.", "call me", "call the", "Really?")
        ]
        return [WORDS_RULE.wait_ms(each, "auto") for each in found]

    closed, other, dangling, question = waits()
    assert closed == question < other < dangling
    assert waits(sound=6.0, end=-0.1) == waits()


def test_the_shipped_weights_are_of_this_version() -> None:
    assert shipped_score().problem is None


def test_one_long_pause_makes_no_hesitant_caller() -> None:
    own = PauseHistory()
    before = own.quantile_ms
    for _ in range(20):
        own.add(100)
    assert own.quantile_ms == before, "stops inside words are no pauses"
    own.add(60_000)
    assert own.quantile_ms == before, "nor is audio that stopped coming"
    own.add(900)
    assert own.quantile_ms == before
    for _ in range(3):
        own.add(800)
    assert own.quantile_ms == 800
    for _ in range(100):
        own.add(200)
    assert own.quantile_ms <= 300, "only the newest count"


def test_newton_finds_the_weights_of_a_known_model() -> None:
    rng = np.random.default_rng(5)
    matrix = np.column_stack([np.ones(20_000), rng.normal(size=(20_000, 2))])
    true = np.array([-0.5, 1.5, -1.0])
    labels = (rng.random(20_000) < 1 / (1 + np.exp(-matrix @ true))).astype(np.float64)
    found = newton(matrix, labels, np.zeros(3))
    assert np.abs(found - true).max() < 0.1
    twice = newton(matrix, labels, np.zeros(3), np.full(20_000, 2.0))
    assert np.abs(twice - found).max() < 1e-6
    small = newton(matrix, labels, np.array([0.0, 1e6, 1e6]))
    assert np.abs(small[1:]).max() < 0.01
    assert math.isfinite(small[0])
