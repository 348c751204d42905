"""Decision from the settings whether the server requires a key."""

from agent.config.local_urls import is_loopback
from agent.config.schema import Config


def needs_key(config: Config, *, has_keys: bool) -> bool:
    """True if a server with these settings asks for a key. `has_keys`: one was ever made."""
    setting = config.access.require_key
    if setting != "auto":
        return setting == "always"
    return has_keys or config.access.has_jwt or is_reachable_by_others(config)


def is_reachable_by_others(config: Config) -> bool:
    """True if other machines reach the server: by its own address, or through a proxy."""
    return not is_loopback(config.agent.host) or bool(config.telephony.public_url)
