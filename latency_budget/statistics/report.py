"""JSON of turns and of their summaries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from latency_budget.account.actions import ActionTaken
from latency_budget.account.turn import Span
from latency_budget.account.turn_record import NS_PER_MS, TurnRecord

from .aggregate import Json, TurnAggregate, nearest_rank

Number = TypeVar("Number", int, float)


def percentile(values: Sequence[Number], percent: int) -> Number:
    """Percentile by nearest rank, `percent` in 1..100. Raises ValueError without values or out of
    range."""
    return sorted(values)[nearest_rank(len(values), percent) - 1]


def summarize(records: Iterable[TurnRecord]) -> Json:
    """Summarize turns: percentiles in ms over those that were answered; null where there are none.

    `{turns, answered, measure, p50, p90, p95, p99, e2e_raw_ms: {p50, ...}, openers, cut_in_rate,
    cut_in_interval, outcomes: {cut_in, interrupted, reopened}, within,
    stages: {name: {spent_ms, exposed_ms: {p50, ...}}}}`. `e2e_raw_ms` is the same measure
    less the time in which replies were held back on purpose. The end is the ear where every
    answered turn has that time, else the server for all of them, and `measure` says which: two
    quantities are never mixed. Cut-ins count in their rate (cut-ins per answered turn, with its
    95 % interval) and not in the percentiles, which their times would flatter. `outcomes` are
    numbers of turns; those re-opened before an answer was audible are not answered. Incomplete
    turns count wherever their end-to-end time is known. `within`, the share of timed turns that
    kept their budget, needs more than records: see `history.aggregate_of`; it is null here.
    """
    return TurnAggregate.of(records).summary()


def turn_json(record: TurnRecord, caller_text: str, agent_text: str, reply_s: float | None) -> Json:
    """JSON of one turn for `talk --json`, `bench --json` and the service. `reply_s`: seconds of
    speech."""
    return {
        "turn": record.turn,
        "caller_text": caller_text,
        "agent_text": agent_text,
        "e2e_ear_ms": record.e2e_ear_ms,
        "e2e_server_ms": record.e2e_server_ms,
        "e2e_raw_ms": record.e2e_raw_ms,
        "paced_ms": record.paced_ms,
        "opener": record.opener,
        "cut_in": record.cut_in,
        "interrupted": record.interrupted,
        "reopened": record.reopened,
        "outcome": None if record.outcome is None else record.outcome.value,
        "actions": actions_json(record.actions),
        "stages": {
            stage.value: {"spent_ms": time.spent_ms, "exposed_ms": time.exposed_ms}
            for stage, time in record.stages.items()
        },
        "reply_s": reply_s,
    }


def actions_json(actions: Iterable[ActionTaken]) -> list[Json]:
    """JSON of actions, with their predicted and measured savings."""
    return [
        {
            "action": taken.action.value,
            "predicted_ms": taken.predicted_ms,
            "saved_ms": taken.saved_ms,
        }
        for taken in actions
    ]


def waterfall_json(record: TurnRecord) -> Json:
    """JSON of a turn's waterfall: spans in ms from the origin, wasted work, and missing marks."""
    return {
        "origin": record.origin.value,
        "spans": _spans_json(record.spans),
        "path": _spans_json(record.path),
        "wasted_ms": record.wasted_ms,
        "wasted_prompt_tokens": record.wasted_prompt_tokens,
        "wasted_output_tokens": record.wasted_output_tokens,
        "incomplete": list(record.incomplete),
    }


def marks_json(record: TurnRecord) -> list[Json] | None:
    """JSON of the marks that counted, in ms from the origin: `[{name, ms}, ...]`. None for a turn
    that was stored without them."""
    marks = [{"name": name.value, "ms": at_ns / NS_PER_MS} for name, at_ns in record.marks]
    return marks or None


def report_json(
    session: str | None,
    turns: Sequence[Json] | None,
    summary: Mapping[str, Any],
    errors: Sequence[str] = (),
) -> Json:
    """JSON of a report: `{session, turns, summary, errors}`; without `turns` where that is None."""
    listed: Json = {} if turns is None else {"turns": list(turns)}
    return {"session": session, **listed, "summary": dict(summary), "errors": list(errors)}


def _spans_json(spans: Iterable[Span]) -> list[Json]:
    return [
        {
            "stage": span.stage.value,
            "start_ms": span.start_ns / NS_PER_MS,
            "end_ms": span.end_ns / NS_PER_MS,
        }
        for span in spans
    ]
