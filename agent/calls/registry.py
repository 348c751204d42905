"""The calls in progress, who may join them, and what is remembered of those that ended."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from agent.config.remote_models import shown_model
from agent.config.schema import Config
from agent.observability.agent_state import State
from agent.observability.counters import BargeIns, PreemptiveCounts
from agent.observability.live_events import LiveEvents
from agent.observability.spans import FinishedCall, FinishedTurn
from agent.observability.trace_export import TraceExporter
from agent.session.context.condensing import CondensingCounts
from latency_budget.account.actions import Action
from latency_budget.account.clock import Clock, iso_of, processor_ns, unix_ns
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, Stage
from latency_budget.enforcement.admission import Admission, OverloadForecast
from latency_budget.enforcement.policy import Policy
from latency_budget.enforcement.stage_latencies import stage_latencies_of
from latency_budget.host import usable_cores
from latency_budget.reporting.trace import TraceWriter
from latency_budget.storage.call_records import CallRecord
from latency_budget.storage.history import TurnEntry, TurnHistory, entry_json
from latency_budget.storage.private_files import make_private_folder, write_private_file
from latency_budget.storage.store import TurnStore
from latency_budget.storage.store_schema import StoredTurn

from .call import ActiveCall, Beginning
from .call_report import call_document, ended_call
from .recording import Recorder, file_stem_of
from .rejections import Rejections
from .suspended import WaitingCalls

MAX_TRACES: Final = 16
"""Traces kept after their call ended, at up to 5 MB each."""

MAX_DOCUMENTS: Final = 32
"""Documents of ended calls in memory, of up to a megabyte each: for servers without a store, and
until the store has written them."""

USAGE_EVERY_NS: Final = 10**9
"""Interval in ns between measurements of the processor time at ends of turns. Reading that of many
threads takes a while, and a client can have hundreds of turns end in a second."""

_log = logging.getLogger(__name__)


class Traces:
    """Traces of the calls in progress, and of the newest that are over."""

    def __init__(self) -> None:
        self._traces: dict[SessionId, TraceWriter] = {}
        """In the order in which the calls ended; those that go on somewhere between."""
        self._active: set[SessionId] = set()

    @property
    def num_kept(self) -> int:
        """Traces of calls in progress and of those that are over."""
        return len(self._traces)

    def add(self, session_id: SessionId, trace: TraceWriter) -> None:
        """Add the trace of a call that begins."""
        self._traces[session_id] = trace
        self._active.add(session_id)
        self._forget()

    def over(self, session_id: SessionId) -> None:
        """The call has ended."""
        self._active.discard(session_id)
        if (trace := self._traces.pop(session_id, None)) is not None:
            self._traces[session_id] = trace
        self._forget()

    def of(self, session_id: str) -> TraceWriter | None:
        return self._traces.get(SessionId(session_id))

    def _forget(self) -> None:
        """Drop the oldest traces of calls that are over: a long call outlasts many short ones."""
        over = [session for session in self._traces if session not in self._active]
        for session in over[: max(0, len(over) - MAX_TRACES)]:
            del self._traces[session]


class CallRegistry:
    """Registry of the calls in progress, with what is kept of those that ended. Used on the
    server's event loop only."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        store: TurnStore | None = None,
        exporter: TraceExporter | None = None,
        recorder: Recorder | None = None,
        processor_ns: Callable[[], int] = processor_ns,
    ) -> None:
        """`store` outlives the process; None: turns are remembered in memory only. `exporter`
        tells of them elsewhere. `recorder`: None where calls are not recorded."""
        self.draining = False
        self.stopping: Final = asyncio.Event()
        """Set when the calls in progress are ended, because the server stops."""
        self.history = TurnHistory()
        self.store: Final = store
        self.exporter: Final = exporter
        self.recorder: Final = recorder
        self.events: Final = LiveEvents()
        self.barge_ins = BargeIns()
        self.guesses: Final = PreemptiveCounts()
        self.condensing: Final = CondensingCounts()
        self.waiting: Final = WaitingCalls()
        self.admission: Final = Admission(usable_cores())
        self._processor_ns = processor_ns
        self._noted_ns = 0
        self.policy: Final = Policy(_available(config))
        self.ready_after_s: float | None = None
        """Time from the start of the process until calls were taken; None: not yet."""
        self.admitted = 0
        self.num_handoffs = 0
        self.refusals: Final = Rejections()
        """Because all lines were busy, or those inside would have been answered too late."""
        self.traces: Final = Traces()
        self._ending: dict[SessionId, ActiveCall] = {}
        """Calls that have ended and are not reported yet: that may have to wait for a carrier."""
        self._documents: dict[SessionId, dict[str, Any]] = {}
        """Of the calls that ended last, the oldest first."""
        self.reloads: Final = Counter[str]()
        """Reloads of the settings, by result: "applied" or "refused"."""
        self._config = config
        self._clock = clock
        self._fingerprint = config.fingerprint()
        self._active: dict[SessionId, ActiveCall] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def use(self, config: Config) -> None:
        """Count the calls that begin from now on by these settings."""
        self._config = config
        self._fingerprint = config.fingerprint()

    def __len__(self) -> int:
        return len(self._active)

    def num_lacking(self, num_kept: int = 0) -> int:
        """Lines that are missing for one more call; 0: there is one. `num_kept`: lines that are
        kept for calls on their way."""
        return max(0, len(self._active) + num_kept + 1 - self._config.agent.max_sessions)

    def admit(
        self,
        session_id: SessionId,
        agent: str,
        *,
        is_recorded: bool = True,
        is_taken_over: bool = False,
    ) -> ActiveCall:
        """Count a call in. The caller has checked `num_lacking` and `draining`. `is_recorded`: if
        any is. `is_taken_over`: another server had the call, which may have files of its own."""
        began = Beginning(self._clock.now_ns(), unix_ns(), self._fingerprint)
        trace = TraceWriter(
            session_id,
            started_unix_ns=began.unix_ns,
            config_fingerprint=began.fingerprint,
            origin_ns=began.now_ns,
        )
        recorder = self.recorder if is_recorded else None
        file_stem = file_stem_of(session_id, began.unix_ns if is_taken_over else None)
        recording = None if recorder is None else recorder.begin(file_stem)
        call = ActiveCall(session_id, agent, trace, began, recording, file_stem)
        self._active[session_id] = call
        self._note_usage()
        self._empty.clear()
        self.admitted += 1
        self.traces.add(session_id, trace)
        told = {"state": "began", "agent": agent, "began_at": iso_of(began.unix_ns)}
        self.events.publish("session", session_id, lambda: told)
        return call

    def changed(self, call: ActiveCall, state: State, stage: Stage | None) -> None:
        """Publish the new state of a call."""
        call.changed(state, stage, self._clock.now_ns())
        self.tell_state(call)

    def handed_off(self, call: ActiveCall, agent: str) -> None:
        """Another agent has taken a call over."""
        call.agent = agent
        call.num_handoffs += 1
        self.num_handoffs += 1
        _log.info("call %s was handed off to the agent %s", call.session_id, agent)
        told = {
            **{"state": call.state, "stage": call.stage, "agent": agent},
            "handoffs": call.num_handoffs,
        }
        self.events.publish("session", call.session_id, lambda: told)

    def background_changed(self, call: ActiveCall, num_running: int) -> None:
        """Another number of tools runs in the background of a call."""
        call.num_background = num_running
        self.tell_state(call)

    @property
    def num_background(self) -> int:
        """Tools that run in the background of all calls in progress."""
        return sum(call.num_background for call in self._active.values())

    def tell_state(self, call: ActiveCall) -> None:
        """Tell those who listen what a call does, if that is something else than before."""
        if call.session_id in self._active and (told := call.news()) is not None:
            self.events.publish("session", call.session_id, lambda: told)

    def marked(self, call: ActiveCall, mark: Mark) -> None:
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

    def crowd(self, num_kept: int = 0) -> OverloadForecast | None:
        """Why those inside would be answered too late if one more joined them and `num_kept` that
        are on their way; None: they would not."""
        if not self._config.latency_budget.admission:
            return None
        self._note_usage()
        return self.admission.refuses(len(self) + num_kept, self._clock.now_ns())

    def capacity(self) -> int | None:
        """Most calls at once whose answers are predicted within the budget; None: too little is
        known."""
        self._note_usage()
        return self.admission.capacity(self._clock.now_ns())

    def _note_usage(self) -> None:
        self._noted_ns = self._clock.now_ns()
        self.admission.used(self._noted_ns, self._processor_ns(), len(self))

    def refuse(self, code: str) -> None:
        """Count a refusal because all lines are busy, or one more call would be too many."""
        told = self.refusals.add(code, len(self), unix_ns())
        self.events.publish("refusal", None, lambda: told)

    def turn_over(self, call: ActiveCall, entry: TurnEntry) -> TurnEntry:
        """Learn from a turn that is over, and remember it. It comes back with what it teaches of
        the actions that were taken in it."""
        if self._clock.now_ns() - self._noted_ns >= USAGE_EVERY_NS:
            self._note_usage()
        _, profile = self._config.profile(entry.agent)
        # A client that wants more than the operator allows can't have others treated worse.
        own_ms = entry.budget.total_ms - entry.budget.widened_ms
        total_ms = max(own_ms, self._config.budget_ms(profile))
        # How long a client's tool takes says nothing about how much room there is.
        ran_tool = any(span.stage is Stage.TOOL for span in entry.record.spans)
        if (lags := stage_latencies_of(entry.record)) is not None and not ran_tool:
            self.admission.turn_over(lags, call.company, total_ms, self._clock.now_ns())
        record = self.policy.observe(entry.record, total_ms)
        entry = call.placed(replace(entry, record=record))
        at_unix_ns = unix_ns()
        known = {
            **{"row": None, "at": iso_of(at_unix_ns)},
            "replica": "" if self.store is None else self.store.replica,
        }
        self.history.add(entry, known)
        call.turn(entry)
        self.events.publish("turn", call.session_id, lambda: {**entry_json(entry), **known})
        kept = entry
        if not self._config.latency_budget.store_texts:
            kept = replace(entry, caller_text="", agent_text="")
        if self.store is not None:
            self.store.add(StoredTurn(kept, at_unix_ns, call.began.fingerprint))
        if self.exporter is not None:
            offset_ns = call.began.unix_ns - call.began.now_ns
            model = shown_model(self._config.llm_engine.model)
            self.exporter.add(FinishedTurn(kept, model, offset_ns, call.file_stem))
        return entry

    def leave(self, call: ActiveCall) -> None:
        if self._active.pop(call.session_id, None) is not None:
            self._note_usage()
            if call.recording is not None:
                call.recording.end(self._clock.now_ns())
            turns = call.num_turns
            self.events.publish(
                "session", call.session_id, lambda: {"state": "ended", "turns": turns}
            )
            self._export(call)
        self.traces.over(call.session_id)
        if not self._active:
            self._empty.set()
        if call.end is not None:
            self._ending[call.session_id] = call

    def report_end(self, call: ActiveCall, record: CallRecord | None = None) -> None:
        """Keep the document of a call that has ended, and queue the messages of the webhooks. Does
        nothing for one that never began, or goes on elsewhere. `record`: of a telephone call."""
        self._ending.pop(call.session_id, None)
        if call.end is None:
            return
        try:
            document = self._document(call, record)
            self._documents[call.session_id] = document
            if len(self._documents) > MAX_DOCUMENTS:
                del self._documents[next(iter(self._documents))]
            if self.store is not None:
                store_texts = self._config.latency_budget.store_texts
                # By the clock of now, not by the call's: where that was put right since the call
                # began, its messages would be too old to be sent.
                self.store.add(
                    ended_call(document, unix_ns(), self._config.webhooks, store_texts=store_texts)
                )
        except Exception:  # our own fault: what follows the end of a call goes on
            _log.exception("the end of call %s can't be told", call.session_id)

    def document(self, session_id: str) -> dict[str, Any] | None:
        """Document of a call in progress, or of one of those that ended last; None for others."""
        session = SessionId(session_id)
        call = self._active.get(session) or self._ending.get(session)
        return self._documents.get(session) if call is None else self._document(call)

    def _document(self, call: ActiveCall, record: CallRecord | None = None) -> dict[str, Any]:
        items = call.conversation() if call.end is None else call.end.items
        replica = "" if self.store is None else self.store.replica
        return {**call_document(call, items, record), "replica": replica}

    def _export(self, call: ActiveCall) -> None:
        """Export a call that is over; its turns were exported as they ended."""
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
                call.file_stem,
            )
        )

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def listing(self) -> list[dict[str, Any]]:
        """JSON of the calls in progress."""
        now_ns = self._clock.now_ns()
        return [call.listing(now_ns) for call in self._active.values()]


def _available(config: Config) -> frozenset[Action]:
    """Actions against late turns that these settings allow. Openers are used where the operator
    configured them."""
    openers = {Action.OPENER} if config.agent.openers else set()
    if not config.latency_budget.enforce:
        return frozenset(openers)
    small = {Action.SMALL_MODEL} if config.llm_engine.small_model else set()
    return frozenset(Action) - {Action.OPENER, Action.SMALL_MODEL} | openers | small


async def save_trace(call: ActiveCall, directory: str | None) -> None:
    """Write the trace of a call that is over; None: nowhere."""
    if directory is None:
        return
    path = Path(directory, f"{call.file_stem}.jsonl")
    try:
        await asyncio.to_thread(_write, path, call.trace.lines())
    except OSError as error:
        _log.error("the trace %s can't be written: %s", path, error.strerror)


def _write(path: Path, lines: Iterable[str]) -> None:
    """Encode and write a trace, readable by the owner alone: it may hold what was said. Raises
    OSError; then there is no file."""
    path = path.expanduser()
    make_private_folder(path.parent)
    write_private_file(path, "".join(lines).encode())
