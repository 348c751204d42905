"""Document of one call: what `GET /v1/calls/ID` answers, and what webhooks get when it ends.

Pure. The transcript is the conversation's items: a reply that was interrupted has the words that
the caller heard and no others. Texts are bounded (MAX_TEXT_CHARS), so that encoding a document
takes some milliseconds of the event loop at most; of a longer call the oldest are left out, and
`is_cut` says so.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agent.config.webhooks import WebhookSettings
from agent.session.api.conversation import (
    KEYS_ITEM,
    FunctionCall,
    FunctionOutput,
    Item,
    Message,
)
from latency_budget.account.clock import NS_PER_S, iso_of
from latency_budget.account.turn_record import TurnRecord
from latency_budget.storage.call_documents import EndedCall, WebhookMessage
from latency_budget.storage.call_records import CallRecord

from .call import ActiveCall

MAX_TEXT_CHARS: Final = 300_000
"""Characters of all texts of a document. An hour of speech has some 60,000; without a limit a
client could type what takes seconds to encode."""

EVENT_TYPE: Final = "call.ended"

KEYS: Final = "(keys of the telephone)"
"""Text of a message with the keys that a caller pressed: which ones, no record says."""


def call_document(
    call: ActiveCall, items: Sequence[Item], record: CallRecord | None = None
) -> dict[str, Any]:
    """JSON object of a call, in progress or ended. `record`: of a telephone call that is over."""
    end = call.end
    transcript, tool_calls, is_cut = _conversation(items, is_over=end is not None)
    recording = call.recording
    document: dict[str, Any] = {
        "id": call.session_id,
        "status": "in_progress" if end is None else "ended",
        "agent": call.agent,
        "began_at": iso_of(call.began.unix_ns),
        "ended_at": None,
        "seconds": None,
        "end": None,
        "telephone": None if record is None else _telephone(record),
        "transcript": transcript,
        "tool_calls": tool_calls,
        "is_cut": is_cut,
        "num_turns": call.num_turns,
        "p50_ms": _rounded(call.p50_ms),
        "p95_ms": _rounded(call.p95_ms),
        "turns": [_turn(each) for each in call.turns],
        "recording": None
        if recording is None or not recording.has_begun
        else {
            "file": recording.path.name,
            "path": f"/v1/sessions/{call.session_id}/recording?at={call.began.unix_ns // NS_PER_S}",
        },
    }
    if end is not None:
        cause, reason = end.cause, end.reason
        if record is not None:
            cause, reason = record.cause, record.reason or reason
        document |= {
            "ended_at": iso_of(end.ended_unix_ns),
            "seconds": round((end.ended_unix_ns - call.began.unix_ns) / 1e9, 1),
            "end": {"cause": cause, "reason": reason},
        }
    return document


def without_words(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what was said, and without arguments and results of tools."""
    return {
        **document,
        "transcript": None,
        "tool_calls": [
            {**each, "arguments": None, "result": None} for each in document["tool_calls"]
        ],
    }


def ended_call(
    document: dict[str, Any],
    ended_unix_ns: int,
    webhooks: Mapping[str, WebhookSettings],
    *,
    store_texts: bool,
) -> EndedCall:
    """What the store keeps of a call that is over: its document, with words only where the settings
    say so, and a message for each endpoint."""
    bare = without_words(document)
    # A call that ends with its server may go on at another one, and end again: another message.
    message_id = f"msg_{document['id']}_{ended_unix_ns // 10**6}"
    wanted = {store_texts, *(endpoint.transcript for endpoint in webhooks.values())}
    texts = {has_words: document_json(document if has_words else bare) for has_words in wanted}
    head = document_json({"type": EVENT_TYPE, "timestamp": document["ended_at"]})[:-1]
    messages = tuple(
        WebhookMessage(name, message_id, f'{head},"data":{texts[endpoint.transcript]}}}')
        for name, endpoint in webhooks.items()
    )
    return EndedCall(document["id"], ended_unix_ns, texts[store_texts], messages)


def document_json(value: dict[str, Any]) -> str:
    """A document as text. Raises ValueError for one that is no JSON."""
    # In ASCII: a client's text may hold half a surrogate pair, which UTF-8 and databases refuse.
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _telephone(record: CallRecord) -> dict[str, Any]:
    return {
        "carrier": record.carrier,
        "caller": record.caller,
        "called": record.called,
        "answered_by": record.answered_by,
        "keys": record.keys,
        "lost_frames": record.lost_frames,
        "late_frames": record.late_frames,
    }


def _turn(record: TurnRecord) -> dict[str, Any]:
    return {
        "turn": record.turn,
        "e2e_server_ms": _rounded(record.e2e_server_ms),
        "e2e_ear_ms": _rounded(record.e2e_ear_ms),
        "cut_in": record.cut_in,
        "interrupted": record.interrupted,
        "reopened": record.reopened,
        "stages": {
            stage.value: {
                "spent_ms": _rounded(time.spent_ms),
                "exposed_ms": _rounded(time.exposed_ms),
            }
            for stage, time in record.stages.items()
        },
    }


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 1)


def _conversation(
    items: Sequence[Item], *, is_over: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bool]:
    """Transcript and tool calls of the newest items, as many as MAX_TEXT_CHARS allow, oldest first;
    True where others were left out."""
    left, num_kept = MAX_TEXT_CHARS, 0
    for item in reversed(items):
        left -= _num_chars(item)
        if left < 0:
            break
        num_kept += 1
    newest = items[len(items) - num_kept :]
    outputs = {each.call_id: each.output for each in newest if isinstance(each, FunctionOutput)}
    transcript: list[dict[str, Any]] = []
    tool_calls: list[dict[str, Any]] = []
    for item in newest:
        if isinstance(item, FunctionCall):
            result = outputs.get(item.call_id)
            tool_calls.append(_tool_call(item.id, "client", item.name, item.arguments, result))
        if not isinstance(item, Message) or item.role == "system":
            continue
        status = item.status
        if is_over and status == "in_progress":
            status = "incomplete"
        transcript.append(
            {
                "item_id": item.id,
                "role": item.role,
                "modality": item.modality,
                "text": KEYS if item.id.startswith(KEYS_ITEM) else item.text,
                "status": status,
            }
        )
        tool_calls += [
            _tool_call(item.id, "server", call.name, call.arguments, result)
            for each in item.rounds
            for call, result in zip(each.calls, each.results, strict=False)
        ]
    return transcript, tool_calls, num_kept < len(items)


def _tool_call(
    item_id: str, by: str, name: str, arguments: str, result: str | None
) -> dict[str, Any]:
    return {"item_id": item_id, "by": by, "name": name, "arguments": arguments, "result": result}


def _num_chars(item: Item) -> int:
    if isinstance(item, FunctionCall):
        return len(item.name) + len(item.arguments)
    if isinstance(item, FunctionOutput):
        return len(item.output)
    in_rounds = sum(
        sum(len(call.name) + len(call.arguments) for call in each.calls)
        + sum(len(result) for result in each.results)
        for each in item.rounds
    )
    return len(item.text or "") + in_rounds
