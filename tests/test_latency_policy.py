"""The policy: what it foresees, when it acts, what it gives up, and that it never flaps."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latency_budget.actions import Action, ActionTaken
from latency_budget.lags import Lags, Progress, lags_of
from latency_budget.policy import (
    CALM_TURNS,
    MIN_TURNS,
    SET_ASIDE_TURNS,
    STANDING,
    TRY_EVERY,
    Policy,
)
from latency_budget.rung import MIN_COMPARED

from .chain_turns import MS, chain_turn

BUDGET_MS = 500
SLOW_ASR = {"words": 700.0, "pass_ms": 450.0}


def observed(policy: Policy, times: int, **links: float) -> None:
    """So many turns, in each of which the policy's standing actions are taken."""
    for _ in range(times):
        policy.observe(chain_turn(**links, actions=policy.standing()), BUDGET_MS)  # type: ignore[arg-type]


def standing(policy: Policy) -> set[Action]:
    return {taken.action for taken in policy.standing()}


def test_lags_are_the_links_between_the_marks() -> None:
    lags = lags_of(chain_turn(200, 30, 90, 30, pass_ms=110, after=40))
    assert lags == Lags(
        words_ms=200, speech_ms=2000, pass_ms=110, wait_ms=0, prefill_ms=30, clause_ms=90,
        tts_ms=30, ready_ms=350, decided_ms=420, after_ms=40,
    )  # fmt: skip


def test_a_turn_without_words_of_a_caller_teaches_nothing() -> None:
    policy = Policy()
    record = replace(chain_turn(), e2e_server_ns=None)
    assert lags_of(record) is None
    assert policy.observe(record, BUDGET_MS) is record
    assert policy.recent.likely_ms("words_ms") is None


def test_nothing_is_done_while_turns_are_in_time() -> None:
    policy = Policy()
    observed(policy, 100)
    assert policy.standing() == ()
    assert policy.predicted_ms() == 350 + 40
    assert [state.times for state in policy.states()] == [0] * len(Action)


def test_nothing_is_done_on_too_little_evidence() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS - 1, **SLOW_ASR)
    assert policy.predicted_ms() is None
    assert policy.standing() == ()


def test_a_slow_recognizer_is_spared_its_partials() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS, **SLOW_ASR)
    (taken,) = [each for each in policy.standing() if each.action is Action.SKIP_PARTIALS]
    # words = 32 + p + p^2 / 1200 gives p = 478, so that a pause waits for 190 ms on average
    assert taken.predicted_ms == pytest.approx(190.2, abs=0.1)
    assert Action.TAIL_DECODE not in standing(policy), "the utterances are short"


def test_partials_are_worth_what_little_they_cost() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS, words=250, clause=300)
    assert Action.SKIP_PARTIALS not in standing(policy)
    assert Action.SMALL_MODEL in standing(policy)


def test_long_utterances_are_settled_early() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS, words=400, pass_ms=300, speech=17_800)
    (taken,) = [each for each in policy.standing() if each.action is Action.TAIL_DECODE]
    assert taken.predicted_ms == pytest.approx(150)


def test_a_pause_comes_sooner_only_where_words_wait_for_it() -> None:
    quick, slow = Policy(), Policy()
    observed(quick, MIN_TURNS, words=96, pass_ms=2, clause=500)
    observed(slow, MIN_TURNS, words=200, pass_ms=100, clause=500)
    assert Action.PAUSE_SOONER in standing(quick)
    assert Action.PAUSE_SOONER not in standing(slow)


def test_only_what_there_is_is_done() -> None:
    policy = Policy({Action.OPENER})
    observed(policy, 50, **SLOW_ASR)
    assert policy.standing() == ()
    assert [state.action for state in policy.states()] == [Action.OPENER]


def test_no_more_is_switched_on_than_the_lateness_takes() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS, words=350, pass_ms=300, clause=100, speech=17_800)
    assert standing(policy) == {Action.TAIL_DECODE}, "20 ms late; 150 are saved"


def test_the_effect_is_awaited_before_more_is_done() -> None:
    policy = Policy(set(Action) - {Action.SMALL_MODEL})
    observed(policy, MIN_TURNS, **SLOW_ASR)
    assert standing(policy) == {Action.SKIP_PARTIALS}
    assert policy.predicted_ms() is None
    observed(policy, MIN_TURNS - 1, **SLOW_ASR)
    assert policy.predicted_ms() is None


def test_what_pays_stays_until_it_is_not_needed() -> None:
    policy = Policy(set(Action) - {Action.SMALL_MODEL})
    observed(policy, MIN_COMPARED, **SLOW_ASR)
    observed(policy, 40, words=500, pass_ms=450)
    assert standing(policy) == {Action.SKIP_PARTIALS}
    (state,) = [each for each in policy.states() if each.action is Action.SKIP_PARTIALS]
    assert state.saved_ms > 0
    assert not state.is_set_aside


def test_an_action_that_does_not_pay_is_set_aside_and_tried_again() -> None:
    policy = Policy({Action.SKIP_PARTIALS})
    observed(policy, MIN_COMPARED, **SLOW_ASR)
    observed(policy, MIN_COMPARED, **SLOW_ASR)
    (state,) = policy.states()
    assert (state.is_set_aside, state.times_set_aside, state.is_on) == (True, 1, False)
    observed(policy, SET_ASIDE_TURNS - MIN_COMPARED, **SLOW_ASR)
    assert policy.standing() == ()
    observed(policy, MIN_COMPARED, **SLOW_ASR)
    assert standing(policy) == {Action.SKIP_PARTIALS}


def test_the_ladder_is_left_when_all_is_calm_and_not_before() -> None:
    policy = Policy({Action.SMALL_MODEL})
    observed(policy, MIN_COMPARED, clause=300)
    assert standing(policy) == {Action.SMALL_MODEL}
    observed(policy, 60, words=300, clause=80)
    assert standing(policy) == {Action.SMALL_MODEL}, "480 of 500 ms is no calm"
    observed(policy, MIN_TURNS + 26 + CALM_TURNS, clause=40)
    assert policy.standing() == ()


def test_a_load_that_stays_makes_late_turns_rarer_and_rarer() -> None:
    policy = Policy({Action.SMALL_MODEL})
    late = []
    for turn in range(1200):
        is_small = standing(policy) == {Action.SMALL_MODEL}
        late += [] if is_small or turn % TRY_EVERY == TRY_EVERY - 1 else [turn]
        observed(policy, 1, clause=100 if is_small else 300)
    assert len(late) < 60
    assert len([turn for turn in late if turn >= 600]) < len(late) / 3


@settings(max_examples=60)
@given(st.lists(st.sampled_from([200.0, 700.0]), min_size=80, max_size=160))
def test_it_never_flaps(words: list[float]) -> None:
    policy = Policy(set(Action) - {Action.SMALL_MODEL})
    switches = 0
    was = standing(policy)
    for turn, each in enumerate(words):
        policy.observe(chain_turn(each, pass_ms=100, actions=policy.standing()), BUDGET_MS)
        now = standing(policy)
        if (turn + 1) % TRY_EVERY in (TRY_EVERY - 1, 0):
            continue  # a turn without, to compare with
        switches += now != was
        was = now
    assert switches <= 1 + len(words) // MIN_TURNS


def test_now_and_then_a_turn_goes_without() -> None:
    policy = Policy({Action.SMALL_MODEL})
    observed(policy, MIN_COMPARED, clause=300)
    without = []
    for turn in range(3 * TRY_EVERY):
        without += [] if policy.standing() else [turn]
        observed(policy, 1, clause=200 if policy.standing() else 300)
    assert [b - a for a, b in pairwise(without)] == [TRY_EVERY] * 2


# --- within a turn ---


def progress(words_ms: float, *, token_ms: float | None = None) -> Progress:
    asked_ns = round(words_ms * MS)
    token_ns = None if token_ms is None else round(token_ms * MS)
    now_ns = asked_ns if token_ns is None else token_ns
    return Progress(now_ns, 0, words_ns=asked_ns, asked_ns=asked_ns, token_ns=token_ns)


def test_what_lies_ahead_is_added_to_what_lies_behind() -> None:
    policy = Policy()
    assert policy.recent.ready_ns(progress(300)) is None, "nothing is known yet"
    observed(policy, 10)
    assert policy.recent.ready_ns(progress(300)) == (300 + 30 + 90 + 30) * MS
    assert policy.recent.ready_ns(progress(300, token_ms=400)) == (400 + 90 + 30) * MS
    begun = Progress(1000 * MS, 0, words_ns=200 * MS)
    assert policy.recent.ready_ns(begun) == (1000 + 30 + 90 + 30) * MS, "it can't end in the past"


def test_a_clause_is_short_only_where_the_turn_would_be_late() -> None:
    policy = Policy()
    assert policy.short_clause(progress(900), BUDGET_MS) is None
    observed(policy, 10)
    assert policy.short_clause(progress(300), BUDGET_MS) is None
    taken = policy.short_clause(progress(320), BUDGET_MS)
    assert taken == ActionTaken(Action.SHORT_CLAUSE, 60)


def test_a_short_clause_that_saves_nothing_is_given_up() -> None:
    policy = Policy()
    short = ActionTaken(Action.SHORT_CLAUSE, 60)
    for _ in range(MIN_COMPARED):
        policy.observe(chain_turn(), BUDGET_MS)
    for _ in range(MIN_COMPARED):
        record = policy.observe(chain_turn(actions=(short,)), BUDGET_MS)
        assert record.actions[0].saved_ms == 0.0
    assert policy.short_clause(progress(900), BUDGET_MS) is None


def test_what_a_short_clause_saved_is_told_against_turns_without() -> None:
    policy = Policy()
    short = ActionTaken(Action.SHORT_CLAUSE, 60)
    assert policy.observe(chain_turn(clause=40, actions=(short,)), BUDGET_MS).actions == (short,)
    for _ in range(MIN_COMPARED):
        policy.observe(chain_turn(clause=90), BUDGET_MS)
    record = policy.observe(chain_turn(clause=40, actions=(short,)), BUDGET_MS)
    assert record.actions == (replace(short, saved_ms=50.0),)


def test_an_opener_is_worth_as_much_as_the_reply_is_away() -> None:
    policy = Policy()
    observed(policy, 10)
    taken = policy.opener(progress(500, token_ms=600))
    assert taken == ActionTaken(Action.OPENER, 90 + 30)
    for _ in range(MIN_COMPARED):
        told = replace(taken, saved_ms=5.0)
        assert policy.observe(chain_turn(actions=(told,)), BUDGET_MS).actions == (told,)
    assert policy.opener(progress(500)) is None, "5 ms of 120 are not worth a word"


SAVINGS = st.floats(0, 1e4)
ACTIONS = st.lists(
    st.builds(ActionTaken, st.sampled_from(Action), SAVINGS, st.none() | SAVINGS),
    max_size=4,
)  # fmt: skip


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.floats(1, 5000), st.floats(1, 5000), st.floats(1, 5000), ACTIONS), max_size=60
    )
)
def test_any_turns_at_all_are_learned_from(
    turns: list[tuple[float, float, float, list[ActionTaken]]],
) -> None:
    policy = Policy()
    for words, clause, tts, actions in turns:
        record = chain_turn(words, 30, clause, tts, actions=tuple(actions))
        seen = policy.observe(record, BUDGET_MS)
        assert replace(seen, actions=record.actions) == record, "only savings are filled in"
        assert {t.action for t in policy.standing()} <= set(STANDING)
        assert all(t.predicted_ms >= 0 for t in policy.standing())
        predicted = policy.recent.ready_ns(progress(words))
        assert predicted is not None
        assert predicted >= words * MS - 1
