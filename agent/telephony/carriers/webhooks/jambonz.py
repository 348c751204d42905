"""jambonz' calling webhook: JSON in, verbs out; and its signatures.

Written from https://docs.jambonz.org/reference/webhooks/call-hook-post,
https://docs.jambonz.org/verbs/verbs/listen, https://docs.jambonz.org/verbs/verbs/sip-decline and
https://docs.jambonz.org/guides/features/securing-http-endpoints. A signature is
`t=SECONDS,v1=HEX`, HMAC-SHA256 over the time, a point and the body; a query is not in it, so only
POST is taken.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from .webhook import (
    Answer,
    CallNews,
    CarrierCall,
    SignatureError,
    WebhookRequest,
    call_news,
    check_time,
    json_answer,
    text_of,
)

RATE_HZ: Final = 8_000
"""Telephones have no more in them. What goes back has to be the same."""


class JambonzWebhook:
    name = "jambonz"
    methods: Sequence[str] = ("POST",)
    secret_setting = "jambonz_webhook_secret_env"
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> bytes:
        """Returns the body. Raises SignatureError."""
        parts = [
            part.strip().partition("=")
            for part in request.headers.get("jambonz-signature", "").split(",")
        ]
        signed_at = next((value for name, _, value in parts if name == "t"), "")
        offered = [value for name, _, value in parts if name == "v1"]
        if not signed_at or not offered:
            raise SignatureError("there is no Jambonz-Signature with a time and a signature")
        check_time(signed_at, request.now_unix_s)
        signed = f"{signed_at}.".encode() + request.body
        made = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest().encode()
        if not any(hmac.compare_digest(made, each.encode("utf-8", "replace")) for each in offered):
            raise SignatureError("the Jambonz-Signature is of another body, time or secret")
        return request.body

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        fields = request.json
        return CarrierCall(
            text_of(fields, "call_sid"),
            text_of(fields, "from", optional=True),
            text_of(fields, "to", optional=True),
            fields.get("direction") == "outbound",
        )

    def news(self, request: WebhookRequest) -> CallNews:
        """Raises WebhookError."""
        return call_news(request.json, "call_sid", "call_status")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        listen = {
            "verb": "listen",
            "url": stream_url,
            "sampleRate": RATE_HZ,
            "mixType": "mono",
            "passDtmf": True,
            "bidirectionalAudio": {"enabled": True, "streaming": True, "sampleRate": RATE_HZ},
            "metadata": {"token": token},
        }
        return json_answer([listen, {"verb": "hangup"}])

    def turn_away(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        if call.is_outbound:
            return json_answer([{"verb": "hangup"}])
        status, reason = (486, "Busy Here") if is_busy else (480, "Temporarily Unavailable")
        return json_answer([{"verb": "sip:decline", "status": status, "reason": reason}])
