"""Webhooks with missing, broken or invented fields: a clear refusal, and never worse."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.telephony.carriers import plivo, twilio
from agent.telephony.carriers.webhook import (
    FORM,
    MAX_ESCAPES,
    MAX_FIELDS,
    SignatureError,
    WebhookError,
    WebhookRequest,
)
from tests.agent.telephony.carriers.test_webhooks import (
    AT,
    NOW,
    SECRET,
    TELNYX_PUBLIC,
    VONAGE_SECRET,
    WEBHOOKS,
    post,
    sent,
)


@pytest.mark.parametrize("carrier", WEBHOOKS)
@pytest.mark.parametrize(
    "request_",
    [
        post({}),
        post({"CallSid": "x" * 600, "CallUUID": "x" * 600}),
        post({str(number): "" for number in range(MAX_FIELDS + 1)}),
        sent([1, 2]),
        sent({"call_sid": 7, "uuid": {"a": 1}}),
        WebhookRequest("POST", AT, {"content-type": FORM}, b"a=\xff", NOW),
        WebhookRequest("POST", AT, {"content-type": FORM}, b"a=%ff", NOW),
        WebhookRequest("POST", AT, {"content-type": "application/json"}, b"[" * 5000, NOW),
        WebhookRequest("POST", AT, {"content-type": "text/plain"}, b"\0", NOW),
        WebhookRequest("GET", f"{AT}?%ff", {}, b"", NOW),
        WebhookRequest("GET", f"{AT}?CallSid=1&uuid=1&a={'%41' * (MAX_ESCAPES + 1)}", {}, b"", NOW),
        WebhookRequest("GET", AT, {}, b"", NOW),
    ],
)
def test_what_is_no_webhook_is_told_so(carrier: str, request_: WebhookRequest) -> None:
    with pytest.raises(WebhookError):
        WEBHOOKS[carrier].read(request_)


@pytest.mark.parametrize("carrier", ["twilio", "plivo"])
def test_what_is_long_to_decode_is_not_decoded_for_strangers(carrier: str) -> None:
    headers = {
        "content-type": FORM,
        twilio.SIGNATURE: "x",
        plivo.SIGNATURE: "x",
        plivo.NONCE: "1",
    }
    for letters, error in ((MAX_ESCAPES, SignatureError), (MAX_ESCAPES + 1, WebhookError)):
        request = WebhookRequest("POST", AT, headers, b"a=" + b"%41" * letters, NOW)
        with pytest.raises(error):
            WEBHOOKS[carrier].check(request, SECRET)


@pytest.mark.parametrize("status", [[], {}, 5, None, ["completed"]])
def test_a_status_that_is_no_text_is_no_end(status: Any) -> None:
    for carrier, fields in (
        ("jambonz", ("call_sid", "call_status")),
        ("vonage", ("uuid", "status")),
    ):
        news = WEBHOOKS[carrier].status(sent(dict(zip(fields, ("u", status), strict=True))))
        assert (news.call_id, news.is_over) == ("u", False)


@pytest.mark.parametrize("carrier", [each for each in WEBHOOKS if each != "exotel"])
@given(body=st.binary(max_size=60), header=st.text(max_size=60), query=st.text(max_size=20))
def test_garbage_is_refused_and_never_worse(
    carrier: str, body: bytes, header: str, query: str
) -> None:
    signed = {
        "content-type": FORM,
        "x-twilio-signature": header,
        "telnyx-signature-ed25519": header,
        "telnyx-timestamp": str(NOW),
        plivo.SIGNATURE: header,
        plivo.NONCE: header,
        "authorization": f"Bearer {header}",
        "jambonz-signature": f"t={NOW},v1={header}",
    }
    request = WebhookRequest("POST", f"{AT}?{query}", signed, body, NOW)
    secret = {"telnyx": TELNYX_PUBLIC, "vonage": VONAGE_SECRET}.get(carrier, SECRET)
    with pytest.raises((SignatureError, WebhookError)):
        WEBHOOKS[carrier].check(request, secret)
