"""Webhook: the carrier-neutral interface of voice and status webhooks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from agent.codec.json_frame import read_frame
from agent.errors import ClientError

MAX_FIELDS: Final = 256
"""Fields of a form. Twilio sends some forty."""

MAX_ESCAPES: Final = 4096
"""Percent-encoded characters (%XX) of a form. Each costs the event loop half a microsecond, before
the sender is authenticated: a form of 64 KiB of them delayed all calls by 10 ms. Twilio sends some
fifty, and one or two thousand with the results of its add-ons."""

MAX_TEXT: Final = 512
"""Characters of an id or a number."""

TOLERANCE_S: Final = 300
"""Largest difference between a signed time and ours: five minutes, as in the carriers' own
libraries. An older request may be a replay."""

ENDED: Final = frozenset(
    {
        *("completed", "failed", "busy", "no-answer", "unanswered", "timeout"),
        *("canceled", "cancelled", "cancel", "rejected"),
    }
)
"""Carriers' statuses of a call that is over or failed."""

FORM: Final = "application/x-www-form-urlencoded"


class Signed(NamedTuple):
    """A signed request, for replay detection: neither part depends on the notation of the signed
    parts, nor on unsigned parts, which a replay can change."""

    content: bytes
    """The same for each sending of the request."""
    moment: bytes | None = None
    """What was signed with it that differs between two sendings, such as the time; empty where
    nothing does. None where the signature covers the address: it is wrong at another endpoint
    then."""


class SignatureError(Exception):
    """The request is not shown to be the carrier's. The message says why; it names no secret."""


class WebhookError(Exception):
    """The request can't be read. The message says why."""


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One HTTP request of a carrier."""

    method: str
    url: str
    """Address that the carrier called: configured public address, path and query as received."""
    headers: Mapping[str, str]
    """Headers by names in lower case."""
    body: bytes
    now_unix_s: int

    @property
    def query(self) -> list[tuple[str, str]]:
        """Names and values of the query. Raises WebhookError."""
        return _pairs(urlsplit(self.url).query)

    @property
    def form(self) -> list[tuple[str, str]]:
        """Names and values of the body's form; empty without a body. Raises WebhookError."""
        if not self.body:
            return []
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != FORM:
            raise WebhookError(f"the body is sent as {kind[:80]!r}; what is read is {FORM}")
        try:
            return _pairs(self.body.decode())
        except UnicodeDecodeError:
            raise WebhookError("the body is not UTF-8") from None

    @property
    def json(self) -> Mapping[str, Any]:
        """JSON object of the body. Raises WebhookError."""
        try:
            return read_frame(self.body)
        except ClientError as error:
            raise WebhookError(error.message) from None


@dataclass(frozen=True, slots=True)
class CarrierCall:
    """Call that a voice webhook asks about."""

    call_id: str
    caller: str
    called: str
    is_outbound: bool = False
    """A call that this server placed, answered now."""
    answered_by: str = ""
    """The carrier's result of answering machine detection: "human", "machine_start"; or empty."""
    transfer: str = ""
    """The carrier's outcome of the transfer from which the call returns: "busy"; or empty."""
    agent: str = ""
    """Agent of the call before the transfer."""
    is_over: bool = False
    """The call ends here: its transfer was answered, or its time limit has passed."""
    until: str = ""
    """End of the call's time limit, in seconds since 1970; empty: unknown."""

    @property
    def parameters(self) -> dict[str, str]:
        """Facts for the stream's parameters, by name."""
        known = {
            "direction": "outbound" if self.is_outbound else "",
            "answered_by": self.answered_by,
            "transfer": self.transfer,
            "until": self.until,
        }
        return {name: value for name, value in known.items() if value}


@dataclass(frozen=True, slots=True)
class CallStatus:
    """Status that a carrier reports of a call."""

    call_id: str
    """The carrier's id; empty: the report names no call."""
    is_over: bool
    answered_by: str = ""
    """As in `CarrierCall`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Response body of a webhook."""

    text: str
    media_type: str
    status: int = 200


class Webhook(Protocol):
    """Webhooks of one carrier. Stateless."""

    methods: Sequence[str]
    """HTTP methods."""
    stream_has_call_id: bool
    """The stream's first message has the same id of the call as the webhook."""

    def check(self, request: WebhookRequest, secret: str) -> Signed:
        """Check the signature. Return what was signed. Raises SignatureError, WebhookError."""
        ...

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Read the call that the request asks about. Raises WebhookError."""
        ...

    def status(self, request: WebhookRequest) -> CallStatus:
        """Read the status of a call. Raises WebhookError."""
        ...

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        """Instructions to stream the call to this address (wss), with this token."""
        ...

    def reject(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        """Instructions to reject the call, with these words where the carrier can speak. No words:
        hang up."""
        ...


def json_answer(value: object) -> Answer:
    return Answer(json.dumps(value, separators=(",", ":")), "application/json")


def text_of(fields: Mapping[str, Any], *names: str, optional: bool = False) -> str:
    """First of these fields that is present; empty without one if `optional`. Raises
    WebhookError."""
    for name in names:
        found = fields.get(name)
        if isinstance(found, str) and found and len(found) <= MAX_TEXT:
            return found
    if optional:
        return ""
    raise WebhookError(f"{names[0]} is missing: a text of 1 to {MAX_TEXT} characters")


def call_status(fields: Mapping[str, Any], id_field: str, status_field: str) -> CallStatus:
    """Read the status of a call from these fields. Raises WebhookError."""
    return CallStatus(
        text_of(fields, id_field, optional=True),
        text_of(fields, status_field, optional=True) in ENDED,
        text_of(fields, "AnsweredBy", optional=True),
    )


def check_time(signed: str, now_unix_s: int) -> None:
    """Check a signed time, in seconds since 1970. Raises SignatureError."""
    if not (signed.isascii() and signed.isdigit() and len(signed) <= 12):
        raise SignatureError("its time is no number of seconds since 1970")
    if abs(now_unix_s - int(signed)) > TOLERANCE_S:
        raise SignatureError(
            f"it was signed {abs(now_unix_s - int(signed))} s from now by the clock of this "
            f"machine; at most {TOLERANCE_S} are allowed. Is the clock right?"
        )


def _pairs(text: str) -> list[tuple[str, str]]:
    if text.count("%") > MAX_ESCAPES:
        raise WebhookError(f"more than {MAX_ESCAPES} characters of it are written as %XX")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except UnicodeDecodeError:
        raise WebhookError("the fields are not UTF-8") from None
    except ValueError:
        raise WebhookError(f"there are more than {MAX_FIELDS} fields") from None
