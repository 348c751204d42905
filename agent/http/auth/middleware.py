"""Authentication middleware (ASGI): where a key is required, no request passes without one.

It stands behind the check of the Host header. It reads the credential (`Authorization: Bearer KEY`,
or on a WebSocket the subprotocol `openai-insecure-api-key.KEY`, because browsers can't set headers
there), stores a `Principal` in the scope, and takes the key out of it: nothing behind it can echo
or log the key. Paths that are open without a key are listed one by one: the pages and the health
probes. Every other path is closed. Carriers of telephone calls enter unproven: their endpoints ask
for another proof (`agent/telephony/stream_auth.py`).

Refusals come before a WebSocket is accepted, as HTTP. There are no cookies: another site's page can
make a browser send them. Keys are not read from the query either, where logs and histories keep
them.

Answers at the path of WebRTC calls, refusals included, get the headers by which a page of another
origin that is let in may read them (CORS): such a page has no other way to learn why.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.errors import IssuerUnreachableError
from agent.http.refusal import HttpRefusal, turn_away
from agent.http.static_files import PAGES
from latency_budget.account.clock import Clock

from .authenticator import Authenticator
from .client_secrets import SECRET_PREFIX
from .origin_check import OriginCheck
from .principal import ANYONE, SCOPE_KEY, UNPROVEN, Principal
from .telephony_credentials import (
    CALLS_PATH,
    PREFIX,
    PRESENTED_KEY,
    basic_password,
    is_call_token,
    is_signature,
    is_webhook,
)
from .throttle import AuthThrottle

KEY_PROTOCOL: Final = "openai-insecure-api-key."
PROBES: Final = ("/healthz", "/readyz", "/health")

HOLD_S: Final = 2.0
"""The answer to one wrong key too many waits so long."""
MAX_HELD: Final = 32
"""Answers that wait at once; more are given at once, as 429. They hold connections."""

_READING: Final = ("GET", "HEAD", "OPTIONS")
WEBRTC_PATH: Final = "/v1/realtime/calls"
"""Calls by WebRTC. The actions on a call lie below."""

_FOR_LIMITED_KEYS: Final = (
    "/v1/realtime",
    WEBRTC_PATH,
    "/v1/realtime/client_secrets",
    "/v1/models",
    CALLS_PATH,
)
_FOR_WEB_TOKENS: Final = (
    *_FOR_LIMITED_KEYS,
    "/v1/chat/completions",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
)
"""Also what answers with the request's own words only."""
_QUERY_NAMES: Final = (b"api_key=", b"api-key=", b"apikey=", b"key=", b"token=", b"access_token=")

TOO_MANY: Final = HttpRefusal(
    429, "Too many wrong keys came from your address; slow down.", "rate_limit_exceeded",
    "rate_limit_error", 10,
)  # fmt: skip
ISSUER_AWAY: Final = HttpRefusal(
    503, "Web tokens can't be checked now: the issuer's keys can't be had. Try again.",
    "issuer_unreachable", "server_error", 30,
)  # fmt: skip
SOCKETS_ONLY: Final = HttpRefusal(
    403, "A client secret (ek_...) opens calls only; this needs the key that made it.",
    "insufficient_permissions",
)  # fmt: skip
CLIENTS_ONLY: Final = HttpRefusal(
    403, "A client secret (ek_...) opens calls of clients, and no telephone calls.",
    "insufficient_permissions",
)  # fmt: skip
AGENTS_ONLY: Final = HttpRefusal(
    403, "This key is for calls with certain agents only; this needs one without such a limit.",
    "insufficient_permissions",
)  # fmt: skip
WEB_TOKENS: Final = HttpRefusal(
    403, "A web token opens calls and asks the models. This tells of everybody's calls, or changes "
    "the server, and needs a key (halfsec keys add NAME).", "insufficient_permissions",
)  # fmt: skip


class AuthMiddleware:
    """Middleware. Belongs to the event loop."""

    def __init__(
        self,
        app: ASGIApp,
        access: Authenticator,
        visitors: OriginCheck,
        clock: Clock,
        open_paths: Collection[str],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._app = app
        self._access = access
        self._visitors = visitors
        self._clock = clock
        self._open_paths = frozenset(open_paths)
        self._pause = pause
        self._wrong = AuthThrottle()
        self._num_held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        send = self._readable(scope, send)
        credential, scope = take_credential(scope)
        if credential and scope["path"].startswith(PREFIX) and is_call_token(credential):
            scope[PRESENTED_KEY], credential = credential, None
        entered = await self._enter(scope, credential)
        if isinstance(entered, HttpRefusal):
            return await turn_away(scope, receive, send, entered)
        scope[SCOPE_KEY] = entered
        return await self._app(scope, receive, send)

    async def _enter(self, scope: Scope, credential: str | None) -> Principal | HttpRefusal:
        if (refusal := self._cross_site(scope)) is not None:
            return refusal
        if _is_reading(scope) and scope["path"] in self._open_paths:
            return ANYONE
        if scope["type"] == "http" and _is_preflight(scope):
            return ANYONE
        if credential is None and scope["path"].startswith(PREFIX) and self._access.closed:
            return UNPROVEN
        try:
            principal = await self._access.identify(credential)
        except IssuerUnreachableError:
            return ISSUER_AWAY
        if principal is None:
            return await self._unknown(scope, credential)
        return _not_for(principal, scope) or principal

    def _cross_site(self, scope: Scope) -> HttpRefusal | None:
        """Why a page of another origin may not do this."""
        if _is_reading(scope):
            return None  # browsers don't show it the answer
        headers = dict(scope["headers"])
        return self._visitors.refuse_origin(_text(headers, b"origin"), _text(headers, b"host"))

    def _readable(self, scope: Scope, send: Send) -> Send:
        """`send` with the headers of CORS, where the answer is for a page of another origin."""
        headers = dict(scope["headers"])
        origin, host = headers.get(b"origin"), _text(headers, b"host")
        if scope["type"] != "http" or scope["path"] != WEBRTC_PATH or origin is None:
            return send
        if self._visitors.refuse_origin(origin.decode("latin-1"), host) is not None:
            return send
        added = (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"Location, Retry-After"),
            (b"vary", b"Origin"),
        )

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        return with_headers

    async def _unknown(self, scope: Scope, credential: str | None) -> HttpRefusal:
        """The answer to a client without a key, or with a wrong one."""
        if credential is None:
            return _no_key(scope)
        address = str((scope.get("client") or ("unknown", 0))[0])
        if self._wrong.add(address, self._clock.now_ns()):
            if self._num_held >= MAX_HELD:
                return TOO_MANY
            self._num_held += 1
            try:
                await self._pause(HOLD_S)
            finally:
                self._num_held -= 1
        return _wrong_key(credential)


def take_credential(scope: Scope) -> tuple[str | None, Scope]:
    """The key that a request presents, "" for what is none, and the request without it."""
    found: str | None = None
    kept: list[tuple[bytes, bytes]] = []
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        if name == b"authorization" and not is_signature(scope["path"], text):
            found = _key_in(text, scope["path"])
        elif name == b"sec-websocket-protocol":
            kept.append((name, _without_keys(value)))
        else:
            kept.append((name, value))
    without: dict[str, Any] = {**scope, "headers": kept}
    if scope["type"] == "websocket":
        offered = scope.get("subprotocols", [])
        keys = [each for each in offered if each.startswith(KEY_PROTOCOL)]
        without["subprotocols"] = [each for each in offered if each not in keys]
        if found is None and keys:
            found = keys[0].removeprefix(KEY_PROTOCOL)
    return found, without


def open_paths(pages: Path) -> frozenset[str]:
    """Paths that need no key: probes, and the pages with their files."""
    files = ("/" + path.relative_to(pages).as_posix() for path in pages.rglob("*"))
    return frozenset((*PROBES, "/", *(f"/{name}" for name in PAGES), *files))


def _key_in(header: str, path: str) -> str:
    # Only carriers have no other way: a browser would send a password along by itself.
    if path.startswith(PREFIX) and (password := basic_password(header)) is not None:
        return password
    scheme, _, key = header.strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _without_keys(header: bytes) -> bytes:
    offered = [each.strip() for each in header.split(b",")]
    return b", ".join(each for each in offered if not each.startswith(KEY_PROTOCOL.encode()))


def _is_reading(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] in _READING


def _is_preflight(scope: Scope) -> bool:
    """A browser asks whether another origin's page may open a call. It sends no key with that."""
    return bool(scope["method"] == "OPTIONS" and scope["path"] == WEBRTC_PATH)


def _not_for(principal: Principal, scope: Scope) -> HttpRefusal | None:
    """Refusal of a request that its principal may not make; None if it may."""
    if principal.kind == "ephemeral" and scope["path"].startswith(PREFIX):
        return CLIENTS_ONLY
    if scope["type"] == "websocket":
        return None
    path = scope["path"]
    if principal.kind == "ephemeral":
        return None if path == WEBRTC_PATH else SOCKETS_ONLY
    if path.startswith(f"{WEBRTC_PATH}/") or is_webhook(path):
        return None
    if principal.limits.agents:
        return None if path in _FOR_LIMITED_KEYS else AGENTS_ONLY
    if principal.kind == "jwt":
        is_for_tokens = path in _FOR_WEB_TOKENS or path.startswith("/v1/models/")
        return None if is_for_tokens else WEB_TOKENS
    return None


def _no_key(scope: Scope) -> HttpRefusal:
    how = "Send it as the header Authorization: Bearer KEY"
    if scope["type"] == "websocket":
        how += f", or offer the subprotocol {KEY_PROTOCOL}KEY"
    query = scope.get("query_string", b"").lower()
    if any(part.startswith(_QUERY_NAMES) for part in query.split(b"&")):
        how += ". A key in the address is not read: logs and histories keep addresses"
    return _unauthorized(f"This server needs a key. {how}.")


def _wrong_key(credential: str) -> HttpRefusal:
    if not credential:
        return _unauthorized("The Authorization header must say: Bearer KEY.")
    if credential.startswith(SECRET_PREFIX):
        return _unauthorized(
            "This client secret is unknown here or has expired; make another with "
            "POST /v1/realtime/client_secrets."
        )
    if credential.startswith("eyJ") and credential.count(".") == 2:  # as every web token
        return _unauthorized(
            "This web token is not taken here: it has expired, is of another issuer or for another "
            "audience, or is signed with a key or an algorithm that the issuer does not name."
        )
    return _unauthorized(
        "This key is unknown here: mistyped, expired or revoked. Who runs the server makes one: "
        "halfsec keys add NAME."
    )


def _unauthorized(message: str) -> HttpRefusal:
    return HttpRefusal(401, message, "invalid_api_key")


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")
