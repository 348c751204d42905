"""Trials: what is known when, cut-ins, answers, and the tally over them."""

from typing import Any

from agent.turn_score import NEUTRAL_MS, Evidence
from agent.turn_trials import (
    Timing,
    Trial,
    callers_of,
    moments,
    plain_rule,
    play,
    tally,
    trials_of,
)
from asr.turn_pauses import Pause

TIMING = Timing(noticed_ms=96, sound_ms=90, words_ms=184, partial_ms=150, llm_ms=32)


def pause(**changes: Any) -> Pause:
    given: dict[str, Any] = {
        "file": "x.command.wav", "kind": "command", "half": "b", "at_sample": 16000,
        "is_end": True, "silence_ms": 2500, "voiced_ms": 100, "utterance_ms": 1000,
        "partial": "Switch the", "partial_lag_ms": 100, "final": "Switch the light off.",
        "sound": ((64, 0.7), (96, 0.8)), "llm": 0.6,
    }  # fmt: skip
    return Pause(**(given | changes))


def test_what_is_known_when() -> None:
    steps = {one.silence_ms: one for one in moments(pause(), TIMING, own_ms=250)}
    assert list(steps)[:3] == [96, 128, 160]
    assert (steps[96].partial, steps[96].sound, steps[96].final) == ("Switch the", None, None)
    assert steps[160].sound is None
    assert steps[192].sound == 0.8
    assert steps[256].final is None
    assert steps[288].final == "Switch the light off."
    assert steps[288].llm is None
    assert steps[320].llm == 0.6
    assert all(one.own_pause_ms == 250 for one in steps.values())


def test_a_partial_that_is_still_being_decoded_is_not_known() -> None:
    steps = {one.silence_ms: one for one in moments(pause(partial_lag_ms=0), TIMING)}
    assert steps[128].partial is None
    assert steps[160].partial == "Switch the"
    assert all(one.partial is None for one in moments(pause(partial_lag_ms=-1), TIMING))


def test_a_pause_is_asked_about_only_while_it_lasts() -> None:
    assert [one.silence_ms for one in moments(pause(silence_ms=170), TIMING)] == [96, 128, 160]
    assert not list(moments(pause(silence_ms=64), TIMING))


def test_an_answer_and_a_cut_in() -> None:
    inner = pause(is_end=False, silence_ms=500, final="Please hold.")
    trial = Trial("x", "command", "b", (inner, pause()))

    def at(ms: int) -> Any:
        return lambda evidence: evidence.silence_ms >= ms

    (late,) = play([[trial]], at(600), TIMING)
    assert (late.cut_in, late.silence_ms, late.voiced_ms) == (False, 608, 708)
    (early,) = play([[trial]], at(400), TIMING)
    assert (early.cut_in, early.silence_ms) == (True, None)
    (never,) = play([[trial]], lambda evidence: False, TIMING)
    assert (never.cut_in, never.silence_ms) == (False, None)


def test_nobody_answers_where_nothing_was_said() -> None:
    silent = pause(final="", is_end=False, silence_ms=900)
    (outcome,) = play([[Trial("x", "command", "b", (silent, pause()))]], plain_rule, TIMING)
    assert not outcome.cut_in


def test_a_caller_is_known_by_the_pauses_before() -> None:
    inner = pause(is_end=False, silence_ms=800)
    trial = Trial("x", "hesitant", "b", (inner, inner, inner, pause()))
    seen: list[int | None] = []

    def decide(evidence: Evidence) -> bool:
        seen.append(evidence.own_pause_ms)
        return False

    play([[trial], [trial]], decide, TIMING)
    assert seen[0] == NEUTRAL_MS
    assert 800 in seen
    second = len(seen) // 2
    assert seen[second] == NEUTRAL_MS, "another call is another caller"


def test_the_plain_rule_waits_for_words_and_silence() -> None:
    assert not plain_rule(Evidence(silence_ms=900, sound=1.0))
    assert not plain_rule(Evidence(silence_ms=320, final="Yes."))
    assert plain_rule(Evidence(silence_ms=352, final="Yes."))
    assert plain_rule(Evidence(silence_ms=288, final="Yes."), eagerness="high")


def test_tally() -> None:
    inner = pause(is_end=False, silence_ms=500)
    trials = trials_of(
        [pause(file=f"{i}", is_end=True) for i in range(9)] + [inner, pause(file=inner.file)]
    )
    assert len(trials) == 10
    figures = tally(play([trials], plain_rule, TIMING), "command")
    assert (figures.turns, figures.cut_ins, figures.missed) == (10, 1, 0)
    assert figures.silences_ms == (352,) * 9
    told = figures.figures()
    assert told["silence_p50_ms"] == 352
    assert told["from_voice_p50_ms"] == 452
    assert told["cut_in_wilson"] == [0.0179, 0.4042]


def test_each_trial_is_in_one_call_and_calls_are_mixed() -> None:
    trials = [
        Trial(f"{kind}{i}", kind, "a", ()) for i in range(64) for kind in ("command", "hesitant")
    ]
    calls = callers_of(trials, seed=1)
    assert sorted(one.file for call in calls for one in call) == sorted(t.file for t in trials)
    assert calls == callers_of(trials, seed=1)
    shares = [sum(one.kind == "hesitant" for one in call) / len(call) for call in calls]
    assert min(shares) < 0.3
    assert max(shares) > 0.7
    assert any(0 < share < 1 for share in shares)
