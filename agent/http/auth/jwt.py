"""JSON web tokens of an external identity provider: signature, issuer, audience, expiry.

PyJWT (the extra `jwt`) does the cryptography. Two decisions are made here. Only algorithms with a
public key are accepted, so that no token is signed with a key that every reader of the list has
(RFC 8725, section 3.1). The issuer's keys are fetched for the first token, before they are ten
minutes old, and for a token signed with an unknown key, but at most twice a minute: otherwise a
client that invents key names would make this server flood the issuer. Where fetching fails, the
keys at hand stay valid.

A token that is signed with a known key waits for no fetch: `keep_fresh` makes those that its age
demands. Where that does not run, the first token after ten minutes waits for one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import httpx
import jwt

from agent.config.access import AccessSettings
from agent.errors import IssuerUnreachableError
from latency_budget.account.clock import Clock

from .principal import KeyLimits, Principal

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
MAX_JWT_CHARS: Final = 8192
FRESH_S: Final = 600
"""A key that the issuer has withdrawn is taken so much longer."""
RETRY_S: Final = 30
"""Least interval of fetches."""
REFRESH_S: Final = FRESH_S - 2 * RETRY_S
"""Age at which `keep_fresh` fetches the keys anew: one more try before they are `FRESH_S` old."""
LOOK_EVERY_S: Final = 1.0
MAX_JWKS_BYTES: Final = 1 << 18
FETCH_TIMEOUT_S: Final = 5.0
LEEWAY_S: Final = 30
"""Largest difference between the issuer's clock and the server's, in s."""
_KINDS: Final = ("RSA", "EC", "OKP")
"""Types of keys with a public part. A secret one ("oct") in a public list is a mistake or an
attack."""
_OF_ANY_RSA: Final = tuple(name for name in ALGORITHMS if name.startswith(("RS", "PS")))
"""Algorithms of an RSA key whose set does not name one (RFC 7517, section 4.4: it need not). The
curves of other keys name theirs."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Key:
    public: Any
    """Key in the form that PyJWT's algorithms take."""
    algorithms: tuple[str, ...]
    """Algorithms that the key may have signed with."""


class JwtTokens:
    """Verifier of JSON web tokens of a login. Used on the event loop only."""

    def __init__(
        self,
        settings: AccessSettings,
        clock: Clock,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._transport = transport
        self._keys: dict[str, _Key] = {}
        self._fetched_ns: int | None = None
        self._tried_ns: int | None = None
        self._fetching = asyncio.Lock()

    async def read(self, text: str) -> Principal | None:
        """Principal of a token; None if it is not valid. Raises IssuerUnreachableError."""
        if len(text) > MAX_JWT_CHARS:
            return None
        try:
            key_name = str(jwt.get_unverified_header(text).get("kid", ""))
            key = await self._key(key_name)
            if key is None:
                return None
            claims: dict[str, Any] = jwt.decode(
                text,
                key.public,
                algorithms=list(key.algorithms),
                audience=self._settings.jwt_audience,
                issuer=self._settings.jwt_issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            _log.info("a web token was not accepted: %s", type(error).__name__)
            return None
        subject = str(claims["sub"])[:200]
        return Principal(subject, "jwt", KeyLimits(), key_id=f"jwt:{subject}")

    async def _key(self, name: str) -> _Key | None:
        """The issuer's key of that name; a token that names none has the only one. Waits for the
        issuer where it is not known, or nobody keeps the keys fresh. Raises
        IssuerUnreachableError."""
        known = self._known(name)
        if known is not None and self._age_s(self._tried_ns) <= FRESH_S:
            return known
        async with self._fetching:
            if self._is_due(name):
                await self._fetch()
        if not self._keys and self._fetched_ns is None:
            raise IssuerUnreachableError
        return self._known(name)

    async def keep_fresh(
        self, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> NoReturn:
        """Fetch the keys anew before they are `FRESH_S` old, once there are any, until
        cancelled."""
        while True:
            await pause(LOOK_EVERY_S)
            if self._fetched_ns is None:
                continue
            async with self._fetching:
                is_old = self._age_s(self._fetched_ns) >= REFRESH_S
                if is_old and self._age_s(self._tried_ns) >= RETRY_S:
                    await self._fetch()

    def _known(self, name: str) -> _Key | None:
        if not name and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    def _is_due(self, name: str) -> bool:
        if self._age_s(self._tried_ns) < RETRY_S:
            return False
        return self._age_s(self._fetched_ns) > FRESH_S or (bool(name) and name not in self._keys)

    def _age_s(self, at_ns: int | None) -> float:
        return float("inf") if at_ns is None else (self._clock.now_ns() - at_ns) / 1e9

    async def _fetch(self) -> None:
        self._tried_ns = self._clock.now_ns()
        url = self._settings.jwt_jwks_url
        try:
            async with httpx.AsyncClient(
                transport=self._transport, timeout=FETCH_TIMEOUT_S
            ) as http:
                async with asyncio.timeout(FETCH_TIMEOUT_S):
                    document = await _document(http, url)
            keys = _keys_of(document)
        except (
            *(httpx.HTTPError, ValueError, RecursionError),
            httpx.InvalidURL,  # a redirect to what is none
            OSError,  # a TLS record that can't be decrypted
        ) as error:
            _log.error(
                "the issuer's keys at %s can't be had: %s", url, error or type(error).__name__
            )
            return
        self._keys = keys
        self._fetched_ns = self._tried_ns


async def _document(http: httpx.AsyncClient, url: str) -> object:
    """Raises httpx.HTTPError, and ValueError for what is too large, compressed, or no JSON."""
    # Not compressed: a piece that was, once or several times, has any length.
    async with http.stream("GET", url, headers={"accept-encoding": "identity"}) as answer:
        answer.raise_for_status()
        if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise ValueError("it is compressed, which was not asked for")
        body = bytearray()
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > MAX_JWKS_BYTES:
                raise ValueError(f"it has more than {MAX_JWKS_BYTES} bytes")
    document: object = httpx.Response(200, content=bytes(body)).json()
    return document


def _keys_of(document: object) -> dict[str, _Key]:
    """Keys by name. Raises ValueError if none can be used."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is no JSON web key set")
    keys = {}
    for entry in listed:
        if not isinstance(entry, dict) or entry.get("kty") not in _KINDS:
            continue
        if entry.get("use", "sig") != "sig" or entry.get("alg") not in (None, *ALGORITHMS):
            continue
        try:
            key = jwt.PyJWK(entry)
        except jwt.PyJWTError:
            continue  # of a kind that this PyJWT does not know; others may be of use
        if key.algorithm_name not in ALGORITHMS:
            continue  # as its curve says
        is_any = entry["kty"] == "RSA" and entry.get("alg") is None
        algorithms = _OF_ANY_RSA if is_any else (key.algorithm_name,)
        keys[str(entry.get("kid", ""))] = _Key(key.key, algorithms)
    if not keys:
        raise ValueError("no key in it can be used to check a signature")
    return keys
