"""Turns as figures and as JSON.

Percentiles are by nearest rank: the smallest value that at least p % of the values do not exceed.
Each is thus a time that some turn really took, and none is invented between two turns; with fewer
than 100 turns p99 is simply the slowest.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .record import NS_PER_MS, TurnRecord
from .turn import Span, Stage

PERCENTILES = (50, 90, 95, 99)

Json = dict[str, Any]


def percentile(values: Sequence[int], percent: int) -> int:
    """By nearest rank, `percent` in 1..100. Raises ValueError without values or out of range."""
    if not values or not 1 <= percent <= 100:
        raise ValueError(f"no {percent}th percentile of {len(values)} values")
    rank = -(-percent * len(values) // 100)
    return sorted(values)[rank - 1]


def summarize(records: Iterable[TurnRecord]) -> Json:
    """Percentiles in ms over the turns that were answered; null where there are none.

    `{turns, answered, measure, p50, p90, p95, p99, e2e_raw_ms: {p50, ...}, openers, cut_in_rate,
    stages: {name: {spent_ms, exposed_ms: {p50, ...}}}}`. `e2e_raw_ms` is the same measure had no
    reply been held back on purpose. The end is the ear where every answered turn has that time,
    else the server for all of them, and `measure` says which: two quantities are never mixed.
    Cut-ins count in their rate (cut-ins per answered turn) and not in the percentiles, which their
    negative times would flatter. Incomplete turns count wherever their end-to-end time is known.
    """
    turns = tuple(records)
    answered = [record for record in turns if record.answered]
    timed = [record for record in answered if record.e2e_ns is not None]
    at_ear = bool(timed) and all(record.e2e_ear_ns is not None for record in timed)
    times = [record.e2e_ear_ns if at_ear else record.e2e_server_ns for record in timed]
    cut_ins = sum(record.cut_in for record in answered)
    return {
        "turns": len(turns),
        "answered": len(answered),
        "measure": "e2e_ear_ms" if at_ear else "e2e_server_ms",
        **_percentiles([time for time in times if time is not None]),
        "e2e_raw_ms": _percentiles(
            [
                time - record.paced_ns
                for time, record in zip(times, timed, strict=True)
                if time is not None
            ]
        ),
        "openers": sum(record.opener for record in answered),
        "cut_in_rate": cut_ins / len(answered) if answered else None,
        "stages": {
            stage.value: {
                "spent_ms": _percentiles([record.stages[stage].spent_ns for record in timed]),
                "exposed_ms": _percentiles(
                    [_exposed_ns(record, stage, at_ear) for record in timed]
                ),
            }
            for stage in Stage
        },
    }


def turn_json(record: TurnRecord, caller_text: str, agent_text: str, reply_s: float | None) -> Json:
    """One turn for `talk --json`, `bench --json` and the service. `reply_s`: seconds of speech."""
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
        "actions": [
            {
                "action": taken.action.value,
                "predicted_ms": taken.predicted_ms,
                "saved_ms": taken.saved_ms,
            }
            for taken in record.actions
        ],
        "stages": {
            stage.value: {"spent_ms": time.spent_ms, "exposed_ms": time.exposed_ms}
            for stage, time in record.stages.items()
        },
        "reply_s": reply_s,
    }


def waterfall_json(record: TurnRecord) -> Json:
    """What a page needs to draw a turn: stretches in ms from the origin, and what to doubt."""
    return {
        "origin": record.origin.value,
        "spans": _spans_json(record.spans),
        "path": _spans_json(record.path),
        "wasted_ms": record.wasted_ms,
        "wasted_prompt_tokens": record.wasted_prompt_tokens,
        "wasted_output_tokens": record.wasted_output_tokens,
        "incomplete": list(record.incomplete),
    }


def report_json(
    session: str | None,
    turns: Sequence[Json] | None,
    summary: Mapping[str, Any],
    errors: Sequence[str] = (),
) -> Json:
    """The whole answer: `{session, turns, summary, errors}`; without `turns` where that is None."""
    listed: Json = {} if turns is None else {"turns": list(turns)}
    return {"session": session, **listed, "summary": dict(summary), "errors": list(errors)}


def _percentiles(values: Sequence[int]) -> dict[str, float | None]:
    ordered = sorted(values)
    return {
        f"p{percent}": percentile(ordered, percent) / NS_PER_MS if ordered else None
        for percent in PERCENTILES
    }


def _exposed_ns(record: TurnRecord, stage: Stage, at_ear: bool) -> int:
    """On the side that is measured: at the server there is no transport."""
    if stage is Stage.TRANSPORT and not at_ear:
        return 0
    return record.stages[stage].exposed_ns


def _spans_json(spans: Iterable[Span]) -> list[Json]:
    return [
        {
            "stage": span.stage.value,
            "start_ms": span.start_ns / NS_PER_MS,
            "end_ms": span.end_ns / NS_PER_MS,
        }
        for span in spans
    ]
