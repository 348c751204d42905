"""Credentials of telephone carriers, as HTTP requests and stream handshakes present them. Pure."""

import base64
import binascii
import re
from typing import Final

PREFIX: Final = "/telephony/"


PRESENTED_KEY: Final = "halfsec.call_token"
"""Where the door puts into the ASGI scope what was presented as a call's token."""


def is_webhook(path: str) -> bool:
    """Whether carriers ask there about a call, or tell of one."""
    return path.startswith(PREFIX) and path.endswith(("/voice", "/status"))


def carrier_in(path: str) -> str:
    """Name of the carrier in a path like `/telephony/twilio/voice`."""
    return path.removeprefix(PREFIX).partition("/")[0]


def is_web_token(header: str) -> bool:
    """Whether an Authorization header has a web token, as carriers sign with."""
    scheme, _, token = header.strip().partition(" ")
    return scheme.lower() == "bearer" and token.count(".") == 2


def basic_password(header: str) -> str | None:
    """Of an Authorization header; None where it is of another scheme."""
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
"""Of letters and digits only: Plivo hands on nothing else."""


def is_call_token(credential: str) -> bool:
    """By its looks."""
    return TOKEN.fullmatch(credential) is not None
