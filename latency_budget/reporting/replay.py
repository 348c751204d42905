"""Replay of finished turns through a fresh policy: what would it have done?

For each turn the policy knows the turns before it, and the turn's own marks up to the request for a
reply. The actions that were really taken stand beside the result; their effect on the turn can't be
known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from latency_budget.account.actions import ActionTaken
from latency_budget.account.turn import Stage
from latency_budget.account.turn_record import NS_PER_MS, TurnRecord
from latency_budget.enforcement.policy import ActionState, Policy
from latency_budget.enforcement.stage_latencies import Progress, stage_latencies_of
from latency_budget.statistics.aggregate import Json
from latency_budget.statistics.report import actions_json
from latency_budget.storage.history import TurnEntry


@dataclass(frozen=True, slots=True)
class Foresight:
    """The policy's decisions for one turn."""

    entry: TurnEntry
    predicted_ms: float | None
    """Prediction before the turn, without the wait for its end, in ms. None: too few turns
    before."""
    would: tuple[ActionTaken, ...]
    """Actions that the policy would have taken."""


def replay(
    entries: Iterable[TurnEntry], policy: Policy
) -> tuple[list[Foresight], list[ActionState]]:
    """Replay all turns. Returns the decisions, and the state of the actions after the last turn.
    `policy`: a new one."""
    found: list[Foresight] = []
    for entry in entries:
        total_ms = entry.budget.total_ms - entry.budget.widened_ms
        would = list(policy.active())
        progress = _when_asked(entry.record)
        if progress is not None:
            short = policy.short_clause(progress, total_ms)
            would += [] if short is None else [short]
        found.append(Foresight(entry, policy.predicted_ms(), tuple(would)))
        policy.observe(entry.record, total_ms)
    return found, policy.states()


def foresight_table(found: Sequence[Foresight], states: Sequence[ActionState]) -> str:
    """The decisions as text, for a terminal."""
    lines = ["what the policy foresees, turn by turn (ms, but for the wait for the turn's end):"]
    for each in found:
        record = each.entry.record
        latencies = stage_latencies_of(record)
        took = (
            "?" if latencies is None or latencies.ready_ms is None else f"{latencies.ready_ms:.0f}"
        )
        predicted = "?" if each.predicted_ms is None else f"{each.predicted_ms:.0f}"
        line = f"turn {record.turn}: {predicted} predicted, ready after {took}"
        line += f"; would: {_named(each.would)}" if each.would else ""
        line += f"; did: {_named(record.actions)}" if record.actions else ""
        lines.append(line)
    for state in states:
        if state.times or state.is_set_aside:
            saved = f"{state.predicted_ms:.0f} ms predicted, {state.saved_ms:.0f} ms saved"
            aside = ", set aside" if state.is_set_aside else ""
            lines.append(f"{state.action}: in {state.times} turns, {saved}{aside}")
    return "\n".join(lines)


def foresight_json(found: Sequence[Foresight], states: Sequence[ActionState]) -> Json:
    """JSON of the decisions: `{turns: [{turn, predicted_ms, would, did}], actions: [...]}`."""
    return {
        "turns": [
            {
                "turn": each.entry.record.turn,
                "predicted_ms": each.predicted_ms,
                "would": actions_json(each.would),
                "did": actions_json(each.entry.record.actions),
            }
            for each in found
        ],
        "actions": states_json(states),
    }


def states_json(states: Iterable[ActionState]) -> list[Json]:
    """JSON of the states of the actions."""
    return [{**asdict(state), "action": state.action.value} for state in states]


def _named(actions: Sequence[ActionTaken]) -> str:
    return ", ".join(f"{taken.action} ({taken.predicted_ms:.0f})" for taken in actions)


def _when_asked(record: TurnRecord) -> Progress | None:
    """Progress of the turn when its reply was requested, on its own clock."""
    latencies = stage_latencies_of(record)
    asked = [span.start_ns for span in record.spans if span.stage is Stage.LLM_PREFILL]
    if latencies is None or latencies.words_ms is None or not asked:
        return None
    words_ns = round(latencies.words_ms * NS_PER_MS)
    return Progress(asked[-1], 0, words_ns=words_ns, asked_ns=asked[-1])
