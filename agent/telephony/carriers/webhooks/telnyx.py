"""Telnyx's voice webhook: a form in, TeXML out; and its signatures.

Written from https://developers.telnyx.com/docs/voice/programmable-voice/texml-fundamentals,
https://developers.telnyx.com/docs/voice/programmable-voice/texml-verbs/stream and
https://developers.telnyx.com/docs/messaging/messages/receiving-webhooks#webhook-signing. A
signature is Ed25519 over the time, a bar and the body; the address and its query are not in it, so
only POST is taken. Trap: without `bidirectionalMode="rtp"` the caller hears nothing.
"""

import base64
import binascii
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .webhook import (
    Answer,
    CallNews,
    CarrierCall,
    SignatureError,
    WebhookRequest,
    call_news,
    check_time,
    text_of,
)
from .xml import element, parameter, xml_answer


class TelnyxWebhook:
    name = "Telnyx"
    methods: Sequence[str] = ("POST",)
    secret_setting = "telnyx_public_key"
    stream_has_call_id = False
    """Of a TeXML call the webhook has a CallSid, and the stream a call_control_id."""

    def check(self, request: WebhookRequest, secret: str) -> bytes:
        """`secret`: the public key, base64. Returns the body. Raises SignatureError."""
        signature = request.headers.get("telnyx-signature-ed25519", "")
        signed_at = request.headers.get("telnyx-timestamp", "")
        if not signature or not signed_at:
            raise SignatureError("there is no telnyx-signature-ed25519 with a telnyx-timestamp")
        check_time(signed_at, request.now_unix_s)
        try:
            key = Ed25519PublicKey.from_public_bytes(base64.b64decode(secret, validate=True))
        except (ValueError, binascii.Error):
            raise SignatureError(
                "telephony.telnyx_public_key is no public key of Telnyx's: base64 of 32 bytes"
            ) from None
        try:
            key.verify(base64.b64decode(signature), f"{signed_at}|".encode() + request.body)
        except (InvalidSignature, ValueError, binascii.Error):
            raise SignatureError(
                "the telnyx-signature-ed25519 is of another body, time or key"
            ) from None
        return request.body

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        fields = dict(request.form)
        return CarrierCall(
            text_of(fields, "CallSid", "CallControlId"),
            text_of(fields, "From", optional=True),
            text_of(fields, "To", optional=True),
            text_of(fields, "Direction", optional=True).startswith("outbound"),
            text_of(fields, "AnsweredBy", optional=True),
        )

    def news(self, request: WebhookRequest) -> CallNews:
        """Raises WebhookError."""
        fields = dict(request.form)
        return call_news(fields, "CallSid", "CallStatus")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        # What is not said is as the call has it, which may be A-law, or worse.
        stream = element(
            "Stream",
            url=stream_url,
            codec="PCMU",
            bidirectionalMode="rtp",
            bidirectionalCodec="PCMU",
        )
        stream.append(parameter("token", token))
        connect = element("Connect")
        connect.append(stream)
        return xml_answer(connect)

    def turn_away(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        if is_busy and not call.is_outbound:
            return xml_answer(element("Reject", reason="busy"))
        return xml_answer(element("Say", words), element("Hangup"))
