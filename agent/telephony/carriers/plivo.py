"""Plivo: Audio Streaming, in both directions, and answer URL. Vobiz uses them too.

Media stream, from
https://www.plivo.com/docs/voice-agents/audio-streaming/concepts/audio-streaming-reference.
Traps: commands have names of their own (`playAudio`, `checkpoint`, `clearAudio`), and so have their
replies; the byte order of its 16-bit samples is not documented, so mu-law is requested and nothing
else is taken; there is no `stop`, the socket closes.

Webhook: a form or a query in, Plivo's XML out, from
https://www.plivo.com/docs/voice/concepts/signature-validation,
https://www.plivo.com/docs/voice/xml/audio-streaming and plivo-python's `utils/signature_v3.py`. A
signature (V3) is the HMAC-SHA256 of the address with its query sorted, a point and the sorted form,
and a point and the nonce. Traps: where there is a form, the address ends with `?` or `.` even
without a query; the header may hold several signatures, separated by commas, one for each auth
token in force; extra headers hold letters and digits only, the token among them.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from .carrier import TOKEN, Carrier
from .json_media_stream import MAX_TEXT, FieldNames, JsonStream, at, fields_of, texts_of
from .media_stream import MULAW, Frame, PhoneEvent, StreamError, StreamStarted
from .webhook import (
    Answer,
    CallStatus,
    CarrierCall,
    SignatureError,
    Signed,
    WebhookRequest,
    call_status,
    text_of,
)
from .xml import element, xml_answer

SIGNATURE: Final = "x-plivo-signature-v3"
NONCE: Final = "x-plivo-signature-v3-nonce"


class Plivo(JsonStream):
    """One stream."""

    name = "Plivo"
    says_stop = False
    names = FieldNames(
        stream_id="start.streamId",
        call_id="start.callId",
        encoding="start.mediaFormat.encoding",
        rate="start.mediaFormat.sampleRate",
        parameters="",
        frame_stream_id="streamId",
        mark="name",
    )

    def __init__(self) -> None:
        super().__init__()
        self._readers["playedStream"] = self._mark

    def _start(self, fields: Mapping[str, Any]) -> list[PhoneEvent]:
        (started,) = super()._start(fields)
        assert isinstance(started, StreamStarted)
        if started.media != MULAW:
            raise StreamError(
                'Plivo was asked for other audio than contentType="audio/x-mulaw;rate=8000"'
            )
        parameters = _pairs(at(fields, "extra_headers"))
        return [StreamStarted(started.stream_id, started.call_id, MULAW, parameters=parameters)]

    def audio(self, data: bytes) -> list[Frame]:
        payload = base64.b64encode(data).decode()
        media = {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": payload}
        return [json.dumps({"event": "playAudio", "media": media})]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"event": "checkpoint", "streamId": self.stream_id, "name": name})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"event": "clearAudio", "streamId": self.stream_id})]

    def keys(self, digits: str) -> list[Frame]:
        return [json.dumps({"event": "sendDTMF", "dtmf": digits})]


def _pairs(text: Any) -> dict[str, str]:
    """Parse extra headers: `a=b;c=d` as in Plivo's example, with commas as in the XML that requests
    them, or an object. Their format is not documented further."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        return {}
    if text.lstrip().startswith('{"'):
        return texts_of(fields_of(text), "extra_headers")
    parts = text.strip().strip("{}").replace(",", ";").split(";")
    pairs = (part.partition("=") for part in parts)
    return {name.strip(): value.strip() for name, found, value in pairs if found and name.strip()}


class PlivoWebhook:
    """Voice and status webhooks."""

    methods: Sequence[str] = ("GET", "POST")
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> Signed:
        """Return the signature: the fields may be in any order. Raises SignatureError,
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
        return Signed(made)

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        fields = dict(request.form if request.method == "POST" else request.query)
        return CarrierCall(
            text_of(fields, "CallUUID"),
            text_of(fields, "From", optional=True),
            text_of(fields, "To", optional=True),
            text_of(fields, "Direction", optional=True) == "outbound",
        )

    def status(self, request: WebhookRequest) -> CallStatus:
        """Raises WebhookError."""
        fields = dict(request.form if request.method == "POST" else request.query)
        return call_status(fields, "CallUUID", "CallStatus")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        return xml_answer(
            element(
                "Stream",
                stream_url,
                bidirectional="true",
                keepCallAlive="true",
                contentType="audio/x-mulaw;rate=8000",
                extraHeaders=f"{TOKEN}={token}",
            )
        )

    def reject(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
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
    """Signature in base64. `form`: empty for GET."""
    address = urlunsplit(urlsplit(url)._replace(query="", fragment=""))
    asked = "&".join(f"{name}={value}" for name, value in sorted(query))
    sent = "".join(name + value for name, value in sorted(form))
    if asked or sent:
        address += f"?{asked}"
    if asked and sent:
        address += "."
    signed = f"{address}{sent}.{nonce}".encode("utf-8", "surrogatepass")
    return base64.b64encode(hmac.new(auth_token.encode(), signed, hashlib.sha256).digest()).decode()


CARRIER: Final = Carrier(
    key="plivo",
    name=Plivo.name,
    media_stream=Plivo,
    webhook=PlivoWebhook(),
    secret_setting="plivo_auth_token_env",
    token_names=(TOKEN, "X-PH-token"),
)
