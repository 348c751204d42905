import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.asr.scoring import WordErrors, normalized, word_errors

SENTENCES = st.lists(st.sampled_from(["call", "the", "pound", "key", "busy"]), max_size=8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Press 7 to undelete.", "press seven to undelete"),
        ("Dial 500 or 42", "dial five hundred or forty two"),
        ("extension 8500", "extension eight five zero zero"),
        ("Press # now", "press pound now"),
        ("Log in!", "login"),
        ("the 3rd call", "The third call."),
        ("1,234 calls", "1234 calls"),
        ("the agent’s name [beep]", "the agent's name"),
        ("10 20 115", "ten twenty one hundred fifteen"),
        ("you're on hold", "You are on hold..."),
    ],
)
def test_spelling_makes_no_error(one: str, other: str) -> None:
    assert normalized(one) == normalized(other)


def test_words_do() -> None:
    assert word_errors(["press the pound key"], ["press a pound"]) == WordErrors(4, 2)
    assert word_errors(["press"], ["please press it"]).rate == 2.0
    assert word_errors(["[beep]"], [""]).rate == 0.0


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError, match="shorter"):
        word_errors(["a", "b"], ["a"])


@given(SENTENCES.filter(bool), SENTENCES)
def test_the_distance_is_the_usual_one(said: list[str], heard: list[str]) -> None:
    counts = jiwer.process_words(" ".join(said), " ".join(heard))
    expected = counts.substitutions + counts.deletions + counts.insertions
    assert word_errors([" ".join(said)], [" ".join(heard)]).errors == expected
