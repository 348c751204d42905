"""Pending turn records, which wait for the client's report of playback and for the reply's outcome.

A short reply is sent completely before the client can have played any of it. Its record would lack
the time at the ear, and then no percentile could be given there: percentiles at the ear need that
time of every turn. So the record waits for the report if this client has sent one in this call
before, at the latest until the reply must have been played and reported.

Whether a reply cut in shows up to two seconds after its first audible sample, or when the words of
speech over it are known (`agent/turn_taking/reply_outcome.py`). So a record waits for that as well.
Both waits end when the next turn begins, or the call ends.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from latency_budget.account.ledger import TurnLedger
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from latency_budget.account.turn_record import TurnRecord
from latency_budget.storage.history import TurnEntry

REPORT_S: Final = 0.5
"""Time limit of the report in seconds, after the end of playback by the server's clock. Clients
report five times a second; the round trip is included."""

MAX_TOLD: Final = 4
"""Number of reported turns that are remembered: a late report is of one of the last turns."""

OnTurn = Callable[[TurnEntry], None]
"""Takes a finished turn."""


class PendingRecords:
    """Turn records that wait. Belongs to one session; holds one or two turns."""

    def __init__(self, on_turn: OnTurn, is_settled: Callable[[TurnId], bool]) -> None:
        """`is_settled`: no more speech can change this turn's outcome."""
        self._on_turn = on_turn
        self._is_settled = is_settled
        self._turns: dict[TurnId, tuple[TurnLedger, Callable[[TurnRecord], TurnEntry]]] = {}
        self._told: deque[TurnId] = deque(maxlen=MAX_TOLD)
        """The turns whose playback was reported last."""

    def over(self, ledger: TurnLedger, entry_of: Callable[[TurnRecord], TurnEntry]) -> None:
        """End a turn: release its record, or keep it. `entry_of` makes its entry."""
        turn, record = ledger.turn, ledger.record()
        awaits_report = self._told and turn not in self._told and record.answered
        if awaits_report or not self._is_settled(turn):
            self._turns[turn] = ledger, entry_of
        else:
            self._on_turn(entry_of(record))

    def marked(self, turn: TurnId, name: MarkName) -> None:
        """Take note of a mark in the ledger of this turn; a playback report releases the record."""
        if name in (MarkName.HEARD, MarkName.HEARD_DOUBTED):
            if turn not in self._told:
                self._told.append(turn)
            if self._is_settled(turn):
                self.settle(turn)

    def settle(self, turn: TurnId) -> None:
        """Release the record of this turn, if it is waiting, whatever it waits for."""
        waiting = self._turns.pop(turn, None)
        if waiting is not None:
            ledger, entry_of = waiting
            self._on_turn(entry_of(ledger.record()))

    def settle_all(self) -> None:
        """Release all waiting records."""
        for turn in list(self._turns):
            self.settle(turn)
