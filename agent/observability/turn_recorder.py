"""Turn recorder of one session: its trace file, and a latency ledger for every turn.

Marks of the caller's speech come before the turn has a number; they are kept for the next turn, and
discarded when the utterance is dropped.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from agent.session.ports.stage_ports import SpeechResult
from agent.turn_taking.commands import Command
from agent.turn_taking.events import Event, SpeechResumed, SpeechStarted
from agent.turn_taking.reply_outcome import ReplyOutcomes
from latency_budget.account.actions import ActionTaken
from latency_budget.account.budget import EMBEDDED, Budget
from latency_budget.account.ledger import TurnLedger
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.playback_time import heard_ns
from latency_budget.account.turn import SessionId, TurnId
from latency_budget.account.turn_record import Outcome
from latency_budget.reporting.trace import Kind, TraceWriter
from latency_budget.storage.history import TurnEntry

from .event_codec import to_record
from .live_marks import LiveMarks
from .pending_records import OnTurn, PendingRecords

MAX_LATE: Final = 4
"""Number of turns whose ledger still takes marks after their end: playback reports come late."""

MAX_PENDING: Final = 256
"""Marks of the turn to come, some fifty utterances: of a caller who is only transcribed no turn
ever comes, and the newest marks are those of the next one."""

MAX_TEXT_CHARS: Final = 16_000
"""Newest words of the caller that are kept for the next turn: a quarter of an hour."""

_TO_COME: Final = TurnId(0)

OnMark = Callable[[Mark], None]
"""Receives a mark when it is assigned to its turn."""


def _unseen(mark: Mark) -> None:
    """Ignore the mark."""


class _Pending:
    """Marks of the turn to come, and their ledger so far."""

    def __init__(self) -> None:
        self.marks: deque[Mark] = deque(maxlen=MAX_PENDING)
        self.ledger = TurnLedger(_TO_COME)

    def add(self, mark: Mark) -> None:
        self.marks.append(mark)
        self.ledger.add(mark)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A turn that has begun: its ledger, and what held for it when it began. A handoff or a change
    of the session during its response is one of the next turn."""

    ledger: TurnLedger
    agent: str
    budget: Budget


class TurnRecorder:
    """Recorder of the trace and of the turns' ledgers. Belongs to one session."""

    def __init__(
        self,
        session_id: SessionId,
        trace: TraceWriter,
        on_turn: OnTurn,
        on_mark: OnMark = _unseen,
        told: LiveMarks | None = None,
        agent: str = "",
    ) -> None:
        """`told`: receives marks also before they have a turn; None for no receiver."""
        self.agent = agent
        """Name of the agent of turns that begin from now on."""
        self.budget = EMBEDDED
        """Latency budget of turns that begin from now on."""
        self._session_id = session_id
        self.trace = trace
        self.over = PendingRecords(on_turn, self._is_settled)
        self._outcomes = ReplyOutcomes()
        self._onset_ns: int | None = None
        """Time of the first voiced sample of the utterance that begins next."""
        self._now_ns = 0
        """Time of the newest event, command or mark."""
        self._on_mark = on_mark
        self._told = told
        self._begun: dict[TurnId, _Begun] = {}
        self._pending = _Pending()
        self._caller_text = ""
        self._asked: dict[TurnId, str] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called after each mark, of a turn that has begun or is to come."""

    def event(self, event: Event, now_ns: int, turn: TurnId) -> None:
        _append(self.trace, now_ns, "event", turn, to_record(event))
        self._now_ns = now_ns
        onset_ns = None
        if isinstance(event, SpeechStarted):
            onset_ns, self._onset_ns = self._onset_ns, None
        self._outcomes.event(event, now_ns, onset_ns)
        if isinstance(event, SpeechResumed) and self._told is not None:
            self._told.void()  # the marks of the next pause replace those of this one

    def command(self, command: Command, now_ns: int, turn: TurnId) -> None:
        _append(self.trace, now_ns, "command", turn, to_record(command))
        self._now_ns = now_ns
        verdict = self._outcomes.command(command)
        if verdict is None:
            return
        if verdict.outcome is not None:
            name = MarkName.CUT_IN if verdict.outcome is Outcome.CUT_IN else MarkName.WITHDRAWN
            self.mark(verdict.turn, name, verdict.onset_ns)
        if verdict.outcome is not None or self._is_settled(verdict.turn):
            self.over.settle(verdict.turn)

    def timer(self, now_ns: int, turn: TurnId) -> None:
        """Record that the machine's timer fired: the replay of a trace needs the time."""
        _append(self.trace, now_ns, "event", turn, {"type": "TimerFired"})

    def mark(
        self, turn: TurnId, name: MarkName, at_ns: int, tokens: tuple[int, int] = (0, 0)
    ) -> None:
        """Add a mark to this turn. `tokens`: numbers of prompt and output tokens, for marks that
        count them."""
        mark = Mark(turn, name, at_ns, *tokens)
        self._now_ns = max(self._now_ns, at_ns)
        self._take(mark)
        if name in (MarkName.RELEASED, MarkName.HEARD):
            at = self.so_far(turn).at
            self._outcomes.audible(turn, heard_ns(at) or at.get(MarkName.RELEASED, at_ns))
        elif name is MarkName.ANSWER_AUDIBLE:
            self._outcomes.answer_audible(turn, at_ns)
        if self._told is not None:
            self._told.marked(mark)
        self.on_change()

    def acted(self, taken: ActionTaken, at_ns: int, turn: TurnId | None = None) -> None:
        """Record an action that keeps a turn within its budget; `turn` None is the turn to come."""
        mark = Mark(_TO_COME, MarkName.ACTED, at_ns, taken=taken)
        if turn is None or turn not in self._begun:
            self._pending.add(mark)
        else:
            self._take(replace(mark, turn=turn))

    def so_far(self, turn: TurnId | None) -> TurnLedger:
        """Ledger so far of a turn that has begun, or of the turn to come (None). Read only."""
        begun = None if turn is None else self._begun.get(turn)
        return self._pending.ledger if begun is None else begun.ledger

    def budget_of(self, turn: TurnId) -> Budget:
        """Latency budget of a turn that has begun, or of the turn to come."""
        begun = self._begun.get(turn)
        return self.budget if begun is None else begun.budget

    def _take(self, mark: Mark) -> None:
        self.trace.append_mark(mark)
        self._on_mark(mark)
        begun = self._begun.get(mark.turn)
        if begun is not None:
            begun.ledger.add(mark)
            self.over.marked(mark.turn, mark.name)

    def heard(self, heard: SpeechResult, turn: TurnId) -> None:
        """Keep the times of an utterance for the turn that it will become."""
        if heard.onset_ns is not None:
            self._onset_ns = heard.onset_ns
        if heard.paused_ns is not None:
            self.mark_next_turn(MarkName.SPEECH_PAUSED, heard.paused_ns)
        if heard.decode_ns is not None:
            start_ns, end_ns = heard.decode_ns
            self.mark_next_turn(MarkName.ASR_START, start_ns)
            self.mark_next_turn(MarkName.ASR_FINAL, end_ns)
        if heard.last_voiced_ns is not None:
            spoken_ns, received_ns = heard.last_voiced_ns
            self.mark_next_turn(MarkName.CALLER_LAST_VOICED, spoken_ns)
            self.mark_next_turn(MarkName.AUDIO_RECEIVED, received_ns)

    def mark_next_turn(self, name: MarkName, at_ns: int, tokens: tuple[int, int] = (0, 0)) -> None:
        """Add a mark to the turn to come, which may never begin: a mark of the caller's speech, or
        of preemptive generation. `tokens` as for `mark`."""
        mark = Mark(_TO_COME, name, at_ns, *tokens)
        self._pending.add(mark)
        if self._told is not None:
            self._told.marked(mark)
        self.on_change()

    def reopened(self, turn: TurnId, now_ns: int) -> None:
        """Reopen a turn: the caller continues, and the next turn has its words and more."""
        self.mark_next_turn(MarkName.REOPENED, now_ns)
        self._caller_text = self._asked.get(turn, "")

    def utterance_dropped(self) -> None:
        self._pending = _Pending()
        if self._told is not None:
            self._told.void()

    def caller_said(self, text: str) -> None:
        self._caller_text = f"{self._caller_text} {text}".strip()[-MAX_TEXT_CHARS:]

    def reply_begun(
        self, turn: TurnId, now_ns: int, *, greets: bool = False, asked: bool = False
    ) -> None:
        """Open the ledger of a turn, which has a number now, with the marks of the caller's speech.

        `greets`: the reply is a greeting with given words, which answers no request. `asked`: the
        client ended the turn itself, or requested the reply.
        """
        self.over.settle_all()
        self._begun[turn] = _Begun(TurnLedger(turn), self.agent, self.budget)
        for old in [number for number in self._begun if number <= turn - MAX_LATE]:
            del self._begun[old]
        for mark in self._pending.marks:
            self._take(replace(mark, turn=turn))
        self._pending = _Pending()
        if greets:
            self.mark(turn, MarkName.GREETING, now_ns)
        if asked:
            self.mark(turn, MarkName.ASKED, now_ns)
        self._asked = {turn: self._caller_text}
        self._caller_text = ""

    def window_left_ns(self, turn: TurnId, now_ns: int) -> int:
        """Time in which speech may still show that the reply of this turn cut in, ns. The owner
        settles the turn after it."""
        ends_ns = self._outcomes.window_ends_ns(turn)
        return 0 if ends_ns is None else max(0, ends_ns - now_ns)

    def settle(self, turn: TurnId) -> None:
        """Release the record of a turn that waits for a report or for the end of its window, unless
        the words of speech over its reply are outstanding: they release it."""
        if not self._outcomes.is_open(turn):
            self.over.settle(turn)

    def _is_settled(self, turn: TurnId) -> bool:
        return not self._outcomes.is_open(turn) and not self.window_left_ns(turn, self._now_ns)

    def reply_ended(self, turn: TurnId, text: str, reply_s: float, response_id: str = "") -> None:
        """End a turn: its reply was sent completely, or was cut. `reply_s`: speech
        released, in s."""
        self._outcomes.reply_ended(turn, text)
        begun = self._begun.get(turn)
        if begun is not None:
            entry_of = partial(
                TurnEntry,
                self._session_id,
                budget=begun.budget,
                caller_text=self._asked.get(turn, ""),
                agent_text=text,
                reply_s=reply_s,
                response_id=response_id,
                agent=begun.agent,
            )
            self.over.over(begun.ledger, entry_of)


def _append(
    trace: TraceWriter, at_ns: int, kind: Kind, turn: TurnId, record: dict[str, Any]
) -> None:
    """Append a record to the trace. A record with a turn of its own keeps it."""
    trace.append(at_ns, kind, record.pop("turn", turn), **record)
