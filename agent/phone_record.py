"""What is kept of a telephone call that is over.

Numbers of callers are personal data: where the settings do not ask for them, only the last two
digits are kept, which tell two calls apart and nobody from anybody else.
"""

import logging
import re
from typing import Final

from latency_budget.call_records import CallRecord
from latency_budget.clock import Clock

from .call import Call
from .phone_call import PhoneCall
from .wire.telephony.line import StreamStarted

KEPT_DIGITS: Final = 2

_NUMBER: Final = re.compile(r"\+?[0-9](?:[ ()/.\-]{0,2}[0-9]){6,16}")
"""A telephone number, however it is written."""

GONE: Final = ("caller_hung_up", "lost")
"""How it looks when a carrier takes a call that is transferred off its stream."""

_log = logging.getLogger(__name__)


def shown_number(number: str, *, whole: bool) -> str:
    """As it may be kept and logged. `whole`: as it is."""
    if whole or not number:
        return number
    digits = [each for each in number if each.isdigit()]
    return f"...{''.join(digits[-KEPT_DIGITS:])}"


def shown_numbers(text: str, *, whole: bool) -> str:
    """A text that somebody else wrote, as it may be logged: numbers in it as `shown_number` has
    them."""
    return text if whole else _NUMBER.sub(lambda found: shown_number(found[0], whole=False), text)


async def record_of(
    call: Call, phone: PhoneCall, started: StreamStarted, clock: Clock, *, whole_numbers: bool
) -> CallRecord:
    """Of a call that has ended just now. Waits for the carrier's word on a transfer: who handed the
    call on may have it taken away before he hears so."""
    lasted_ns = clock.now_ns() - call.began.now_ns
    recording = call.recording
    cause = phone.cause or "failed"
    if cause in GONE and await phone.handing_on.is_done():
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
