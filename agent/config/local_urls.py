"""URLs of the server for clients on the same machine, and whether a host is loopback."""

import ipaddress
from typing import Final

from agent.errors import ConfigError

from .schema import Config

VOICE_PATH: Final = "/v1/realtime"
RELOAD_PATH: Final = "/v1/settings/reload"

_FROM_HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address at which a server on all addresses is reached from its own machine."""


def local_voice_url(config: Config) -> str:
    """Address of the voice socket of a server on this machine with these settings.

    Raises ConfigError where they leave the port open.
    """
    if config.agent.port == 0:
        raise ConfigError(
            "agent.port is 0, any free one: say which it became with --url ws://127.0.0.1:PORT.",
            key="agent.port",
        )
    host = _FROM_HERE.get(config.agent.host, config.agent.host)
    scheme = "wss" if config.access.has_tls else "ws"
    return f"{scheme}://{_bracketed(host)}:{config.agent.port}{VOICE_PATH}"


def local_http_url(config: Config) -> str:
    """Address, without a path, of a server on this machine with these settings.

    Raises ConfigError where they leave the port open.
    """
    if config.agent.port == 0:
        raise ConfigError(
            "agent.port is 0, any free one: say which it became with --port.", key="agent.port"
        )
    host = _FROM_HERE.get(config.agent.host, config.agent.host)
    scheme = "https" if config.access.has_tls else "http"
    return f"{scheme}://{_bracketed(host)}:{config.agent.port}"


def page_url(config: Config, host: str, port: int) -> str:
    """Address of the page of a server that listens here, for a browser on this machine."""
    scheme = "https" if config.access.has_tls else "http"
    here = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::1", "::") else host
    return f"{scheme}://{_bracketed(here)}:{port}/"


def is_loopback(host: str) -> bool:
    """True where only this machine can reach a server on `host`; names count only as localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
