"""Twilio's voice webhook: a form in, TwiML out; and its signatures.

Written from https://www.twilio.com/docs/usage/webhooks/webhooks-security and
https://www.twilio.com/docs/voice/twiml/stream. A signature is the HMAC-SHA1 of the whole address
as Twilio called it, query included, and behind it the names and values of the form, sorted by name
and then by value, each pair once; HMAC-SHA256 for an account that signs with a shared key, which a
header says. Traps: the port may stand in the address that was signed or not;
a WebSocket's upgrade is signed with its wss address, to which Twilio has been seen to add a slash;
what is put into the query of a stream's address never arrives, hence `Parameter`; whoever was
transferred comes back with the fields of the `Dial` that is over beside those of his own call
(https://www.twilio.com/docs/voice/twiml/dial#action), and can't be rejected any more.
"""

import base64
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from .xml import element, parameter, xml_answer

SIGNATURE: Final = "x-twilio-signature"
SIGNED_HOW: Final = "x-twilio-webhooks-signature-settings"

TALKED: Final = ("completed", "answered")
"""How a transfer went that needs no second thought."""

_HASHES: Final = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}
_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}


class TwilioWebhook:
    name = "Twilio"
    methods: Sequence[str] = ("GET", "POST")
    secret_setting = "twilio_auth_token_env"
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> bytes:
        """Returns the signature: the fields may be in any order. Raises SignatureError,
        WebhookError."""
        check_signature(spellings(request.url), request.form, request.headers, secret)
        return request.headers[SIGNATURE].encode()

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        fields = dict(request.form if request.method == "POST" else request.query)
        call = CarrierCall(
            text_of(fields, "CallSid"),
            text_of(fields, "From", optional=True),
            text_of(fields, "To", optional=True),
            text_of(fields, "Direction", optional=True).startswith("outbound"),
            text_of(fields, "AnsweredBy", optional=True),
        )
        went = text_of(fields, "DialCallStatus", optional=True)
        if not went:
            return call
        ours = dict(request.query)  # of the address that we gave it for this
        until = text_of(ours, "until", optional=True)
        return replace(
            call,
            transfer=went,
            is_over=went in TALKED or _is_past(until, request.now_unix_s),
            agent=text_of(ours, "agent", optional=True),
            until=until,
        )

    def news(self, request: WebhookRequest) -> CallNews:
        """Raises WebhookError."""
        fields = dict(request.form if request.method == "POST" else request.query)
        return call_news(fields, "CallSid", "CallStatus")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        stream = element("Stream", url=stream_url)
        stream.append(parameter("token", token))
        connect = element("Connect")
        connect.append(stream)
        return xml_answer(connect)

    def turn_away(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        if is_busy and not (call.is_outbound or call.transfer):  # he hears the tone that means it
            return xml_answer(element("Reject", reason="busy"))
        said = [element("Say", words)] if words else []
        return xml_answer(*said, element("Hangup"))


def _is_past(until: str, now_unix_s: int) -> bool:
    """By then the longest call was over: who asks now has recorded the question."""
    return until.isascii() and until.isdigit() and len(until) < 16 and int(until) <= now_unix_s


def check_signature(
    urls: Iterable[str],
    fields: Iterable[tuple[str, str]],
    headers: Mapping[str, str],
    auth_token: str,
) -> None:
    """Whether one of these spellings of the address was signed. Raises SignatureError."""
    signature = headers.get(SIGNATURE, "")
    if not signature:
        raise SignatureError("there is no X-Twilio-Signature")
    settings = (part.strip().partition("=") for part in headers.get(SIGNED_HOW, "").split(","))
    algorithm = next((value for name, _, value in settings if name == "algorithm"), "HMAC_SHA1")
    if algorithm not in _HASHES:
        raise SignatureError(f"the X-Twilio-Signature is made by {algorithm[:40]!r}, unknown here")
    fields = list(fields)
    presented = signature.encode("utf-8", "replace")
    matches = False
    for url in urls:  # all of them, so that the time tells nothing
        made = signature_of(url, fields, auth_token, _HASHES[algorithm]).encode()
        matches |= hmac.compare_digest(made, presented)
    if not matches:
        raise SignatureError("the X-Twilio-Signature is of another address, form or auth token")


def signature_of(
    url: str, fields: Iterable[tuple[str, str]], auth_token: str, hash_name: str = "sha1"
) -> str:
    """Base64."""
    signed = url + "".join(name + value for name, value in sorted(set(fields)))
    digest = hmac.new(auth_token.encode(), signed.encode("utf-8", "surrogatepass"), hash_name)
    return base64.b64encode(digest.digest()).decode()


def spellings(url: str) -> Iterator[str]:
    """An address with its port and without."""
    yield url
    parts = urlsplit(url)
    host = parts.netloc.removesuffix(f":{parts.port}") if parts.port else parts.netloc
    port = parts.port or _PORTS[parts.scheme]
    for netloc in (host, f"{host}:{port}"):
        if netloc != parts.netloc:
            yield urlunsplit(parts._replace(netloc=netloc))


def upgrade_spellings(url: str) -> Iterator[str]:
    """The same of a WebSocket's address, and with a slash behind it."""
    for each in spellings(url):
        yield each
        yield f"{each}/"
