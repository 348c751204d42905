"""Spans of a turn and of a call, built from their records. Pure, and without OpenTelemetry.

Each turn is a trace of its own. Within the trace of an hour's call, half a second would be too
narrow to see, the trace would be complete only when the caller hangs up, and a search for traces
longer than 500 ms would find every call. The call is one more span, sent at its end, to which each
turn has a link; `session.id` and `gen_ai.conversation.id` relate them in every backend.

Ids are computed from session and turn: no id is stored during a call, and a batch that is sent
twice, because the response was lost, is the same trace twice and not two traces. A server that
takes a call over counts its turns anew, so there the name of its part stands for the session.

Times: a call's monotonic clock is mapped to the wall clock once, when the call begins. All its
spans then have the precision of the ledger, even if the wall clock is set meanwhile.

The children of a turn are the work that contributed to it, at its actual time: some of it before
the turn's origin, while the caller spoke. `halfsec.exposed_ms` of each is its part of the critical
path; where the path waited and nothing ran, a child "STAGE wait" has that part. These parts add up
to the turn's length.

Names are those of the semantic conventions (`session.*`, `gen_ai.*`) where these have one.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from latency_budget.account.turn import SessionId, Span, Stage, TurnId
from latency_budget.account.turn_record import NS_PER_MS, TurnRecord
from latency_budget.storage.history import TurnEntry

Value = str | bool | int | float | tuple[str, ...]

PROVIDER: Final = "halfsec"


@dataclass(frozen=True, slots=True)
class SpanId:
    """Id of a span: 128 bits of its trace, 64 bits of the span."""

    trace: int
    span: int


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event of a span: a name and a time."""

    name: str
    at_unix_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanData:
    """A finished span, as OpenTelemetry describes one."""

    id: SpanId
    name: str
    start_unix_ns: int
    end_unix_ns: int
    """End of the span, ns since 1970; not before `start_unix_ns`."""
    attributes: Mapping[str, Value]
    parent: SpanId | None = None
    """None: the root of its trace, a span of kind SERVER."""
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanId, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedTurn:
    """A finished turn, to be exported."""

    entry: TurnEntry
    """Its texts are exported if it has any."""
    model: str
    """Name of the language model."""
    unix_offset_ns: int
    """Offset in ns from the monotonic clock to Unix time."""
    part: str = ""
    """Name of the part of the call that this server has; empty where it began here."""


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A finished call, to be exported."""

    session: SessionId
    agent: str
    start_unix_ns: int
    end_unix_ns: int
    num_turns: int
    p50_ms: float | None
    """Median of the turns' latency in ms; None where none was measured."""
    part: str = ""
    """As of its turns."""


Finished = FinishedTurn | FinishedCall


def spans_of(finished: Finished) -> tuple[SpanData, ...]:
    """Spans of a turn or call, parents before children; empty for a turn without a start time."""
    if isinstance(finished, FinishedCall):
        return (_call_span(finished),)
    started_ns = finished.entry.record.started_ns
    if started_ns is None:
        return ()
    turn = _turn_span(finished, started_ns + finished.unix_offset_ns)
    return (turn, *_stage_spans(finished, turn))


def call_id(session: SessionId, part: str = "") -> SpanId:
    return _id(part or session)


def turn_id(session: SessionId, turn: TurnId, part: str = "") -> SpanId:
    return _id(part or session, turn)


def _id(*parts: object) -> SpanId:
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return SpanId(int.from_bytes(digest[:16]), int.from_bytes(digest[16:24]))


def _call_span(call: FinishedCall) -> SpanData:
    return SpanData(
        call_id(call.session, call.part),
        "call",
        call.start_unix_ns,
        max(call.start_unix_ns, call.end_unix_ns),
        {
            **_conversation(call.session, call.agent),
            "halfsec.turns": call.num_turns,
            **_known({"halfsec.e2e_p50_ms": call.p50_ms}),
        },
    )


def _turn_span(finished: FinishedTurn, start_unix_ns: int) -> SpanData:
    entry = finished.entry
    return SpanData(
        turn_id(entry.session, entry.record.turn, finished.part),
        "turn",
        start_unix_ns,
        start_unix_ns + _length_ns(entry.record),
        {
            **_conversation(entry.session, entry.agent),
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": finished.model,
            "gen_ai.output.type": "speech",
            **_account(entry),
            **_words(entry),
        },
        events=tuple(_events(entry.record, start_unix_ns)),
        links=(call_id(entry.session, finished.part),),
    )


def _length_ns(record: TurnRecord) -> int:
    """Length in ns: the wait for the reply, or without an audible reply, the work for it."""
    if record.e2e_ns is not None:
        return record.e2e_ns
    if record.cut_in:
        return 0
    return max((span.end_ns for span in record.spans if span.end_ns > 0), default=0)


def _conversation(session: SessionId, agent: str) -> dict[str, Value]:
    return {
        "session.id": session,
        "gen_ai.conversation.id": session,
        "gen_ai.agent.name": agent,
    }


def _account(entry: TurnEntry) -> dict[str, Value]:
    record, budget = entry.record, entry.budget
    return {
        "halfsec.turn": record.turn,
        "halfsec.profile": budget.name,
        "halfsec.total_ms": budget.total_ms,
        "halfsec.widened_ms": budget.widened_ms,
        "halfsec.origin": record.origin.value,
        "halfsec.paced_ms": record.paced_ms,
        "halfsec.answered": record.answered,
        "halfsec.late": entry.late,
        "halfsec.cut_in": record.cut_in,
        "halfsec.interrupted": record.interrupted,
        "halfsec.reopened": record.reopened,
        **({} if record.outcome is None else {"halfsec.outcome": record.outcome.value}),
        "halfsec.opener": record.opener,
        "halfsec.wasted_ms": record.wasted_ms,
        "halfsec.wasted_prompt_tokens": record.wasted_prompt_tokens,
        "halfsec.wasted_output_tokens": record.wasted_output_tokens,
        **({"halfsec.incomplete": record.incomplete} if record.incomplete else {}),
        **_actions(record),
        **_known(
            {
                "halfsec.e2e_server_ms": record.e2e_server_ms,
                "halfsec.e2e_ear_ms": record.e2e_ear_ms,
                "halfsec.e2e_raw_ms": record.e2e_raw_ms,
                "halfsec.reply_s": entry.reply_s,
            }
        ),
    }


def _actions(record: TurnRecord) -> dict[str, Value]:
    """Actions taken to keep the turn within its budget. Not span events: the record has no
    times."""
    told: dict[str, Value] = {}
    for taken in record.actions:
        told[f"halfsec.{taken.action}.predicted_ms"] = taken.predicted_ms
        told |= _known({f"halfsec.{taken.action}.saved_ms": taken.saved_ms})
    if told:
        told["halfsec.actions"] = tuple(taken.action.value for taken in record.actions)
    return told


def _known(values: Mapping[str, float | None]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if value is not None}


def _words(entry: TurnEntry) -> dict[str, Value]:
    """Texts of caller and agent, if the entry has them, as messages of the conventions."""
    messages = {
        "gen_ai.input.messages": ("user", entry.caller_text),
        "gen_ai.output.messages": ("assistant", entry.agent_text),
    }
    return {
        name: json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
        for name, (role, text) in messages.items()
        if text
    }


def _events(record: TurnRecord, start_unix_ns: int) -> Iterator[SpanEvent]:
    for name, after_ns in (("released", record.e2e_server_ns), ("heard", record.e2e_ear_ns)):
        if after_ns is not None:
            yield SpanEvent(name, start_unix_ns + after_ns)


def _stage_spans(finished: FinishedTurn, turn: SpanData) -> Iterator[SpanData]:
    record = finished.entry.record
    for number, (name, span, exposed_ns) in enumerate(_stretches(record)):
        exposed_ms = exposed_ns / NS_PER_MS
        is_work = name == span.stage.value
        yield SpanData(
            SpanId(turn.id.trace, _id(turn.id.trace, number).span),
            name,
            turn.start_unix_ns + span.start_ns,
            turn.start_unix_ns + span.end_ns,
            {
                "session.id": finished.entry.session,
                "halfsec.stage": span.stage.value,
                "halfsec.spent_ms": (span.end_ns - span.start_ns) / NS_PER_MS if is_work else 0.0,
                "halfsec.exposed_ms": exposed_ms,
                "halfsec.critical": exposed_ns > 0,
                "halfsec.allowed_ms": finished.entry.budget.allowance_ms(span.stage),
                **(_convention(span, finished.model) if is_work else {}),
            },
            parent=turn.id,
        )


def _stretches(record: TurnRecord) -> list[tuple[str, Span, int]]:
    """Work and waits of a turn, ordered by start: name, span, and part of the critical path in
    ns."""
    path = list(record.path)
    found: list[tuple[str, Span, int]] = []
    for span in record.spans:
        on_path = Span(span.stage, max(span.start_ns, 0), span.end_ns)
        exposed_ns = 0
        if on_path in path:
            path.remove(on_path)
            exposed_ns = on_path.end_ns - on_path.start_ns
        found.append((span.stage.value, span, exposed_ns))
    # The rest of the path is no stage's work: the stage that followed waited in a queue.
    found += [(f"{gap.stage} wait", gap, gap.end_ns - gap.start_ns) for gap in path]
    return sorted(found, key=lambda stretch: stretch[1].start_ns)


def _convention(span: Span, model: str) -> dict[str, Value]:
    """Attributes that the conventions require of a model or tool call. The two stages of a reply
    are one call of the model; only the first has the attributes, so that it is counted once."""
    if span.stage is Stage.LLM_PREFILL:
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.output.type": "text",
            "gen_ai.response.time_to_first_chunk": (span.end_ns - span.start_ns) / 1e9,
        }
    if span.stage is Stage.TOOL:
        return {"gen_ai.operation.name": "execute_tool"}
    return {}
