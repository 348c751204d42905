"""`[access]`: who may use the server, and by what they are known."""

from dataclasses import dataclass
from typing import Annotated, Literal

from .config_values import Between, Matching


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """`[access]`: keys and TLS."""

    require_key: Literal["auto", "always", "never"] = "auto"
    """auto: whoever calls needs a key, unless the server listens for this machine alone and no key
    was ever made (`halfsec keys add NAME`). never: an open server, wherever it listens."""
    calls_per_key: Annotated[int, Between(0, 10_000)] = 0
    """Calls at once with one key, unless the key itself says otherwise; 0: as many as there are
    lines."""
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
