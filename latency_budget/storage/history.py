"""In-memory history of the latest turns, for the pages and the metrics."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from latency_budget.account.budget import EMBEDDED, Budget
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import SessionId
from latency_budget.account.turn_record import NS_PER_MS, TurnRecord
from latency_budget.enforcement.stage_latencies import was_prepared
from latency_budget.statistics.aggregate import Json, TurnAggregate
from latency_budget.statistics.report import marks_json, report_json, turn_json, waterfall_json
from latency_budget.statistics.turn_histograms import TurnHistograms


@dataclass(frozen=True, slots=True)
class TurnEntry:
    """A finished turn: its record, session, agent, budget and texts."""

    session: SessionId
    record: TurnRecord
    budget: Budget = EMBEDDED
    """The turn's budget, widened where the client asked for a longer wait."""
    caller_text: str = ""
    """Words of the caller. This text and the next are empty where the settings forbid to keep
    them."""
    agent_text: str = ""
    reply_s: float | None = None
    """Speech released, in s."""
    response_id: str = ""
    """Id of the turn's last response, by which clients assign a report that comes late. Not
    stored."""
    recording: tuple[float, float] | None = None
    """First and last second of the turn in the call's recording, from the caller's words to the end
    of the answer. None: not recorded."""
    agent: str = ""
    """Name of the agent whose response it is: the one that began it, also where it handed the call
    off in it. Empty where that is not known."""

    @property
    def late(self) -> bool:
        """True where the reply was ready after the budget's total; a reply that is held back on
        purpose is not late for that."""
        raw_ns = self.record.e2e_raw_ns
        return raw_ns is not None and raw_ns > self.budget.total_ms * NS_PER_MS


@dataclass(frozen=True, slots=True)
class TurnCounts:
    """Counts since the start of the service, turns that left the history included."""

    turns: int = 0
    answered: int = 0
    late: int = 0
    cut_in: int = 0
    interrupted: int = 0
    reopened: int = 0
    """Turns that go on with one whose reply was cancelled, audible or not."""
    withdrawn: int = 0
    """Turns whose reply was cancelled before anything of the answer was audible, because the caller
    went on."""
    withdrawn_openers: int = 0
    """Of these, those with an early opener, which had been heard."""
    openers: int = 0
    incomplete: int = 0
    prepared: int = 0
    """Turns whose reply was requested before the turn was decided to be over."""


class TurnHistory:
    """Ring of the last `max_turns` turns of all sessions; the oldest is dropped first.

    One thread: the service's loop. What `entries` and `newest` return may be read on any thread.
    """

    def __init__(self, max_turns: int = 1000) -> None:
        """1000 turns are a few MB and make p99 a rank, not the maximum. ValueError below 1."""
        if max_turns < 1:
            raise ValueError(f"a history holds at least one turn, not {max_turns}")
        self._entries: deque[tuple[TurnEntry, Json]] = deque(maxlen=max_turns)
        self._counts = TurnCounts()
        self.histograms = TurnHistograms()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: TurnEntry, known: Json | None = None) -> None:
        """Add a finished turn. `known`: further JSON fields of the turn."""
        record, so_far = entry.record, self._counts
        self._entries.append((entry, known or {}))
        self.histograms.add(entry.budget.name, record)
        self._counts = TurnCounts(
            turns=so_far.turns + 1,
            answered=so_far.answered + record.answered,
            late=so_far.late + entry.late,
            cut_in=so_far.cut_in + record.cut_in,
            interrupted=so_far.interrupted + record.interrupted,
            reopened=so_far.reopened + record.reopened,
            withdrawn=so_far.withdrawn + record.withdrawn,
            withdrawn_openers=so_far.withdrawn_openers + _is_withdrawn_opener(record),
            openers=so_far.openers + record.opener,
            incomplete=so_far.incomplete + bool(record.incomplete),
            prepared=so_far.prepared + was_prepared(record),
        )

    @property
    def counts(self) -> TurnCounts:
        return self._counts

    def entries(self, session: SessionId | None = None) -> list[TurnEntry]:
        """The turns, oldest first; with `session` those of that session."""
        return [entry for entry, _ in self._entries if session is None or entry.session == session]

    def newest(
        self, session: SessionId | None = None, *, max_turns: int = 100
    ) -> list[tuple[TurnEntry, Json]]:
        """The latest turns, oldest first, each with its further fields; with `session` those of
        that session."""
        kept = [each for each in self._entries if session is None or each[0].session == session]
        return kept[max(0, len(kept) - max_turns) :]


def _is_withdrawn_opener(record: TurnRecord) -> bool:
    """True where an early opener was heard, and the caller went on before the answer."""
    marked = {name for name, _ in record.marks}
    return record.withdrawn and {MarkName.EARLY_OPENER, MarkName.RELEASED} <= marked


def aggregate_of(entries: Sequence[TurnEntry]) -> TurnAggregate:
    """Aggregate of entries, with the number of late turns by their own budgets."""
    aggregate = TurnAggregate.of(entry.record for entry in entries)
    aggregate.late = sum(entry.late and entry.record.answered for entry in entries)
    return aggregate


def profiles_json(
    session: str | None, entries: Sequence[TurnEntry], *, histograms: bool = False
) -> Json:
    """JSON `{session, summary, profiles: {name: summary}, errors}` of these turns, with
    `histograms` on request."""
    by_profile: dict[str, list[TurnEntry]] = {}
    for entry in entries:
        by_profile.setdefault(entry.budget.name, []).append(entry)
    whole = aggregate_of(entries)
    answer = {
        **report_json(session, None, whole.summary()),
        "profiles": {name: aggregate_of(turns).summary() for name, turns in by_profile.items()},
    }
    return {**answer, "histograms": whole.histograms()} if histograms else answer


def turns_json(session: str | None, turns: Sequence[tuple[TurnEntry, Json]]) -> Json:
    """JSON of these turns, each with its waterfall and its further fields, and of their summary.

    Beside what `turn_json` gives, each turn has `session`, `agent`, `budget`, `waterfall`, `marks`
    and `recording`.
    """
    listed = [{**entry_json(entry), **known} for entry, known in turns]
    return report_json(session, listed, aggregate_of([entry for entry, _ in turns]).summary())


def entry_json(entry: TurnEntry) -> Json:
    """JSON of one turn, as `turns_json` lists it."""
    budget = entry.budget
    return {
        **turn_json(entry.record, entry.caller_text, entry.agent_text, entry.reply_s),
        "session": entry.session,
        "agent": entry.agent,
        "budget": {
            "profile": budget.name,
            "total_ms": budget.total_ms,
            "widened_ms": budget.widened_ms,
        },
        "waterfall": waterfall_json(entry.record),
        "marks": marks_json(entry.record),
        "recording": None
        if entry.recording is None
        else dict(zip(("from_s", "to_s"), entry.recording, strict=True)),
    }
