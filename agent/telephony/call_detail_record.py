"""Call detail record (CDR): what is stored of an ended telephone call."""

import logging
from typing import Final

from agent.calls.call import ActiveCall
from agent.telephony.carriers.media_stream import StreamStarted
from agent.telephony.carriers.phone_numbers import shown_number
from latency_budget.account.clock import Clock
from latency_budget.storage.call_records import CallRecord

from .transport import PhoneCall

GONE: Final = ("caller_hung_up", "lost")
"""Causes that a call also seems to have when its carrier takes it off the stream for a transfer."""

_log = logging.getLogger(__name__)


async def settle(phone: PhoneCall) -> None:
    """Wait for the result of a transfer in progress: the carrier may take the call off the stream
    before it confirms."""
    if phone.cause in GONE:
        await phone.call_transfer.settle()


def record_of(
    call: ActiveCall, phone: PhoneCall, started: StreamStarted, clock: Clock, *, whole_numbers: bool
) -> CallRecord:
    """Record of a call that has just ended, once `settle` has waited for its transfer."""
    lasted_ns = clock.now_ns() - call.began.now_ns
    recording = call.recording
    cause = phone.cause or "failed"
    if cause in GONE and phone.call_transfer.is_done:
        cause = "transferred"
    return CallRecord(
        session=call.session_id,
        began_unix_ns=call.began.unix_ns,
        ended_unix_ns=call.began.unix_ns + lasted_ns,
        agent=call.agent,
        carrier=phone.carrier,
        caller=shown_number(started.caller, whole=whole_numbers),
        called=shown_number(started.called, whole=whole_numbers),
        cause=cause,
        reason=phone.reason,
        turns=call.num_turns,
        p50_ms=call.p50_ms,
        p95_ms=call.p95_ms,
        keys=phone.num_keys,
        answered_by="" if phone.amd is None else phone.amd.answered_by,
        recording=recording.path.name if recording and recording.has_begun else None,
        lost_frames=phone.order.lost + phone.num_dropped,
        late_frames=phone.order.late,
    )


def log_call(record: CallRecord) -> None:
    seconds = (record.ended_unix_ns - record.began_unix_ns) / 1e9
    _log.info(
        "call %s by %s lasted %.0f s: %s; %d turns, %d keys, %d frames lost, %d late",
        record.session, record.carrier, seconds, record.cause, record.turns, record.keys,
        record.lost_frames, record.late_frames,
    )  # fmt: skip
