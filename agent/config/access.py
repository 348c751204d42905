"""Settings section `[access]`: keys, limits per client, TLS and JSON web tokens."""

from dataclasses import dataclass
from typing import Annotated, Literal

from .values import Between, Matching


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """`[access]`: keys, limits and TLS."""

    require_key: Literal["auto", "always", "never"] = "auto"
    """auto: every client needs a key, unless the server listens on this machine only, has no
    `telephony.public_url`, and no key was ever made (`halfsec keys add NAME`). never: an open
    server, wherever it listens."""
    calls_per_key: Annotated[int, Between(0, 10_000)] = 0
    """Most calls at once with one key, unless the key has a limit of its own; 0: no limit but
    `agent.max_sessions`."""
    calls_per_address: Annotated[int, Between(0, 10_000)] = 0
    """Most calls at once from one address, or one IPv6 network; 0: no limit but
    `agent.max_sessions`. Telephone calls are not counted, whoever brings or orders them."""
    connections_per_address: Annotated[int, Between(0, 100_000)] = 128
    """Most connections at once from one address, calls and pages together; 0: no limit. One more
    replaces the connection that has waited longest for a request, or is closed."""
    connections_per_s: Annotated[int, Between(0, 100_000)] = 50
    """New connections per second from one address, with bursts of twice as many; more are closed
    before anything is read from them. 0: no limit."""
    requests_per_s: Annotated[int, Between(0, 100_000)] = 100
    """Requests per second from one address on open connections, with bursts of twice as many; more
    are answered later. 0: no limit."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies, a list like ["10.0.0.5"], whose X-Forwarded-For is
    trusted and which may open any number of connections. Empty: that header is never read."""
    burst_s: Annotated[int, Between(1, 3600)] = 120
    """Seconds of audio that a call may be ahead of real time. Audio beyond that is processed in
    real time; the queue in front is bounded, and when it is full nothing more is read. Audio that a
    telephone carrier sends beyond it is dropped, because a telephone call can't catch up."""
    idle_s: Annotated[int, Between(0, 86_400)] = 600
    """Seconds without any message from the client after which a call is ended; 0: never. A client
    that sends audio, silence included, is not idle."""
    tls_cert: str = ""
    """A PEM file with the server's certificate, followed by the intermediate ones. With `tls_key`
    the server speaks https and wss. Empty: neither."""
    tls_key: str = ""
    """The PEM file with the certificate's private key, without a password."""
    tls_self_signed: bool = False
    """Speak https and wss with a self-signed certificate, kept in HALFSEC_HOME/tls. Browsers warn
    of it once. For a phone in the same network: its browser gives the microphone to https pages
    only."""
    jwt_issuer: str = ""
    """Issuer (`iss`) of the JSON web tokens that are accepted beside keys; needs `jwt_audience`,
    `jwt_jwks_url` and the extra `jwt`. Empty: none are accepted."""
    jwt_audience: str = ""
    """Audience (`aud`) that the tokens must have."""
    jwt_jwks_url: Annotated[
        str,
        Matching(
            r"(https://[^\s/?#@]+[^\s#]*|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?[^\s#@]*)?",
            "empty, or begin with https://",
        ),
    ] = ""
    """Address of the issuer's public keys, like https://login.example.com/.well-known/jwks.json."""

    @property
    def has_tls(self) -> bool:
        return self.tls_self_signed or bool(self.tls_cert)

    @property
    def has_jwt(self) -> bool:
        return bool(self.jwt_issuer)
