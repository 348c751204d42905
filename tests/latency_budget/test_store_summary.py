"""Summaries that the store counts itself: the same as from whole records, but for rounding."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latency_budget import budget_profile, summarize
from latency_budget.account.clock import NS_PER_S
from latency_budget.account.turn import SessionId, Stage
from latency_budget.account.turn_record import StageTime, TurnRecord
from latency_budget.storage.database import Place, StoreError
from latency_budget.storage.history import TurnEntry, aggregate_of
from latency_budget.storage.open_database import database_at
from latency_budget.storage.store_query import TurnFilter, read_turns
from latency_budget.storage.store_schema import StoredTurn, insert
from latency_budget.storage.store_summary import MAX_WINDOWS, STEPS, summarize_store
from tests.latency_budget.test_store import record, rows, stored
from tests.support.postgres import PostgresServer

TIMES_NS = st.one_of(
    st.integers(0, 3 * 10**9),
    st.sampled_from([limit + off for limit, _ in STEPS for off in (-1, 0, 1)]),
    st.integers(0, 200 * 10**9),
)
HOUR_NS = 3600 * NS_PER_S


@st.composite
def records(draw: st.DrawFn) -> TurnRecord:
    """Of any times: answered or not, known at either end, at both or at none."""
    released_ns, heard_ns = draw(st.none() | TIMES_NS), draw(st.none() | TIMES_NS)
    known = [time_ns for time_ns in (released_ns, heard_ns) if time_ns is not None]
    return replace(
        record(),
        answered=draw(st.booleans()),
        cut_in=draw(st.booleans()),
        interrupted=draw(st.booleans()),
        withdrawn=draw(st.booleans()),
        opener=draw(st.booleans()),
        e2e_server_ns=released_ns,
        e2e_ear_ns=heard_ns,
        paced_ns=draw(st.integers(0, min(known, default=0))),
        stages={stage: StageTime(draw(TIMES_NS), draw(TIMES_NS)) for stage in Stage},
    )


def write(place: Place, turns: Iterable[StoredTurn]) -> Place:
    with contextlib.closing(database_at(place).connect()) as connection:
        connection.execute("BEGIN")
        for each in turns:
            insert(connection, each)
        connection.execute("COMMIT")
    return place


def of(found: TurnRecord, at_unix_ns: int = 0, profile: str = "embedded") -> StoredTurn:
    entry = TurnEntry(SessionId("s1"), found, budget_profile(profile))
    return StoredTurn(entry, at_unix_ns, "f00")


def assert_same(counted: Any, exact: Any) -> None:
    """Equal but for rounding of times: 0.05 %, or half a microsecond."""
    if isinstance(exact, dict):
        assert list(counted) == list(exact)
        for key, value in exact.items():
            assert_same(counted[key], value)
    elif isinstance(exact, float):
        assert counted == pytest.approx(exact, rel=0.00051, abs=0.00051)
    else:
        assert counted == exact


def check_counts(place: Place, found: list[TurnRecord], num_cpu: int) -> None:
    """The summary that the store counts is that of the records."""
    by_profile = {"cpu": found[:num_cpu], "embedded": found[num_cpu:]}
    write(place, [of(each, 0, name) for name, turns in by_profile.items() for each in turns])
    answer = summarize_store(place, TurnFilter())
    assert list(answer) == ["session", "summary", "errors", "profiles", "replicas"]
    entries = {
        name: [of(each, 0, name).entry for each in turns] for name, turns in by_profile.items()
    }
    assert_same(answer["summary"], aggregate_of([*entries["cpu"], *entries["embedded"]]).summary())
    exact = {name: aggregate_of(turns).summary() for name, turns in entries.items() if turns}
    assert_same(answer["profiles"], exact)
    assert sum(answer["replicas"].values()) == len(found)


@settings(max_examples=60)
@given(found=st.lists(records(), max_size=12), num_cpu=st.integers(0, 4))
def test_what_is_counted_is_what_records_give(
    tmp_path_factory: pytest.TempPathFactory, found: list[TurnRecord], num_cpu: int
) -> None:
    check_counts(tmp_path_factory.mktemp("store") / "turns.sqlite", found, num_cpu)


@pytest.mark.slow
@settings(max_examples=12)
@given(found=st.lists(records(), min_size=6, max_size=12), num_cpu=st.integers(0, 4))
def test_what_postgres_counts_is_what_records_give(
    postgres: PostgresServer, found: list[TurnRecord], num_cpu: int
) -> None:
    check_counts(postgres.new_store(), found, num_cpu)


def test_times_keep_three_significant_digits(tmp_path: Path) -> None:
    times = {1_234_567_890: 1235.0, 499_999_999: 500.0, 123_449_999: 123.4, 1_000_499: 1.0}
    for number, (time_ns, shown_ms) in enumerate(times.items()):
        path = tmp_path / f"{number}.sqlite"
        write(path, [of(replace(record(), e2e_ear_ns=time_ns, paced_ns=0))])
        assert summarize_store(path, TurnFilter())["summary"]["p50"] == shown_ms


def test_windows_hold_every_turn_once(place: Place) -> None:
    """Four hours from half past nine, none in the third: two profiles, and one window cut short."""
    half_past_nine = 9 * HOUR_NS + HOUR_NS // 2
    at = [half_past_nine, half_past_nine + 1, 10 * HOUR_NS, 12 * HOUR_NS - 1, 13 * HOUR_NS - 1]
    turns = [
        of(replace(record(n), e2e_ear_ns=(n + 1) * 10**8), time, "cpu" if n == 4 else "embedded")
        for n, time in enumerate(at)
    ]
    write(place, turns)
    answer = summarize_store(place, TurnFilter(since_unix_ns=half_past_nine), 3600)
    without = {key: value for key, value in answer.items() if key != "windows"}
    assert without == summarize_store(place, TurnFilter(since_unix_ns=half_past_nine))
    shown = [(w["since"][11:16], w["until"][11:16], w["summary"]["turns"], w["summary"]["p50"],
              list(w["profiles"])) for w in answer["windows"]]  # fmt: skip
    assert shown == [
        ("09:30", "10:00", 2, 100, ["embedded"]),
        ("10:00", "11:00", 1, 300, ["embedded"]),
        ("11:00", "12:00", 1, 400, ["embedded"]),
        ("12:00", "13:00", 1, 500, ["cpu"]),
    ]
    empty = summarize_store(place, TurnFilter(until_unix_ns=12 * HOUR_NS), 600)["windows"]
    assert (len(empty), sum(w["summary"]["turns"] for w in empty)) == (15, 4)
    assert empty[-1]["until"] == "1970-01-01T12:00:00.000+00:00"
    assert [w["summary"]["p99"] for w in empty[1:3]] == [None, None]
    assert summarize_store(place, TurnFilter(session="nobody"), 600)["windows"] == []


def test_windows_are_bounded(tmp_path: Path) -> None:
    last = (MAX_WINDOWS - 1) * NS_PER_S
    path = write(tmp_path / "a.sqlite", [of(record(1)), of(record(2), last)])
    assert len(summarize_store(path, TurnFilter(), 1)["windows"]) == MAX_WINDOWS
    path = write(tmp_path / "b.sqlite", [of(record(1)), of(record(2), last + NS_PER_S)])
    with pytest.raises(ValueError, match=f"in {MAX_WINDOWS + 1} windows of 1 s"):
        summarize_store(path, TurnFilter(), 1)
    assert len(summarize_store(path, TurnFilter(until_unix_ns=last), 1)["windows"]) == 1
    with pytest.raises(ValueError, match="a second or more, not 0"):
        summarize_store(path, TurnFilter(), 0)


def test_only_what_is_wanted_is_counted(place: Place) -> None:
    turns = [stored(n, f"s{n % 2}", n) for n in range(1, 8)]
    write(place, turns)
    wanted = TurnFilter(session="s1", since_unix_ns=2, until_unix_ns=7)
    answer = summarize_store(place, wanted)
    assert (answer["session"], answer["summary"]["turns"]) == ("s1", 2)
    exact = aggregate_of([each.entry for each in read_turns(place, wanted)]).summary()
    assert_same(answer["summary"], exact)


def test_a_stage_that_was_not_stored_took_no_time(place: Place) -> None:
    write(place, [stored(1), stored(2)])
    rows(place, "DELETE FROM stages WHERE turn_id = 1 AND stage = 'tts'")
    times = summarize_store(place, TurnFilter())["summary"]["stages"]["tts"]["spent_ms"]
    assert (times["p50"], times["p90"]) == (0, 39)
    exact = summarize(each.entry.record for each in read_turns(place))
    assert exact["stages"]["tts"]["spent_ms"] == times


def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        summarize_store(tmp_path / "none.sqlite", TurnFilter())
    (tmp_path / "text.sqlite").write_text("not a database, and long enough for one " * 100)
    with pytest.raises(StoreError, match="not readable as a store"):
        summarize_store(tmp_path / "text.sqlite", TurnFilter(), 60)
