"""Figures, JSON and pictures of turns."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_budget import (
    Mark,
    MarkName,
    SessionId,
    Stage,
    TurnEntry,
    TurnId,
    TurnLedger,
    TurnRecord,
    budget_profile,
    percentile,
    report_json,
    summarize,
    summary_table,
    turn_json,
    waterfall_json,
)
from latency_budget.reporting.waterfall import waterfall

MS = 1_000_000


def turn(
    number: int = 1, *, released_ms: float | None, heard_ms: float | None = None, **marks: float
) -> TurnRecord:
    """A spoken turn whose reply waits for an endpoint 10 ms before the release."""
    ledger = TurnLedger(TurnId(number))
    times: dict[str, float | None] = {
        "caller_last_voiced": 0,
        "audio_received": 20,
        "speech_paused": 90,
        "asr_start": 91,
        "asr_final": 130,
        "reply_requested": 131,
        "llm_first_token": 140,
        "first_piece": 150,
        "tts_start": 150,
        "first_audible_ready": 160,
        "endpoint": None if released_ms is None else released_ms - 10,
        "released": released_ms,
        "heard": heard_ms,
        **marks,
    }
    for name, at_ms in times.items():
        if at_ms is not None:
            ledger.add(Mark(ledger.turn, MarkName(name), round(at_ms * MS)))
    return ledger.record()


@pytest.mark.parametrize(
    ("percent", "value"), [(1, 10), (10, 10), (11, 20), (50, 50), (90, 90), (95, 100), (100, 100)]
)
def test_percentiles_are_nearest_rank(percent: int, value: int) -> None:
    assert percentile([100, 90, 80, 70, 60, 50, 40, 30, 20, 10], percent) == value


@given(st.lists(st.integers(), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_least_value_that_covers_its_share(
    values: list[int], percent: int
) -> None:
    found = percentile(values, percent)
    assert found in values
    assert 100 * sum(value <= found for value in values) >= percent * len(values)
    assert 100 * sum(value < found for value in values) < percent * len(values)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1], 0), ([1], 101)])
def test_percentiles_of_nothing_are_refused(values: list[int], percent: int) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def test_a_summary_counts_and_ranks() -> None:
    records = [turn(n, released_ms=200 + 10 * n) for n in range(1, 11)]
    summary = summarize([*records, turn(11, released_ms=None)])
    assert {key: summary[key] for key in ("turns", "answered", "cut_in_rate", "measure")} == {
        "turns": 11,
        "answered": 10,
        "cut_in_rate": 0.0,
        "measure": "e2e_server_ms",
    }
    assert [summary[p] for p in ("p50", "p90", "p95", "p99")] == [250, 290, 300, 300]
    assert list(summary["stages"]) == [stage.value for stage in Stage]
    assert summary["stages"]["endpoint"]["exposed_ms"]["p50"] == 220
    assert summary["stages"]["asr"] == {
        "spent_ms": dict.fromkeys(("p50", "p90", "p95", "p99"), 39.0),
        "exposed_ms": dict.fromkeys(("p50", "p90", "p95", "p99"), 0.0),
    }


def test_ear_and_server_latencies_are_never_mixed() -> None:
    heard = [turn(n, released_ms=300, heard_ms=350) for n in (1, 2)]
    at_ear, at_server = summarize(heard), summarize([*heard, turn(3, released_ms=300)])
    assert (at_ear["measure"], at_ear["p50"]) == ("e2e_ear_ms", 350)
    assert at_ear["stages"]["transport"]["exposed_ms"]["p50"] == 50
    assert (at_server["measure"], at_server["p50"]) == ("e2e_server_ms", 300)
    assert at_server["stages"]["transport"]["exposed_ms"]["p99"] == 0


def test_a_turn_of_unknown_origin_does_not_choose_the_measure() -> None:
    lost = TurnLedger(TurnId(2))
    lost.add(Mark(lost.turn, MarkName.RELEASED, 5))
    summary = summarize([turn(released_ms=300, heard_ms=350), lost.record()])
    assert (summary["measure"], summary["answered"], summary["p99"]) == ("e2e_ear_ms", 2, 350)


def test_cut_ins_have_a_rate_and_no_time() -> None:
    summary = summarize(
        [turn(1, released_ms=300), turn(2, released_ms=300, caller_last_voiced=400)]
    )
    assert (summary["cut_in_rate"], summary["p50"], summary["p99"]) == (0.5, 300, 300)


def test_paced_and_raw_latency_are_reported_apart() -> None:
    paced = turn(1, released_ms=700, pace_start=300, pace_end=699)
    late = turn(2, released_ms=800, pace_start=600, pace_end=700, opener=590)
    summary = summarize([paced, late])
    assert (summary["p50"], summary["p99"]) == (700, 800)
    assert (summary["e2e_raw_ms"]["p50"], summary["e2e_raw_ms"]["p99"]) == (301, 700)
    assert summary["openers"] == 1
    assert summarize([])["e2e_raw_ms"]["p50"] is None
    entries = [TurnEntry(SessionId("s"), record) for record in (paced, late)]
    assert [entry.late for entry in entries] == [False, True]
    assert "301.0 ms but for the pace" in waterfall(paced)
    assert "late" not in waterfall(paced).splitlines()[0]
    assert "with an opener" in " ".join(waterfall(late).split())


def test_a_summary_of_nothing_has_nulls() -> None:
    summary = summarize([])
    assert (summary["turns"], summary["p50"], summary["cut_in_rate"]) == (0, None, None)
    assert "0 turns" in summary_table(summary)


def test_turn_json_has_exactly_the_promised_fields() -> None:
    record = turn(3, released_ms=300, heard_ms=350.5)
    fields = turn_json(record, "Hello?", "Hi.", 1.25)
    stages = fields.pop("stages")
    assert fields == {
        "turn": 3,
        "caller_text": "Hello?",
        "agent_text": "Hi.",
        "e2e_ear_ms": 350.5,
        "e2e_server_ms": 300.0,
        "e2e_raw_ms": 350.5,
        "paced_ms": 0.0,
        "opener": False,
        "cut_in": False,
        "interrupted": False,
        "reopened": False,
        "outcome": None,
        "actions": [],
        "reply_s": 1.25,
    }
    assert list(stages) == [stage.value for stage in Stage]
    assert all(set(times) == {"spent_ms", "exposed_ms"} for times in stages.values())
    assert sum(times["exposed_ms"] for times in stages.values()) == 350.5


def test_reports_survive_json() -> None:
    record = turn(released_ms=300)
    report: dict[str, Any] = report_json(
        "s", [turn_json(record, "", "", None)], summarize([record]), ["lost one"]
    )
    assert list(report) == ["session", "turns", "summary", "errors"]
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert "turns" not in report_json("s", None, summarize([]))


def test_a_page_can_draw_the_path() -> None:
    picture = waterfall_json(turn(released_ms=300))
    assert picture["path"] == [
        {"stage": "capture", "start_ms": 0.0, "end_ms": 20.0},
        {"stage": "endpoint", "start_ms": 20.0, "end_ms": 90.0},
        {"stage": "endpoint", "start_ms": 90.0, "end_ms": 290.0},
        {"stage": "pacing", "start_ms": 290.0, "end_ms": 300.0},
    ]
    assert {"stage": "asr", "start_ms": 91.0, "end_ms": 130.0} in picture["spans"]
    assert picture["incomplete"] == []


# 20.8 ms a column.
WATERFALL = """\
turn 4: 300.0 ms at the server, 420.0 ms at the ear,
interrupted
ms             spent  exposed  0                  500 ms
capture         20.0     20.0  █                       │
endpoint       270.0    270.0  ██████████████          │
asr             39.0      0.0      ░░░                 │
llm_prefill      9.0      0.0        ░                 │
llm_clause      10.0      0.0        ░░                │
tool             0.0      0.0                          │
tts             10.0      0.0         ░                │
pacing          10.0     10.0               ██         │
transport      120.0    120.0                ███████   │"""


def test_the_waterfall_of_a_turn() -> None:
    record = turn(4, released_ms=300, heard_ms=420, interrupted=900)
    assert waterfall(record, width=56) == WATERFALL


@pytest.mark.parametrize("width", [-5, 0, 20, 41, 80, 200])
def test_the_waterfall_keeps_to_its_width(width: int) -> None:
    drawn = waterfall(turn(released_ms=900), width=width)
    assert max(map(len, drawn.splitlines())) <= max(width, 41)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (turn(released_ms=620), "620.0 ms at the server, late by 120.0 ms"),
        (turn(released_ms=None), "not answered"),
        (turn(released_ms=300, caller_last_voiced=400), "cut in on the caller"),
        (turn(released_ms=300, asr_final=80), "incomplete: asr_final before asr_start"),
        (turn(released_ms=300, asr_start=-30), "asr            160.0      0.0  ◂░"),
    ],
)
def test_the_waterfall_says_what_to_know(record: TurnRecord, words: str) -> None:
    assert words in waterfall(record)


def test_the_limit_follows_a_widened_budget() -> None:
    drawn = waterfall(turn(released_ms=620), budget=budget_profile().widened(400))
    assert "900 ms" in drawn
    assert "late" not in drawn


def test_the_waterfall_tells_typed_and_discarded() -> None:
    ledger = TurnLedger(TurnId(1))
    for name, at_ms in (("reply_requested", 0), ("reply_requested", 30), ("released", 90)):
        ledger.add(Mark(ledger.turn, MarkName(name), at_ms * MS))
    drawn = waterfall(ledger.record())
    assert "90.0 ms at the server, typed" in drawn
    assert "discarded work: 30.0 ms" in drawn


def test_the_table_lists_every_stage() -> None:
    table = summary_table(summarize([turn(released_ms=300)]))
    assert "1 turns, 1 answered, cut-ins 0.0 % (95 %: 0.0-79.3)" in table
    assert "0 interrupted, 0 re-opened before an answer was heard" in table
    for stage in Stage:
        assert f"{stage} exposed" in table
    assert max(map(len, table.splitlines())) <= 80


def test_the_waterfall_of_a_greeting_finds_no_fault() -> None:
    ledger = TurnLedger(TurnId(1))
    for name, at_ms in (("greeting", 0), ("reply_requested", 1), ("released", 90)):
        ledger.add(Mark(ledger.turn, MarkName(name), at_ms * MS))
    assert waterfall(ledger.record()) == "turn 1: greeting"
    ledger.add(Mark(ledger.turn, MarkName("interrupted"), 95 * MS))
    assert waterfall(ledger.record()) == "turn 1: greeting, interrupted"
    ledger.add(Mark(ledger.turn, MarkName("reopened"), 1 * MS))
    assert waterfall(ledger.record()) == "turn 1: greeting, interrupted, re-opened"
    summary = summarize([ledger.record(), turn(released_ms=300)])
    assert (summary["turns"], summary["p50"]) == (2, 300.0)
