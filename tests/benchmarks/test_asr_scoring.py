import sys

import pytest

from agent.errors import BenchError
from benchmarks.asr.scoring import WordErrors, errors_in_words, normalized, word_errors


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
    with pytest.raises(ValueError, match="2 reference and 1 hypothesis"):
        word_errors(["a", "b"], ["a"])


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("a b c", "a b c", 0),
        ("a b c", "a x c", 1),
        ("a b", "", 2),
        ("", "a", 1),
        ("a b c", "b c d", 2),
    ],
)
def test_words_are_substituted_deleted_and_inserted(said: str, heard: str, errors: int) -> None:
    found = errors_in_words([said.split(), ["z"]], [heard.split(), ["z"]])
    assert found == WordErrors(len(said.split()) + 1, errors)


def test_without_jiwer_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(BenchError, match="pip install jiwer"):
        word_errors(["a"], ["a"])
