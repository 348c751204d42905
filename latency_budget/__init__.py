"""Turns, clocks and latency budgets: the vocabulary that all stages share, without their work.

Imports the standard library only. Clock reads stand in `clock`, everything else takes times as
arguments.

Names are imported on first use, so that a module which needs one constant loads little.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latency_budget.account.budget import (
        PROFILES,
        Allowance,
        Budget,
        BudgetError,
        budget_profile,
    )
    from latency_budget.account.clock import Clock, Deadline, ManualClock, SystemClock, unix_ns
    from latency_budget.account.critical_path import critical_path
    from latency_budget.account.ledger import TurnLedger, records_of
    from latency_budget.account.marks import Mark, MarkName
    from latency_budget.account.turn import SessionId, Span, Stage, TurnId
    from latency_budget.account.turn_record import Origin, Outcome, StageTime, TurnRecord
    from latency_budget.reporting.trace import (
        Trace,
        TraceError,
        TraceHeader,
        TraceRecord,
        TraceWriter,
        read_trace,
    )
    from latency_budget.reporting.waterfall import summary_table, waterfall
    from latency_budget.statistics.report import (
        percentile,
        report_json,
        summarize,
        turn_json,
        waterfall_json,
    )
    from latency_budget.storage.history import TurnCounts, TurnEntry, TurnHistory

__all__ = [
    "PROFILES",
    "Allowance",
    "Budget",
    "BudgetError",
    "Clock",
    "Deadline",
    "ManualClock",
    "Mark",
    "MarkName",
    "Origin",
    "Outcome",
    "SessionId",
    "Span",
    "Stage",
    "StageTime",
    "SystemClock",
    "Trace",
    "TraceError",
    "TraceHeader",
    "TraceRecord",
    "TraceWriter",
    "TurnCounts",
    "TurnEntry",
    "TurnHistory",
    "TurnId",
    "TurnLedger",
    "TurnRecord",
    "budget_profile",
    "critical_path",
    "percentile",
    "read_trace",
    "records_of",
    "report_json",
    "summarize",
    "summary_table",
    "turn_json",
    "unix_ns",
    "waterfall",
    "waterfall_json",
]

_MODULES = {
    "Allowance": "account.budget",
    "Budget": "account.budget",
    "BudgetError": "account.budget",
    "Clock": "account.clock",
    "Deadline": "account.clock",
    "ManualClock": "account.clock",
    "Mark": "account.marks",
    "MarkName": "account.marks",
    "Origin": "account.turn_record",
    "Outcome": "account.turn_record",
    "PROFILES": "account.budget",
    "SessionId": "account.turn",
    "Span": "account.turn",
    "Stage": "account.turn",
    "StageTime": "account.turn_record",
    "SystemClock": "account.clock",
    "Trace": "reporting.trace",
    "TraceError": "reporting.trace",
    "TraceHeader": "reporting.trace",
    "TraceRecord": "reporting.trace",
    "TraceWriter": "reporting.trace",
    "TurnCounts": "storage.history",
    "TurnEntry": "storage.history",
    "TurnHistory": "storage.history",
    "TurnId": "account.turn",
    "TurnLedger": "account.ledger",
    "TurnRecord": "account.turn_record",
    "budget_profile": "account.budget",
    "critical_path": "account.critical_path",
    "percentile": "statistics.report",
    "read_trace": "reporting.trace",
    "records_of": "account.ledger",
    "report_json": "statistics.report",
    "summarize": "statistics.report",
    "summary_table": "reporting.waterfall",
    "turn_json": "statistics.report",
    "unix_ns": "account.clock",
    "waterfall": "reporting.waterfall",
    "waterfall_json": "statistics.report",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
