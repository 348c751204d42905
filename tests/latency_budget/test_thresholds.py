"""A summary held against conditions, two runs against each other, as `halfsec report` does it."""

import json
import random
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest

from latency_budget.__main__ import main
from latency_budget.account.ledger import records_of
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, TurnId
from latency_budget.account.turn_record import TurnRecord
from latency_budget.reporting.compare import MIN_TURNS, CompareError, compare, mann_whitney
from latency_budget.reporting.thresholds import GateError, misses, read_gate
from latency_budget.statistics.report import summarize
from latency_budget.storage.history import TurnEntry
from latency_budget.storage.store import TurnStore
from latency_budget.storage.store_schema import StoredTurn

MS = 1_000_000


def turn(number: int, wait_ms: float | None, *, heard_ms: float | None = None) -> TurnRecord:
    """Answered after so long, at the server and perhaps at the ear. None: never."""
    marks = [Mark(TurnId(number), MarkName.CALLER_LAST_VOICED, 0)]
    if wait_ms is not None:
        marks.append(Mark(TurnId(number), MarkName.RELEASED, round(wait_ms * MS)))
    if heard_ms is not None:
        marks.append(Mark(TurnId(number), MarkName.HEARD, round(heard_ms * MS)))
    (record,) = records_of(marks)
    return record


def run(middle_ms: float, spread_ms: float, size: int, seed: int) -> list[TurnRecord]:
    rng = random.Random(seed)
    return [
        turn(number, max(1.0, rng.gauss(middle_ms, spread_ms))) for number in range(1, size + 1)
    ]


def store_of(path: Path, records: list[TurnRecord]) -> Path:
    store = TurnStore(path, max_days=36_500)
    store.start()
    for number, record in enumerate(records):
        entry = TurnEntry(SessionId(f"s{number % 2}"), record)
        store.add(StoredTurn(entry, (1 + number) * 10**9))
    store.close()
    return path


def test_a_gate_knows_outcomes_and_the_interval_of_cut_ins() -> None:
    summary = summarize([turn(1, 300), turn(2, 400), turn(4, -50)])
    assert misses(read_gate("cutin.high<0.8 interrupted<=0 reopened<=0"), summary) == []
    assert len(misses(read_gate("cutin.high<0.79"), summary)) == 1
    lines = misses(read_gate("cutin.high<1 interrupted<=0 reopened<=0"), summarize([]))
    assert len(lines) == 3, "a run without turns proves nothing"


def test_a_gate_says_what_does_not_hold() -> None:
    summary = summarize([turn(1, 300), turn(2, 400), turn(3, None), turn(4, -50)])
    assert misses(read_gate("e2e.p50<=300 e2e.p95<=400, cutin<0.34; turns>=4"), summary) == []
    lines = misses(read_gate("e2e.p95<=399 answered>=0.9 cutin<=0.02"), summary)
    assert lines == [
        "GATE MISSED: e2e.p95<=399 (e2e.p95 is 400)",
        "GATE MISSED: answered>=0.9 (answered is 0.75)",
        "GATE MISSED: cutin<=0.02 (cutin is 0.333333, 95 % interval 0.061 to 0.792)",
    ]


def test_no_turns_are_not_fast_turns() -> None:
    lines = misses(read_gate("e2e.p95<=500 cutin<=1 answered>=0 asr.p50<10"), summarize([]))
    assert len(lines) == 4
    assert "e2e.p95 is not known" in lines[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "at least one condition"),
        ("e2e.p95", "'e2e.p95' is no condition"),
        ("e2e.p95<=fast", "is no condition"),
        ("e2e.p96<=500", "no figure is called 'e2e.p96'; there are: answered, "),
        ("e2e.p95<=500 and more", "'and more' is no condition"),
    ],
)
def test_what_is_no_gate(text: str, complaint: str) -> None:
    with pytest.raises(GateError) as caught:
        read_gate(text)
    assert complaint in str(caught.value)


def exact(first: Sequence[int], second: Sequence[int]) -> float:
    """The p-value by trying every way to deal the same values out."""
    values = [*first, *second]
    ranks = [
        sum(other < value for other in values) + sum(other == value for other in values) / 2
        for value in values
    ]
    expected = sum(ranks) * len(first) / len(values)
    off = abs(sum(ranks[: len(first)]) - expected)
    sums = [abs(sum(dealt) - expected) for dealt in combinations(ranks, len(first))]
    return sum(each >= off - 1e-9 for each in sums) / len(sums)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (range(1, 9), range(9, 17)),
        (range(8), range(8)),
        ([1, 2, 2, 3, 3, 3, 4, 4], [2, 3, 3, 4, 4, 5, 5, 6]),
        ([10, 20, 30, 40, 50, 60, 70, 80], [15, 35, 55, 75, 95, 96, 97, 98]),
    ],
)
def test_the_rank_test_is_close_to_the_exact_one(
    first: Sequence[int], second: Sequence[int]
) -> None:
    assert mann_whitney(first, second) == pytest.approx(exact(first, second), abs=0.01)
    assert mann_whitney(second, first) == pytest.approx(mann_whitney(first, second))


def test_the_rank_test_of_values_that_are_all_the_same() -> None:
    assert mann_whitney([5] * 10, [5] * 10) == 1.0


def test_a_real_difference_is_found_and_chance_is_not() -> None:
    old, new, same = run(450, 60, 120, 1), run(420, 60, 120, 2), run(450, 60, 120, 3)
    found = compare(old, new)
    assert found.verdict.startswith("the second is faster by ")
    median = found.differences[0]
    assert median.name == "p50"
    assert median.low_ms < median.ms < median.high_ms < 0
    assert "no difference that 120 and 120 turns show" in compare(old, same).verdict


def test_both_runs_are_measured_at_the_same_place() -> None:
    at_ear = [turn(number, 300 + number, heard_ms=320 + number) for number in range(1, 21)]
    at_server = [turn(number, 300 + number) for number in range(1, 21)]
    assert compare(at_ear, at_ear).measure == "e2e_ear_ms"
    mixed = compare(at_ear, at_server)
    assert mixed.measure == "e2e_server_ms"
    assert mixed.differences[0].ms == 0
    with pytest.raises(CompareError, match=f"second run has 3 turns .* takes {MIN_TURNS}"):
        compare(at_ear, at_server[:3])


def test_a_store_is_reported_with_gate_and_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = store_of(tmp_path / "old.sqlite", run(450, 40, 60, 1))
    new = store_of(tmp_path / "new.sqlite", run(400, 40, 60, 2))
    assert main([str(new), "--gate", "e2e.p50<=500", "--compare", str(old), "--width", "80"]) == 0
    printed = capsys.readouterr().out
    assert "40 turns before these are not drawn" in printed
    assert printed.count("ms at the server") == 20
    assert "60 turns, 60 answered" in printed
    assert f"first:  {new}, 60 turns" in printed
    assert "the second is slower by" in printed
    assert main([str(old), "--gate", "e2e.p95<=1"]) == 1
    assert "GATE MISSED: e2e.p95<=1 (e2e.p95 is" in capsys.readouterr().out


def test_json_has_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store_of(tmp_path / "turns.sqlite", run(450, 40, 30, 1))
    arguments = [str(path), "--json", "--gate", "turns>=31", "--compare", str(path)]
    assert main(arguments) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["gate_missed"] == ["GATE MISSED: turns>=31 (turns is 30)"]
    assert report["comparison"]["p50"]["difference_ms"] == 0
    assert len(report["turns"]) == report["summary"]["turns"] == 30


def test_turns_of_a_store_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(store_of(tmp_path / "turns.sqlite", run(450, 40, 10, 1)))

    def numbers(*options: str) -> list[int]:
        assert main([path, "--json", *options]) == 0
        return [each["turn"] for each in json.loads(capsys.readouterr().out)["turns"]]

    assert numbers("--session", "s1", "--last", "2") == [8, 10]
    assert numbers("--since", "1970-01-01T00:00:03", "--until", "5") == [3, 4]
    for options, complaint in (
        (("--session", "nobody"), "no turn in it is as asked for"),
        (("--since", "soon"), "'soon' is no time"),
        (("--last", "0"), "--last is 1 or more"),
        (("--last", "99999999999999999999"), "--last is 1000000000 at most"),
        (("--gate", "fast"), "'fast' is no condition"),
        (("--compare", "nowhere"), "nowhere: No such file or directory"),
    ):
        assert main([path, *options]) == 2
        assert complaint in capsys.readouterr().err


def test_a_large_store_is_read_in_part_unless_more_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(store_of(tmp_path / "turns.sqlite", run(450, 40, 10, 1)))
    for most, said in ((10, []), (9, ["only the newest 9 turns were read; --last N takes more"])):
        monkeypatch.setattr("latency_budget.reporting.trace_or_store.MAX_READ", most)
        assert main([path, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["errors"] == said
        assert [each["turn"] for each in report["turns"]] == list(range(11 - most, 11))
    assert main([path, "--json", "--last", "20"]) == 0
    assert len(json.loads(capsys.readouterr().out)["turns"]) == 10
