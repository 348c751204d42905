"""Peer addresses: normalisation for per-peer limits, and the networks of trusted proxies and
Asterisks."""

import ipaddress
from collections.abc import Sequence
from typing import Final

from agent.errors import ConfigError

NOWHERE: Final = "unknown"
MAX_CHARS: Final = 64
"""Longest text kept when a proxy sends something that is not an address, in characters."""

PROXIES_ONLY: Final = (
    'Give addresses or networks of your proxies, as ["192.0.2.7", "10.0.0.0/24"]; who is not a '
    "proxy must not be among them, because it could claim any address."
)

AUDIOSOCKET_ALLOW: Final = "telephony.audiosocket_allow"
ASTERISK_ONLY: Final = (
    'Give addresses or networks of your Asterisks, as ["192.0.2.7", "10.0.0.0/24"]; callers '
    "from there need no key."
)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def place_of(address: str) -> str:
    """Key by which a peer is counted. An IPv6 host's 2**64 addresses (a /64) are one key.
    An IPv4 address that reaches a socket for both kinds (::ffff:192.0.2.1) is itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:MAX_CHARS]
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def networks_of(
    given: Sequence[str], key: str = "access.trusted_proxies", advice: str = PROXIES_ONLY
) -> tuple[Network, ...]:
    """Parse the networks that the setting `key` lists. Raises ConfigError."""
    try:
        return tuple(ipaddress.ip_network(each) for each in given)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}. {advice}", key=key) from None


def asterisk_networks(given: Sequence[str]) -> tuple[Network, ...]:
    """Parse `telephony.audiosocket_allow`. Raises ConfigError."""
    return networks_of(given, AUDIOSOCKET_ALLOW, ASTERISK_ONLY)


def is_within(address: str, networks: Sequence[Network]) -> bool:
    """True if an address lies in one of these networks."""
    if not networks:
        return False
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in networks)
