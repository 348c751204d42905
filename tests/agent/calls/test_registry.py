"""Registry of open calls, and the records kept of ended ones."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agent.calls.call import MAX_TURNS
from agent.calls.registry import MAX_TRACES, CallRegistry, save_trace
from agent.config.schema import Config
from latency_budget.account.actions import Action
from latency_budget.account.clock import ManualClock
from latency_budget.account.ledger import TurnLedger
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, TurnId
from latency_budget.reporting import trace
from latency_budget.reporting.trace import read_trace
from latency_budget.storage.history import TurnEntry
from tests.support.full_disk import files_limited_to
from tests.support.session.chain_turns import chain_turn


def calls(**settings: object) -> CallRegistry:
    config = Config()
    return CallRegistry(replace(config, agent=replace(config.agent, **settings)), ManualClock())  # type: ignore[arg-type]


async def test_full_and_empty_registry() -> None:
    registry = calls(max_sessions=1)
    await registry.wait_empty()
    call = registry.admit(SessionId("sess_a"), "default")
    assert registry.num_lacking() == 1
    assert registry.num_lacking(num_kept=2) == 3
    assert [each["session"] for each in registry.listing()] == ["sess_a"]
    registry.leave(call)
    assert registry.num_lacking() == 0
    assert registry.num_lacking(num_kept=1) == 1
    await registry.wait_empty()


async def test_old_traces_are_forgotten() -> None:
    registry = calls()
    for number in range(MAX_TRACES + 2):
        registry.leave(registry.admit(SessionId(f"sess_{number}"), "default"))
    registry.admit(SessionId("sess_new"), "default")
    assert registry.traces.of("sess_0") is None
    assert registry.traces.of("sess_new") is not None


async def test_the_trace_of_a_call_that_goes_on_is_kept() -> None:
    registry = calls(max_sessions=4)
    long = registry.admit(SessionId("sess_long"), "default")
    for number in range(3 * MAX_TRACES):
        registry.leave(registry.admit(SessionId(f"sess_{number}"), "default"))
    assert registry.traces.of("sess_long") is long.trace
    assert registry.traces.of(f"sess_{3 * MAX_TRACES - MAX_TRACES}") is not None
    assert registry.traces.of(f"sess_{3 * MAX_TRACES - MAX_TRACES - 1}") is None
    registry.leave(long)
    assert registry.traces.of("sess_long") is long.trace  # the newest of those that are over
    assert registry.traces.of(f"sess_{3 * MAX_TRACES - MAX_TRACES}") is None


async def test_a_trace_is_written_where_the_settings_ask_for_it(tmp_path: Path) -> None:
    registry = calls()
    call = registry.admit(SessionId("sess_a"), "default")
    call.trace.append(5, "mark", 1, "released")
    registry.leave(call)
    folder = tmp_path / "state" / "traces"
    await save_trace(call, str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "sess_a.jsonl").stat().st_mode & 0o777 == 0o600
    lines = (folder / "sess_a.jsonl").read_text().splitlines()
    assert [record.type for record in read_trace(lines).records] == ["released"]


async def test_a_trace_is_encoded_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    encode = trace._line

    def encoded(entry: dict[str, object]) -> str:
        threads.append(threading.current_thread())
        return encode(entry)

    monkeypatch.setattr(trace, "_line", encoded)
    await save_trace(calls().admit(SessionId("sess_a"), "default"), str(tmp_path))
    assert len(threads) == 1, "the header"
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("umask", [0, 0o777])
async def test_a_trace_is_private_whatever_the_umask_and_the_file(
    tmp_path: Path, umask: int
) -> None:
    registry = calls()
    call = registry.admit(SessionId("sess_a"), "default")
    folder = tmp_path / "state" / "traces"
    before = os.umask(umask)
    try:
        await save_trace(call, str(folder))
        (folder / "sess_a.jsonl").chmod(0o644)
        await save_trace(call, str(folder))
    finally:
        os.umask(before)
    for each in (folder.parent, folder):
        assert each.stat().st_mode & 0o777 == 0o700
    assert (folder / "sess_a.jsonl").stat().st_mode & 0o777 == 0o600


async def test_a_full_disk_leaves_no_trace_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = calls()
    call = registry.admit(SessionId("sess_a"), "default")
    with files_limited_to(10):
        await save_trace(call, str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert [each for each in caplog.records if "sess_a.jsonl can't be written" in each.message]


async def test_unwritable_trace_does_not_end_the_call(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    registry = calls()
    await save_trace(
        registry.admit(SessionId("sess_a"), "default"), str(tmp_path / "file" / "traces")
    )


def test_call_counts_turns_and_the_median_latency() -> None:
    call = calls().admit(SessionId("sess_a"), "default")
    before = call.p50_ms
    assert before is None
    for wait_ms in (None, 300, 900, 400):
        ledger = TurnLedger(TurnId(1))
        if wait_ms is not None:
            ledger.add(Mark(TurnId(1), MarkName.CALLER_LAST_VOICED, 1_000_000_000))
            heard_ns = 1_000_000_000 + wait_ms * 1_000_000
            ledger.add(Mark(TurnId(1), MarkName.RELEASED, heard_ns))
        call_turn = TurnEntry(SessionId("sess_a"), ledger.record())
        call.turn(call_turn)
    assert (call.num_turns, call.p50_ms, call.p95_ms) == (4, 400, 900)
    for _ in range(MAX_TURNS):
        call.turn(call_turn)
    assert (call.num_turns, call.p95_ms) == (4 + MAX_TURNS, 400), "the newest count"


@pytest.mark.parametrize(("total_ms", "is_late"), [(100, True), (500, False)])
def test_a_client_that_wants_more_changes_nothing_for_others(total_ms: int, is_late: bool) -> None:
    """A session asks for 100 ms: that counts only where the operator promises as much."""
    config = Config()
    model = replace(config.llm_engine, small_model="small")
    budget = replace(config.latency_budget, total_ms=total_ms)
    registry = CallRegistry(replace(config, llm_engine=model, latency_budget=budget), ManualClock())
    call = registry.admit(SessionId("sess_a"), "default")
    for number in range(1, 10):
        entry = TurnEntry(SessionId("sess_a"), chain_turn(number=number))
        registry.turn_over(call, replace(entry, budget=entry.budget.with_total(100)))
    taken = [each.action for each in registry.policy.active()]
    assert taken == ([Action.SMALL_MODEL] if is_late else [])
