"""The policy: what it foresees, when it acts, what it gives up, and that it never flaps."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latency_budget import Mark, MarkName, TurnId, TurnLedger
from latency_budget.account.actions import Action, ActionTaken
from latency_budget.enforcement.action_effect import COMPARED, MIN_SAMPLES, MIN_TURNS, TRY_EVERY
from latency_budget.enforcement.policy import (
    CALM_TURNS,
    PERSISTENT,
    SET_ASIDE_TURNS,
    ActionState,
    Policy,
)
from latency_budget.enforcement.stage_latencies import Progress, StageLatencies, stage_latencies_of
from tests.support.session.chain_turns import MS, chain_turn

BUDGET_MS = 500
SLOW_ASR = {"words": 700.0, "pass_ms": 450.0}


def observed(policy: Policy, times: int, **links: float) -> None:
    """So many turns, in each of which the policy's standing actions are taken."""
    for _ in range(times):
        policy.observe(chain_turn(**links, actions=policy.active()), BUDGET_MS)


def on(policy: Policy) -> set[Action]:
    """What is switched on."""
    return {state.action for state in policy.states() if state.is_on and state.action in PERSISTENT}


def state_of(policy: Policy, action: Action) -> ActionState:
    (state,) = [each for each in policy.states() if each.action is action]
    return state


def test_lags_are_the_links_between_the_marks() -> None:
    latencies = stage_latencies_of(chain_turn(200, 30, 90, 30, pass_ms=110, after=40))
    assert latencies == StageLatencies(
        words_ms=200, speech_ms=2000, pass_ms=110, wait_ms=0, prefill_ms=30, clause_ms=90,
        tts_ms=30, ready_ms=350, after_ms=40,
    )  # fmt: skip


def test_a_turn_without_words_of_a_caller_teaches_nothing() -> None:
    policy = Policy()
    record = replace(chain_turn(), e2e_server_ns=None)
    assert stage_latencies_of(record) is None
    assert policy.observe(record, BUDGET_MS) is record
    assert policy.recent.likely_ms("words_ms") is None


def test_nothing_is_done_while_turns_are_in_time() -> None:
    policy = Policy()
    observed(policy, 100)
    assert policy.active() == ()
    assert policy.predicted_ms() == 350 + 40
    assert [state.times for state in policy.states()] == [0] * len(Action)


def test_nothing_is_done_on_too_little_evidence() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS - 1, **SLOW_ASR)
    assert policy.predicted_ms() is None
    assert policy.active() == ()


def test_what_a_client_asked_for_itself_teaches_nothing() -> None:
    """Whoever holds a button waits as long as they like."""
    policy = Policy()
    record = replace(chain_turn(**SLOW_ASR), asked=True)
    for _ in range(50):
        assert policy.observe(record, BUDGET_MS) is record
    assert policy.active() == ()
    assert policy.predicted_ms() is None


def test_the_wait_for_the_end_of_the_turn_is_no_part_of_the_chain() -> None:
    """A reply that was not prepared is asked for when the turn is over."""
    ledger = TurnLedger(TurnId(1))
    for name, at_ms in (
        *(("caller_last_voiced", 0), ("audio_received", 10), ("speech_paused", 90)),
        *(("asr_start", 95), ("asr_final", 200), ("endpoint", 900), ("reply_requested", 905)),
        *(("llm_first_token", 935), ("first_piece", 1025), ("tts_start", 1025)),
        *(("first_audible_ready", 1055), ("released", 1056)),
    ):
        ledger.add(Mark(TurnId(1), MarkName(name), at_ms * MS))
    latencies = stage_latencies_of(ledger.record())
    assert latencies is not None
    assert (latencies.wait_ms, latencies.ready_ms) == (5, 355)


def test_a_slow_recognizer_is_spared_its_partials() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS, **SLOW_ASR)
    (taken,) = policy.active()
    assert taken.action is Action.SKIP_PARTIALS, "the utterances are short, the pauses late"
    # words = 32 + p + p^2 / 1200 gives p = 478, so that a pause waits for 190 ms on average
    assert taken.predicted_ms == pytest.approx(190.2, abs=0.1)


def test_partials_are_worth_what_little_they_cost() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS, words=250, clause=300)
    assert on(policy) == {Action.SMALL_MODEL}


def test_long_utterances_are_settled_early() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS, words=400, pass_ms=300, speech=17_800)
    (taken,) = policy.active()
    assert taken.action is Action.TAIL_DECODE
    assert taken.predicted_ms == pytest.approx(150)


def test_one_long_utterance_calls_for_it_where_answers_are_late() -> None:
    policy = Policy({Action.TAIL_DECODE})
    observed(policy, 1, words=900, pass_ms=400, speech=11_000)
    observed(policy, MIN_TURNS - 1, words=600, pass_ms=300, speech=2_000)
    assert on(policy) == {Action.TAIL_DECODE}, "it costs the short ones nothing"


def test_what_is_meant_for_long_utterances_is_judged_by_them() -> None:
    policy = Policy({Action.TAIL_DECODE})
    observed(policy, MIN_TURNS, words=600, pass_ms=300, speech=17_800)
    for _ in range(3 * TRY_EVERY + 1):
        standing = policy.active()
        short = policy.observe(chain_turn(300, speech=2000, actions=standing), BUDGET_MS)
        assert short.actions == (), "it found nothing to do"
        standing = policy.active()
        words = 600 if standing[0].left_out else 450
        long = chain_turn(words, pass_ms=words - 300, speech=17_800, actions=standing)
        policy.observe(long, BUDGET_MS)
    state = state_of(policy, Action.TAIL_DECODE)
    assert (state.is_on, state.times_set_aside) == (True, 0)
    assert state.saved_ms / state.times == pytest.approx(150, rel=0.2)


def test_a_pause_comes_sooner_only_where_words_wait_for_it() -> None:
    quick, slow = Policy(), Policy()
    observed(quick, MIN_TURNS, words=96, pass_ms=2, clause=500)
    observed(slow, MIN_TURNS, words=200, pass_ms=100, clause=500)
    assert on(quick) == {Action.PAUSE_SOONER}
    assert on(slow) == {Action.SMALL_MODEL}


def test_only_what_there_is_is_done() -> None:
    policy = Policy({Action.OPENER})
    observed(policy, 50, **SLOW_ASR)
    assert policy.active() == ()
    assert [state.action for state in policy.states()] == [Action.OPENER]


def test_one_thing_is_done_at_a_time_and_its_effect_awaited() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS, words=900, pass_ms=700, clause=300, speech=17_800)
    assert on(policy) == {Action.TAIL_DECODE}
    observed(policy, MIN_TURNS - 1, words=700, pass_ms=500, clause=300, speech=17_800)
    assert on(policy) == {Action.TAIL_DECODE}
    observed(policy, 1, words=700, pass_ms=500, clause=300, speech=17_800)
    assert on(policy) == {Action.TAIL_DECODE, Action.SKIP_PARTIALS}


def test_turns_that_began_before_a_switch_say_nothing_of_it() -> None:
    policy = Policy()
    observed(policy, MIN_TURNS, **SLOW_ASR)
    for _ in range(50):  # of many calls at once, or told of late
        policy.observe(chain_turn(**SLOW_ASR), BUDGET_MS)
    assert on(policy) == {Action.SKIP_PARTIALS}
    assert policy.predicted_ms() is None


def test_what_pays_stays_as_long_as_it_is_needed() -> None:
    policy = Policy({Action.SKIP_PARTIALS})
    observed(policy, MIN_TURNS, **SLOW_ASR)
    for _ in range(200):
        (taken,) = policy.active()
        words = 700 if taken.left_out else 500
        policy.observe(chain_turn(words, pass_ms=450, actions=(taken,)), BUDGET_MS)
    state = state_of(policy, Action.SKIP_PARTIALS)
    assert (state.is_on, state.is_set_aside) == (True, False)
    assert state.times == 200 - 200 // TRY_EVERY
    assert state.saved_ms == pytest.approx(200 * (state.times - MIN_TURNS + 1))


def test_a_load_that_rises_does_not_make_an_action_look_useless() -> None:
    policy = Policy({Action.SKIP_PARTIALS})
    observed(policy, MIN_TURNS, **SLOW_ASR)
    for turn in range(100):
        (taken,) = policy.active()
        heavier = 1.0 if turn < 10 else 3.0
        words = heavier * (700 if taken.left_out else 500)
        policy.observe(chain_turn(words, pass_ms=450, actions=(taken,)), BUDGET_MS)
    assert not state_of(policy, Action.SKIP_PARTIALS).is_set_aside


def test_an_action_that_does_not_pay_is_set_aside_and_tried_again() -> None:
    policy = Policy({Action.SKIP_PARTIALS})
    observed(policy, 2 * MIN_TURNS, **SLOW_ASR)
    state = state_of(policy, Action.SKIP_PARTIALS)
    assert (state.is_set_aside, state.times_set_aside, state.is_on) == (True, 1, False)
    observed(policy, SET_ASIDE_TURNS - 1, **SLOW_ASR)
    assert policy.active() == ()
    observed(policy, 1, **SLOW_ASR)
    assert on(policy) == {Action.SKIP_PARTIALS}


def test_one_that_no_longer_pays_is_found_out() -> None:
    policy = Policy({Action.SKIP_PARTIALS})
    observed(policy, MIN_TURNS, **SLOW_ASR)
    observed(policy, 2 * MIN_TURNS, words=500, pass_ms=450)
    assert on(policy) == {Action.SKIP_PARTIALS}
    observed(policy, COMPARED * TRY_EVERY, words=500, pass_ms=450)  # with or without
    assert state_of(policy, Action.SKIP_PARTIALS).times_set_aside == 1


def test_the_ladder_is_left_when_all_is_calm_and_not_before() -> None:
    policy = Policy({Action.SMALL_MODEL})
    observed(policy, MIN_TURNS, clause=300)
    assert on(policy) == {Action.SMALL_MODEL}
    observed(policy, 60, words=300, clause=80)
    assert on(policy) == {Action.SMALL_MODEL}, "480 of 500 ms is no calm"
    observed(policy, 26 + CALM_TURNS, clause=40)
    assert policy.active() == ()
    assert not state_of(policy, Action.SMALL_MODEL).is_set_aside, "it is kept for the next burst"


def test_a_load_that_stays_makes_late_turns_rarer_and_rarer() -> None:
    policy = Policy({Action.SMALL_MODEL})
    late = []
    for turn in range(1200):
        is_small = on(policy) == {Action.SMALL_MODEL}
        late += [] if is_small else [turn]
        observed(policy, 1, clause=100 if is_small else 300)
    assert len(late) < 60
    assert len([turn for turn in late if turn >= 600]) < len(late) / 3


def test_budgets_do_not_affect_each_other() -> None:
    policy = Policy({Action.SMALL_MODEL})
    for turn in range(400):
        policy.observe(chain_turn(actions=policy.active()), 100 if turn % 8 == 0 else 2000)
    assert policy.active() == ()


@settings(max_examples=60)
@given(st.lists(st.sampled_from([200.0, 700.0]), min_size=80, max_size=160))
def test_it_never_flaps(words: list[float]) -> None:
    policy = Policy(set(Action) - {Action.SMALL_MODEL})
    switches = 0
    was = on(policy)
    for each in words:
        policy.observe(chain_turn(each, pass_ms=100, actions=policy.active()), BUDGET_MS)
        switches += on(policy) != was
        was = on(policy)
    assert switches <= 1 + len(words) // MIN_TURNS


def test_each_in_turn_is_left_out_now_and_then() -> None:
    policy = Policy({Action.TAIL_DECODE, Action.SKIP_PARTIALS, Action.SMALL_MODEL})
    observed(policy, MIN_TURNS, words=2000, pass_ms=900, clause=900, speech=17_800)
    observed(policy, MIN_TURNS, words=1600, pass_ms=600, clause=900, speech=17_800)
    observed(policy, MIN_TURNS, words=1200, pass_ms=600, clause=900, speech=17_800)
    assert on(policy) == {Action.TAIL_DECODE, Action.SKIP_PARTIALS, Action.SMALL_MODEL}
    left_out = [
        [each.action for each in policy.active() if each.left_out] for _ in range(4 * TRY_EVERY)
    ]
    assert [each for each in left_out if each] == 2 * [[Action.TAIL_DECODE], [Action.SKIP_PARTIALS]]


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
    observed(policy, MIN_TURNS - 1)
    assert policy.short_clause(progress(900), BUDGET_MS) is None, "too little is known"
    observed(policy, 10)
    assert policy.short_clause(progress(300), BUDGET_MS) is None
    taken = policy.short_clause(progress(320), BUDGET_MS)
    assert taken == ActionTaken(Action.SHORT_CLAUSE, 60)


def reply_late(policy: Policy, *, clause: float, plain: float) -> ActionTaken | None:
    """A turn that calls for a short clause, and how long the clause took with it and without."""
    taken = policy.short_clause(progress(900), BUDGET_MS)
    actions = () if taken is None else (taken,)
    length = clause if taken is not None and not taken.left_out else plain
    record = policy.observe(chain_turn(900, clause=length, actions=actions), BUDGET_MS)
    return next(iter(record.actions), None)


def test_a_short_clause_that_saves_nothing_is_given_up() -> None:
    policy = Policy({Action.SHORT_CLAUSE})
    observed(policy, MIN_TURNS)
    taken = [reply_late(policy, clause=90, plain=90) for _ in range(4 * TRY_EVERY)]
    assert state_of(policy, Action.SHORT_CLAUSE).times_set_aside == 1
    assert taken[0] is not None
    assert taken[-1] is None


def test_what_a_short_clause_saves_is_known_from_turns_without() -> None:
    policy = Policy({Action.SHORT_CLAUSE})
    observed(policy, MIN_TURNS)
    taken = [reply_late(policy, clause=40, plain=90) for _ in range(4 * TRY_EVERY)]
    done = [each for each in taken if each is not None]
    assert len(done) == 4 * (TRY_EVERY - 1)
    assert done[0].saved_ms is None
    assert done[-1].saved_ms == pytest.approx(50)
    assert done[-1].predicted_ms == pytest.approx(50), "what was measured is what is promised"


def test_openers_do_not_hide_how_slow_the_links_are() -> None:
    """Of a reply behind an opener nothing is known but that it was late."""
    policy = Policy()
    observed(policy, MIN_TURNS, clause=900)
    for _ in range(100):
        policy.observe(replace(chain_turn(clause=900), opener=True), BUDGET_MS)
    assert policy.short_clause(progress(300), BUDGET_MS) is not None


def test_an_opener_is_worth_as_much_as_the_reply_is_away() -> None:
    policy = Policy()
    observed(policy, 10)
    taken = policy.opener(progress(500, token_ms=600))
    assert taken == ActionTaken(Action.OPENER, 90 + 30)
    for _ in range(MIN_SAMPLES):
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
        assert replace(seen, actions=record.actions) == record, "nothing but actions changes"
        assert {t.action for t in policy.active()} <= set(PERSISTENT)
        assert all(t.predicted_ms >= 0 for t in policy.active())
        predicted = policy.recent.ready_ns(progress(words))
        assert predicted is not None
        assert predicted >= words * MS - 1
