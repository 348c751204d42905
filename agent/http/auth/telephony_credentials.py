"""Credentials of telephone carriers, as HTTP requests and stream handshakes present them. Pure."""

import base64
import binascii
import re
from typing import Final

from agent.telephony.carriers.table import CARRIERS

PREFIX: Final = "/telephony/"


PRESENTED_KEY: Final = "halfsec.call_token"
"""Key of the ASGI scope under which the middleware stores a presented call token."""


def is_webhook(path: str) -> bool:
    """True for the paths of carriers' voice and status webhooks."""
    return path.startswith(PREFIX) and path.endswith(("/voice", "/status"))


def is_signature(path: str, header: str) -> bool:
    """True where an Authorization header is a carrier's signature (a JSON web token), to be checked
    by the endpoint, and not a key."""
    if not is_webhook(path):
        return False
    carrier = CARRIERS.get(path.removeprefix(PREFIX).rpartition("/")[0])
    scheme, _, token = header.strip().partition(" ")
    is_signed = carrier is not None and carrier.is_signed_by_bearer
    return is_signed and scheme.lower() == "bearer" and token.count(".") == 2


def basic_password(header: str) -> str | None:
    """Password of a Basic Authorization header; None for another scheme."""
    scheme, _, encoded = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.partition(":")[2]


CALLS_PATH: Final = "/telephony/calls"


TOKEN: Final = re.compile("ct[0-9a-f]{48}")
"""Letters and digits only: Plivo passes on nothing else."""


def is_call_token(credential: str) -> bool:
    """True for a credential in the form of a call token."""
    return TOKEN.fullmatch(credential) is not None
