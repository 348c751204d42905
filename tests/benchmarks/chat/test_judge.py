"""Replies, calls and final states are judged as the dialogues say."""

import re

import pytest

from benchmarks.chat.dialogue import DialogueTurn, RequiredCall
from benchmarks.chat.judge import holds, problems, repeats, speakable_problems


def turn(**checks: object) -> DialogueTurn:
    for name in ("expect", "reject"):
        if name in checks:
            pattern = str(checks[name])
            checks[name] = (re.compile(pattern, re.IGNORECASE),)
    return DialogueTurn("Hello?", **checks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("checks", "reply", "is_right"),
    [
        ({"expect": r"\bparis\b"}, "It's Paris.", True),
        ({"expect": r"\bparis\b"}, "It's Lyon.", False),
        ({"reject": r"\blyon\b"}, "It's Lyon.", False),
        ({"max_words": 3}, "It is white.", True),
        ({"max_words": 3}, "Snow is very white.", False),
        ({}, "  ", False),
        ({}, "Fine.", True),
    ],
)
def test_checks_of_a_reply(checks: dict[str, object], reply: str, is_right: bool) -> None:
    assert (not problems(turn(**checks), reply, [])) == is_right


@pytest.mark.parametrize(
    "reply",
    [
        "**Sure.**",
        "# Tea",
        "Take `tea`.",
        "1. Boil water.\n2. Wait.",
        "- milk\n- eggs",
        "| a | b |",
        "See https://example.com.",
        "Sure \U0001f600",
        "<tool_call>",
        "word " * 61,
        "I was created by OpenAI.",
        "You can find me on the page, you can find me on the page.",
    ],
)
def test_what_a_voice_can_not_read_out(reply: str) -> None:
    assert speakable_problems(reply)


@pytest.mark.parametrize(
    "reply",
    ["Well, it costs 3.50, or about four.", "At 7:30, if that suits you.", "It's two - or three."],
)
def test_what_a_voice_can_read_out(reply: str) -> None:
    assert not speakable_problems(reply)


def test_a_short_phrase_may_come_twice() -> None:
    assert not repeats(["very", "very", "good", "and", "very", "very", "nice"])


def test_an_interrupted_answer_may_have_no_word_but_no_wrong_one() -> None:
    asked = turn(reject=r"\blyon\b")
    assert problems(asked, "", [])
    assert not problems(asked, "", [], is_interrupted=True)
    assert problems(asked, "It's Lyon", [], is_interrupted=True)


CALL = RequiredCall("transfer", {"amount": 100, "source": "savings"})


@pytest.mark.parametrize(
    ("calls", "is_right"),
    [
        ([("transfer", {"amount": 100.0, "source": "Savings", "note": "x"})], True),
        ([("other", {}), ("transfer", {"amount": 100, "source": "savings"})], True),
        ([("transfer", {"amount": 10, "source": "savings"})], False),
        ([("transfer", {"amount": 100})], False),
        ([], False),
    ],
)
def test_expected_calls(calls: list[tuple[str, dict[str, object]]], is_right: bool) -> None:
    assert (not problems(turn(calls=(CALL,)), "Done.", calls)) == is_right


def test_a_call_where_none_may_be() -> None:
    assert problems(turn(no_call=True), "Done.", [("transfer", {})])
    assert not problems(turn(no_call=True), "Done.", [])


@pytest.mark.parametrize(
    ("expected", "actual", "is_right"),
    [
        ({"a": 1}, {"a": 1.0, "b": 2}, True),
        ({"a": 1}, {}, False),
        ([{"n": "x"}, {"n": "y"}], [{"n": "Y"}, {"n": "x", "m": 1}], True),
        ([{"n": "x"}], [{"n": "x"}, {"n": "y"}], False),
        ("0?7:00", "07:00", True),
        ("7", "17", False),
        (True, True, True),
        (1, True, False),
        (5, "five", False),
        (5, "5", True),
    ],
)
def test_states(expected: object, actual: object, is_right: bool) -> None:
    assert holds(expected, actual) == is_right
