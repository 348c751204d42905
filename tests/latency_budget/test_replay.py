"""Decisions that the policy would have made, replayed on past turns."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from latency_budget import SessionId
from latency_budget.__main__ import main
from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.clock import unix_ns
from latency_budget.enforcement.action_effect import MIN_TURNS
from latency_budget.enforcement.policy import Policy
from latency_budget.reporting.replay import foresight_table, replay
from latency_budget.storage.history import TurnEntry
from latency_budget.storage.store import TurnStore
from latency_budget.storage.store_schema import StoredTurn
from tests.support.session.chain_turns import chain_turn


def entries(count: int, **links: float) -> list[TurnEntry]:
    return [
        TurnEntry(SessionId("s"), chain_turn(**links, number=number))
        for number in range(1, count + 1)
    ]


def test_each_turn_is_asked_about_with_what_was_known_before_it() -> None:
    found, states = replay(entries(MIN_TURNS + 2, words=700, pass_ms=450), Policy())
    assert [each.predicted_ms for each in found[:MIN_TURNS]] == [None] * MIN_TURNS
    assert found[0].would == ()
    assert {t.action for t in found[-1].would} == {Action.SKIP_PARTIALS, Action.SHORT_CLAUSE}
    assert all(state.times == 0 for state in states), "would is not did"


def test_turns_in_time_call_for_nothing() -> None:
    found, _ = replay(entries(20), Policy())
    assert [each.would for each in found] == [()] * 20
    assert found[-1].predicted_ms == 390


def test_the_table_says_what_would_be_done_and_what_was() -> None:
    did = ActionTaken(Action.SHORT_CLAUSE, 60.0)
    entry = TurnEntry(SessionId("s"), chain_turn(clause=30, actions=(did,), number=9))
    found, states = replay([*entries(MIN_TURNS, words=700, pass_ms=450), entry], Policy())
    text = foresight_table(found, states)
    assert "turn 1: ? predicted, ready after 850\n" in text
    assert (
        "turn 9: ? predicted, ready after 290; would: skip_partials (190); did: short_clause"
        in text
    )
    assert text.endswith("short_clause: in 1 turns, 60 ms predicted, 0 ms saved")


def test_turn_without_marks_is_reported_as_unknown() -> None:
    record = replace(chain_turn(number=2), e2e_server_ns=None)
    found, states = replay([TurnEntry(SessionId("s"), record)], Policy())
    assert "turn 2: ? predicted, ready after ?" in foresight_table(found, states)


def test_a_store_is_replayed_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TurnStore(tmp_path / "turns.sqlite")
    store.start()
    did = ActionTaken(Action.SKIP_PARTIALS, 190.0, -5.0)
    for number in range(1, 9):
        record = chain_turn(700, pass_ms=450, number=number, actions=(did,))
        store.add(StoredTurn(TurnEntry(SessionId("s"), record), unix_ns()))
    store.close()
    assert main([str(store.place)]) == 0
    assert "foresees" not in capsys.readouterr().out
    assert main([str(store.place), "--policy"]) == 0
    printed = capsys.readouterr().out
    assert "; did: skip_partials (190)" in printed
    assert main([str(store.place), "--policy", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    kept = {"action": "skip_partials", "predicted_ms": 190.0, "saved_ms": -5.0}
    assert report["turns"][0]["actions"] == [kept]
    assert report["policy"]["turns"][0]["did"] == [kept]
    assert report["policy"]["actions"][0]["action"] == "pause_sooner"
