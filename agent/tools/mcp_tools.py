"""Tools of MCP servers, as the sessions call them."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial

import anyio

from agent.config.schema import Config
from agent.config.tools import MCP_PREFIX

from .api import ToolError
from .event_loop import ToolLoop
from .mcp_client import RETRY_S, McpClient


class McpTool:
    """A `ServerTool`."""

    def __init__(
        self, name: str, definition: str, link: McpClient, loop: ToolLoop, timeout_s: float
    ) -> None:
        self.name = name
        self.definition = definition
        self.timeout_s = timeout_s
        self._link = link
        self._loop = loop

    async def call(self, arguments: str) -> str:
        """Raises ToolError."""
        try:
            given = json.loads(arguments)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise ToolError("wrong arguments: they must be an object in JSON")
        # Who waits here gives it up when its time is over, and that cancels it, unless it is lost.
        limit_s = self.timeout_s + 1
        return await self._loop.run(partial(self._link.call, self.name, given, limit_s))


class McpServers:
    """All that the agents ask for. Belongs to the server's event loop."""

    def __init__(self, config: Config, retry_s: Sequence[float] = RETRY_S) -> None:
        self._timeout_s = config.agent.tool_timeout_s
        self._settings = config.mcp
        wanted = {
            source.removeprefix(MCP_PREFIX): None
            for profile in config.agents.values()
            for source in profile.server_tools
            if source.startswith(MCP_PREFIX)
        }
        self._links = {
            name: McpClient(
                name, config.mcp[name], is_heard=config.agent.log_tools, retry_s=retry_s
            )
            for name in wanted
        }
        self._loop = ToolLoop("mcp", self._live)

    async def start(self) -> None:
        """Begin to connect; does not wait for any of them."""
        if self._links:
            await self._loop.start()

    async def close(self) -> None:
        """Leave them, and end the commands."""
        await self._loop.close()

    def tools(self, name: str) -> list[McpTool]:
        """Of one server, as far as it can be called now."""
        link, timeout_s = self._links[name], self._settings[name].timeout_s or self._timeout_s
        return [
            McpTool(each, definition, link, self._loop, timeout_s)
            for each, definition in link.listing.definitions.items()
        ]

    def problems(self) -> Mapping[str, str]:
        """Of the servers that can't be called now."""
        return {name: link.problem for name, link in self._links.items() if link.problem}

    async def _live(self, stop: asyncio.Event) -> None:
        # The library logs what it can't read, word for word. What is wrong we say ourselves.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        async with anyio.create_task_group() as group:
            for link in self._links.values():
                group.start_soon(link.live)
            await stop.wait()
            group.cancel_scope.cancel()
