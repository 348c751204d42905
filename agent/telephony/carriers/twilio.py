"""Twilio: Media Streams, in both directions, and voice webhook. SignalWire and Fonoster use them.

Media stream, from https://www.twilio.com/docs/voice/media-streams/websocket-messages. Traps:
numbers are strings; payloads have no headers; a mark that `clear` overtakes comes back at once, as
if it had been played; the side that closes the socket ends the verb, and the call too if no verb
follows.

Webhook: a form in, TwiML out, from https://www.twilio.com/docs/usage/webhooks/webhooks-security and
https://www.twilio.com/docs/voice/twiml/stream. A signature is the HMAC-SHA1 of the whole address
as Twilio called it, query included, followed by the names and values of the form, sorted by name
and then by value, each pair once; HMAC-SHA256 for an account that signs with a shared key, which a
header says. Traps: the signed address may or may not contain the port;
a WebSocket's upgrade is signed with its wss address, to which Twilio has been seen to add a slash;
the query of a stream's address never arrives, hence `Parameter`; a caller who returns from a
transfer comes with the fields of the finished `Dial` beside those of the call
(https://www.twilio.com/docs/voice/twiml/dial#action), and can't be rejected any more.
"""

import base64
import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from .carrier import TOKEN, Carrier, SignedUpgrade
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
    text_of,
)
from .xml import element, parameter, xml_answer

SIGNATURE: Final = "x-twilio-signature"
SIGNED_HOW: Final = "x-twilio-webhooks-signature-settings"

TALKED: Final = ("completed", "answered")
"""Outcomes of a transfer after which the call is over."""

_HASHES: Final = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}
_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}


class Twilio(JsonStream):
    """One stream."""

    name = "Twilio"
    names = FieldNames(
        stream_id="start.streamSid",
        call_id="start.callSid",
        encoding="start.mediaFormat.encoding",
        rate="start.mediaFormat.sampleRate",
        parameters="start.customParameters",
        frame_stream_id="streamSid",
    )

    def audio(self, data: bytes) -> list[Frame]:
        return [self._frame("media", media={"payload": base64.b64encode(data).decode()})]

    def mark(self, name: str) -> list[Frame]:
        return [self._frame("mark", mark={"name": name})]

    def clear(self) -> list[Frame]:
        return [self._frame("clear")]

    def _frame(self, event: str, **fields: dict[str, str]) -> str:
        return json.dumps({"event": event, "streamSid": self.stream_id, **fields})


class TwilioWebhook:
    """Voice and status webhooks."""

    methods: Sequence[str] = ("GET", "POST")
    stream_has_call_id = True

    def check(self, request: WebhookRequest, secret: str) -> Signed:
        """Return the signature: the fields may be in any order. Raises SignatureError,
        WebhookError."""
        check_signature(spellings(request.url), request.form, request.headers, secret)
        return Signed(request.headers[SIGNATURE].encode())

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
        ours = dict(request.query)  # of the `action` address that the transfer set
        until = text_of(ours, "until", optional=True)
        return replace(
            call,
            transfer=went,
            is_over=went in TALKED or _is_past(until, request.now_unix_s),
            agent=text_of(ours, "agent", optional=True),
            until=until,
        )

    def status(self, request: WebhookRequest) -> CallStatus:
        """Raises WebhookError."""
        fields = dict(request.form if request.method == "POST" else request.query)
        return call_status(fields, "CallSid", "CallStatus")

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        stream = element("Stream", url=stream_url)
        stream.append(parameter(TOKEN, token))
        connect = element("Connect")
        connect.append(stream)
        return xml_answer(connect)

    def reject(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        if is_busy and not (call.is_outbound or call.transfer):  # the caller hears the busy tone
            return xml_answer(element("Reject", reason="busy"))
        said = [element("Say", words)] if words else []
        return xml_answer(*said, element("Hangup"))


def _is_past(until: str, now_unix_s: int) -> bool:
    """True once the call's time limit has passed: a request after that is a replay."""
    return until.isascii() and until.isdigit() and len(until) < 16 and int(until) <= now_unix_s


def check_signature(
    urls: Iterable[str],
    fields: Iterable[tuple[str, str]],
    headers: Mapping[str, str],
    auth_token: str,
) -> None:
    """Check that one of these spellings of the address was signed. Raises SignatureError."""
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
    for url in urls:  # all of them, so that the time reveals nothing
        made = signature_of(url, fields, auth_token, _HASHES[algorithm]).encode()
        matches |= hmac.compare_digest(made, presented)
    if not matches:
        raise SignatureError("the X-Twilio-Signature is of another address, form or auth token")


def check_upgrade(url: str, headers: Mapping[str, str], auth_token: str) -> None:
    """Check the signature of a WebSocket's upgrade. Raises SignatureError."""
    check_signature(upgrade_spellings(url), (), headers, auth_token)


def signature_of(
    url: str, fields: Iterable[tuple[str, str]], auth_token: str, hash_name: str = "sha1"
) -> str:
    """Signature in base64."""
    signed = url + "".join(name + value for name, value in sorted(set(fields)))
    digest = hmac.new(auth_token.encode(), signed.encode("utf-8", "surrogatepass"), hash_name)
    return base64.b64encode(digest.digest()).decode()


def spellings(url: str) -> Iterator[str]:
    """Spellings of an address: with its port and without."""
    yield url
    parts = urlsplit(url)
    host = parts.netloc.removesuffix(f":{parts.port}") if parts.port else parts.netloc
    port = parts.port or _PORTS[parts.scheme]
    for netloc in (host, f"{host}:{port}"):
        if netloc != parts.netloc:
            yield urlunsplit(parts._replace(netloc=netloc))


def upgrade_spellings(url: str) -> Iterator[str]:
    """Spellings of a WebSocket's address: those of `spellings`, each also with a final slash."""
    for each in spellings(url):
        yield each
        yield f"{each}/"


CARRIER: Final = Carrier(
    key="twilio",
    name=Twilio.name,
    media_stream=Twilio,
    webhook=TwilioWebhook(),
    secret_setting="twilio_auth_token_env",
    signed_upgrade=SignedUpgrade(SIGNATURE, check_upgrade, "own_twiml"),
)
