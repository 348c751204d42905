"""`[access]`: who may use the server, and by what they are known."""

from dataclasses import dataclass
from typing import Annotated, Literal

from .values import Between, Matching


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """`[access]`: keys, limits and TLS."""

    require_key: Literal["auto", "always", "never"] = "auto"
    """auto: whoever calls needs a key, unless the server listens for this machine alone, has no
    `telephony.public_url`, and no key was ever made (`halfsec keys add NAME`). never: an open
    server, wherever it listens."""
    calls_per_key: Annotated[int, Between(0, 10_000)] = 0
    """Calls at once with one key, unless the key itself says otherwise; 0: as many as there are
    lines."""
    calls_per_address: Annotated[int, Between(0, 10_000)] = 0
    """Calls at once from one address, or one IPv6 network; 0: as many as there are lines. What a
    carrier brings is not counted."""
    connections_per_address: Annotated[int, Between(0, 100_000)] = 128
    """Connections at once from one address, calls and pages together; 0: as many as there are. One
    more takes the place of the one that has waited longest for a request, or is closed."""
    connections_per_s: Annotated[int, Between(0, 100_000)] = 50
    """New connections a second from one address, and twice as many at once; more are closed before
    anything of them is read. 0: no limit."""
    requests_per_s: Annotated[int, Between(0, 100_000)] = 100
    """Requests a second from one address on connections that are open, and twice as many at once;
    more are answered later. 0: no limit."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies, as ["10.0.0.5"], whose X-Forwarded-For is believed
    and which may open any number of connections. Empty: that header is never read."""
    burst_s: Annotated[int, Between(1, 3600)] = 120
    """Seconds of audio that a call may be ahead of real time. Beyond that it is dealt with as fast
    as it would be spoken; what waits for that is bounded, and then nothing more is read. What a
    telephone's carrier sends beyond it is dropped: nobody there would catch up."""
    idle_s: Annotated[int, Between(0, 86_400)] = 600
    """A call whose client sends nothing at all for so long is ended; 0: never. Who sends audio,
    silence included, is not idle."""
    tls_cert: str = ""
    """A PEM file with the server's certificate, and those between it and its root behind it. With
    `tls_key` the server speaks https and wss. Empty: neither."""
    tls_key: str = ""
    """The PEM file with the certificate's private key, which has no password."""
    tls_self_signed: bool = False
    """Speak https and wss with a certificate of the server's own making, kept in HALFSEC_HOME/tls.
    Browsers warn of it once. For a phone in the same network, which gives no page without https the
    microphone."""
    jwt_issuer: str = ""
    """Who signs the JSON web tokens that are taken beside keys (their `iss`); needs `jwt_audience`,
    `jwt_jwks_url` and the extra `jwt`. Empty: none are taken."""
    jwt_audience: str = ""
    """For whom they must be (their `aud`)."""
    jwt_jwks_url: Annotated[
        str,
        Matching(
            r"(https://[^\s/?#@]+[^\s#]*|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?[^\s#@]*)?",
            "empty, or begin with https://",
        ),
    ] = ""
    """Where the issuer's public keys are, as https://login.example.com/.well-known/jwks.json."""

    @property
    def has_tls(self) -> bool:
        return self.tls_self_signed or bool(self.tls_cert)

    @property
    def has_jwt(self) -> bool:
        return bool(self.jwt_issuer)
