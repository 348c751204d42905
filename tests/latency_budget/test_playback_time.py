"""Both ends of a wait: at the server and at the ear, in the account, the figures and the store."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_budget.account.budget import EMBEDDED
from latency_budget.account.ledger import records_of
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.playback_time import MAX_TRANSPORT_NS
from latency_budget.account.turn import SessionId, Stage, TurnId
from latency_budget.account.turn_record import TurnRecord
from latency_budget.statistics.report import summarize
from latency_budget.storage.history import TurnEntry
from latency_budget.storage.store import TurnStore
from latency_budget.storage.store_query import TurnFilter, read_turns
from latency_budget.storage.store_schema import StoredTurn
from tests.latency_budget.test_ledger import MS, TIGHT, ledger_of

LATE_MS = MAX_TRANSPORT_NS / MS


def account(*more: tuple[str, float]) -> TurnRecord:
    return ledger_of(*TIGHT.items(), *more).record()


def test_difference_between_server_and_playback_is_transport() -> None:
    record = account(("heard", 340))
    assert (record.e2e_server_ms, record.e2e_ear_ms) == (325, 340)
    assert record.stages[Stage.TRANSPORT].exposed_ms == 15
    assert record.stages[Stage.TRANSPORT].spent_ms == 15
    assert record.incomplete == ()


def test_the_report_that_was_held_up_least_counts() -> None:
    assert account(("heard", 390), ("heard", 340), ("heard", 500)).e2e_ear_ms == 340


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ([("heard", 324.0)], "heard before released"),
        ([("heard", -1e6)], "heard before released"),
        ([("heard", 325 + LATE_MS + 1)], "heard more than 5 s after it was released"),
        ([("heard", 340.0), ("heard_doubted", 400.0)], "reports of playback that can't be true"),
        ([("heard_doubted", 400.0), ("heard", 340.0)], "reports of playback that can't be true"),
    ],
)
def test_false_report_voids_only_the_ear_latency(lies: list[tuple[str, float]], why: str) -> None:
    record = account(*lies)
    assert record.e2e_ear_ns is None
    assert record.e2e_server_ms == 325
    assert sum(time.exposed_ns for time in record.stages.values()) == record.e2e_ns
    assert record.stages[Stage.TRANSPORT].spent_ns == 0
    assert record.incomplete == (why,)
    honest = account(("heard", 340))
    assert summarize([record, honest])["measure"] == "e2e_server_ms"
    assert summarize([record, honest])["p99"] == 325, "no percentile is at the ear beside it"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["heard", "heard_doubted", "released"]), st.integers(-10_000, 10_000)
        ),
        max_size=8,
    )
)
def test_whatever_is_reported_no_time_is_negative(told: list[tuple[str, int]]) -> None:
    steps = {name: at_ms for name, at_ms in TIGHT.items() if name != "released"}
    record = ledger_of(*steps.items(), *told).record()
    assert all(time.exposed_ns >= 0 <= time.spent_ns for time in record.stages.values())
    assert sum(time.exposed_ns for time in record.stages.values()) == (record.e2e_ns or 0)
    if record.e2e_ear_ns is not None:
        transport_ns = record.stages[Stage.TRANSPORT].exposed_ns
        assert transport_ns <= MAX_TRANSPORT_NS
        if record.e2e_server_ns is not None:
            assert record.e2e_ear_ns - record.e2e_server_ns == transport_ns


def test_the_store_has_both_ends_and_what_was_doubted(tmp_path: Path) -> None:
    honest = [Mark(TurnId(1), MarkName(name), round(at * MS)) for name, at in TIGHT.items()]
    marks = [
        *honest,
        Mark(TurnId(1), MarkName.HEARD, 340 * MS),
        *(Mark(TurnId(2), mark.name, mark.at_ns) for mark in honest),
        Mark(TurnId(2), MarkName.HEARD, 340 * MS),
        Mark(TurnId(2), MarkName.HEARD_DOUBTED, 400 * MS),
    ]
    store = TurnStore(tmp_path / "turns.sqlite")
    store.start()
    for record in records_of(marks):
        entry = TurnEntry(SessionId("s"), record, EMBEDDED)
        store.add(StoredTurn(entry, 1_800_000_000_000_000_000))
    store.close()
    believed, doubted = (
        stored.entry.record for stored in read_turns(tmp_path / "turns.sqlite", TurnFilter())
    )
    assert believed.e2e_ear_ns is not None
    assert believed.e2e_server_ns is not None
    difference_ns = believed.e2e_ear_ns - believed.e2e_server_ns
    assert difference_ns == believed.stages[Stage.TRANSPORT].exposed_ns == 15 * MS
    assert doubted.e2e_ear_ns is None
    assert doubted.e2e_server_ns == believed.e2e_server_ns
    assert doubted.incomplete == ("reports of playback that can't be true",)
