"""The fitted end-of-turn decision: features, stages, bounds, and the weights that ship."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fit_turns import newton
from agent.turn_score import (
    MAX_DANGLING_MS,
    MAX_MS,
    MAX_NUMBER_MS,
    Evidence,
    OwnPauses,
    TurnScore,
    features,
    is_mid_number,
    stage_of,
    word_class,
)

SHIPPED = TurnScore.load()


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


def test_what_is_known_decides_the_stage() -> None:
    assert stage_of(Evidence(silence_ms=96, partial="yes.")) == "partial"
    assert stage_of(Evidence(silence_ms=192, sound=0.9)) == "sound"
    assert stage_of(Evidence(silence_ms=288, final="Yes.")) == "words"
    assert stage_of(Evidence(silence_ms=288, final="Yes.", sound=0.9)) == "sound words"
    assert stage_of(Evidence(silence_ms=320, final="", sound=0.9, llm=0.1)) == "sound words llm"
    assert stage_of(Evidence(silence_ms=320, final="Yes.", llm=0.1)) == "words llm"


def test_an_old_partial_says_nothing_about_the_end() -> None:
    old = Evidence(silence_ms=192, sound=0.5, partial="and the", partial_lag_ms=500)
    assert "dangling" not in features(old)
    fresh = Evidence(silence_ms=192, sound=0.5, partial="and the", partial_lag_ms=50)
    assert features(fresh)["dangling"] == 1.0


def test_a_partial_alone_decides_nothing() -> None:
    sure = TurnScore({"partial": {"one": 100.0}}, {"auto": 0.0})
    assert not sure.is_over(Evidence(silence_ms=600, partial="Yes."))


def test_no_turn_waits_for_ever() -> None:
    never = TurnScore({"sound words": {"one": -100.0}, "partial": {}}, {"auto": 0.0})
    assert not never.is_over(Evidence(silence_ms=MAX_MS["auto"] - 1, sound=0.0, final="Yes."))
    assert never.is_over(Evidence(silence_ms=MAX_MS["auto"], sound=0.0, final="Yes."))
    assert not never.is_over(Evidence(silence_ms=MAX_DANGLING_MS - 1, sound=0.0, final="and"))
    assert never.is_over(Evidence(silence_ms=MAX_DANGLING_MS, sound=0.0, final="and"))
    assert never.is_over(Evidence(silence_ms=MAX_MS["auto"]))


def test_a_caller_in_mid_number_gets_longer() -> None:
    never = TurnScore({"sound words": {"one": -100.0}}, {"auto": 0.0})
    number = Evidence(silence_ms=MAX_MS["auto"], sound=0.0, final="my number is 5 5")
    assert not never.is_over(number)
    later = Evidence(silence_ms=MAX_NUMBER_MS, sound=0.0, final="my number is 5 5")
    assert never.is_over(later)


evidences = st.builds(
    Evidence,
    silence_ms=st.integers(0, 5000),
    sound=st.none() | st.floats(0, 1),
    partial=st.none() | st.text(max_size=40),
    partial_lag_ms=st.integers(0, 2000),
    final=st.none() | st.text(max_size=40),
    llm=st.none() | st.floats(0, 1),
    own_pause_ms=st.none() | st.integers(0, 5000),
)


@given(evidences)
def test_any_evidence_gives_a_probability(evidence: Evidence) -> None:
    assert 0 <= SHIPPED.probability(evidence) <= 1
    over = [SHIPPED.is_over(evidence, each) for each in ("high", "auto", "medium", "low")]
    assert over == sorted(over, reverse=True), "the eager commit first"


@given(evidences, st.integers(1, 2000))
def test_silence_is_evidence_of_the_end(evidence: Evidence, more_ms: int) -> None:
    later = Evidence(
        silence_ms=evidence.silence_ms + more_ms,
        **{
            name: getattr(evidence, name)
            for name in ("sound", "partial", "partial_lag_ms", "final", "llm", "own_pause_ms")
        },
    )
    assert SHIPPED.log_odds(later) >= SHIPPED.log_odds(evidence) - 1e-9


def test_the_weights_that_ship_use_every_witness() -> None:
    sure = Evidence(silence_ms=288, sound=0.98, final="Switch the light off.")
    assert SHIPPED.probability(sure) > SHIPPED.probability(
        Evidence(silence_ms=288, sound=0.02, final="Switch the light off.")
    )
    assert SHIPPED.probability(sure) > SHIPPED.probability(
        Evidence(silence_ms=288, sound=0.98, final="Switch the light and")
    )
    assert set(SHIPPED.thresholds) == {"high", "auto", "medium", "low"}


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    data = {"weights": {"sound": {"one": 1.0}}, "thresholds": {"auto": 0.5}}
    path.write_text(json.dumps(data), encoding="utf-8")
    score = TurnScore.load(path)
    assert score.log_odds(Evidence(silence_ms=200, sound=0.5)) == 1.0
    assert score.is_over(Evidence(silence_ms=200, sound=0.5))


def test_one_long_pause_makes_no_hesitant_caller() -> None:
    own = OwnPauses()
    before = own.quantile_ms
    own.add(100)
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
