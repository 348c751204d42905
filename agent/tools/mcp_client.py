"""One MCP server: connected, looked after, connected anew.

Theory of operation. The library's client is a context, which has to be entered and left by the same
task; so each server has one task, its owner, for as long as the service runs. It connects, lists
the tools, and then waits for news: the server says that its tools have changed, its connection
ends, a call fails, or some time has passed. Each time the tools are listed anew, which also shows
whether somebody is there. A server that does not answer that is left, and connected after a while;
a command is thereby ended, with all its children, and started again.

Calls come from other tasks at any time. One that is cancelled tells the server so (the library
sends `notifications/cancelled`, or ends the request where that is how to cancel). What a tool gives
is not held against the schema that the server has for it: nothing depends on it, and a pattern in
it can take for ever.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import anyio

from agent.config.tools import McpSettings

from .api import ToolError
from .decorator import one_line
from .mcp_sanitize import Listing, listing_of, result_text

if TYPE_CHECKING:
    from mcp import Client

ANSWER_S: Final = 10.0
"""For a server to greet, and to list its tools. One that calculates on its only thread is silent
meanwhile, and is not to be ended for it."""

LOOK_EVERY_S: Final = 30.0
"""Between looks at a server without news."""

SETTLE_S: Final = 0.2
"""Between two listings at least: a server may have news without end."""

RETRY_S: Final = (0.5, 2.0, 5.0, 10.0, 30.0)
"""Waits before a server is connected anew; the last one repeats."""

MAX_PAGES: Final = 10
"""Of one listing."""

_log = logging.getLogger(__name__)


class McpClient:
    """Lives on a loop of its own (`ToolLoop`); `listing` and `problem` any thread may read."""

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        *,
        is_heard: bool = False,
        retry_s: Sequence[float] = RETRY_S,
    ) -> None:
        """`is_heard`: a command may write to our stderr. Variables of the environment that the
        settings name are read when it is connected."""
        self.name = name
        self.listing = Listing({}, ())
        """Empty while it is not connected."""
        self.problem: str | None = "it is not connected yet"
        """Why it can't be called now; None: it can."""
        self._settings = settings
        self._is_heard = is_heard
        self._retry_s = retry_s
        self._client: Client | None = None
        self._news = asyncio.Event()
        self._num_calls = 0
        self._num_failures = 0
        """To connect and stay connected, in a row."""

    async def live(self) -> None:
        """Be connected, until the scope is cancelled in which this runs (anyio's)."""
        while True:
            problem = "it ended the connection"
            try:
                await self._connected()
            except Exception as error:
                problem = _reason(error)
            finally:
                is_news = problem != self.problem
                self._client, self.listing, self.problem = None, Listing({}, ()), problem
            wait_s = self._retry_s[min(self._num_failures, len(self._retry_s) - 1)]
            self._num_failures += 1
            if is_news:
                _log.warning("MCP server %s: %s; it is tried again", self.name, problem)
            await anyio.sleep(wait_s)

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> str:
        """What a tool gave. Raises ToolError. Belongs to the loop on which it lives."""
        client = self._client
        if client is None:
            raise ToolError(f"{name} can't be reached now")
        if name not in self.listing.definitions:
            raise ToolError(f"{name} is not there any more")
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        params = CallToolRequestParams(name=name, arguments=arguments)
        self._num_calls += 1
        is_well = False
        try:
            result = await client.session.send_request(
                CallToolRequest(params=params), CallToolResult, timeout_s
            )
            is_well = True
        except Exception as error:
            raise ToolError(f"{name} failed: {_reason(error)}") from None
        finally:
            self._num_calls -= 1
            if not is_well:
                self._news.set()  # is it still there?
        if result.is_error:
            raise ToolError(one_line(result_text(result), 1000))
        return result_text(result)

    async def _connected(self) -> None:
        """Returns when the connection has ended, raises where it fails."""
        from mcp import Client
        from mcp.types import Implementation

        self._news.clear()
        ended = asyncio.Event()
        async with AsyncExitStack() as stack:
            transport = await self._transport(stack, ended)
            client = await stack.enter_async_context(
                Client(
                    transport,
                    read_timeout_seconds=ANSWER_S,
                    message_handler=self._on_message,
                    client_info=Implementation(name="halfsec", version=_version()),
                    cache=None,
                )
            )
            await self._list(client)
            self._client, self.problem = client, None
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, client)
                while not ended.is_set():
                    await self._look_after(client, ended)
                group.cancel_scope.cancel()

    async def _transport(self, stack: AsyncExitStack, ended: asyncio.Event) -> Any:
        settings = self._settings
        if settings.url:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            headers = _from_environment(settings.headers)
            timeout = httpx2.Timeout(ANSWER_S, read=300)  # a stream may be silent for long
            http = httpx2.AsyncClient(headers=headers, timeout=timeout)
            await stack.enter_async_context(http)
            return streamable_http_client(settings.url, http_client=http)
        from mcp import StdioServerParameters, stdio_client

        heard: TextIO | None = sys.__stderr__ if self._is_heard else None
        errlog = heard or stack.enter_context(_nowhere())
        command, *arguments = settings.command
        env = _from_environment(settings.env)
        server = StdioServerParameters(command=command, args=arguments, env=env)
        return _telling(stdio_client(server, errlog), ended, self._news)

    async def _look_after(self, client: "Client", ended: asyncio.Event) -> None:
        """Wait for news, and list the tools. Raises where that fails."""
        with anyio.move_on_after(LOOK_EVERY_S):
            await self._news.wait()
        has_news = self._news.is_set()
        self._news.clear()
        if ended.is_set() or (self._num_calls and not has_news):
            return
        await self._list(client)
        if not has_news:
            self._num_failures = 0  # it has stayed for a while
        await anyio.sleep(SETTLE_S)

    async def _list(self, client: "Client") -> None:
        from mcp.types import PaginatedRequestParams

        tools: list[Any] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
            page = await client.session.list_tools(params=params)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        listing = listing_of(tools, self._settings.tools)
        if listing == self.listing:
            return
        self.listing = listing
        names = ", ".join(listing.definitions) or "none"
        _log.info("MCP server %s: tools: %s", self.name, names)
        for problem in listing.problems:
            _log.warning("MCP server %s: %s", self.name, problem)

    async def _listen(self, client: "Client") -> None:
        """Hear of changes where a server has to be asked to tell of them."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        while True:
            with contextlib.suppress(SubscriptionLost, TimeoutError):
                try:
                    async with client.listen(tools_list_changed=True) as changes:
                        async for _ in changes:
                            self._news.set()
                except (ListenNotSupportedError, MCPError):
                    return  # it tells without, or not at all: it is looked at now and then
            await anyio.sleep(LOOK_EVERY_S)

    async def _on_message(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._news.set()


def _version() -> str:
    try:
        return importlib.metadata.version("halfsec")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def _from_environment(names: dict[str, str]) -> dict[str, str]:
    """Raises ToolError naming what is not set."""
    for variable in names.values():
        if variable not in os.environ:
            raise ToolError(f"the environment variable {variable} is not set")
    return {name: os.environ[variable] for name, variable in names.items()}


@asynccontextmanager
async def _telling(transport: Any, ended: asyncio.Event, news: asyncio.Event) -> AsyncIterator[Any]:
    """The same transport, which tells when the other side has gone."""
    async with transport as (read, write):
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def pump() -> None:
            async with send:
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    async for message in read:
                        await send.send(message)
            ended.set()
            news.set()

        async with anyio.create_task_group() as group, receive:
            group.start_soon(pump)
            yield receive, write
            group.cancel_scope.cancel()


def _reason(error: BaseException) -> str:
    """In a few words, without what was asked of it."""
    from pydantic import ValidationError

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"there is no command {one_line(error.filename, 80)}"
    if isinstance(error, ValidationError):
        return "its answer is not as MCP has it"
    # By name: the library may be what could not be loaded.
    is_plain = isinstance(error, ToolError) or type(error).__name__ == "MCPError"
    return one_line(error) if is_plain else f"{type(error).__name__}: {one_line(error)}"
