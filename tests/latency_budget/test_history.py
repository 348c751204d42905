"""The latest turns in memory."""

import json

import pytest

from latency_budget import SessionId, TurnEntry, TurnHistory, budget_profile
from latency_budget.storage.history import profiles_json, turns_json
from tests.latency_budget.test_report import turn

A, B = SessionId("a"), SessionId("b")


def test_the_oldest_turn_is_forgotten_and_still_counted() -> None:
    history = TurnHistory(max_turns=2)
    for number in (1, 2, 3):
        history.add(TurnEntry(A, turn(number, released_ms=300)))
    assert len(history) == 2
    assert [entry.record.turn for entry in history.entries()] == [2, 3]
    assert history.counts.turns == 3


def test_turns_are_found_by_session() -> None:
    history = TurnHistory()
    for session, number in ((A, 1), (B, 1), (A, 2)):
        history.add(TurnEntry(session, turn(number, released_ms=300)))
    assert [entry.record.turn for entry in history.entries(A)] == [1, 2]
    assert history.entries(SessionId("?")) == []
    assert profiles_json(B, history.entries(B))["summary"]["turns"] == 1
    assert profiles_json("?", [])["summary"]["turns"] == 0


def test_counts_tell_the_kinds_of_turns() -> None:
    history = TurnHistory()
    history.add(TurnEntry(A, turn(1, released_ms=600)))
    history.add(TurnEntry(A, turn(2, released_ms=600), budget=budget_profile().widened(200)))
    history.add(TurnEntry(A, turn(3, released_ms=300, caller_last_voiced=400)))
    history.add(TurnEntry(A, turn(4, released_ms=300, interrupted=500)))
    history.add(TurnEntry(A, turn(5, released_ms=300, reopened=10)))
    history.add(TurnEntry(A, turn(5, released_ms=None)))
    history.add(TurnEntry(A, turn(6, released_ms=None, interrupted=90, withdrawn=80)))
    history.add(TurnEntry(A, turn(7, released_ms=300, interrupted=900, cut_in=700)))
    opened = {"opener": 290, "early_opener": 290}
    history.add(TurnEntry(A, turn(8, released_ms=300, interrupted=900, withdrawn=800, **opened)))
    history.add(TurnEntry(A, turn(9, released_ms=None, interrupted=900, withdrawn=800, **opened)))
    counts = history.counts
    assert (counts.turns, counts.answered, counts.late, counts.incomplete) == (10, 6, 1, 4)
    assert (counts.cut_in, counts.interrupted) == (2, 1)
    assert (counts.reopened, counts.withdrawn, counts.prepared) == (1, 3, 7)
    assert (counts.openers, counts.withdrawn_openers) == (2, 1)
    summary = profiles_json(None, history.entries())["summary"]
    assert summary["outcomes"] == {"cut_in": 2, "interrupted": 1, "reopened": 3}
    low, high = summary["cut_in_interval"]
    assert low < summary["cut_in_rate"] == 2 / 6 < high


def test_the_summary_is_also_by_profile_and_without_turns() -> None:
    history = TurnHistory()
    history.add(TurnEntry(A, turn(released_ms=300)))
    summary = profiles_json(None, history.entries())
    assert list(summary) == ["session", "summary", "errors", "profiles"]
    assert summary["profiles"] == {"embedded": summary["summary"]}
    assert json.loads(json.dumps(summary)) == summary


def test_turns_are_listed_with_their_waterfalls() -> None:
    history = TurnHistory()
    for number in (1, 2, 3):
        history.add(TurnEntry(A, turn(number, released_ms=300), caller_text="Hello?", reply_s=2.0))
    listed = turns_json(A, history.newest(A, max_turns=2))
    assert [(t["turn"], t["session"], t["caller_text"]) for t in listed["turns"]] == [
        (2, "a", "Hello?"),
        (3, "a", "Hello?"),
    ]
    assert listed["summary"]["turns"] == 2
    assert listed["turns"][0]["waterfall"]["path"]
    assert listed["turns"][0]["budget"] == {
        "profile": "embedded",
        "total_ms": 500,
        "widened_ms": 0,
    }
    assert history.newest(max_turns=0) == history.newest(B) == []


def test_a_history_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one turn"):
        TurnHistory(0)
