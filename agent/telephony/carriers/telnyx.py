"""Telnyx: Media Streaming, in both directions, and voice webhook.

Media stream (`stream_bidirectional_mode` = `rtp`), from
https://developers.telnyx.com/api-reference/websockets/stream-call-media-over-websocket. Traps:
frames may arrive out of order; `media.chunk` is their sequence number; frames to Telnyx name no
stream; parameters may come as a list of names and values, which is how its API takes them; a frame
holds 20 ms to 30 s of audio.

Webhook: a form in, TeXML out, from
https://developers.telnyx.com/docs/voice/programmable-voice/texml-fundamentals,
https://developers.telnyx.com/docs/voice/programmable-voice/texml-verbs/stream and
https://developers.telnyx.com/docs/messaging/messages/receiving-webhooks#webhook-signing. A
signature is Ed25519 over the time, a bar and the body; it does not cover the address and its query,
so only POST is taken. Trap: without `bidirectionalMode="rtp"` the caller hears nothing.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .carrier import TOKEN, Carrier
from .json_media_stream import FieldNames, JsonStream, at
from .media_stream import Frame
from .webhook import (
    Answer,
    CallStatus,
    CarrierCall,
    SignatureError,
    Signed,
    WebhookRequest,
    call_status,
    check_time,
    text_of,
)
from .xml import element, parameter, xml_answer


class Telnyx(JsonStream):
    """One stream."""

    name = "Telnyx"
    names = FieldNames(
        stream_id="stream_id",
        call_id="start.call_control_id",
        encoding="start.media_format.encoding",
        rate="start.media_format.sample_rate",
        parameters="start.custom_parameters",
        caller="start.from",
        called="start.to",
        frame_stream_id="stream_id",
        sequence="media.chunk",
    )

    def _parameters(self, found: Any) -> Any:
        if not isinstance(found, list):
            return found
        named = [(at(each, "name"), at(each, "value")) for each in found]
        return {name: value for name, value in named if isinstance(name, str)}

    def audio(self, data: bytes) -> list[Frame]:
        payload = base64.b64encode(data).decode()
        return [json.dumps({"event": "media", "media": {"payload": payload}})]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"event": "mark", "mark": {"name": name}})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"event": "clear"})]


class TelnyxWebhook:
    """Voice and status webhooks."""

    methods: Sequence[str] = ("POST",)
    stream_has_call_id = False
    """A TeXML call has a CallSid in the webhook, and a call_control_id in the stream."""

    def check(self, request: WebhookRequest, secret: str) -> Signed:
        """`secret`: the public key, base64. Return body and time. Raises SignatureError."""
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
        return Signed(request.body, signed_at.encode())

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

    def status(self, request: WebhookRequest) -> CallStatus:
        """Raises WebhookError."""
        fields = dict(request.form)
        return call_status(fields, "CallSid", "CallStatus")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        # A codec that is not requested is the call's own: A-law, or a worse one.
        stream = element(
            "Stream",
            url=stream_url,
            codec="PCMU",
            bidirectionalMode="rtp",
            bidirectionalCodec="PCMU",
        )
        stream.append(parameter(TOKEN, token))
        connect = element("Connect")
        connect.append(stream)
        return xml_answer(connect)

    def reject(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        if is_busy and not call.is_outbound:
            return xml_answer(element("Reject", reason="busy"))
        return xml_answer(element("Say", words), element("Hangup"))


CARRIER: Final = Carrier(
    key="telnyx",
    name=Telnyx.name,
    media_stream=Telnyx,
    webhook=TelnyxWebhook(),
    secret_setting="telnyx_public_key",
    token_names=(TOKEN, "x-telnyx-streaming-auth-token"),
)
