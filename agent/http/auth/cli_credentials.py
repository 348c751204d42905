"""Credentials of the command line: the key it presents and the certificate it trusts."""

import os
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from agent.config.local_urls import is_loopback
from agent.config.schema import Config

from .local_key import local_key
from .tls import certificate_of, client_context

KEY_VARIABLE: Final = "HALFSEC_API_KEY"


@dataclass(frozen=True, slots=True)
class CliCredentials:
    given: str | None = None
    """The key to show; None: what a server on this machine left for us, if it did."""
    local_port: int | None = None
    """Port of the server on this machine whose local key is used."""
    tls: ssl.SSLContext | None = None
    """None: what the system trusts."""

    def api_key(self) -> str | None:
        """The key as it is now: a server that starts anew leaves a new one."""
        if self.given is None and self.local_port is not None:
            return local_key(self.local_port)
        return self.given

    def headers(self) -> dict[str, str]:
        """Headers of a request that presents the key; empty without a key."""
        key = self.api_key()
        return {} if key is None else {"Authorization": f"Bearer {key}"}


WITHOUT_KEY: Final = CliCredentials()


def entry_here(config: Config, given: str | None = None) -> CliCredentials:
    """At the server that the settings describe, on this machine: by the key that it left for us,
    unless one was given, or HALFSEC_API_KEY is set. Raises ConfigError where the certificate of the
    settings can't be read."""
    certificate = certificate_of(config)
    tls = None if certificate is None else client_context(certificate)
    return CliCredentials(given or os.environ.get(KEY_VARIABLE), config.agent.port, tls)


def entry_at(url: str, given: str | None = None) -> CliCredentials:
    """At the server with this address. What a server here left for us goes nowhere else."""
    key = given or os.environ.get(KEY_VARIABLE)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return CliCredentials(key)  # who connects there says what is wrong with it
    return CliCredentials(key, port if is_loopback(parts.hostname or "") else None)
