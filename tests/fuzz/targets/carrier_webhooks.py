"""Webhooks of telephone carriers: signature, call, status, and the answer to them.

An input is an address's query, a content type, a signature and a body, one a line, the body last.
The first byte chooses the carrier and the method, and whether the request is signed as the carrier
would. A request is read or refused in words, and the answer is XML or JSON.
"""

import base64
import hashlib
import hmac
import json
import random
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode
from xml.etree import ElementTree

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.telephony.carriers import plivo, twilio
from agent.telephony.carriers.table import CARRIERS
from agent.telephony.carriers.webhook import (
    Answer,
    SignatureError,
    Signed,
    WebhookError,
    WebhookRequest,
)
from tests.fuzz.target import MAX_MESSAGE_CHARS, JsonGrammar, Target

NOW: Final = 1_780_000_000
SECRET: Final = "0123456789abcdef0123456789abcdef"
_TELNYX: Final = Ed25519PrivateKey.from_private_bytes(bytes(32))
TELNYX_PUBLIC: Final = base64.b64encode(_TELNYX.public_key().public_bytes_raw()).decode()
STREAM: Final = "wss://voice.example.org/telephony/x/stream"
FORM: Final = b"application/x-www-form-urlencoded"
JSON: Final = b"application/json"

CARRIERS_WITH_WEBHOOKS: Final = [each for each in CARRIERS.values() if each.webhook is not None]
SIGNED: Final = 0x80
GET: Final = 0x40
"""Bits of the first byte."""

FIELDS: Final[dict[str, Any]] = {
    "CallSid": "CA1", "CallUUID": "u", "From": "+15550100", "To": "+15550199", "CallFrom": "1",
    "CallTo": "2", "Direction": "outbound-api", "CallStatus": "in-progress", "Status": "completed",
    "AnsweredBy": "human", "DialCallStatus": "no-answer", "uuid": "u", "conversation_uuid": "v",
    "from": "1", "to": "2", "status": "answered", "call_sid": "c", "direction": "outbound",
    "until": "1780000900", "agent": "sales", "call_status": "in-progress",
}  # fmt: skip
GRAMMAR: Final = JsonGrammar([FIELDS, {name: FIELDS[name] for name in list(FIELDS)[:6]}])


def examine(data: bytes) -> None:
    """One request to one carrier's webhook."""
    first = data[0] if data else 0
    carrier = CARRIERS_WITH_WEBHOOKS[first % len(CARRIERS_WITH_WEBHOOKS)]
    webhook = carrier.webhook
    assert webhook is not None
    query, kind, signature, body = (data[1:].split(b"\n", 3) + [b""] * 4)[:4]
    method = "GET" if first & GET else "POST"
    request = WebhookRequest(
        method,
        # As a server has it: what is no ASCII in an address was written as %XX.
        f"https://voice.example.org/telephony/{carrier.key}/voice?{_ascii(query)}",
        {"content-type": kind.decode("latin-1")},
        body if method == "POST" else b"",
        NOW,
    )
    sign = SIGNERS.get(carrier.key) if first & SIGNED else None
    secret = TELNYX_PUBLIC if carrier.key == "telnyx" else SECRET
    try:
        headers = _headers(signature.decode("latin-1")) if sign is None else sign(request)
    except WebhookError as error:  # its form can't be read, so nothing can sign it
        _check_words(error)
        return
    request = WebhookRequest(
        request.method, request.url, {**request.headers, **headers}, request.body, NOW
    )
    try:
        assert isinstance(webhook.check(request, secret), Signed)
    except (SignatureError, WebhookError) as error:
        _check_words(error)
        assert sign is None or isinstance(error, WebhookError), error
        assert SECRET not in str(error), error
    try:
        webhook.status(request)
        call = webhook.read(request)
    except WebhookError as error:
        _check_words(error)
        return
    assert call.call_id, call
    for answer in (
        webhook.connect(call, STREAM, "token"),
        webhook.reject(call, "All lines are busy.", is_busy=True),
        webhook.reject(call, "", is_busy=False),
    ):
        _check_answer(answer)


def _ascii(query: bytes) -> str:
    return "".join(chr(each) if 0x20 < each < 0x7F else f"%{each:02X}" for each in query)


def _headers(signature: str) -> dict[str, str]:
    """The signature in every carrier's header."""
    return {
        twilio.SIGNATURE: signature,
        twilio.SIGNED_HOW: signature,
        plivo.SIGNATURE: signature,
        plivo.NONCE: signature,
        "authorization": f"Bearer {signature}",
        "jambonz-signature": signature,
        "telnyx-signature-ed25519": signature,
        "telnyx-timestamp": str(NOW),
    }


def _twilio(request: WebhookRequest) -> dict[str, str]:
    return {twilio.SIGNATURE: twilio.signature_of(request.url, request.form, SECRET)}


def _plivo(request: WebhookRequest) -> dict[str, str]:
    made = plivo.signature_of(request.url, request.query, request.form, "n", SECRET)
    return {plivo.SIGNATURE: made, plivo.NONCE: "n"}


def _vonage(request: WebhookRequest) -> dict[str, str]:
    signed = request.body
    if request.method == "GET":
        asked = dict(request.query)
        signed = json.dumps(asked, separators=(",", ":"), ensure_ascii=False).encode()
    claims = {"iat": NOW, "payload_hash": hashlib.sha256(signed).hexdigest()}
    return {"authorization": f"Bearer {jwt.encode(claims, SECRET, algorithm='HS256')}"}


def _telnyx(request: WebhookRequest) -> dict[str, str]:
    made = _TELNYX.sign(f"{NOW}|".encode() + request.body)
    signature = base64.b64encode(made).decode()
    return {"telnyx-signature-ed25519": signature, "telnyx-timestamp": str(NOW)}


def _jambonz(request: WebhookRequest) -> dict[str, str]:
    made = hmac.new(SECRET.encode(), f"{NOW}.".encode() + request.body, hashlib.sha256)
    return {"jambonz-signature": f"t={NOW},v1={made.hexdigest()}"}


SIGNERS: Final[dict[str, Callable[[WebhookRequest], dict[str, str]]]] = {
    "twilio": _twilio,
    "telnyx": _telnyx,
    "plivo": _plivo,
    "vonage": _vonage,
    "jambonz": _jambonz,
}


def _check_words(error: Exception) -> None:
    assert str(error), error
    assert len(str(error)) <= MAX_MESSAGE_CHARS, error


def _check_answer(answer: Answer) -> None:
    if "xml" in answer.media_type:
        ElementTree.fromstring(answer.text)
    else:
        json.loads(answer.text.encode())


def change(data: bytes, chance: random.Random) -> bytes | None:
    """The JSON of the body, or its fields as a form, or as bytes."""
    if chance.random() < 0.4:
        return None
    head, *lines = data[:1] or b"\0", *data[1:].split(b"\n", 3)
    lines += [b""] * (4 - len(lines))
    fields = dict(FIELDS)
    GRAMMAR.change(fields, chance)
    text = GRAMMAR.change_text(lines[3], chance)
    if text is not None:
        lines[3] = text
    else:
        strings = {name: str(value).encode(errors="replace") for name, value in fields.items()}
        lines[chance.choice((0, 3))] = urlencode(strings).encode()
    first = bytes([chance.randrange(256)]) if chance.random() < 0.3 else head
    return first + b"\n".join(lines)


def seeds() -> list[bytes]:
    form, text = urlencode(FIELDS).encode(), json.dumps(FIELDS).encode()
    return [
        bytes([number + flags]) + b"\n".join((query, kind, b"x", body))
        for number in range(len(CARRIERS_WITH_WEBHOOKS))
        for flags, query, kind, body in (
            (SIGNED, b"a=b", FORM, form),
            (SIGNED, b"", JSON, text),
            (SIGNED | GET, form, FORM, b""),
            (0, form, FORM, form),
        )
    ] + [b"\x00\n" + FORM + b"\n" + base64.b64encode(b"x" * 64) + b"\n" + form]


TARGET: Final = Target(
    examine,
    seeds,
    change,
    words=[*(f"{name}=".encode() for name in GRAMMAR.names), b"%00", b"%ff", b"&", JSON, FORM],
)
