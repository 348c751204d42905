"""Turns, time and budgets: what every stage shares and nothing that it does.

Imports the standard library only. Clock reads stand in `clock`, everything else takes times as
arguments.
"""

from .budget import PROFILES, Allowance, Budget, BudgetError, budget_profile
from .clock import Clock, ManualClock, SystemClock, unix_ns
from .critical_path import critical_path
from .deadline import Deadline
from .history import TurnCounts, TurnEntry, TurnHistory
from .ledger import TurnLedger, records_of
from .marks import Mark, MarkName
from .record import Origin, StageTime, TurnRecord
from .report import percentile, report_json, summarize, turn_json, waterfall_json
from .trace import Trace, TraceError, TraceHeader, TraceRecord, TraceWriter, read_trace
from .turn import SessionId, Span, Stage, TurnId
from .waterfall import summary_table, waterfall

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
