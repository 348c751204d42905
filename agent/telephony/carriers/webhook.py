"""Webhook: the carrier-neutral interface of voice and status webhooks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from agent.codec.json_frame import read_frame
from agent.errors import ClientError

MAX_FIELDS: Final = 256
"""Of a form. Twilio sends some forty."""

MAX_ESCAPES: Final = 4096
"""Characters of a form that are written as %XX. Each costs the event loop half a microsecond, and
that before anything shows who asks: a form of 64 KiB that is made of them held all calls up for
10 ms. Twilio sends some fifty, and a thousand or two with what its add-ons have found out."""

MAX_TEXT: Final = 512
"""Characters of an id or a number."""

TOLERANCE_S: Final = 300
"""By how much the time that a carrier signs may differ from ours: five minutes, as the carriers'
own libraries have it. What is older may be somebody's recording of a request."""

ENDED: Final = frozenset(
    {
        *("completed", "failed", "busy", "no-answer", "unanswered", "timeout"),
        *("canceled", "cancelled", "cancel", "rejected"),
    }
)
"""What carriers call a call that is over, or never came about."""

FORM: Final = "application/x-www-form-urlencoded"


class SignatureError(Exception):
    """Nothing shows that the carrier asks. The message says why; it names no secret."""


class WebhookError(Exception):
    """What the carrier asks can't be read. The message says why."""


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One question of a carrier's."""

    method: str
    url: str
    """As the carrier has it: the configured public address, path and query as they came."""
    headers: Mapping[str, str]
    """By names in small letters."""
    body: bytes
    now_unix_s: int

    @property
    def query(self) -> list[tuple[str, str]]:
        """Raises WebhookError."""
        return _pairs(urlsplit(self.url).query)

    @property
    def form(self) -> list[tuple[str, str]]:
        """Of the body; empty where there is none. Raises WebhookError."""
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
        """Of the body. Raises WebhookError."""
        try:
            return read_frame(self.body)
        except ClientError as error:
            raise WebhookError(error.message) from None


@dataclass(frozen=True, slots=True)
class CarrierCall:
    """The call that is asked about."""

    call_id: str
    caller: str
    called: str
    is_outbound: bool = False
    """We called, and somebody has answered."""
    answered_by: str = ""
    """As the carrier calls it, where it listened for machines: "human", "machine_start"."""
    transfer: str = ""
    """How the transfer went from which the call comes back, as the carrier calls it: "busy"."""
    agent: str = ""
    """Who had the call before that."""
    is_over: bool = False
    """It was transferred, and they have talked, or its longest time is over: nobody is needed any
    more."""
    until: str = ""
    """When its longest time is over, in seconds since 1970; empty: nobody said."""

    @property
    def told(self) -> dict[str, str]:
        """What is to be known of the call beside its numbers, by name."""
        known = {
            "direction": "outbound" if self.is_outbound else "",
            "answered_by": self.answered_by,
            "transfer": self.transfer,
            "until": self.until,
        }
        return {name: value for name, value in known.items() if value}


@dataclass(frozen=True, slots=True)
class CallNews:
    call_id: str
    """Empty: of no call that is known here."""
    is_over: bool
    answered_by: str = ""
    """As with `CarrierCall`."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    media_type: str
    status: int = 200


class Webhook(Protocol):
    """One carrier's. Without state."""

    methods: Sequence[str]
    """HTTP methods."""
    stream_has_call_id: bool
    """The stream's first message has the id of the call that the webhook has."""

    def check(self, request: WebhookRequest, secret: str) -> bytes:
        """Returns what tells this question from all others that were signed: the same, however its
        signed parts are written and whatever stands in the others, for those are anybody's. Raises
        SignatureError, WebhookError."""
        ...

    def read(self, request: WebhookRequest) -> CarrierCall:
        """Raises WebhookError."""
        ...

    def news(self, request: WebhookRequest) -> CallNews:
        """What has become of a call. Raises WebhookError."""
        ...

    def connect(self, call: CarrierCall, stream_url: str, token: str) -> Answer:
        """Stream the call to this address (wss), and hand this token on with it."""
        ...

    def turn_away(self, call: CarrierCall, words: str, *, is_busy: bool) -> Answer:
        """Let the caller know that there is no line, in words where the carrier can say some. No
        words: end the call."""
        ...


def json_answer(value: object) -> Answer:
    return Answer(json.dumps(value, separators=(",", ":")), "application/json")


def text_of(fields: Mapping[str, Any], *names: str, optional: bool = False) -> str:
    """The first of these fields that is there. Raises WebhookError."""
    for name in names:
        found = fields.get(name)
        if isinstance(found, str) and found and len(found) <= MAX_TEXT:
            return found
    if optional:
        return ""
    raise WebhookError(f"{names[0]} is missing: a text of 1 to {MAX_TEXT} characters")


def call_news(fields: Mapping[str, Any], id_field: str, status_field: str) -> CallNews:
    """As `Webhook.news`. Raises WebhookError."""
    return CallNews(
        text_of(fields, id_field, optional=True),
        text_of(fields, status_field, optional=True) in ENDED,
        text_of(fields, "AnsweredBy", optional=True),
    )


def check_time(signed: str, now_unix_s: int) -> None:
    """A time in seconds since 1970, as it was signed. Raises SignatureError."""
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
