"""The calls in progress, who may join them, and what is remembered of those that ended."""

import asyncio
import logging
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from latency_budget.actions import Action
from latency_budget.admission import Admission, Crowd
from latency_budget.clock import Clock, processor_ns, unix_ns
from latency_budget.history import TurnEntry, TurnHistory, entry_json
from latency_budget.lags import lags_of
from latency_budget.machine import usable_cores
from latency_budget.marks import Mark, MarkName
from latency_budget.policy import Policy
from latency_budget.store import TurnStore
from latency_budget.store_schema import StoredTurn
from latency_budget.trace import TraceWriter
from latency_budget.turn import SessionId

from .config import Config
from .live_events import LiveEvents
from .trace_export import TraceExporter
from .turn_spans import FinishedCall, FinishedTurn
from .waiting_calls import WaitingCalls

MAX_TRACES: Final = 16
"""Traces kept after their call ended, at up to 10 MB each."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The same instant on two clocks."""

    now_ns: int
    """Monotonic."""
    unix_ns: int


class Call:
    """One admitted call."""

    def __init__(
        self, session_id: SessionId, agent: str, trace: TraceWriter, began: Beginning
    ) -> None:
        self.session_id = session_id
        self.agent = agent
        self.trace = trace
        self.began: Final = began
        self.num_turns = 0
        self.is_waiting = False
        """Its client was lost, and may come back."""
        self.company = 1
        """Calls when its last reply was asked for, itself among them."""
        self._waits_ms: list[float] = []
        """From the caller's last word to the answer, for each turn that was answered."""

    def turn(self, entry: TurnEntry) -> None:
        """Count a turn in that is over."""
        self.num_turns += 1
        if entry.record.e2e_ns is not None:
            self._waits_ms.append(entry.record.e2e_ns / 1e6)

    @property
    def p50_ms(self) -> float | None:
        """The middle wait for an answer; None where nothing was answered."""
        return statistics.median(self._waits_ms) if self._waits_ms else None


class BargeIns:
    """Callers who spoke while the agent could be heard, by kind of client."""

    def __init__(self) -> None:
        self.barged_in: Counter[str] = Counter()
        """There were words for the agent: its reply was cut."""
        self.kept: Counter[str] = Counter()
        """A backchannel, noise or echo: the reply went on."""


class Calls:
    """Belongs to the server's event loop."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        store: TurnStore | None = None,
        exporter: TraceExporter | None = None,
        processor_ns: Callable[[], int] = processor_ns,
    ) -> None:
        """`store` outlives the process; None: turns are remembered in memory only. `exporter`
        tells of them elsewhere."""
        self.draining = False
        self.history = TurnHistory()
        self.store: Final = store
        self.exporter: Final = exporter
        self.events: Final = LiveEvents()
        self.barge_ins = BargeIns()
        self.waiting: Final = WaitingCalls()
        self.admission: Final = Admission(usable_cores())
        self._processor_ns = processor_ns
        self.policy: Final = Policy(_available(config))
        self.admitted = 0
        self.refused = 0
        """Because all lines were busy, or those inside would have been answered too late."""
        self._config = config
        self._clock = clock
        self._fingerprint = config.fingerprint()
        self._active: dict[SessionId, Call] = {}
        self._traces: dict[SessionId, TraceWriter] = {}
        """In the order in which the calls ended; those that go on somewhere between."""
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._active)

    @property
    def full(self) -> bool:
        return len(self._active) >= self._config.agent.max_sessions

    def admit(self, session_id: SessionId, agent: str) -> Call:
        """Count a call in. The caller has checked `full` and `draining`."""
        began = Beginning(self._clock.now_ns(), unix_ns())
        trace = TraceWriter(
            session_id,
            started_unix_ns=began.unix_ns,
            config_fingerprint=self._fingerprint,
            origin_ns=began.now_ns,
        )
        call = Call(session_id, agent, trace, began)
        self._active[session_id] = call
        self._note_usage()
        self._empty.clear()
        self.admitted += 1
        self._traces[session_id] = trace
        self._forget_traces()
        self.events.publish("session", session_id, lambda: {"state": "began", "agent": agent})
        return call

    def marked(self, call: Call, mark: Mark) -> None:
        """Something happened in a turn."""
        if mark.name is MarkName.REPLY_REQUESTED:
            call.company = len(self)
        self.events.publish(
            "mark",
            call.session_id,
            lambda: {
                **{"turn": mark.turn, "name": mark.name.value, "at_ms": mark.at_ns / 1e6},
                **({} if mark.taken is None else {"action": mark.taken.action.value}),
            },
        )

    def crowd(self) -> Crowd | None:
        """Why those inside would be answered too late if one more joined; None: they would not."""
        if not self._config.latency_budget.admission:
            return None
        self._note_usage()
        return self.admission.refuses(len(self), self._clock.now_ns())

    def _note_usage(self) -> None:
        self.admission.used(self._clock.now_ns(), self._processor_ns(), len(self))

    def refuse(self, code: str) -> None:
        """Somebody could not join, because all lines are busy, or one more would be too many."""
        self.refused += 1
        calls = len(self)
        self.events.publish("refusal", None, lambda: {"code": code, "calls": calls})

    def turn_over(self, call: Call, entry: TurnEntry) -> TurnEntry:
        """Learn from a turn that is over, and remember it. It comes back with what it teaches of
        the actions that were taken in it."""
        self._note_usage()
        _, profile = self._config.profile(call.agent)
        # A client that wants more than the operator allows can't have others treated worse.
        own_ms = entry.budget.total_ms - entry.budget.widened_ms
        total_ms = max(own_ms, self._config.budget_ms(profile))
        if (lags := lags_of(entry.record)) is not None:
            self.admission.turn_over(lags, call.company, total_ms, self._clock.now_ns())
        record = self.policy.observe(entry.record, total_ms)
        entry = replace(entry, record=record)
        self.history.add(entry)
        call.turn(entry)
        self.events.publish("turn", call.session_id, lambda: entry_json(entry))
        kept = entry
        if not self._config.latency_budget.store_texts:
            kept = replace(entry, caller_text="", agent_text="")
        if self.store is not None:
            self.store.add(StoredTurn(kept, unix_ns(), call.agent, self._fingerprint))
        if self.exporter is not None:
            offset_ns = call.began.unix_ns - call.began.now_ns
            model = self._config.llm_engine.model
            self.exporter.add(FinishedTurn(kept, call.agent, model, offset_ns))
        return entry

    def leave(self, call: Call) -> None:
        if self._active.pop(call.session_id, None) is not None:
            self._note_usage()
            turns = call.num_turns
            self.events.publish(
                "session", call.session_id, lambda: {"state": "ended", "turns": turns}
            )
            self._export(call)
        if (trace := self._traces.pop(call.session_id, None)) is not None:
            self._traces[call.session_id] = trace
        self._forget_traces()
        if not self._active:
            self._empty.set()

    def _export(self, call: Call) -> None:
        """A call that is over; its turns were told of as they ended."""
        if self.exporter is None:
            return
        began = call.began
        end_unix_ns = began.unix_ns + self._clock.now_ns() - began.now_ns
        self.exporter.add(
            FinishedCall(
                call.session_id,
                call.agent,
                began.unix_ns,
                end_unix_ns,
                call.num_turns,
                call.p50_ms,
            )
        )

    def _forget_traces(self) -> None:
        """Of calls that are over only: a long one outlasts many short ones."""
        over = [session for session in self._traces if session not in self._active]
        for session in over[: max(0, len(over) - MAX_TRACES)]:
            del self._traces[session]

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def trace_of(self, session_id: str) -> TraceWriter | None:
        return self._traces.get(SessionId(session_id))

    def listing(self) -> list[dict[str, Any]]:
        return [
            {
                "session": call.session_id,
                "agent": call.agent,
                "trace_records": len(call.trace),
                "waiting": call.is_waiting,
            }
            for call in self._active.values()
        ]


def _available(config: Config) -> frozenset[Action]:
    """What can be done here about turns that are about to be late. Openers are the operator's own
    wish."""
    openers = {Action.OPENER} if config.agent.openers else set()
    if not config.latency_budget.enforce:
        return frozenset(openers)
    small = {Action.SMALL_MODEL} if config.llm_engine.small_model else set()
    return frozenset(Action) - {Action.OPENER, Action.SMALL_MODEL} | openers | small


async def save_trace(call: Call, directory: str | None) -> None:
    """Write the trace of a call that is over; None: nowhere."""
    if directory is None:
        return
    path = Path(directory, f"{call.session_id}.jsonl")
    try:
        await asyncio.to_thread(_write, path, "".join(call.trace.lines()))
    except OSError as error:
        _log.error("the trace %s can't be written: %s", path, error.strerror)


def _write(path: Path, text: str) -> None:
    path = path.expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
