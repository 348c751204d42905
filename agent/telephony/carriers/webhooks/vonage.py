"""Vonage's answer URL: a query or JSON in, an NCCO out; and its signatures.

Written from https://developer.vonage.com/en/voice/voice-api/webhook-reference,
https://developer.vonage.com/en/voice/voice-api/ncco-reference#connect and
https://developer.vonage.com/en/getting-started/concepts/webhooks#decoding-signed-webhooks. A
signature is a web token (HS256, the account's signature secret) in the Authorization header, whose
`payload_hash` is the SHA-256 of the body, or of the query as JSON without white space. Traps: the
headers of a WebSocket endpoint have room for 512 bytes; the stream tells nothing of its call but
these headers.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .webhook import (
    Answer,
    CallNews,
    CarrierCall,
    SignatureError,
    WebhookError,
    WebhookRequest,
    call_news,
    check_time,
    json_answer,
    text_of,
)

CONTENT_TYPE: Final = "audio/l16;rate=8000"
"""Telephones have no more in them."""

MAX_HEADER: Final = 64
"""Characters of one; an id has 36."""

MAX_JWT_CHARS: Final = 4096


class VonageWebhook:
    name = "Vonage"
    methods: Sequence[str] = ("GET", "POST")
    secret_setting = "vonage_signature_secret_env"
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> bytes:
        """Returns the hash of the body, which may be laid out in any way, or of the query; where
        there is none what is signed of the web token. Raises SignatureError, WebhookError."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > MAX_JWT_CHARS:
            raise SignatureError("there is no web token in the Authorization header")
        claims = _claims(token.strip(), secret)
        check_time(str(claims.get("iat", "")), request.now_unix_s)
        promised = claims.get("payload_hash")
        if promised is None and request.method == "POST":
            raise SignatureError("the web token has no payload_hash: nothing signs the body")
        if promised is not None and not any(
            hmac.compare_digest(hashlib.sha256(each).hexdigest(), str(promised).lower())
            for each in _payloads(request)
        ):
            raise SignatureError("the web token is of another body or query")
        told = token.strip().rpartition(".")[0] if promised is None else str(promised).lower()
        return told.encode("utf-8", "replace")

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        fields = self._fields(request)
        return CarrierCall(
            text_of(fields, "uuid", "conversation_uuid"),
            text_of(fields, "from", optional=True),
            text_of(fields, "to", optional=True),
        )

    def news(self, request: WebhookRequest) -> CallNews:
        """Raises WebhookError."""
        return call_news(self._fields(request), "uuid", "status")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        told = {"call_uuid": call.call_id, "from": call.caller, "to": call.called}
        headers = {name: value[:MAX_HEADER] for name, value in told.items() if value}
        endpoint = {
            "type": "websocket",
            "uri": stream_url,
            "content-type": CONTENT_TYPE,
            "headers": {"token": token, **headers},
        }
        return json_answer([{"action": "connect", "endpoint": [endpoint]}])

    def turn_away(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
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
            "Vonage's signatures can't be checked without PyJWT: pip install -e '.[jwt]'"
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
