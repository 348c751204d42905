"""`/telephony/CARRIER/voice`: a carrier asks what is to become of a call.

The answer has it streamed to `/telephony/CARRIER/stream`, with a token that is good for this one
call: by it the stream is believed, and what the webhook told of the call, its numbers, is known
there too. Where there is no line the caller is told so, in the carrier's own way; a carrier that is
not believed gets an error, which its own debugger shows.
"""

import logging
from collections.abc import Mapping
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from latency_budget.clock import unix_ns

from .call_desk import CallDesk
from .calls import Calls
from .config import Config
from .patience import patience
from .phone_access import PREFIX, CallTokens, ExpectedCall
from .phone_signatures import PhoneSignatures
from .principal import Principal, principal_of
from .realtime_socket import STOPPING
from .session_start import session_start
from .visitors import Refusal, shown
from .wire.webhooks import WEBHOOKS
from .wire.webhooks.webhook import Answer, CarrierCall, WebhookError, WebhookRequest

MAX_BODY_BYTES: Final = 64 << 10
"""Carriers send a kilobyte or two; jambonz the whole INVITE as well."""

BODY_TIMEOUT_S: Final = 10.0
"""Until all of it is there. Carriers wait for no answer longer than that."""

CLIENT_GONE: Final = 499

NO_PUBLIC_URL: Final = Refusal(
    404,
    "telephony.public_url is not set: nobody here knows the address at which carriers reach this "
    "server, so calls can't be streamed to it.",
    "not_configured",
)
BUSY_CODES: Final = ("busy", "rate_limit_exceeded", "over_budget")
BUSY_WORDS: Final = "All lines are busy. Please call again later."
CLOSED_WORDS: Final = "We can't take your call at the moment. Please call again later."
UNANSWERED_WORDS: Final = "Nobody answers there at the moment. Please call again later."
"""To whom was transferred, and finds no line where he comes back."""

VOICE_PATHS: Final[Mapping[str, str]] = {f"{PREFIX}{name}/voice": name for name in WEBHOOKS}

_log = logging.getLogger(__name__)


class PhoneWebhooks:
    """Answers carriers. One instance for all of them. Belongs to the event loop."""

    def __init__(
        self,
        config: Config,
        calls: Calls,
        desk: CallDesk,
        tokens: CallTokens,
        signatures: PhoneSignatures,
    ) -> None:
        self._config = config
        self._calls = calls
        self._desk = desk
        self._tokens = tokens
        self._signatures = signatures

    async def serve(self, request: Request) -> Response:
        """One question."""
        carrier = VOICE_PATHS[request.scope["path"]]
        try:
            answer = await self._answer(request, carrier)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        except WebhookError as error:
            answer = _unreadable(str(error))
        if isinstance(answer, Refusal):
            _log.warning("%s: refused a webhook: %d %s", carrier, answer.status, answer.message)
            return answer.response()
        headers = {"cache-control": "no-store"}  # there is a token in it
        return Response(answer.text, answer.status, headers, answer.media_type)

    async def _answer(self, request: Request, carrier: str) -> Answer | Refusal:
        """Raises WebhookError, ClientDisconnect."""
        if not self._config.telephony.public_url:
            return NO_PUBLIC_URL
        principal = principal_of(request.scope)
        refusal = self._signatures.may_ask(carrier, principal)
        if refusal is not None:
            return refusal
        body = await _body(request)
        if isinstance(body, Refusal):
            return body
        asked = WebhookRequest(
            request.method,
            self._signatures.url_of(request.scope),
            {name.lower(): value for name, value in request.headers.items()},
            body,
            unix_ns() // 10**9,
        )
        asker = self._signatures.of_webhook(carrier, principal, asked)
        if isinstance(asker, Refusal):
            return asker
        return self._connected(carrier, asker, WEBHOOKS[carrier].read(asked), request)

    def _connected(
        self, carrier: str, asker: Principal, call: CarrierCall, request: Request
    ) -> Answer:
        """For somebody who is believed."""
        hook, settings = WEBHOOKS[carrier], self._config.telephony
        if call.is_over:
            return hook.turn_away(call, "", is_busy=False)
        wanted = call.agent or settings.agent_at(call.caller if call.is_outbound else call.called)
        start = self._no_line(asker, request) or session_start(self._config, asker, wanted)
        if isinstance(start, Refusal):
            is_busy = start.code in BUSY_CODES
            _log.warning(
                "%s: turned call %s away: %s", hook.name, shown(call.call_id), start.message
            )
            words = BUSY_WORDS if is_busy else CLOSED_WORDS
            words = UNANSWERED_WORDS if call.transfer else words
            return hook.turn_away(call, words, is_busy=is_busy)
        token = self._tokens.issue(
            ExpectedCall(asker, start.agent, call.caller, call.called, call.told)
        )
        url = settings.address_of(f"{PREFIX}{carrier}/stream", is_socket=True)
        _log.info(
            "%s asks about call %s: %s is to answer", hook.name, shown(call.call_id), start.agent
        )
        return hook.connect(call, url, token)

    def _no_line(self, asker: Principal, request: Request) -> Refusal | None:
        """Asking ends no call that waits for its client: the stream, which comes, does that."""
        if self._calls.draining:
            return STOPPING
        refusal = self._desk.refusal(asker, request.scope, self._calls.waiting.can_give_way)
        if refusal is not None:
            self._desk.turned_away(refusal)
        return refusal


async def _body(request: Request) -> bytes | Refusal:
    """Raises ClientDisconnect."""
    received = bytearray()
    try:
        async with patience(BODY_TIMEOUT_S):
            async for piece in request.stream():
                received += piece
                if len(received) > MAX_BODY_BYTES:
                    problem = f"The body is larger than {MAX_BODY_BYTES >> 10} KiB."
                    return Refusal(413, problem, "body_too_large")
    except TimeoutError:
        return Refusal(408, f"The body did not come within {BODY_TIMEOUT_S:g} s.", "timeout")
    return bytes(received)


def _unreadable(problem: str) -> Refusal:
    return Refusal(400, f"This is no webhook of this carrier's: {problem}.", "invalid_webhook")
