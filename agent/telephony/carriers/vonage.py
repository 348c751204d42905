"""Vonage: WebSocket endpoint and answer URL.

Media stream, from https://developer.vonage.com/en/voice/voice-api/concepts/websockets. Traps: audio
is binary, 16-bit samples, little-endian, and goes back in packets of exactly 20 ms; the headers of
our NCCO stand among the fields of the first message; there is no `stop`, the socket closes.

Webhook: a query or JSON in, an NCCO out, from
https://developer.vonage.com/en/voice/voice-api/webhook-reference,
https://developer.vonage.com/en/voice/voice-api/ncco-reference#connect and
https://developer.vonage.com/en/getting-started/concepts/webhooks#decoding-signed-webhooks. A
signature is a JSON web token (HS256, the account's signature secret) in the Authorization header,
whose `payload_hash` is the SHA-256 of the body, or of the query as JSON without white space. Traps:
the headers of a WebSocket endpoint hold at most 512 bytes; the stream describes its call by these
headers only.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .carrier import TOKEN, Carrier, Library
from .json_media_stream import fields_of, pressed, text_at, texts_of
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
    WebhookError,
    WebhookRequest,
    call_status,
    check_time,
    json_answer,
    text_of,
)

STREAM_TYPE: Final = re.compile(r"audio/l16;\s*rate=(8000|16000|24000)")
PACKET_MS: Final = 20

CONTENT_TYPE: Final = "audio/l16;rate=8000"
"""Format that the answer requests: telephone audio."""

MAX_HEADER: Final = 64
"""Characters of one header; an id has 36."""

MAX_JWT_CHARS: Final = 4096


class Vonage:
    """One stream."""

    name = "Vonage"
    says_stop = False
    sends_silence = True

    def __init__(self) -> None:
        self._media: MediaFormat | None = None

    def receive(self, frame: Frame) -> list[PhoneEvent]:
        """Raises StreamError."""
        if isinstance(frame, bytes):
            if self._media is None:
                raise StreamError("audio came before websocket:connected")
            return [CallerAudio(frame)]
        fields = fields_of(frame)
        match fields.get("event"):
            case "websocket:connected":
                return [self._start(text_at(fields, "content-type"), texts_of(fields, "headers"))]
            case "websocket:notify":
                return [MarkReached(text_at(fields, "payload.name"))]
            case "websocket:dtmf":
                return pressed(text_at(fields, "digit"))
            case _:
                return []

    def _start(self, content_type: str, headers: dict[str, str]) -> StreamStarted:
        if self._media is not None:
            raise StreamError("websocket:connected came twice")
        found = STREAM_TYPE.fullmatch(content_type.lower())
        if found is None:
            raise StreamError(f"audio as {content_type}; what is taken is audio/l16;rate=16000")
        self._media = MediaFormat("pcm16", int(found[1]))
        call_id = headers.get("call_uuid", "")
        parameters = {
            name: value for name, value in headers.items() if name not in ("event", "content-type")
        }
        return StreamStarted(
            call_id,
            call_id,
            self._media,
            headers.get("from", ""),
            headers.get("to", ""),
            parameters,
        )

    @property
    def frame_bytes(self) -> int:
        assert self._media is not None
        return self._media.rate_hz * PACKET_MS // 1000 * 2

    def audio(self, data: bytes) -> list[Frame]:
        size = self.frame_bytes
        return [data[first : first + size] for first in range(0, len(data), size)]

    def mark(self, name: str) -> list[Frame]:
        return [json.dumps({"action": "notify", "payload": {"name": name}})]

    def clear(self) -> list[Frame]:
        return [json.dumps({"action": "clear"})]

    def keys(self, digits: str) -> list[Frame]:
        return []

    def hang_up(self) -> list[Frame]:
        return []


class VonageWebhook:
    """Voice and status webhooks."""

    methods: Sequence[str] = ("GET", "POST")
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> Signed:
        """Return the hash of the body (any JSON layout) or of the query, or where there is none the
        signed part of the web token; and that part. Raises SignatureError, WebhookError."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > MAX_JWT_CHARS:
            raise SignatureError("there is no web token in the Authorization header")
        claims = _claims(token.strip(), secret)
        check_time(str(claims.get("iat", "")), request.now_unix_s)
        payload_hash = claims.get("payload_hash")
        if payload_hash is None and request.method == "POST":
            raise SignatureError("the web token has no payload_hash: nothing signs the body")
        if payload_hash is not None and not any(
            hmac.compare_digest(hashlib.sha256(each).hexdigest(), str(payload_hash).lower())
            for each in _payloads(request)
        ):
            raise SignatureError("the web token is of another body or query")
        claimed = token.strip().rpartition(".")[0]
        content = claimed if payload_hash is None else str(payload_hash).lower()
        return Signed(content.encode("utf-8", "replace"), claimed.encode("utf-8", "replace"))

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        fields = self._fields(request)
        return CarrierCall(
            text_of(fields, "uuid", "conversation_uuid"),
            text_of(fields, "from", optional=True),
            text_of(fields, "to", optional=True),
        )

    def status(self, request: WebhookRequest) -> CallStatus:
        """Raises WebhookError."""
        return call_status(self._fields(request), "uuid", "status")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        known = {"call_uuid": call.call_id, "from": call.caller, "to": call.called}
        headers = {name: value[:MAX_HEADER] for name, value in known.items() if value}
        endpoint = {
            "type": "websocket",
            "uri": stream_url,
            "content-type": CONTENT_TYPE,
            "headers": {TOKEN: token, **headers},
        }
        return json_answer([{"action": "connect", "endpoint": [endpoint]}])

    def reject(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        return json_answer([{"action": "talk", "text": words}])

    def _fields(self, request: WebhookRequest) -> Mapping[str, Any]:
        """Raises WebhookError."""
        return request.json if request.method == "POST" else dict(request.query)


def _claims(token: str, secret: str) -> Mapping[str, Any]:
    """Raises SignatureError."""
    try:
        import jwt  # only here: PyJWT is an extra
    except ImportError:
        raise SignatureError(
            "Vonage's signatures can't be checked without PyJWT: pip install 'halfsec[jwt]'"
        ) from None
    options: Any = {"verify_iat": False, "verify_exp": False, "verify_nbf": False}
    try:
        claims: Mapping[str, Any] = jwt.decode(token, secret, algorithms=["HS256"], options=options)
    except (jwt.PyJWTError, RecursionError):
        raise SignatureError("the web token is not signed with this signature secret") from None
    return claims


def _payloads(request: WebhookRequest) -> Iterator[bytes]:
    if request.method == "POST":
        yield request.body
        try:
            value: object = dict(request.json)
        except WebhookError:
            return
    else:
        value = dict(request.query)
    yield json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


CARRIER: Final = Carrier(
    key="vonage",
    name=Vonage.name,
    media_stream=Vonage,
    webhook=VonageWebhook(),
    secret_setting="vonage_signature_secret_env",
    is_signed_by_bearer=True,
    library=Library("jwt", "PyJWT", "jwt"),
)
