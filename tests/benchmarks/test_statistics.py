"""Figures over exchanges and over the marks of calls."""

import numpy as np
import pytest

from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.client.simulated_caller.summary import percentiles_ms, summarize_exchanges
from benchmarks.statistics import Speculation, actions_of, chains_ms, speculation, wilson_interval
from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import TurnId
from tests.support.session.chain_turns import chain_marks

MS = 1_000_000


def exchange(e2e_ms: float | None, *, cut_in: bool = False) -> SpokenTurn:
    found = SpokenTurn(1, np.zeros(0, np.int16), 0)
    found.e2e_ear_ms, found.cut_in = e2e_ms, cut_in
    return found


def marks(turn: int, *names_at_ms: tuple[MarkName, int]) -> list[Mark]:
    return [Mark(TurnId(turn), name, at_ms * MS) for name, at_ms in names_at_ms]


def test_cut_ins_and_missed_turns_have_no_part_in_the_percentiles() -> None:
    all_of = [exchange(100.0), exchange(300.0), exchange(None), exchange(9.0, cut_in=True)]
    assert summarize_exchanges(all_of) == {
        "turns": 4,
        "answered": 3,
        "p50": 100.0,
        "p90": 300.0,
        "p95": 300.0,
        "p99": 300.0,
        "cut_in_rate": 0.25,
        "cut_in_interval": [pytest.approx(0.0456, abs=1e-4), pytest.approx(0.6994, abs=1e-4)],
        "outcomes": {"cut_in": 1, "interrupted": 0, "reopened": 0},
        "e2e_raw_ms": {"p50": 100.0, "p90": 300.0, "p95": 300.0, "p99": 300.0},
        "openers": 0,
    }
    assert percentiles_ms([None, 2.0, 1.0])["p50"] == 1.0
    assert percentiles_ms([None])["p99"] is None


def test_wilsons_interval() -> None:
    low, high = wilson_interval(4, 200)
    assert [low, high] == pytest.approx([0.0078, 0.0503], abs=1e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_a_guess_that_became_the_reply() -> None:
    found = speculation(marks(1, (MarkName.REPLY_REQUESTED, 300), (MarkName.ENDPOINT, 450)))
    assert found == Speculation(1, 1, 1, 0)


def test_a_guess_that_was_thrown_away_and_another_that_became_the_reply() -> None:
    found = speculation(
        marks(
            1,
            (MarkName.REPLY_REQUESTED, 300),
            (MarkName.DISCARDED, 380),
            (MarkName.REPLY_REQUESTED, 900),
            (MarkName.ENDPOINT, 1000),
        )
    )
    assert found == Speculation(1, 2, 1, 80 * MS)


def test_a_guess_that_something_else_replaced_after_the_endpoint() -> None:
    found = speculation(
        marks(
            1,
            (MarkName.REPLY_REQUESTED, 300),
            (MarkName.ENDPOINT, 450),
            (MarkName.REPLY_REQUESTED, 460),
        )
    )
    assert found == Speculation(1, 1, 0, 160 * MS)


def test_tokens_of_guesses_in_vain_add_up() -> None:
    wasted = [
        Mark(TurnId(turn), MarkName.LLM_WASTED, 0, prompt, output)
        for turn, prompt, output in ((1, 12, 3), (1, 8, 0), (2, 0, 6))
    ]
    answered = [
        mark
        for turn in (1, 2)
        for mark in marks(turn, (MarkName.REPLY_REQUESTED, 300), (MarkName.ENDPOINT, 450))
    ]
    found = speculation([*wasted, *answered]).as_json()
    assert found["turns"] == 2
    assert found["wasted_prompt_tokens_per_turn"] == 10.0
    assert found["wasted_output_tokens_per_turn"] == 4.5


def test_the_naive_order_typed_turns_and_the_sum() -> None:
    naive = speculation(marks(1, (MarkName.ENDPOINT, 500), (MarkName.REPLY_REQUESTED, 510)))
    typed = speculation(marks(2, (MarkName.REPLY_REQUESTED, 10)))
    assert (naive, typed) == (Speculation(1, 0, 0, 0), Speculation())
    both = naive + Speculation(1, 2, 1, 80 * MS)
    assert both.as_json() == {
        "turns": 2,
        "guesses": 2,
        "adopted": 1,
        "hit_rate": 0.5,
        "wasted_ms_per_turn": 40.0,
        "wasted_prompt_tokens_per_turn": 0.0,
        "wasted_output_tokens_per_turn": 0.0,
    }
    assert Speculation().as_json()["hit_rate"] is None


def test_what_replies_took_by_themselves_and_what_was_done_for_them() -> None:
    short = ActionTaken(Action.SHORT_CLAUSE, 60.0)
    found = [*chain_marks(decided=1200), *chain_marks(words=400, number=2, actions=(short,))]
    assert chains_ms(found) == [350 + 40, 550 + 40]
    assert actions_of(found) == ["short_clause"]
