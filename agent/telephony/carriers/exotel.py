"""Exotel: AgentStream for its Voicebot applet, and the applet's request for the stream's address.

Media stream, from https://developer.exotel.com/docs/agentstream/websocket-protocol. Traps: audio is
16-bit samples, little-endian, under the name of `audio/x-raw`; a frame has a multiple of 320 bytes.

Webhook, from https://docs.exotel.com/exotel-agentstream/stream-applet (an https address answers
with `{"url": "wss://..."}`) and
https://developer.exotel.com/docs/agentstream/stream-voicebot-applet (user and password in that
address become an Authorization header). Exotel signs nothing: the applet's address has a key in it,
and the stream's address has the token as its password, which no log keeps.
"""

import base64
import json
from collections.abc import Sequence
from typing import Final

from .carrier import Carrier
from .json_media_stream import FieldNames, JsonStream
from .media_stream import Frame
from .webhook import (
    Answer,
    CallStatus,
    CarrierCall,
    SignatureError,
    Signed,
    WebhookRequest,
    call_status,
    json_answer,
    text_of,
)


class Exotel(JsonStream):
    """One stream."""

    name = "Exotel"
    frame_bytes = 320
    names = FieldNames(
        stream_id="start.stream_sid",
        call_id="start.call_sid",
        encoding="start.media_format.encoding",
        rate="start.media_format.sample_rate",
        parameters="start.custom_parameters",
        caller="start.from",
        called="start.to",
        frame_stream_id="stream_sid",
    )

    def audio(self, data: bytes) -> list[Frame]:
        return [self._frame("media", media={"payload": base64.b64encode(data).decode()})]

    def mark(self, name: str) -> list[Frame]:
        return [self._frame("mark", mark={"name": name})]

    def clear(self) -> list[Frame]:
        return [self._frame("clear")]

    def _frame(self, event: str, **fields: dict[str, str]) -> str:
        return json.dumps({"event": event, "stream_sid": self.stream_id, **fields})


class ExotelWebhook:
    """Voice and status webhooks."""

    methods: Sequence[str] = ("GET",)
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> Signed:
        """Raises SignatureError."""
        raise SignatureError("Exotel signs nothing")

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        fields = dict(request.query)
        return CarrierCall(
            text_of(fields, "CallSid"),
            text_of(fields, "CallFrom", "From", optional=True),
            text_of(fields, "CallTo", "To", optional=True),
        )

    def status(self, request: WebhookRequest) -> CallStatus:
        """Raises WebhookError."""
        return call_status(dict(request.query), "CallSid", "Status")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        scheme, _, rest = stream_url.partition("://")
        return json_answer({"url": f"{scheme}://halfsec:{token}@{rest}"})

    def reject(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        """The call flow continues after the applet."""
        answer = json_answer({"error": words})
        return Answer(answer.text, answer.media_type, 503)


CARRIER: Final = Carrier(
    key="exotel", name=Exotel.name, media_stream=Exotel, webhook=ExotelWebhook()
)
