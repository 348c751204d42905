"""jambonz: `listen` verb with `bidirectionalAudio.streaming`, and calling webhook.

Media stream, from https://docs.jambonz.org/verbs/verbs/listen. Traps: the subprotocol
`audio.jambonz.org` has to be accepted; audio is binary, 16-bit samples, little-endian, one channel
(`mixType: mono`), and goes back at the rate that the verb names for it, which has to be the same; a
mark says whether it was played or cleared.

Webhook: JSON in, verbs out, from https://docs.jambonz.org/reference/webhooks/call-hook-post,
https://docs.jambonz.org/verbs/verbs/listen, https://docs.jambonz.org/verbs/verbs/sip-decline and
https://docs.jambonz.org/guides/features/securing-http-endpoints. A signature is
`t=SECONDS,v1=HEX`, HMAC-SHA256 over the time, a point and the body; it does not cover the query, so
only POST is taken.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .carrier import TOKEN, Carrier
from .json_media_stream import fields_of, number_at, pressed, text_at, texts_of
from .media_stream import (
    CallerAudio,
    Frame,
    MarkReached,
    MediaFormat,
    PhoneEvent,
    StreamError,
    StreamStarted,
)
from .webhook import (
    Answer,
    CallStatus,
    CarrierCall,
    SignatureError,
    Signed,
    WebhookRequest,
    call_status,
    check_time,
    json_answer,
    text_of,
)

SUBPROTOCOL: Final = "audio.jambonz.org"
RATES: Final = (8_000, 16_000, 24_000)
"""Hz."""

OWN_FIELDS: Final = frozenset({"callSid", "from", "to", "mixType", "sampleRate"})

RATE_HZ: Final = 8_000
"""Rate that the answer requests, in both directions: that of telephone audio."""


class Jambonz:
    """One stream."""

    name = "jambonz"
    says_stop = False
    sends_silence = True
    frame_bytes = 2

    def __init__(self) -> None:
        self._media: MediaFormat | None = None

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Raises StreamError."""
        if isinstance(frame, bytes):
            if self._media is None:
                raise StreamError("audio came before the first message, which describes the call")
            return [CallerAudio(frame)]
        fields = fields_of(frame)
        if self._media is None:
            return [self._start(fields)]
        if fields.get("event") == "dtmf":
            return pressed(text_at(fields, "dtmf"))
        if fields.get("type") == "mark" and text_at(fields, "data.event") == "playout":
            return [MarkReached(text_at(fields, "data.name"))]
        return []

    def _start(self, fields: Mapping[str, Any]) -> StreamStarted:
        rate_hz = number_at(fields, "sampleRate")
        mixed = text_at(fields, "mixType", optional=True) or "mono"
        if rate_hz not in RATES or mixed != "mono":
            raise StreamError(
                f"{mixed} audio at {rate_hz} Hz; what is taken is mono at 8000, 16000 or 24000 Hz"
            )
        self._media = MediaFormat("pcm16", rate_hz)
        call_id = text_at(fields, "callSid")
        # The verb's `metadata` is merged into the call's own fields, or stands beside them.
        given = {**texts_of(fields, ""), **texts_of(fields.get("metadata"), "metadata")}
        return StreamStarted(
            call_id,
            call_id,
            self._media,
            text_at(fields, "from", optional=True),
            text_at(fields, "to", optional=True),
            {name: given[name] for name in given if name not in OWN_FIELDS},
        )

    def audio(self, data: bytes) -> list[Frame]:
        return [data]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"type": "mark", "data": {"name": name}})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"type": "killAudio"}), json.dumps({"type": "clearMarks"})]

    def keys(self, digits: str) -> list[Frame]:
        return []

    def hang_up(self) -> list[Frame]:
        return [json.dumps({"type": "disconnect"})]


class JambonzWebhook:
    """Voice and status webhooks."""

    methods: Sequence[str] = ("POST",)
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> Signed:
        """Return body and time. Raises SignatureError."""
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
        return Signed(request.body, signed_at.encode())

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        fields = request.json
        return CarrierCall(
            text_of(fields, "call_sid"),
            text_of(fields, "from", optional=True),
            text_of(fields, "to", optional=True),
            fields.get("direction") == "outbound",
        )

    def status(self, request: WebhookRequest) -> CallStatus:
        """Raises WebhookError."""
        return call_status(request.json, "call_sid", "call_status")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        listen = {
            "verb": "listen",
            "url": stream_url,
            "sampleRate": RATE_HZ,
            "mixType": "mono",
            "passDtmf": True,
            "bidirectionalAudio": {"enabled": True, "streaming": True, "sampleRate": RATE_HZ},
            "metadata": {TOKEN: token},
        }
        return json_answer([listen, {"verb": "hangup"}])

    def reject(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        if call.is_outbound:
            return json_answer([{"verb": "hangup"}])
        status, reason = (486, "Busy Here") if is_busy else (480, "Temporarily Unavailable")
        return json_answer([{"verb": "sip:decline", "status": status, "reason": reason}])


CARRIER: Final = Carrier(
    key="jambonz",
    name=Jambonz.name,
    media_stream=Jambonz,
    webhook=JambonzWebhook(),
    secret_setting="jambonz_webhook_secret_env",
    subprotocols=(SUBPROTOCOL,),
)
