"""Settings sections `[webhooks.NAME]`: endpoints that are told of calls that end."""

import base64
import binascii
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

from .telephony import ENVIRONMENT
from .values import Between

MAX_ENDPOINTS: Final = 8
"""Endpoints of one server. Each has a thread and a connection to the store."""

_SECRET_PREFIX: Final = "whsec_"

_URL: Final = re.compile(r"[!-~]+")

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses that a gateway translates to the IPv4 address in their last 32 bits (RFC 6052)."""

_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All IPv6 addresses of the internet but those of `_NAT64`. Outside are, among others, site-local
addresses (fec0::/10), IPv4-compatible ones (::/96), NAT64 with a local prefix (64:ff9b:1::/48) and
SRv6 segments (5f00::/16), which `is_global` of Python 3.11 takes for public."""

_NOT_PUBLIC: Final = (
    # IETF protocol assignments. Two of them IANA has as globally reachable, 192.0.0.9 and .10: the
    # anycast addresses of the nearest PCP and TURN servers, which are those of one's own network.
    ipaddress.IPv4Network("192.0.0.0/24"),
    ipaddress.IPv6Network("3fff::/20"),  # documentation (RFC 9637)
)
"""Other addresses that `is_global` of Python 3.11 takes for public."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """`[webhooks.NAME]`: an endpoint that gets `call.ended` by POST when a call ends, signed as
    Standard Webhooks. Needs `latency_budget.store`."""

    url: str = ""
    """Address of the endpoint, like https://HOST/PATH; http:// only with `allow_private`."""
    secret_env: Annotated[str, ENVIRONMENT] = "WEBHOOK_SECRET"
    """The environment variable that has the secret of the signature: whsec_ and 24 to 64 random
    bytes in base64. It is read when the server starts."""
    transcript: bool = True
    """Send what was said, and arguments and results of tools. false: times, latency and names of
    tools only. While a message waits, its words are in the store, whatever
    `latency_budget.store_texts` is."""
    allow_private: bool = False
    """Let the endpoint be inside the network: loopback, private and link-local addresses, those of
    cloud metadata included. false: such addresses are refused whenever a connection is made."""
    max_age_h: Annotated[int, Between(1, 168)] = 24
    """Hours for which a message is tried again before it is given up."""


def is_public(address: str) -> bool:
    """True for an IP address of the internet. False for loopback, private, link-local, multicast
    and reserved ones, also as an IPv6 address that stands for an IPv4 one. Raises ValueError."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip.teredo is not None or ip not in _GLOBAL_UNICAST:
            return False
    if any(ip in network for network in _NOT_PUBLIC):
        return False
    return ip.is_global and not ip.is_multicast


def webhook_problem(settings: WebhookSettings) -> tuple[str, str] | None:
    """What is wrong with an endpoint that its settings alone show: the key, and the predicate of a
    sentence. Looks up no name."""
    if not settings.url:
        return "url", "is missing: the address of the endpoint, like https://HOST/PATH"
    try:
        parts = urlsplit(settings.url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "url", "is not an address: its host or port can't be read"
    if not host or port == 0 or parts.scheme not in ("https", "http"):
        return "url", "must be an address like https://HOST/PATH"
    if not _URL.fullmatch(settings.url):
        return "url", "must be in ASCII without spaces: hosts as xn--, other characters as %XX"
    if parts.username is not None or parts.fragment:
        return "url", "may have no user and no fragment (#)"
    if settings.allow_private:
        return None
    if parts.scheme != "https":
        return "url", "must begin with https://, unless allow_private is on"
    try:
        # The notations of the C library, like 127.1 or 0x7f000001, are addresses as well.
        literal = host if ":" in host else socket.inet_ntoa(socket.inet_aton(host))
        inside = not is_public(literal)
    except (OSError, ValueError):
        inside = host == "localhost" or host.endswith((".localhost", ".localhost."))
    if inside:
        return "url", "is inside the network, which only allow_private admits"
    return None


def shown_webhook(url: str) -> str:
    """The address without path and query, which may hold a token."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/..." if url else ""
    except ValueError:
        return "(not an address)"


def secret_of(variable: str, environment: Mapping[str, str]) -> bytes:
    """Secret of the signature in an environment variable. Raises ValueError with the predicate of
    a sentence, which quotes nothing of it."""
    text = environment.get(variable, "")
    if not text:
        raise ValueError(f"needs the environment variable {variable}, which is not set")
    try:
        secret = base64.b64decode(text.removeprefix(_SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        secret = b""
    if not (text.startswith(_SECRET_PREFIX) and 24 <= len(secret) <= 64):
        raise ValueError(
            f"needs a secret in the environment variable {variable}: {_SECRET_PREFIX} and 24 to 64 "
            "random bytes in base64"
        )
    return secret
