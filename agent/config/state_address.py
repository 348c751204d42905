"""Address of the state store (`agent.state_store`): "memory", or a Redis with a prefix. Pure.

The address may hold a password, so it is never shown whole: messages about a wrong one do not
repeat it, and `shown_state_store` is what settings, logs and pages print.
"""

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

MEMORY: Final = "memory"
"""The state stays in the process."""

REDIS_FORM: Final = "redis://HOST:6379/0?prefix=halfsec:"
DEFAULT_PREFIX: Final = "halfsec:"

_SCHEMES: Final = ("redis", "rediss", "unix")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis, and the beginning of the names of all keys of one fleet."""

    url: str = field(repr=False)
    """Address for the client library. It may hold a password."""
    prefix: str
    shown: str
    """The address without a user name and a password."""


def parse_state_store(value: str) -> RedisAddress | None:
    """The Redis that the setting names; None for "memory". Raises ValueError with the predicate of
    a sentence, which quotes nothing of the value."""
    if value == MEMORY:
        return None
    wrong = f'must be "memory", or like "{REDIS_FORM}"'
    try:
        parts = urlsplit(value)
        port = parts.port
        host = parts.hostname
    except ValueError:
        raise ValueError(wrong) from None
    is_local = parts.scheme == "unix"
    if parts.scheme not in _SCHEMES or parts.fragment or re.search(r"\s", value):
        raise ValueError(wrong)
    if not (parts.path if is_local else host):
        raise ValueError(wrong)
    query = parse_qsl(parts.query, keep_blank_values=True)
    prefixes = [text for name, text in query if name == "prefix"] or [DEFAULT_PREFIX]
    if len(prefixes) > 1 or not _PREFIX.fullmatch(prefixes[0]):
        raise ValueError("must have one prefix, of letters, digits and _ . : - (at most 64)")
    known = ("prefix", "db") if is_local else ("prefix",)
    if any(name not in known for name, _ in query):
        raise ValueError(f"may have only {' and '.join(known)} behind the question mark")
    if not is_local and not re.fullmatch(r"/?|/[0-9]{1,5}", parts.path):
        raise ValueError("must name a database by its number, like /0")
    rest = urlencode([each for each in query if each[0] != "prefix"])
    url = f"{parts.scheme}://{parts.netloc}{parts.path}" + (f"?{rest}" if rest else "")
    place = parts.path if is_local else f"[{host}]" if ":" in (host or "") else str(host)
    if port is not None:
        place = f"{place}:{port}"
    where = "" if is_local else parts.path
    return RedisAddress(url, prefixes[0], f"{parts.scheme}://{place}{where}?prefix={prefixes[0]}")


def shown_state_store(value: str) -> str:
    """The setting without a user name and a password."""
    try:
        address = parse_state_store(value)
    except ValueError:
        return "(not an address)"
    return MEMORY if address is None else address.shown
