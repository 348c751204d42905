"""The address that Exotel's Voicebot applet asks for where to stream a call.

Written from https://docs.exotel.com/exotel-agentstream/stream-applet (an https address answers with
`{"url": "wss://..."}`) and https://developer.exotel.com/docs/agentstream/stream-voicebot-applet
(user and password in that address become an Authorization header). Exotel signs nothing: the
applet is given an address with a key in it, and the stream's address has the token for a password,
where no log keeps it.
"""

from collections.abc import Sequence

from .webhook import (
    Answer,
    CallNews,
    CarrierCall,
    SignatureError,
    WebhookRequest,
    call_news,
    json_answer,
    text_of,
)


class ExotelWebhook:
    name = "Exotel"
    methods: Sequence[str] = ("GET",)
    secret_setting = ""
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> bytes:
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

    def news(self, request: WebhookRequest) -> CallNews:
        """Raises WebhookError."""
        return call_news(dict(request.query), "CallSid", "Status")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        scheme, _, rest = stream_url.partition("://")
        return json_answer({"url": f"{scheme}://halfsec:{token}@{rest}"})

    def turn_away(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        """The flow goes on with what stands behind the applet."""
        answer = json_answer({"error": words})
        return Answer(answer.text, answer.media_type, 503)
