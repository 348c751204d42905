"""Web tokens: which are believed, and how often their issuer is asked for its keys."""

import asyncio
import base64
import gzip
import hmac
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from agent.config.access import AccessSettings
from agent.config.schema import Config
from agent.errors import IssuerUnreachableError
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.jwt import (
    FRESH_S,
    MAX_JWKS_BYTES,
    MAX_JWT_CHARS,
    REFRESH_S,
    RETRY_S,
    JwtTokens,
)
from agent.http.auth.keys import KeyFile
from latency_budget.account.clock import ManualClock, unix_ns

SETTINGS = AccessSettings(
    jwt_issuer="https://login.example",
    jwt_audience="halfsec",
    jwt_jwks_url="https://login.example/jwks",
)
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, kid: str | None, algorithm: str) -> dict[str, Any]:
    public: dict[str, Any] = jwt.get_algorithm_by_name(algorithm).to_jwk(
        key.public_key(), as_dict=True
    )
    return {**public, "use": "sig", "alg": algorithm, **({} if kid is None else {"kid": kid})}


KEYS = [jwk(RSA, "r", "RS256"), jwk(EC, "e", "ES256"), jwk(ED, "d", "EdDSA")]


class Issuer:
    """Answers with its keys, and counts how often it is asked."""

    def __init__(self, answer: Callable[[], httpx.Response] | None = None) -> None:
        self.keys: list[dict[str, Any]] = list(KEYS)
        self.num_asked = 0
        self.answer = answer or (lambda: httpx.Response(200, json={"keys": self.keys}))
        self.clock = ManualClock()
        self.tokens = JwtTokens(SETTINGS, self.clock, httpx.MockTransport(self._serve))

    def _serve(self, request: httpx.Request) -> httpx.Response:
        assert str(request.url) == SETTINGS.jwt_jwks_url
        assert request.headers.get_list("accept-encoding") == ["identity"]
        self.num_asked += 1
        return self.answer()


def token(key: Any = RSA, kid: str | None = "r", algorithm: str = "RS256", **claims: Any) -> str:
    now = unix_ns() // 10**9
    payload = {
        **{"iss": SETTINGS.jwt_issuer, "aud": "halfsec", "sub": "ana", "exp": now + 60},
        **claims,
    }
    payload = {name: value for name, value in payload.items() if value is not None}
    return jwt.encode(payload, key, algorithm, headers={} if kid is None else {"kid": kid})


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"),
    [(RSA, "r", "RS256"), (EC, "e", "ES256"), (ED, "d", "EdDSA")],
)
async def test_tokens_of_the_issuer_are_accepted(key: Any, kid: str, algorithm: str) -> None:
    principal = await Issuer().tokens.read(token(key, kid, algorithm))
    assert principal is not None
    assert (principal.name, principal.kind, principal.key_id) == ("ana", "jwt", "jwt:ana")


def unsaid(entry: dict[str, Any]) -> dict[str, Any]:
    """The same key of a set that does not say what for: `alg` is optional (RFC 7517, 4.4)."""
    return {name: value for name, value in entry.items() if name != "alg"}


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"),
    [
        *((RSA, "r", name) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        (EC, "e", "ES256"),
        (ED, "d", "EdDSA"),
    ],
)
async def test_jwk_without_use_or_alg(key: Any, kid: str, algorithm: str) -> None:
    issuer = Issuer()
    issuer.keys = list(map(unsaid, KEYS))
    assert await issuer.tokens.read(token(key, kid, algorithm)) is not None
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for kid in "red":
        for forged in (token(OTHER_RSA, kid, "PS256"), signed_with(public, kid)):
            assert await issuer.tokens.read(forged) is None


def signed_with(public: bytes, kid: str) -> str:
    """By HMAC, with what everybody can read. PyJWT does not make such tokens."""
    head, body, _ = token(SECRET, kid, "HS256").split(".")
    digest = hmac.digest(public, f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


@pytest.mark.parametrize("algorithm", ["HS256", "ES256", "none", "RSA-OAEP", 5, ["RS256"]])
async def test_jwk_for_another_use_is_refused(algorithm: object) -> None:
    issuer = Issuer()
    issuer.keys = [*KEYS[1:], {**KEYS[0], "alg": algorithm}]
    for each in ("RS256", "PS256"):
        assert await issuer.tokens.read(token(algorithm=each)) is None
    assert await issuer.tokens.read(token(EC, "e", "ES256")) is not None


async def test_single_jwk_needs_no_key_id() -> None:
    issuer = Issuer()
    issuer.keys = [jwk(RSA, None, "RS256")]
    assert await issuer.tokens.read(token(kid=None)) is not None


NOW = unix_ns() // 10**9
SECRET = "a secret that is long enough for every hash there is in this library" * 2


@pytest.mark.parametrize(
    "text",
    [
        token(OTHER_RSA),
        token(iss="https://evil.example"),
        token(iss=None),
        token(aud="another"),
        token(aud=None),
        token(exp=NOW - 3600),
        token(exp=None),
        token(sub=None),
        token(nbf=NOW + 3600),
        token(kid="unknown"),
        token(kid=None),
        token(RSA, "e", "RS256"),
        token(RSA, "r", "PS256"),  # a key is good for the algorithm that its set names
        token(SECRET, "r", "HS256"),
        token(SECRET, "oct", "HS256"),
        jwt.encode({"sub": "ana"}, "", "none"),
        token()[:-4] + "AAAA",
        "a.b.c",
        "..",
        token(sub="x" * MAX_JWT_CHARS),
    ],
)
async def test_other_tokens_are_refused(text: str) -> None:
    issuer = Issuer()
    issuer.keys = [*KEYS, {"kty": "oct", "kid": "oct", "k": "c2VjcmV0", "alg": "HS256"}]
    assert await issuer.tokens.read(text) is None
    assert await issuer.tokens.read(token()) is not None


async def test_key_set_is_cached() -> None:
    issuer = Issuer()
    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(issuer.tokens.read(token(kid=f"invented{number}")))
    assert issuer.num_asked == 1
    issuer.clock.advance_ms(RETRY_S * 1000)
    for number in range(50):
        assert await issuer.tokens.read(token(kid=f"invented{number}")) is None
        assert await issuer.tokens.read(token()) is not None
    assert issuer.num_asked == 2
    issuer.clock.advance_ms(FRESH_S * 1000 + 1)
    assert await issuer.tokens.read(token()) is not None
    assert issuer.num_asked == 3


async def test_rotated_keys_are_fetched() -> None:
    issuer = Issuer()
    await issuer.tokens.read(token())
    issuer.keys = [jwk(OTHER_RSA, "new", "RS256")]
    issuer.clock.advance_ms(RETRY_S * 1000)
    assert await issuer.tokens.read(token(OTHER_RSA, "new")) is not None
    assert await issuer.tokens.read(token()) is None


class SlowIssuer(Issuer):
    """Answers when `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        """Set by each question."""
        self.tokens = JwtTokens(SETTINGS, self.clock, httpx.MockTransport(self._serve_late))

    async def _serve_late(self, request: httpx.Request) -> httpx.Response:
        self.asked.set()
        await self.gate.wait()
        return self._serve(request)


async def test_a_known_key_does_not_wait_for_a_hanging_issuer() -> None:
    issuer = SlowIssuer()
    assert await issuer.tokens.read(token()) is not None
    issuer.gate.clear()
    issuer.asked.clear()
    issuer.clock.advance_ms(RETRY_S * 1000)
    issuer.keys = [*KEYS, jwk(OTHER_RSA, "new", "RS256")]
    async with asyncio.TaskGroup() as group:
        new = group.create_task(issuer.tokens.read(token(OTHER_RSA, "new")))
        await issuer.asked.wait()
        known = group.create_task(issuer.tokens.read(token()))
        await asyncio.sleep(0)
        assert known.done()
        assert not new.done()
        issuer.gate.set()
    assert known.result() is not None
    assert new.result() is not None


async def test_keys_are_kept_fresh_beside_the_tokens() -> None:
    issuer, looks = SlowIssuer(), 0
    look, looked = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        nonlocal looks
        looks += 1
        looked.set()
        await look.wait()
        look.clear()

    async def looks_again() -> None:
        looked.clear()
        look.set()
        await looked.wait()

    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(issuer.tokens.keep_fresh(pause))
        await looked.wait()
        await looks_again()
        assert issuer.num_asked == 0, "nobody has brought a token yet"
        assert await issuer.tokens.read(token()) is not None
        issuer.clock.advance_ms(REFRESH_S * 1000 - 1)
        await looks_again()
        assert issuer.num_asked == 1
        issuer.clock.advance_ms(1)
        issuer.gate.clear()
        issuer.asked.clear()
        look.set()
        await issuer.asked.wait()
        known = group.create_task(issuer.tokens.read(token()))
        await asyncio.sleep(0)
        assert known.done(), "while the issuer hangs"
        looked.clear()
        issuer.gate.set()
        await looked.wait()
        assert issuer.num_asked == 2
        issuer.answer = lambda: httpx.Response(500)
        issuer.clock.advance_ms(REFRESH_S * 1000)
        for _ in range(3):
            await looks_again()
        assert issuer.num_asked == 3, "one in half a minute"
        keeping.cancel()


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx.Response(500),
        lambda: httpx.Response(302, headers={"location": "https://evil.example"}),
        lambda: httpx.Response(302, headers={"location": "mailto:]"}),
        lambda: httpx.Response(200, text="<html>"),
        lambda: httpx.Response(200, json=[]),
        lambda: httpx.Response(200, json={"keys": []}),
        lambda: httpx.Response(200, json={"keys": [{"kty": "RSA"}, 5, None]}),
        lambda: httpx.Response(200, json={"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}),
        lambda: httpx.Response(200, content=b" " * (MAX_JWKS_BYTES + 1)),
        lambda: httpx.Response(200, content=b"[" * 100_000),
        lambda: httpx.Response(
            200,
            content=gzip.compress(json.dumps({"keys": KEYS}).encode()),
            headers={"content-encoding": "gzip"},
        ),
    ],
)
async def test_malformed_key_set(answer: Callable[[], httpx.Response]) -> None:
    issuer = Issuer(answer)
    for _ in range(3):
        with pytest.raises(IssuerUnreachableError):
            await issuer.tokens.read(token())
    assert issuer.num_asked == 1
    issuer.answer = lambda: httpx.Response(200, json={"keys": KEYS})
    issuer.clock.advance_ms(RETRY_S * 1000)
    assert await issuer.tokens.read(token()) is not None
    issuer.answer = answer
    issuer.clock.advance_ms(FRESH_S * 1000 + 1)
    assert await issuer.tokens.read(token()) is not None  # what it had stays good


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("no route"), ssl.SSLError("bad record"), TimeoutError()]
)
async def test_unreachable_issuer(error: Exception) -> None:
    def away() -> httpx.Response:
        raise error

    with pytest.raises(IssuerUnreachableError):
        await Issuer(away).tokens.read(token())


async def test_jwt_settings_make_keys_required(tmp_path: Path) -> None:
    config = Config(access=SETTINGS)
    access = Authenticator(config, KeyFile(tmp_path / "keys.json"), ManualClock())
    assert access.closed
    assert await access.identify(None) is None
    assert await access.identify("sk-whatever") is None
