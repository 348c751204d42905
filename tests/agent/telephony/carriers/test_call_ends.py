"""Carriers' news of calls: which of them say that one is over, or what has answered it."""

import pytest

from agent.telephony.carriers.webhook import CallStatus, WebhookRequest
from tests.agent.telephony.carriers.test_webhooks import AT, WEBHOOKS, post, sent


@pytest.mark.parametrize(
    ("carrier", "request_", "ended"),
    [
        ("twilio", post({"CallSid": "CA1", "CallStatus": "no-answer"}), "CA1"),
        ("twilio", post({"CallSid": "CA1", "CallStatus": "in-progress"}), ""),
        ("twilio", sent({}, "GET", f"{AT}?CallSid=CA1&CallStatus=canceled"), "CA1"),
        ("twilio", post({}), ""),
        ("telnyx", post({"CallSid": "v3:x", "CallStatus": "completed"}), "v3:x"),
        ("plivo", post({"CallUUID": "u", "CallStatus": "busy"}), "u"),
        ("exotel", sent({}, "GET", f"{AT}?CallSid=c&Status=completed"), "c"),
        ("vonage", sent({"uuid": "u", "status": "unanswered"}), "u"),
        ("vonage", sent({"uuid": "u", "status": "answered"}), ""),
        ("vonage", sent({"reason": "an error of the NCCO"}), ""),
        ("jambonz", sent({"call_sid": "s", "call_status": "failed"}), "s"),
    ],
)
def test_the_end_of_a_call_is_read(carrier: str, request_: WebhookRequest, ended: str) -> None:
    news = WEBHOOKS[carrier].status(request_)
    assert (news.is_over, news.call_id if news.is_over else "") == (bool(ended), ended)


def test_what_has_answered_is_read() -> None:
    news = WEBHOOKS["twilio"].status(post({"CallSid": "CA1", "AnsweredBy": "machine_start"}))
    assert news == CallStatus("CA1", False, "machine_start")
