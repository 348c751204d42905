"""Reload of the settings of a running service: read, check as a whole, apply to new calls.

Nothing is changed before all of it is known to be right: a file that can't be read, a setting that
is invalid, or a file of tools that can't be loaded leaves the service as it is. Calls in progress
keep the settings that they began with.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from agent.calls.registry import CallRegistry
from agent.config.reload import Reload, reload_config
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.tools.server_tools import ServerTools

from .startup_checks.telephony import check_telephony
from .startup_checks.tools import check_client_tools

NOT_HERE: Final = "The settings of this server can't be reloaded: they were not read by its process"

_log = logging.getLogger(__name__)


class UsesSettings(Protocol):
    """Part of the application that can serve by other settings from one call to the next."""

    def use(self, config: Config) -> None: ...


class Reloader:
    """One instance for the service. Belongs to its event loop."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config] | None,
        tools: ServerTools,
        calls: CallRegistry,
        parts: Sequence[UsesSettings],
    ) -> None:
        """`config`: the settings of the start. `read`: reads them anew, on a thread; None where
        that can't be done. `parts`: what serves calls by them."""
        self._started = self._current = config
        self._read = read
        self._tools = tools
        self._calls = calls
        self._parts = parts
        self._lock = asyncio.Lock()

    async def reload(self) -> Reload:
        """Read the settings and apply them to the calls that begin from now on. Raises ConfigError,
        having changed nothing."""
        async with self._lock:
            try:
                done = await self._reload()
            except ConfigError as error:
                self._calls.reloads["refused"] += 1
                _log.error("the settings stay as they were: %s", error.message)
                raise
        self._calls.reloads["applied"] += 1
        changed, kept = ", ".join(done.changed), ", ".join(done.needs_restart)
        _log.info("settings reloaded; changed: %s", changed or "nothing")
        if kept:
            _log.warning("settings that need a restart, not applied: %s", kept)
        told = {"changed": list(done.changed), "needs_restart": list(done.needs_restart)}
        self._calls.events.publish("settings", None, lambda: told)
        return done

    async def reload_quietly(self) -> None:
        """Reload as for a signal: what is wrong stands in the log."""
        try:
            await self.reload()
        except ConfigError:
            pass
        except Exception:
            _log.exception("the settings stay as they were")

    async def _reload(self) -> Reload:
        if self._read is None:
            raise ConfigError(f"{NOT_HERE}.")
        new = await asyncio.to_thread(self._read)
        check_telephony(new)
        done = reload_config(self._started, self._current, new)
        check_telephony(done.config)
        check_client_tools(done.config)
        use_tools = await self._tools.reload(done.config)
        await use_tools()
        for part in self._parts:
            part.use(done.config)
        self._current = done.config
        return done
