"""`/telephony/CARRIER/voice` and `/status`: webhook endpoints of carriers.

The answer connects the call to `/telephony/CARRIER/stream`, with a token for this one call: it
authenticates the stream, and links it to what the webhook told of the call, such as its numbers. A
further request about the same call gets the same token. A repeated signed request, from a carrier
that lost the answer or from an attacker who recorded it, gets the first answer, whose token works
once. That includes requests in another notation with a valid signature: with the fields in another
order, or with a query that the carrier does not sign. It also includes requests at the other of the
two addresses, which some carriers do not sign either: a recorded status opens no call, and a
recorded request for instructions ends none. There the time that they sign tells a replay from
another request with an equal body. In a fleet the answer is remembered in the state store,
by all servers and over their restarts.

If no line (place for a call) is free, the caller hears a message in the carrier's own way; an
unauthenticated carrier gets an error, which its own debugger shows.
"""

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Final, Literal

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from agent.calls.registry import CallRegistry
from agent.calls.service import CallService
from agent.calls.session_start import session_start
from agent.calls.state_store.store import StateStoreError
from agent.calls.stream_tokens import CallTokens, ExpectedCall
from agent.config.schema import Config
from agent.http.auth.principal import Principal, principal_of
from agent.http.auth.telephony_credentials import PREFIX
from agent.http.json_body import RefusedError, read_body
from agent.http.refusal import STOPPING, HttpRefusal, shown
from agent.http.responses import CLIENT_GONE
from agent.telephony.carriers.carrier import Carrier
from agent.telephony.carriers.webhook import (
    TOLERANCE_S,
    Answer,
    CarrierCall,
    Signed,
    Webhook,
    WebhookError,
    WebhookRequest,
)
from agent.telephony.outbound.endpoint import NO_PUBLIC_URL
from latency_budget.account.clock import unix_ns

from .signatures import PhoneSignatures

MAX_BODY_BYTES: Final = 64 << 10
"""Largest body. Carriers send one or two kilobytes; jambonz the whole INVITE as well."""

BODY_TIMEOUT_S: Final = 10.0
"""Time limit of the body. Carriers wait no longer for an answer."""

BUSY_CODES: Final = ("busy", "rate_limit_exceeded", "over_budget")
BUSY_WORDS: Final = "All lines are busy. Please call again later."
CLOSED_WORDS: Final = "We can't take your call at the moment. Please call again later."
UNANSWERED_WORDS: Final = "Nobody answers there at the moment. Please call again later."
"""Spoken to a caller who returns from a transfer and finds no line."""

MAX_ANSWERED: Final = 4096
"""Answers to signed requests that are remembered, over all calls; then the oldest is forgotten.
Some carriers sign no time, so that a replay of any age has a valid signature."""

ANSWERED_S: Final = 7 * 86_400
"""Time in s for which the state store of a fleet remembers an answer: some 1 kB each."""

NOTED_S: Final = 2 * TOLERANCE_S
"""Time in s for which it remembers a status. A carrier that does not sign the address signs the
time, and that is not accepted for longer."""

NOTED: Final = Answer("", "text/plain", 204)

_Endpoint = Literal["voice", "status"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Authenticated:
    """Request of an authenticated sender."""

    carrier: Carrier
    webhook: Webhook
    sender: Principal
    content: WebhookRequest
    signed: Signed | None
    """As in `WebhookSender`."""

    @property
    def question(self) -> bytes | None:
        """Digest of a request for instructions, the same for each sending and notation; None for
        an unsigned one."""
        return None if self.signed is None else self._digest("", self.signed.content)

    @property
    def report(self) -> bytes | None:
        """Digest of a report of a call's status; None for an unsigned one."""
        return None if self.signed is None else self._digest(" status", self.signed.content)

    def sending(self, endpoint: _Endpoint) -> bytes | None:
        """Digest of this one sending to an endpoint, in every notation; None where the signature
        is wrong at another endpoint."""
        if self.signed is None or self.signed.moment is None:
            return None
        return self._digest(f" to {endpoint} {self.signed.moment!r}", self.signed.content)

    def _digest(self, kind: str, content: bytes) -> bytes:
        return hashlib.sha256(f"{self.carrier.key}{kind}\n".encode() + content).digest()


_Handler = Callable[[_Authenticated], Awaitable[Answer]]


class PhoneWebhooks:
    """Webhook endpoints. One instance for all carriers. Belongs to the event loop."""

    def __init__(
        self,
        config: Config,
        calls: CallRegistry,
        service: CallService,
        tokens: CallTokens,
        signatures: PhoneSignatures,
        on_answered: Callable[[str, str, str], None],
    ) -> None:
        """`on_answered`: called with the carrier's name, its id of a call, and its
        `answered_by`."""
        self._calls = calls
        self._service = service
        self._tokens = tokens
        self._signatures = signatures
        self._on_answered = on_answered
        self._store = service.state_store
        self._answered: dict[bytes, Answer] = {}
        """Answers to signed requests, by digest."""
        self._noted: dict[bytes, Answer] = {}
        """The same of statuses: several a call, which displace no answer."""

    @property
    def _config(self) -> Config:
        """The settings of calls that begin now."""
        return self._service.config

    async def voice(self, request: Request, carrier: Carrier, webhook: Webhook) -> Response:
        """Answer a request for a call's instructions."""
        return await self._respond(request, carrier, webhook, self._answer)

    async def status(self, request: Request, carrier: Carrier, webhook: Webhook) -> Response:
        """Take a call's new status. The line reserved for a call that is over is released."""
        return await self._respond(request, carrier, webhook, self._note)

    async def _respond(
        self, request: Request, carrier: Carrier, webhook: Webhook, handler: _Handler
    ) -> Response:
        try:
            received = await self._authenticated(request, carrier, webhook)
            if isinstance(received, HttpRefusal):
                answer: Answer | HttpRefusal = received
            else:
                answer = await handler(received)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        except WebhookError as error:
            answer = _unreadable(str(error))
        if isinstance(answer, HttpRefusal):
            _log.warning("%s: refused a webhook: %d %s", carrier.key, answer.status, answer.message)
            return answer.response()
        headers = {"cache-control": "no-store"}  # it contains a token
        return Response(answer.text, answer.status, headers, answer.media_type)

    async def _authenticated(
        self, request: Request, carrier: Carrier, webhook: Webhook
    ) -> _Authenticated | HttpRefusal:
        """Read and authenticate a request. Raises WebhookError, ClientDisconnect."""
        if not self._config.telephony.public_url:
            return NO_PUBLIC_URL
        principal = principal_of(request.scope)
        refusal = self._signatures.may_ask(carrier, principal)
        if refusal is not None:
            return refusal
        body = await _body(request)
        if isinstance(body, HttpRefusal):
            return body
        content = WebhookRequest(
            request.method,
            self._signatures.url_of(request.scope),
            {name.lower(): value for name, value in request.headers.items()},
            body,
            unix_ns() // 10**9,
        )
        sender = self._signatures.of_webhook(carrier, webhook, principal, content)
        if isinstance(sender, HttpRefusal):
            return sender
        return _Authenticated(carrier, webhook, sender.principal, content, sender.signed)

    async def _answer(self, received: _Authenticated) -> Answer:
        """Answer a voice webhook. Raises WebhookError."""
        webhook = received.webhook
        # Carriers send a voice webhook for a caller who has hung up: Twilio after a transfer, Plivo
        # where its application has no other address for that.
        if webhook.status(received.content).is_over:
            return await self._note(received)
        digest = received.question
        known = await self._known(digest, received.sending("status"))
        if known is not None:
            return known
        call = webhook.read(received.content)
        answer = self._connected(received, call)
        # A sender with a key may repeat requests. A caller may return from two transfers with equal
        # requests; those contain the end of the time limit.
        if digest and not call.transfer:
            _keep(self._answered, digest, answer)
        if (sent := received.sending("voice")) is not None:
            _keep(self._noted, sent, NOTED)
        token = self._tokens.issued_for(received.sender, received.carrier.name, call.call_id)
        await self._service.fleet_tokens.publish(self._tokens, [token] if token else [])
        if digest and not call.transfer:
            answer = self._answered[digest] = await self._remember(digest, answer, ANSWERED_S)
        if sent is not None:
            await self._remember(sent, NOTED, NOTED_S)
        return answer

    async def _known(self, *digests: bytes | None) -> Answer | None:
        """The answer that a request with one of these digests got before, at any server."""
        asked = [each for each in digests if each is not None]
        for digest in asked:
            if known := self._answered.get(digest) or self._noted.get(digest):
                return known
        if not self._store.is_shared:
            return None
        try:
            for digest in asked:
                if known := _answer_of(await self._store.get(_name_of(digest))):
                    return known
        except StateStoreError as error:
            _log.warning("whether a webhook is a repeated one is known here only: %s", error)
        return None

    async def _remember(self, digest: bytes, answer: Answer, life_s: int) -> Answer:
        """Keep the answer for all servers. Returns the one that counts: the first."""
        if not self._store.is_shared:
            return answer
        name, text = _name_of(digest), json.dumps(asdict(answer)).encode()
        try:
            if await self._store.put_if_absent(name, text, life_s):
                return answer
            first = _answer_of(await self._store.get(name))
        except StateStoreError as error:
            _log.warning("a webhook's answer is kept here only: %s", error)
            return answer
        return first or answer

    async def _note(self, received: _Authenticated) -> Answer:
        """Take a status; a repeated request has no effect. Raises WebhookError."""
        status = received.webhook.status(received.content)
        digests = [received.report, received.sending("status")]
        if await self._known(*digests, received.sending("voice")) is not None:
            return NOTED
        for digest in filter(None, digests):
            _keep(self._noted, digest, NOTED)
        if status.call_id and status.is_over:
            self._tokens.ended(received.sender, received.carrier.name, status.call_id)
        elif status.call_id and status.answered_by and received.sender.kind == "carrier":
            self._on_answered(received.carrier.name, status.call_id, status.answered_by)
        for digest in filter(None, digests):
            await self._remember(digest, NOTED, NOTED_S)
        return NOTED

    def _connected(self, received: _Authenticated, call: CarrierCall) -> Answer:
        """Instructions for a call: connect it to a stream, or reject it."""
        carrier, webhook, sender = received.carrier, received.webhook, received.sender
        settings = self._config.telephony
        if call.is_over:
            return webhook.reject(call, "", is_busy=False)
        url = settings.address_of(f"{PREFIX}{carrier.key}/stream", is_socket=True)
        if (token := self._tokens.issued_for(sender, carrier.name, call.call_id)) is not None:
            return webhook.connect(call, url, token)  # the answer was lost on its way
        wanted = call.agent or settings.agent_at(call.caller if call.is_outbound else call.called)
        start = self._no_line(sender) or session_start(self._config, sender, wanted)
        if isinstance(start, HttpRefusal):
            is_busy = start.code in BUSY_CODES
            _log.warning(
                "%s: rejected call %s: %s", carrier.name, shown(call.call_id), start.message
            )
            words = BUSY_WORDS if is_busy else CLOSED_WORDS
            words = UNANSWERED_WORDS if call.transfer else words
            return webhook.reject(call, words, is_busy=is_busy)
        expected = ExpectedCall(
            sender,
            start.agent,
            call.caller,
            call.called,
            call.parameters,
            carrier.name,
            call.call_id,
            webhook.stream_has_call_id,
        )
        _log.info(
            "%s announces call %s: %s answers", carrier.name, shown(call.call_id), start.agent
        )
        return webhook.connect(call, url, self._tokens.issue(expected))

    def _no_line(self, sender: Principal) -> HttpRefusal | None:
        """Refusal without a free line. A webhook ends no call that waits for its client: the stream
        does, when it comes."""
        if self._calls.draining:
            return STOPPING
        refusal = self._service.refusal(sender, None, self._calls.waiting.can_give_way)
        if refusal is not None:
            self._service.count_load_refusal(refusal)
        return refusal


async def _body(request: Request) -> bytes | HttpRefusal:
    """Read the body within its limits. Raises ClientDisconnect."""
    try:
        return await read_body(request, MAX_BODY_BYTES, BODY_TIMEOUT_S)
    except RefusedError as error:
        code = "timeout" if error.status == 408 else "body_too_large"
        return HttpRefusal(error.status, f"The body {error.problem}.", code)


def _keep(answers: dict[bytes, Answer], digest: bytes, answer: Answer) -> None:
    """Keep one more answer of those in memory."""
    answers[digest] = answer
    while len(answers) > MAX_ANSWERED:
        del answers[next(iter(answers))]


def _name_of(digest: bytes) -> str:
    """Name of an answer in the state store."""
    return f"webhook:{digest.hex()}"


def _answer_of(text: bytes | None) -> Answer | None:
    """The answer that was kept. One that can't be read counts as refused: it was answered once."""
    if text is None:
        return None
    try:
        fields = json.loads(text)
        return Answer(str(fields["text"]), str(fields["media_type"]), int(fields["status"]))
    except (ValueError, KeyError, TypeError):
        return NOTED


def _unreadable(problem: str) -> HttpRefusal:
    return HttpRefusal(400, f"This is no webhook of this carrier's: {problem}.", "invalid_webhook")
