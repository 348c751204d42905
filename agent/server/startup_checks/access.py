"""Startup check of access settings, also run by `halfsec doctor`."""

import importlib.util
from collections.abc import Iterator

from agent.config.local_urls import is_loopback
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.http.auth.key_needed import is_reachable_by_others, needs_key
from agent.http.auth.keys import KeyFile
from agent.http.auth.tls import Certificate, own_addresses
from agent.http.peer_address import networks_of

INSTALL_JWT = "pip install 'halfsec[jwt]'"

_OPEN_TO_OTHERS = (
    "Warning: on {host} there is no key: whoever reaches the port can hold calls and read what was "
    "said in others. access.require_key is never."
)
_IN_THE_CLEAR = (
    "Warning: there is no TLS: keys and voices cross the network for all to read, and browsers "
    "elsewhere give the page no microphone. --tls-self-signed, access.tls_cert, or a reverse proxy."
)


def check_access(config: Config, keys: KeyFile) -> None:
    """Check that clients can authenticate and that the server is open only on request.

    Raises ConfigError where no client could authenticate, or where others could reach the server
    without a key; KeyFileError where the keys can't be read.
    """
    _check_jwt(config)
    networks_of(config.access.trusted_proxies)
    usable = keys.read()
    if usable or config.access.has_jwt or not needs_key(config, has_keys=keys.exists()):
        return
    if config.access.require_key == "always":
        raise ConfigError(
            "access.require_key is always, and there is no key: halfsec keys add NAME",
            key="access.require_key",
        )
    if is_loopback(config.agent.host):
        return  # local commands have a local key, carriers their signatures
    raise ConfigError(
        f"On {config.agent.host} others reach the server, and there is no key: whoever finds the "
        "port could hold calls and read what was said in others. Make one: halfsec keys add NAME. "
        "If an open server is what you want: --set access.require_key=never",
        key="agent.host",
    )


def tell_of_access(config: Config, certificate: Certificate | None) -> Iterator[str]:
    """Lines for the operator about the server's exposure: no key, no TLS, own certificate."""
    others = not is_loopback(config.agent.host)
    if is_reachable_by_others(config) and config.access.require_key == "never":
        host = config.agent.host if others else config.telephony.public_host
        yield _OPEN_TO_OTHERS.format(host=host)
    if others and certificate is None:
        yield _IN_THE_CLEAR
    if certificate is not None and certificate.is_own:
        yield (
            f"The certificate is the server's own ({certificate.cert}). Browsers warn of it once; "
            f"its SHA-256 fingerprint is {certificate.fingerprint()}"
        )
    if certificate is not None and config.agent.host in ("0.0.0.0", "::") and config.agent.port:
        for address in own_addresses():
            if config.agent.host == "::" or ":" not in address:
                host = f"[{address}]" if ":" in address else address
                yield f"From other machines: https://{host}:{config.agent.port}/"


def _check_jwt(config: Config) -> None:
    access = config.access
    parts = {
        "access.jwt_issuer": access.jwt_issuer,
        "access.jwt_audience": access.jwt_audience,
        "access.jwt_jwks_url": access.jwt_jwks_url,
    }
    missing = [key for key, value in parts.items() if not value]
    if 0 < len(missing) < len(parts):
        raise ConfigError(f"Web tokens also need {' and '.join(missing)}.", key=missing[0])
    if access.has_jwt and importlib.util.find_spec("jwt") is None:
        raise ConfigError(f"access.jwt_issuer needs PyJWT: {INSTALL_JWT}", key="access.jwt_issuer")
