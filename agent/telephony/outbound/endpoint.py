"""`POST /telephony/calls`: places an outbound call.

The server places the call, not the command that requests it: a token authenticates the call's
stream, and only the server knows its tokens. Twilio gets its instructions (TwiML) with the order,
the token among them, so that no URL contains it. A request needs a key, or comes from a command on
this machine, even where the server requires no key otherwise: calls cost money. For the same reason
a key needs the right to place calls (`halfsec keys add NAME --dials`), may call only numbers that
`telephony.calls_to` lists, and has a limit of calls that ring at once.

A line is reserved for a ringing call, which may be answered at any moment, until Twilio reports
that it was not answered (`agent/telephony/webhooks.py`), or it has rung for too long.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agent.calls.registry import CallRegistry
from agent.calls.service import CallService
from agent.calls.session_start import session_start
from agent.calls.stream_tokens import TOKEN_S, CallTokens, ExpectedCall
from agent.config.schema import Config
from agent.config.suggestions import nearest
from agent.http.auth.principal import Principal, principal_of
from agent.http.auth.telephony_credentials import PREFIX
from agent.http.json_body import JsonBodies
from agent.http.refusal import STOPPING, HttpRefusal, shown
from agent.http.responses import guarded
from agent.telephony.carriers.phone_numbers import shown_numbers
from agent.telephony.carriers.twilio import CARRIER, TwilioWebhook
from agent.telephony.carriers.webhook import CarrierCall
from llm_engine.errors import RequestError

from .order import NUMBER, Dialer, DialError, OutboundCall, number_of

STREAM_PATH: Final = f"{PREFIX}{CARRIER.key}/stream"
STATUS_PATH: Final = f"{PREFIX}{CARRIER.key}/status"
FIELDS: Final = ("to", "from", "agent")

KEY_NEEDED: Final = HttpRefusal(
    401,
    "Calls cost money: this needs a key, also where nothing else does. On the server's machine "
    "halfsec call has one; elsewhere: Authorization: Bearer KEY.",
    "invalid_api_key",
)
NO_RIGHT: Final = HttpRefusal(
    403,
    "Calls cost money: this key may order none. Who runs the server makes one that may: "
    "halfsec keys add NAME --dials.",
    "insufficient_permissions",
)
NOT_THERE: Final = HttpRefusal(
    403,
    "This number may not be called: it begins with none of the prefixes that the setting "
    "telephony.calls_to has. With a key only those are called; commands on the server's machine "
    "call any number where that setting is empty.",
    "number_not_allowed",
)
RINGING: Final = HttpRefusal(
    429,
    "As many calls as may ring at once for one key (telephony.ringing_per_key) do so.",
    "rate_limit_exceeded",
    "rate_limit_error",
    10,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _CallRequest:
    """Request for an outbound call."""

    to: str
    shown_number: str
    """Caller number that the callee sees."""
    agent: str | None


class OutboundCalls:
    """Places outbound calls. One instance for all. Belongs to the event loop."""

    def __init__(
        self,
        config: Config,
        calls: CallRegistry,
        service: CallService,
        tokens: CallTokens,
        dialer: Dialer,
        bodies: JsonBodies,
    ) -> None:
        self._calls = calls
        self._service = service
        self._tokens = tokens
        self._dialer = dialer
        self._bodies = bodies
        self._ringing: dict[str, str] = {}
        """Tokens of unanswered calls, with the ids of the keys that placed them."""

    @property
    def _config(self) -> Config:
        """The settings of calls that begin now."""
        return self._service.config

    async def serve(self, request: Request) -> Response:
        """Place one call. 201 as soon as Twilio has taken the order: the call rings."""
        return await guarded(self._serve(request))

    async def _serve(self, request: Request) -> Response:
        """Raises RequestError, ClientDisconnect."""
        principal = principal_of(request.scope)
        if (refusal := _no_right(principal)) is not None:
            return refusal.response()
        async with self._bodies.read(request) as body:
            wanted = _call_request(body, self._config)
        outcome = await self._dial(principal, wanted)
        if isinstance(outcome, HttpRefusal):
            whole = self._config.telephony.store_numbers
            _log.warning(
                "refused an outbound call: %s", shown_numbers(outcome.message, whole=whole)
            )
            return outcome.response()
        return JSONResponse(outcome, 201)

    async def _dial(
        self, principal: Principal, wanted: _CallRequest
    ) -> Mapping[str, Any] | HttpRefusal:
        telephony = self._config.telephony
        if not telephony.may_call(wanted.to, unless_listed=principal.kind == "local"):
            return NOT_THERE
        start = session_start(self._config, principal, wanted.agent)
        if isinstance(start, HttpRefusal):
            return start
        refusal = self._no_line(principal)
        if refusal is not None:
            return refusal
        call = CarrierCall("", wanted.shown_number, wanted.to, is_outbound=True)
        expected = ExpectedCall(
            principal, start.agent, call.caller, call.called, call.parameters, CARRIER.name
        )
        token = self._tokens.issue(expected, telephony.ring_s + TOKEN_S)
        self._ringing[token] = principal.key_id
        await self._service.fleet_tokens.publish(self._tokens, [token])
        url = telephony.address_of(STREAM_PATH, is_socket=True)
        order = OutboundCall(
            wanted.to,
            wanted.shown_number,
            TwilioWebhook().connect(call, url, token).text,
            telephony.address_of(STATUS_PATH),
            telephony.ring_s,
            telephony.limit_s,
            telephony.on_machine,
        )
        try:
            placed = await self._dialer.place(order)
        except DialError as error:
            if not error.may_ring:
                self._tokens.drop(token)
            status = 504 if error.may_ring else 502
            return HttpRefusal(status, error.message, error.code, "server_error")
        self._tokens.name(token, placed.call_id)
        _log.info("call %s rings: agent %s", shown(placed.call_id), start.agent)
        return {
            "call": placed.call_id,
            "status": placed.status,
            "to": wanted.to,
            "from": wanted.shown_number,
            "agent": start.agent,
        }

    def _no_line(self, principal: Principal) -> HttpRefusal | None:
        if not self._config.telephony.public_url:
            return NO_PUBLIC_URL
        if (problem := self._dialer.problem) is not None:
            return HttpRefusal(503, problem, "not_configured", "server_error")
        if self._calls.draining:
            return STOPPING
        self._ringing = {
            token: key_id for token, key_id in self._ringing.items() if self._tokens.holds(token)
        }
        num_ringing = sum(key_id == principal.key_id for key_id in self._ringing.values())
        if num_ringing >= self._config.telephony.ringing_per_key:
            return RINGING
        return self._service.refusal(principal, None, self._calls.waiting.can_give_way)


def _no_right(principal: Principal) -> HttpRefusal | None:
    """Refusal for a principal that may not place calls; client secrets and web tokens never may."""
    if principal.kind == "local":
        return None
    if principal.kind != "key":
        return KEY_NEEDED
    return None if principal.limits.dials else NO_RIGHT


def _call_request(body: object, config: Config) -> _CallRequest:
    """Raises RequestError."""
    if not isinstance(body, dict):
        raise RequestError("body", "must be a JSON object")
    for name in body:
        if name not in FIELDS:
            raise RequestError(str(name)[:80], f"is no field here; there are {', '.join(FIELDS)}")
    to = _number(body.get("to"), "to")
    settings = config.telephony
    own = body.get("from") or settings.calls_from or _only_number(settings.numbers)
    if own is None:
        raise RequestError(
            "from", "is missing: the number to call from, or the setting telephony.calls_from"
        )
    agent = body.get("agent")
    if agent is not None and not (isinstance(agent, str) and agent in config.agents):
        known = list(config.agents)
        raise RequestError(
            "agent",
            f"there is no agent {shown(str(agent))}; there are {', '.join(known)}."
            f"{nearest(str(agent), known)}",
        )
    shown_number = _number(own, "from")
    return _CallRequest(to, shown_number, agent or settings.agent_at(shown_number))


def _number(value: object, field: str) -> str:
    """Raises RequestError."""
    number = number_of(value)
    if number is None:
        raise RequestError(field, f"must be {NUMBER}")
    return number


def _only_number(numbers: Mapping[str, str]) -> str | None:
    return next(iter(numbers)) if len(numbers) == 1 else None


NO_PUBLIC_URL: Final = HttpRefusal(
    404,
    "telephony.public_url is not set: without the address at which carriers reach this server, "
    "calls can't be streamed to it.",
    "not_configured",
)
