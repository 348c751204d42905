"""State of one admitted call: its listing, its latency figures, its turns in the recording."""

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from agent.observability.agent_state import State
from agent.session.api.conversation import Item
from latency_budget.account.clock import iso_of
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import SessionId, Stage
from latency_budget.account.turn_record import TurnRecord
from latency_budget.reporting.trace import TraceWriter
from latency_budget.statistics.report import percentile
from latency_budget.storage.history import TurnEntry

from .recording import CallRecording

MAX_TURNS: Final = 300
"""Turns whose account a call keeps, the newest: those of an hour. Each takes some 40 us of the
event loop when the call ends; a client can make hundreds a second."""

LEAD_IN_NS: Final = 500_000_000
"""Lead-in of a turn in the recording: speech is detected only after 160 ms of voice."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Start of a call, on the monotonic and the wall clock, and the settings then."""

    now_ns: int
    """Monotonic clock, ns."""
    unix_ns: int
    fingerprint: str = ""
    """Fingerprint of the settings, which hold for the call to its end."""


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a call ended, and its conversation then."""

    ended_unix_ns: int
    cause: str
    """In one word, as in call detail records."""
    reason: str
    """As a sentence without its full stop."""
    items: tuple[Item, ...]


class ActiveCall:
    """One admitted call."""

    def __init__(
        self,
        session_id: SessionId,
        agent: str,
        trace: TraceWriter,
        began: Beginning,
        recording: CallRecording | None = None,
        file_stem: str | None = None,
    ) -> None:
        """`recording`: None for a call that is not recorded. `file_stem`: as `file_stem_of` has it;
        None for a call that began here."""
        self.session_id = session_id
        self.file_stem: Final = file_stem or session_id
        """Name of its files, without suffix."""
        self.recording: Final = recording
        self.agent = agent
        self.trace = trace
        self.began: Final = began
        self.num_turns = 0
        self.num_handoffs = 0
        """Times that an agent of this server handed the call over."""
        self.num_background = 0
        """Tools that run in the background now."""
        self.is_waiting = False
        """The client's connection was lost; it may come back."""
        self.turns: Final[deque[TurnRecord]] = deque(maxlen=MAX_TURNS)
        """Accounts of the newest turns."""
        self.conversation: Callable[[], tuple[Item, ...]] = tuple
        """Items of the conversation so far; none before there is a session."""
        self.end: CallEnd | None = None
        """How it ended; None while it is in progress, and where it goes on at another server."""
        self.company = 1
        """Calls in progress when its last response was requested, itself included."""
        self._waits_ms: Final[deque[float]] = deque(maxlen=MAX_TURNS)
        """Latency from the caller's last word to the answer, of the newest answered turns."""
        self._state: State = "listening"
        self._stage: Stage | None = None
        self._since_ns = began.now_ns
        self._told: tuple[State, Stage | None, int] = self._state, self._stage, 0

    @property
    def state(self) -> State:
        """State of the agent; "waiting" while the client is lost."""
        return "waiting" if self.is_waiting else self._state

    @property
    def stage(self) -> Stage | None:
        """Stage that the answer waits for."""
        return None if self.is_waiting else self._stage

    def changed(self, state: State, stage: Stage | None, now_ns: int) -> None:
        """Set state and stage."""
        self._state, self._stage, self._since_ns = state, stage, now_ns

    def news(self) -> dict[str, Any] | None:
        """State, stage and number of tools in the background if one of them has changed since the
        last call of this, else None."""
        now = self.state, self.stage, self.num_background
        if now == self._told:
            return None
        self._told = now
        return {
            **{"state": self.state, "stage": self.stage},
            "background_tools": self.num_background,
        }

    def listing(self, now_ns: int) -> dict[str, Any]:
        """Entry of the list of calls in progress."""
        return {
            "session": self.session_id,
            "agent": self.agent,
            "trace_records": len(self.trace),
            "waiting": self.is_waiting,
            "began_at": iso_of(self.began.unix_ns),
            "turns": self.num_turns,
            "background_tools": self.num_background,
            "handoffs": self.num_handoffs,
            "p50_ms": self.p50_ms,
            "state": self.state,
            "stage": self.stage,
            "stage_since_ms": max(0, now_ns - self._since_ns) / 1e6,
            "recorded": self.recording is not None,
        }

    def ended(self, cause: str, reason: str, now_ns: int) -> None:
        """Keep how the call ended, and what was said by then. The session may go."""
        ended_unix_ns = self.began.unix_ns + now_ns - self.began.now_ns
        items, self.conversation = self.conversation(), tuple
        self.end = CallEnd(ended_unix_ns, cause, reason, items)

    def placed(self, entry: TurnEntry) -> TurnEntry:
        """The entry with its position in the recording, if there is one."""
        times = None if self.recording is None else stretch_ns(entry)
        if self.recording is None or times is None:
            return entry
        return replace(entry, recording=self.recording.stretch(*times))

    def turn(self, entry: TurnEntry) -> None:
        """Add a finished turn to the figures."""
        self.num_turns += 1
        self.turns.append(entry.record)
        if entry.record.e2e_ns is not None:
            self._waits_ms.append(entry.record.e2e_ns / 1e6)

    @property
    def p50_ms(self) -> float | None:
        """Median latency of the newest answered turns; None where nothing was answered."""
        return statistics.median(self._waits_ms) if self._waits_ms else None

    @property
    def p95_ms(self) -> float | None:
        """95th percentile of the same latencies; None where nothing was answered."""
        ordered = sorted(round(wait_ms * 1e6) for wait_ms in self._waits_ms)
        return percentile(ordered, 95) / 1e6 if ordered else None


def stretch_ns(entry: TurnEntry) -> tuple[int, int] | None:
    """Begin and end of a turn, from the caller's words to the end of the answer, on the clock of
    its marks. None for a turn without times."""
    record = entry.record
    if record.started_ns is None:
        return None
    at = {name: record.started_ns + after_ns for name, after_ns in record.marks}
    begin_ns = at.get(MarkName.SPEECH_STARTED, record.started_ns) - LEAD_IN_NS
    sound_ns = at.get(MarkName.HEARD, at.get(MarkName.RELEASED))
    if sound_ns is None:
        end_ns = max(at.values())
    elif MarkName.INTERRUPTED in at:
        end_ns = at[MarkName.INTERRUPTED]
    else:
        end_ns = max(sound_ns + round((entry.reply_s or 0) * 1e9), at.get(MarkName.REPLY_DONE, 0))
    return begin_ns, max(begin_ns, end_ns)
