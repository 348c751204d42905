"""Turn recorder of one session: its trace file, and a latency ledger for every turn.

Marks of the caller's speech come before the turn has a number; they are kept for the next turn and
forgotten when the utterance is dropped.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from agent.session.ports.stage_ports import Heard
from agent.turn_taking.commands import Command
from agent.turn_taking.events import Event, SpeechResumed
from latency_budget.account.actions import ActionTaken
from latency_budget.account.budget import EMBEDDED
from latency_budget.account.ledger import TurnLedger
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, TurnId
from latency_budget.reporting.trace import Kind, TraceWriter
from latency_budget.storage.history import TurnEntry

from .event_codec import to_record
from .live_marks import LiveMarks
from .pending_records import OnTurn, PendingRecords

MAX_LATE: Final = 4
"""Turns whose ledger still takes marks after their end: reports of playback come late."""

_TO_COME: Final = TurnId(0)

OnMark = Callable[[Mark], None]
"""Takes a mark when it gets its turn."""


def _unseen(mark: Mark) -> None:
    """Nobody watches."""


class _Pending:
    """Marks of the turn to come, and what they say so far."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.ledger = TurnLedger(_TO_COME)

    def add(self, mark: Mark) -> None:
        self.marks.append(mark)
        self.ledger.add(mark)


class TurnRecorder:
    """Belongs to one session."""

    def __init__(
        self,
        session_id: SessionId,
        trace: TraceWriter,
        on_turn: OnTurn,
        on_mark: OnMark = _unseen,
        told: LiveMarks | None = None,
    ) -> None:
        """`told`: who is to hear of marks before they have a turn as well; None: nobody."""
        self.budget = EMBEDDED
        """What turns are held to from now on."""
        self._session_id = session_id
        self.trace = trace
        self.over = PendingRecords(on_turn)
        self._on_mark = on_mark
        self._told = told
        self._ledgers: dict[TurnId, TurnLedger] = {}
        self._pending = _Pending()
        self._caller_text = ""
        self._asked: dict[TurnId, str] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called after a mark, of a turn that has begun or is to come."""

    def event(self, event: Event, now_ns: int, turn: TurnId) -> None:
        _append(self.trace, now_ns, "event", turn, to_record(event))
        if isinstance(event, SpeechResumed) and self._told is not None:
            self._told.void()  # the marks of the next pause take the place of those of this one

    def command(self, command: Command, now_ns: int, turn: TurnId) -> None:
        _append(self.trace, now_ns, "command", turn, to_record(command))

    def timer(self, now_ns: int, turn: TurnId) -> None:
        """The machine's timer fired: replaying a trace needs to know when."""
        _append(self.trace, now_ns, "event", turn, {"type": "TimerFired"})

    def mark(
        self, turn: TurnId, name: MarkName, at_ns: int, tokens: tuple[int, int] = (0, 0)
    ) -> None:
        """Something happened in this turn's reply. `tokens`: of a mark that counts them, those of
        the prompt and those put out."""
        mark = Mark(turn, name, at_ns, *tokens)
        self._take(mark)
        if self._told is not None:
            self._told.marked(mark)
        self.on_change()

    def acted(self, taken: ActionTaken, at_ns: int, turn: TurnId | None = None) -> None:
        """Something was done lest a turn be late: the one to come, or one that may have begun."""
        mark = Mark(_TO_COME, MarkName.ACTED, at_ns, taken=taken)
        if turn is None or turn not in self._ledgers:
            self._pending.add(mark)
        else:
            self._take(replace(mark, turn=turn))

    def so_far(self, turn: TurnId | None) -> TurnLedger:
        """What there is of a turn that has begun, or of the one to come (None). To be read."""
        to_come = self._pending.ledger
        return to_come if turn is None else self._ledgers.get(turn, to_come)

    def _take(self, mark: Mark) -> None:
        self.trace.append_mark(mark)
        self._on_mark(mark)
        ledger = self._ledgers.get(mark.turn)
        if ledger is not None:
            ledger.add(mark)
            self.over.marked(mark.turn, mark.name)

    def heard(self, heard: Heard, turn: TurnId) -> None:
        """Keep what an utterance says about time, for the turn that it will become."""
        if heard.paused_ns is not None:
            self.guessed(MarkName.SPEECH_PAUSED, heard.paused_ns)
        if heard.decode_ns is not None:
            start_ns, end_ns = heard.decode_ns
            self.guessed(MarkName.ASR_START, start_ns)
            self.guessed(MarkName.ASR_FINAL, end_ns)
        if heard.last_voiced_ns is not None:
            spoken_ns, received_ns = heard.last_voiced_ns
            self.guessed(MarkName.CALLER_LAST_VOICED, spoken_ns)
            self.guessed(MarkName.AUDIO_RECEIVED, received_ns)

    def guessed(self, name: MarkName, at_ns: int, tokens: tuple[int, int] = (0, 0)) -> None:
        """A mark of the turn to come, which may never be: of what the caller says, or of a reply
        that is prepared in case that was all. `tokens` as for `mark`."""
        mark = Mark(_TO_COME, name, at_ns, *tokens)
        self._pending.add(mark)
        if self._told is not None:
            self._told.marked(mark)
        self.on_change()

    def reopened(self, turn: TurnId, now_ns: int) -> None:
        """The caller goes on: the next turn has the words of this one, and more."""
        self.guessed(MarkName.REOPENED, now_ns)
        self._caller_text = self._asked.get(turn, "")

    def utterance_dropped(self) -> None:
        self._pending = _Pending()
        if self._told is not None:
            self._told.void()

    def caller_said(self, text: str) -> None:
        self._caller_text = f"{self._caller_text} {text}".strip()

    def reply_begun(
        self, turn: TurnId, now_ns: int, *, greets: bool = False, asked: bool = False
    ) -> None:
        """The turn has a number now: open its ledger with what the caller did. `greets`: the words
        are given, and nobody asked for them. `asked`: the client said when."""
        self.over.settle_all()
        self._ledgers[turn] = TurnLedger(turn)
        for old in [number for number in self._ledgers if number <= turn - MAX_LATE]:
            del self._ledgers[old]
        for mark in self._pending.marks:
            self._take(replace(mark, turn=turn))
        self._pending = _Pending()
        if greets:
            self.mark(turn, MarkName.GREETING, now_ns)
        if asked:
            self.mark(turn, MarkName.ASKED, now_ns)
        self._asked = {turn: self._caller_text}
        self._caller_text = ""

    def reply_ended(self, turn: TurnId, text: str, reply_s: float) -> None:
        """All of the reply was sent, or it was cut: the turn is history."""
        ledger = self._ledgers.get(turn)
        if ledger is not None:
            entry_of = partial(
                TurnEntry,
                self._session_id,
                budget=self.budget,
                caller_text=self._asked.get(turn, ""),
                agent_text=text,
                reply_s=reply_s,
            )
            self.over.over(ledger, entry_of)


def _append(
    trace: TraceWriter, at_ns: int, kind: Kind, turn: TurnId, record: dict[str, Any]
) -> None:
    """A record that names its own turn keeps it."""
    trace.append(at_ns, kind, record.pop("turn", turn), **record)
