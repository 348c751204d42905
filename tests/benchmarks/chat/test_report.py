"""Figures, tables and gates of held dialogues."""

import dataclasses
import json

import pytest

from benchmarks.chat.records import DialogueRecord, SpokenFigures, TurnResult
from benchmarks.chat.report import (
    failure,
    missed_gates,
    progress,
    summary,
    table,
    voice_figures,
    voice_table,
)

RIGHT = TurnResult("a", "b", [], [])
WRONG = TurnResult("a", "b", [("fly", {"to": "x"})], ["lacks c"])


def spoken(
    turn: TurnResult = RIGHT, *, errors: int = 0, ear_ms: float | None = 500.0, **more: object
) -> TurnResult:
    figures = SpokenFigures("hurt", 4, errors, ear_ms, **{"cut_in": False, **more})  # type: ignore[arg-type]
    return dataclasses.replace(turn, spoken=figures)


def test_the_summary_and_its_gates() -> None:
    miscalled = TurnResult("a", "b", [], ["calls c"], calls_right=False)
    rows = summary(
        [
            DialogueRecord("1", "facts", [RIGHT]),
            DialogueRecord("2", "facts", [RIGHT, WRONG]),
            DialogueRecord("3", "tool calls", [RIGHT], "state is {}"),
            DialogueRecord("4", "tool calls", [RIGHT, miscalled]),
        ]
    )
    assert {name: (row["passed"], row["held"]) for name, row in rows.items()} == {
        "facts": (1, 2),
        "tool calls": (0, 2),
        "right calls": (1, 2),
        "all": (1, 4),
    }
    low, high = rows["all"]["interval"]
    assert low < 1 / 4 < high
    assert missed_gates(rows, 25.0, 50.0) == []
    assert len(missed_gates(rows, 26.0, 51.0)) == 2
    assert missed_gates({"all": rows["all"]}, None, 1.0) == ["right calls 0.0 % < 1 %"]
    assert "1 of 4" in table("m", rows)
    assert "heard right" not in table("m", rows)


def test_dialogues_that_were_misheard_count_apart_and_are_judged_alike() -> None:
    rows = summary(
        [
            DialogueRecord("1", "facts", [spoken(), spoken(errors=1)]),
            DialogueRecord("2", "facts", [spoken(WRONG, errors=2)]),
            DialogueRecord("3", "facts", [spoken()]),
            DialogueRecord("4", "facts", [spoken(WRONG)]),
        ]
    )
    row = rows["facts"]
    assert (row["passed"], row["held"]) == (2, 4)
    assert (row["heard_right"]["passed"], row["heard_right"]["held"]) == (1, 2)
    assert table("m", rows).splitlines()[-1].endswith("1 of 2")


@pytest.mark.parametrize("field", ["history_problems", "errors"])
def test_a_broken_call_or_a_wrong_history_fails_a_dialogue(field: str) -> None:
    record = DialogueRecord("1", "facts", [spoken()])
    assert record.is_passed
    getattr(record, field).append("history has 'x'")
    assert not record.is_passed
    assert "history has 'x'" in failure(record)


def test_figures_of_the_calls() -> None:
    figures = voice_figures(
        [
            DialogueRecord(
                "1",
                "interruptions",
                [
                    spoken(ear_ms=400.0),
                    spoken(ear_ms=600.0, errors=1, interruption="obeyed", stopped_ms=300.0),
                    spoken(ear_ms=100.0, cut_in=True, interruption="late"),
                ],
                num_history_checked=2,
                history_problems=["differs"],
            ),
            DialogueRecord("2", "interruptions", [spoken(ear_ms=None, interruption="ignored")]),
        ]
    )
    assert (figures["turns"], figures["unanswered"], figures["cut_ins"]) == (4, 1, 1)
    assert figures["ear_ms"]["p50"] == pytest.approx(400.0)
    assert figures["ear_ms"]["p95"] == pytest.approx(600.0)
    assert figures["interruptions"] == {"obeyed": 1, "ended": 0, "ignored": 1, "late": 1}
    assert figures["stopped_ms"]["p50"] == pytest.approx(300.0)
    assert (figures["history_checked"], figures["history_problems"]) == (2, 1)
    assert figures["word_error_rate"] == pytest.approx(1 / 16)
    assert figures["misheard_dialogues"] == 1
    json.dumps(figures)
    text = voice_table(figures)
    assert "1 of 2 barge-ins obeyed" in text
    assert "p95 600 ms" in text


def test_figures_without_any_turn() -> None:
    assert "p50 -" in voice_table(voice_figures([]))


def test_a_failure_shows_what_was_heard_instead() -> None:
    record = DialogueRecord("d", "facts", [spoken(WRONG, errors=1)], "state is {}")
    text = failure(record)
    for part in ("heard: hurt", "calls fly {'to': 'x'}", "!!  lacks c", "!!  state is {}"):
        assert part in text
    assert "heard" not in failure(DialogueRecord("d", "facts", [WRONG]))
    assert progress(record) == "d: failed; word errors 25%; at the ear 500 ms"
    assert progress(DialogueRecord("d", "facts", [RIGHT])) == "d: passed"
