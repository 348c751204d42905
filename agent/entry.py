"""How our own commands get in at a server: the key they show, and the certificate they trust."""

import os
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from .address import is_loopback
from .config import Config
from .local_key import local_key
from .tls import certificate_of, client_context

KEY_VARIABLE: Final = "HALFSEC_API_KEY"


@dataclass(frozen=True, slots=True)
class Entry:
    api_key: str | None = None
    tls: ssl.SSLContext | None = None
    """None: what the system trusts."""


WITHOUT_KEY: Final = Entry()


def entry_here(config: Config, given: str | None = None) -> Entry:
    """At the server that the settings describe, on this machine: by the key that it left for us,
    unless one was given, or HALFSEC_API_KEY is set. Raises ConfigError where the certificate of the
    settings can't be read."""
    certificate = certificate_of(config)
    key = given or os.environ.get(KEY_VARIABLE) or local_key(config.agent.port)
    return Entry(key, None if certificate is None else client_context(certificate))


def entry_at(url: str, given: str | None = None) -> Entry:
    """At the server with this address. What a server here left for us goes nowhere else."""
    key = given or os.environ.get(KEY_VARIABLE)
    try:
        parts = urlsplit(url)
        port = parts.port or 0
    except ValueError:
        return Entry(key)  # who connects there says what is wrong with it
    if not key and is_loopback(parts.hostname or ""):
        key = local_key(port)
    return Entry(key)
