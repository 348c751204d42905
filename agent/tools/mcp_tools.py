"""Tools of MCP servers, as `ServerTool`s of the sessions."""

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
    """A tool of an MCP server; implements `ServerTool`."""

    def __init__(
        self,
        name: str,
        definition: str,
        link: McpClient,
        loop: ToolLoop,
        timeout_s: float,
        *,
        is_background: bool = False,
    ) -> None:
        self.name = name
        self.definition = definition
        self.timeout_s = timeout_s
        self.is_background = is_background
        self._link = link
        self._loop = loop

    async def call(self, arguments: str) -> str:
        """Call the tool. Raises ToolError."""
        try:
            given = json.loads(arguments)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise ToolError("wrong arguments: they must be an object in JSON")
        # The caller of this method enforces the time limit by cancelling; this longer one covers a
        # cancellation that is lost.
        limit_s = self.timeout_s + 1
        return await self._loop.run(partial(self._link.call, self.name, given, limit_s))


class McpServers:
    """The MCP servers that the agents use. Used on the server's event loop."""

    def __init__(self, config: Config, retry_s: Sequence[float] = RETRY_S) -> None:
        self._timeout_s = config.agent.tool_timeout_s
        self._background_s = config.agent.background_tool_timeout_s
        self._settings = config.mcp
        wanted = {
            source.removeprefix(MCP_PREFIX): None
            for profile in config.agents.values()
            for source in profile.server_tools
            if source.startswith(MCP_PREFIX)
        }
        self._links = {
            name: McpClient(
                name,
                config.mcp[name],
                is_heard=config.agent.log_tools,
                retry_s=retry_s,
                longest_call_s=self._background_s,
            )
            for name in wanted
        }
        self._loop = ToolLoop("mcp", self._live)

    async def start(self) -> None:
        """Begin to connect; does not wait for any server."""
        if self._links:
            await self._loop.start()

    async def close(self) -> None:
        """Disconnect, and end the commands."""
        await self._loop.close()

    def tools(self, name: str) -> list[McpTool]:
        """Tools of one server; empty while it is not connected."""
        link, settings = self._links[name], self._settings[name]
        timeout_s, background = settings.timeout_s or self._timeout_s, settings.background
        return [
            McpTool(each, definition, link, self._loop, self._background_s, is_background=True)
            if each in background
            else McpTool(each, definition, link, self._loop, timeout_s)
            for each, definition in link.listing.definitions.items()
        ]

    def problems(self) -> Mapping[str, str]:
        """Reasons by name of the servers that can't be called now."""
        return {name: link.problem for name, link in self._links.items() if link.problem}

    async def _live(self, stop: asyncio.Event) -> None:
        # The library logs invalid input word for word. `McpClient` logs the reason without it.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        async with anyio.create_task_group() as group:
            for link in self._links.values():
                group.start_soon(link.live)
            await stop.wait()
            group.cancel_scope.cancel()
