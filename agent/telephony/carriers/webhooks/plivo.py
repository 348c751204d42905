"""Plivo's answer URL: a form or a query in, Plivo's XML out; and its signatures.

Written from https://www.plivo.com/docs/voice/concepts/signature-validation,
https://www.plivo.com/docs/voice/xml/audio-streaming and the rules of plivo-python's
`utils/signature_v3.py`. A signature (V3) is the HMAC-SHA256 of the address, the query sorted in it,
the sorted form behind a point, and the nonce behind another. Traps: where there is a form, the
address ends with `?` or `.` even without a query; several signatures may stand in the header,
parted by commas, one for each auth token that is in force; extra headers have letters and digits
only, the token among them.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from .webhook import (
    Answer,
    CallNews,
    CarrierCall,
    SignatureError,
    WebhookRequest,
    call_news,
    text_of,
)
from .xml import element, xml_answer

SIGNATURE: Final = "x-plivo-signature-v3"
NONCE: Final = "x-plivo-signature-v3-nonce"


class PlivoWebhook:
    name = "Plivo"
    methods: Sequence[str] = ("GET", "POST")
    secret_setting = "plivo_auth_token_env"
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> bytes:
        """Returns the signature: the fields may be in any order. Raises SignatureError,
        WebhookError."""
        presented, nonce = request.headers.get(SIGNATURE, ""), request.headers.get(NONCE, "")
        if not presented or not nonce:
            raise SignatureError("there is no X-Plivo-Signature-V3 with its nonce")
        made = signature_of(request.url, request.query, request.form, nonce, secret).encode()
        offered = [each.strip().encode("utf-8", "replace") for each in presented.split(",")]
        if not any(hmac.compare_digest(made, each) for each in offered):
            raise SignatureError(
                "the X-Plivo-Signature-V3 is of another address, form or auth token"
            )
        return made

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        fields = dict(request.form if request.method == "POST" else request.query)
        return CarrierCall(
            text_of(fields, "CallUUID"),
            text_of(fields, "From", optional=True),
            text_of(fields, "To", optional=True),
            text_of(fields, "Direction", optional=True) == "outbound",
        )

    def news(self, request: WebhookRequest) -> CallNews:
        """Raises WebhookError."""
        fields = dict(request.form if request.method == "POST" else request.query)
        return call_news(fields, "CallUUID", "CallStatus")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        return xml_answer(
            element(
                "Stream",
                stream_url,
                bidirectional="true",
                keepCallAlive="true",
                contentType="audio/x-mulaw;rate=8000",
                extraHeaders=f"token={token}",
            )
        )

    def turn_away(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        if is_busy and not call.is_outbound:
            return xml_answer(element("Hangup", reason="busy"))
        return xml_answer(element("Speak", words), element("Hangup"))


def signature_of(
    url: str,
    query: Iterable[tuple[str, str]],
    form: Iterable[tuple[str, str]],
    nonce: str,
    auth_token: str,
) -> str:
    """Base64. `form`: empty for GET."""
    address = urlunsplit(urlsplit(url)._replace(query="", fragment=""))
    asked = "&".join(f"{name}={value}" for name, value in sorted(query))
    sent = "".join(name + value for name, value in sorted(form))
    if asked or sent:
        address += f"?{asked}"
    if asked and sent:
        address += "."
    signed = f"{address}{sent}.{nonce}".encode("utf-8", "surrogatepass")
    return base64.b64encode(hmac.new(auth_token.encode(), signed, hashlib.sha256).digest()).decode()
