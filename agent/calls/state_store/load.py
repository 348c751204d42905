"""Choice of the state store by the settings."""

from typing import Final

from agent.config.schema import Config
from agent.config.state_address import parse_state_store
from agent.errors import ConfigError
from latency_budget.account.clock import Clock

from .memory import MemoryStateStore
from .store import StateStore

INSTALL_REDIS: Final = "pip install 'halfsec[redis]'"
SETTING: Final = "agent.state_store"


def check_state_store(config: Config) -> None:
    """Check for the client's package. Raises ConfigError where the settings need it."""
    if parse_state_store(config.agent.state_store) is None:
        return
    try:
        import redis.asyncio  # noqa: F401
    except ImportError:
        raise ConfigError(f"{SETTING} needs redis: {INSTALL_REDIS}", key=SETTING) from None


def open_state_store(config: Config, clock: Clock) -> StateStore:
    """The store of these settings. Contacts nothing. Raises ConfigError."""
    address = parse_state_store(config.agent.state_store)
    if address is None:
        return MemoryStateStore(clock)
    check_state_store(config)
    from .redis_store import RedisStateStore  # only here: redis is an extra

    return RedisStateStore(address, clock)
