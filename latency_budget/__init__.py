"""Turns, clocks and latency budgets: the vocabulary that all stages share, without their work.

Imports the standard library only. Clock reads stand in `clock`, everything else takes times as
arguments.
"""

from latency_budget.account.budget import PROFILES, Allowance, Budget, BudgetError, budget_profile
from latency_budget.account.clock import Clock, ManualClock, SystemClock, unix_ns
from latency_budget.account.critical_path import critical_path
from latency_budget.account.deadline import Deadline
from latency_budget.account.ledger import TurnLedger, records_of
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, Span, Stage, TurnId
from latency_budget.account.turn_record import Origin, StageTime, TurnRecord
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
