"""Silence that ends a turn, by settings and by features of the pause."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.session.api.settings import (
    Eagerness,
    SemanticVad,
    ServerVad,
    SessionSettings,
    TurnDetection,
)
from agent.turn_taking.end_of_turn import (
    NOT_IDLE,
    IdleRules,
    TurnRules,
    opener_silence_ms,
    required_silence_ms,
    rules_for,
    rules_of,
)
from agent.turn_taking.end_of_turn_model import EAGERNESS, Evidence, shipped_score
from agent.turn_taking.state import TurnState
from agent.turn_taking.tables import Caller

EVIDENCE = st.builds(
    Evidence,
    words=st.text() | st.sampled_from(["Yes.", "And", "my number is 5 5", "Stop!"]),
    sound=st.none() | st.floats(-50, 50),
    own_pause_ms=st.integers(0, 5000),
    message_end=st.none() | st.floats(-50, 0),
)


@settings(derandomize=True)
@given(EVIDENCE, st.integers(32, 20_000), st.sampled_from(EAGERNESS))
def test_explicit_silence_is_literal(
    evidence: Evidence, silence_ms: int, eagerness: Eagerness
) -> None:
    rules = TurnRules(silence_ms=silence_ms, eagerness=eagerness)
    assert required_silence_ms(rules, evidence) == silence_ms


@settings(derandomize=True)
@given(EVIDENCE, st.sampled_from(EAGERNESS))
def test_without_one_the_score_decides(evidence: Evidence, eagerness: Eagerness) -> None:
    required_ms = required_silence_ms(TurnRules(eagerness=eagerness), evidence)
    assert required_ms == shipped_score().wait_ms(evidence, eagerness)


@settings(derandomize=True)
@given(EVIDENCE, st.sampled_from(EAGERNESS))
def test_an_opener_waits_no_longer_than_the_answer(
    evidence: Evidence, eagerness: Eagerness
) -> None:
    rules = TurnRules(eagerness=eagerness, opens_early=True)
    wait_ms = opener_silence_ms(rules, evidence)
    assert wait_ms is None or 0 < wait_ms <= required_silence_ms(rules, evidence)


NO_OPENERS = [
    TurnRules(),
    TurnRules(opens_early=True, silence_ms=700),
    TurnRules(opens_early=True, replies=False),
    TurnRules(opens_early=True, interrupts=False),
    TurnRules(opens_early=True, language="de"),
    TurnRules(opens_early=True, language="xx"),
]


@pytest.mark.parametrize("rules", NO_OPENERS)
def test_when_there_are_no_early_openers(rules: TurnRules) -> None:
    evidence = Evidence("Book a table.", 0.4)
    assert opener_silence_ms(TurnRules(opens_early=True), evidence) is not None
    assert opener_silence_ms(rules, evidence) is None


def test_early_openers_are_the_operators_and_of_spoken_replies() -> None:
    spoken, written = SessionSettings(), SessionSettings(output_modality="text")
    found = {
        (each.speaks, has_openers): rules_of(each, NOT_IDLE, has_openers=has_openers).opens_early
        for each in (spoken, written)
        for has_openers in (False, True)
    }
    assert [which for which, opens in found.items() if opens] == [(True, True)]


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


def test_idle_rules_by_turn_detection() -> None:
    """The operator's sentence is for `semantic_vad`; an idle time-out is the client's own wish;
    push-to-talk is left alone; silent calls end in both."""
    ours = IdleRules(idle_after_ms=8000, idle_hangup_ms=60_000)
    assert rules_for(SemanticVad(), ours).idle == ours
    assert rules_for(ServerVad(), ours).idle == IdleRules(idle_hangup_ms=60_000)
    assert rules_for(ServerVad(idle_timeout_ms=6000), ours).idle == IdleRules(6000, True, 60_000)
    assert rules_for(None, ours).idle == IdleRules()


def pausing(text: str | None) -> TurnState:
    state = TurnState(TurnRules(), utterance=1, caller=Caller.PAUSING, text=text)
    state.message_end = "I want a table, for two", -0.25
    return state


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("I want a table, for two.", True),
        ("i want a table, for two?", True),
        ("for two", True),  # the second half of a re-opened turn
        ("for", False),
        ("I want a table", False),
        ("...", False),
        ("", False),
        (None, False),
    ],
)
def test_a_score_is_known_of_its_words_only(text: str | None, known: bool) -> None:
    assert pausing(text).message_end_log_prob == (-0.25 if known else None)
