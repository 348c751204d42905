"""`python -m benchmarks.latency.ledger_cost`: processor time of the ledger and the store.

The account must be too cheap to matter: under 20 us a mark (its time read, the mark made, put in
the ledger and in the trace) and under 0.5 ms a turn for its record and what is learned from it.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median

from latency_budget.account.clock import Clock, SystemClock, unix_ns
from latency_budget.account.ledger import TurnLedger
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, TurnId
from latency_budget.enforcement.admission import Admission
from latency_budget.enforcement.policy import Policy
from latency_budget.enforcement.stage_latencies import progress_of, stage_latencies_of
from latency_budget.reporting.trace import TraceWriter
from latency_budget.storage.history import TurnEntry
from latency_budget.storage.store import TurnStore
from latency_budget.storage.store_schema import StoredTurn

MAX_MARK_US = 20.0
MAX_RECORD_US = 500.0

ROUNDS = 2000
"""A second or less of work; the median then moves by a few per cent between runs."""

TURN = tuple(
    name
    for name in MarkName
    if name
    not in {"tool_start", "tool_done", "discarded", "greeting", "llm_wasted", "acted", "asked"}
)
"""A plain spoken turn: its marks once, in order. A greeting would have no account to make."""


def measure(clock: Clock, rounds: int = ROUNDS) -> tuple[float, float]:
    """Median microseconds of a mark and of a record, over `rounds` turns."""
    trace = TraceWriter(SessionId("bench"), started_unix_ns=0, config_fingerprint="")
    mark_ns: list[float] = []
    record_ns: list[int] = []
    for number in range(1, rounds + 1):
        turn = TurnId(number)
        ledger = TurnLedger(turn)
        started_ns = clock.now_ns()
        for name in TURN:
            mark = Mark(turn, name, clock.now_ns())
            ledger.add(mark)
            trace.append_mark(mark)
        marked_ns = clock.now_ns()
        ledger.record()
        record_ns.append(clock.now_ns() - marked_ns)
        mark_ns.append((marked_ns - started_ns) / len(TURN))
    return median(mark_ns) / 1000, median(record_ns) / 1000


def measure_policy(clock: Clock, rounds: int = ROUNDS) -> tuple[float, float]:
    """Median microseconds of learning from a turn, and of a decision within one. The turns are
    late, so that all there is to do is done."""
    policy, admission = Policy(), Admission(2)
    observe_ns: list[int] = []
    decide_ns: list[int] = []
    for number in range(1, rounds + 1):
        ledger = TurnLedger(TurnId(number))
        for place, name in enumerate(name for name in TURN if name is not MarkName.OPENER):
            ledger.add(Mark(ledger.turn, name, place * 60_000_000))
        record = ledger.record()
        started_ns = clock.now_ns()
        policy.observe(record, 500)
        if (lags := stage_latencies_of(record)) is not None:
            admission.turn_over(lags, 1, 500, started_ns)
        observe_ns.append(clock.now_ns() - started_ns)
        at = ledger.at
        started_ns = clock.now_ns()
        policy.active()
        if (progress := progress_of(at, started_ns)) is not None:
            policy.short_clause(progress, 500)
        decide_ns.append(clock.now_ns() - started_ns)
    return median(observe_ns) / 1000, median(decide_ns) / 1000


def measure_store(clock: Clock, folder: Path, rounds: int = ROUNDS) -> tuple[float, float, float]:
    """Cost of storing a turn: time in us of the adding thread, time in us of the writing thread,
    size of the file in bytes."""
    ledger = TurnLedger(TurnId(1))
    for place, name in enumerate(TURN):
        ledger.add(Mark(TurnId(1), name, place * 20_000_000))
    stored = StoredTurn(TurnEntry(SessionId("bench"), ledger.record()), unix_ns())
    path = folder / "turns.sqlite"
    store = TurnStore(path)
    started_ns = clock.now_ns()
    for _ in range(rounds):
        store.add(stored)
    added_ns = clock.now_ns()
    store.start()
    store.close(60.0)
    written_ns = clock.now_ns()
    size = path.stat().st_size / rounds
    return (added_ns - started_ns) / rounds / 1e3, (written_ns - added_ns) / rounds / 1e3, size


def main() -> int:
    """Measure and print. Returns 0 if both costs are within their limits, else 1."""
    mark_us, record_us = measure(SystemClock())
    print(f"a mark   {mark_us:8.2f} us  (limit {MAX_MARK_US:g})")
    learn_us, decide_us = measure_policy(SystemClock())
    turn_us = record_us + learn_us + decide_us
    print(f"a turn   {turn_us:8.2f} us  (limit {MAX_RECORD_US:g}): {record_us:.0f} for its record,")
    print(f"                      {learn_us:.0f} to learn from it, {decide_us:.0f} to decide in it")
    with tempfile.TemporaryDirectory() as folder:
        add_us, write_us, size = measure_store(SystemClock(), Path(folder))
    print(f"to store {add_us:8.2f} us of the loop, {write_us:.0f} us of a thread, {size:.0f} bytes")
    return int(mark_us > MAX_MARK_US or turn_us > MAX_RECORD_US)


if __name__ == "__main__":
    sys.exit(main())
