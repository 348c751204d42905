"""Pending turn records, which wait for the client's report that the response was played.

A short reply is all sent before the client can have played any of it. Its account would lack the
time at the ear, and with it those of all other turns: percentiles are told at the ear only where
every turn has that time. So the account waits for the report, where this client has sent one in
this call before. It is given at the latest when the reply must have been played and reported, the
next turn begins, or the call ends.
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
"""After a reply was played, by the server's clock: clients report five times a second, and the way
there and back is in it too."""

MAX_TOLD: Final = 4
"""Turns of a call: late reports are of one of the last."""

OnTurn = Callable[[TurnEntry], None]
"""Takes a finished turn."""


class PendingRecords:
    """Belongs to one session. Holds a turn or two."""

    def __init__(self, on_turn: OnTurn) -> None:
        self._on_turn = on_turn
        self._turns: dict[TurnId, tuple[TurnLedger, Callable[[TurnRecord], TurnEntry]]] = {}
        self._told: deque[TurnId] = deque(maxlen=MAX_TOLD)
        """Whose playback was reported last."""

    def over(self, ledger: TurnLedger, entry_of: Callable[[TurnRecord], TurnEntry]) -> None:
        """A turn is over. `entry_of` makes an entry of its account."""
        turn, record = ledger.turn, ledger.record()
        if self._told and turn not in self._told and record.answered:
            self._turns[turn] = ledger, entry_of
        else:
            self._on_turn(entry_of(record))

    def marked(self, turn: TurnId, name: MarkName) -> None:
        """A mark has reached the ledger of this turn."""
        if name in (MarkName.HEARD, MarkName.HEARD_DOUBTED):
            if turn not in self._told:
                self._told.append(turn)
            self.settle(turn)

    def settle(self, turn: TurnId) -> None:
        """Wait no longer for the report on this turn, if anybody does."""
        waiting = self._turns.pop(turn, None)
        if waiting is not None:
            ledger, entry_of = waiting
            self._on_turn(entry_of(ledger.record()))

    def settle_all(self) -> None:
        """Wait for none any longer."""
        for turn in list(self._turns):
            self.settle(turn)
