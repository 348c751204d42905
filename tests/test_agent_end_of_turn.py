"""How long a silence ends a turn, by settings and by words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.end_of_turn import (
    COMPLETE_MS,
    DANGLING_MS,
    OPEN_MS,
    TurnRules,
    required_silence_ms,
    rules_for,
)
from agent.settings import Eagerness, SemanticVad, ServerVad, TurnDetection

EAGERNESS: tuple[Eagerness, ...] = ("high", "auto", "medium", "low")
"""From the quickest to the most patient."""

COMPLETE = ["Yes.", "What time is it?", "Stop!", "Where is it from?", "That's all I can think of."]
OPEN = ["", "I would like to", "Twenty-five", "Well...", "Hello,", "I was brand", "Call Anders"]
DANGLING = [
    "And", "I'd like a table for two and", "So, um.", "It is because", "Give me the", "Uh,",
    "My name is, um...", "This or", "Hmm", "Do you know which", "I'm", "more than -", "AND",
]  # fmt: skip


@pytest.mark.parametrize("text", COMPLETE)
def test_complete_sentence_needs_least(text: str) -> None:
    assert required_silence_ms(TurnRules(), text) == COMPLETE_MS["auto"]


@pytest.mark.parametrize("text", OPEN)
def test_open_words_need_more(text: str) -> None:
    assert required_silence_ms(TurnRules(), text) == OPEN_MS["auto"]


@pytest.mark.parametrize("text", DANGLING)
def test_word_that_cannot_end_a_sentence_needs_most(text: str) -> None:
    assert required_silence_ms(TurnRules(), text) == DANGLING_MS


def test_question_mark_closes_whatever_word_is_last() -> None:
    assert required_silence_ms(TurnRules(), "Yours or my?") == COMPLETE_MS["auto"]


def test_most_patient_never_waits_less_for_a_dangling_word() -> None:
    assert required_silence_ms(TurnRules(eagerness="low"), "And") == OPEN_MS["low"]


@settings(derandomize=True)
@given(st.text(), st.integers(32, 20_000), st.sampled_from(EAGERNESS))
def test_explicit_silence_is_literal(text: str, silence_ms: int, eagerness: Eagerness) -> None:
    rules = TurnRules(silence_ms=silence_ms, eagerness=eagerness)
    assert required_silence_ms(rules, text) == silence_ms


@settings(derandomize=True)
@given(st.text() | st.sampled_from(COMPLETE + OPEN + DANGLING))
def test_eagerness_orders_the_wait(text: str) -> None:
    waits = [required_silence_ms(TurnRules(eagerness=each), text) for each in EAGERNESS]
    assert waits == sorted(waits)
    assert COMPLETE_MS["high"] <= waits[0]
    assert waits[-1] <= OPEN_MS["low"]


@settings(derandomize=True)
@given(st.sampled_from(COMPLETE + OPEN + DANGLING), st.text(" \t\n"), st.text(" \t\n"))
def test_white_space_says_nothing(text: str, before: str, after: str) -> None:
    rules = TurnRules()
    assert required_silence_ms(rules, before + text + after) == required_silence_ms(rules, text)


@pytest.mark.parametrize(
    ("detection", "rules"),
    [
        (None, TurnRules(enabled=False)),
        (SemanticVad(), TurnRules()),
        (SemanticVad(eagerness="low"), TurnRules(eagerness="low")),
        (SemanticVad(create_response=False), TurnRules(replies=False)),
        (SemanticVad(interrupt_response=False), TurnRules(interrupts=False)),
        (ServerVad(), TurnRules(silence_ms=500)),
        (ServerVad(silence_duration_ms=200), TurnRules(silence_ms=200)),
        (
            ServerVad(create_response=False, interrupt_response=False),
            TurnRules(silence_ms=500, replies=False, interrupts=False),
        ),
    ],
)
def test_rules_follow_the_clients_settings(
    detection: TurnDetection | None, rules: TurnRules
) -> None:
    assert rules_for(detection) == rules
