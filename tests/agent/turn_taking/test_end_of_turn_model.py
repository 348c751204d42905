"""The fitted end-of-turn decision: features, bounds, and the weights that ship."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.turn_taking.end_of_turn_model import (
    EAGERNESS,
    Evidence,
    PauseHistory,
    TurnScore,
    Wait,
    features,
    is_mid_number,
    shipped_score,
    word_class,
)
from agent.turn_taking.thresholds import MAX_DANGLING_MS, MAX_NUMBER_MS
from benchmarks.end_of_turn.fit import newton

LINE = Wait(base_ms=500, slope_ms=100, least_ms=250, most_ms=900)
SCORE = TurnScore({"sound": 1.0, "closed": 0.5}, {"closed": 2.0}, dict.fromkeys(EAGERNESS, LINE))


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


def test_the_surer_the_sooner_between_two_bounds() -> None:
    waits = [SCORE.wait_ms(Evidence("call me", sound), "auto") for sound in (-6, -2, 0, 1.5, 6)]
    assert waits == [900, 700, 500, 350, 250]


def test_words_count_for_less_where_the_sound_is_known() -> None:
    assert SCORE.wait_ms(Evidence("Call me."), "auto") == 300
    assert SCORE.wait_ms(Evidence("Call me.", 0.0), "auto") == 450


def test_words_that_no_turn_ends_with_get_longer() -> None:
    assert SCORE.wait_ms(Evidence("I would like the", 6.0), "auto") == MAX_DANGLING_MS
    assert SCORE.wait_ms(Evidence("my number is 5 5", 6.0), "auto") == MAX_NUMBER_MS


def test_the_patient_never_wait_less() -> None:
    waits = {**SCORE.waits, "high": Wait(800, 0, 0, 2000)}
    lines = replace(SCORE, waits=waits)
    assert [lines.wait_ms(Evidence("Yes.", 0.0), each) for each in EAGERNESS] == [800] * 4


def test_no_witness_outvotes_all_others() -> None:
    assert features(Evidence("Yes.", 50.0))["sound"] == features(Evidence("Yes.", 6.0))["sound"]


EVIDENCE = st.builds(
    Evidence,
    words=st.text(max_size=40) | st.sampled_from(["Yes.", "And the", "at 5 5 5", "Really?"]),
    sound=st.none() | st.floats(-100, 100),
    own_pause_ms=st.integers(0, 5000),
)


@settings(derandomize=True)
@given(EVIDENCE)
def test_no_evidence_makes_a_caller_wait_for_ever(evidence: Evidence) -> None:
    waits = [shipped_score().wait_ms(evidence, each) for each in EAGERNESS]
    assert waits == sorted(waits), "the eager commit first"
    assert all(isinstance(wait, int) and wait >= 200 for wait in waits)
    mid_number = is_mid_number(evidence.words)
    assert waits[-1] <= (MAX_NUMBER_MS if mid_number else 1500)


@settings(derandomize=True)
@given(EVIDENCE, st.floats(0, 10))
def test_a_turn_that_sounds_more_over_is_over_no_later(evidence: Evidence, more: float) -> None:
    if evidence.sound is not None:
        surer = replace(evidence, sound=evidence.sound + more)
        assert shipped_score().wait_ms(surer, "auto") <= shipped_score().wait_ms(evidence, "auto")


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    line = {"base_ms": 400, "slope_ms": 10, "least_ms": 100, "most_ms": 700}
    data = {"with_sound": {"sound": 1.0}, "words_alone": {}, "waits": {"high": line, "auto": line}}
    path.write_text(json.dumps(data), encoding="utf-8")
    score = TurnScore.load(path)
    assert score.log_odds(Evidence("Yes.", 2.5)) == 2.5
    assert score.wait_ms(Evidence("Yes.", 2.5), "auto") == 375


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
    small = newton(matrix, labels, np.array([0.0, 1e6, 1e6]))
    assert np.abs(small[1:]).max() < 0.01
    assert math.isfinite(small[0])
