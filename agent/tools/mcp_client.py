"""Client of one MCP server: connects, watches the list of tools, and reconnects.

Theory of operation. The library's client is a context, which must be entered and left by the same
task; so each server has one task, its owner, for as long as the service runs. It connects, lists
the tools, and then waits: until the server reports that its tools have changed, its connection
ends, a call fails, or LOOK_EVERY_S have passed. Then the tools are listed again, which also checks
that the server is alive. A server that does not answer is disconnected, and connected again after a
pause; a command is thereby ended, with all its children, and started again.

A server with one thread lists nothing while it computes. So nothing is listed every LOOK_EVERY_S
while calls run, nor because one of several calls was cancelled, as a barge-in does: then when the
others have ended, or the time limit of each has passed.

Calls come from other tasks at any time. The server is notified of a cancelled call (the library
sends `notifications/cancelled`, or ends the request where that cancels it). A tool's result is not
validated against the schema of the server: nothing depends on it, and a pattern in it can take
unbounded time.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import anyio

from agent.config.tools import McpSettings

from . import mcp_stdio
from .api import ToolError
from .mcp_sanitize import Listing, listing_of, result_text
from .server_tool import one_line

if TYPE_CHECKING:
    from mcp import Client

ANSWER_S: Final = 10.0
"""Time for a server to answer the handshake, and to list its tools. A server that computes on its
only thread is silent meanwhile, and must not be restarted for it."""

LOOK_EVERY_S: Final = 30.0
"""Longest pause between two listings of the tools."""

SETTLE_S: Final = 0.2
"""Shortest pause between two listings: a server may send notifications without end."""

RETRY_S: Final = (0.5, 2.0, 5.0, 10.0, 30.0)
"""Pauses before a server is connected again; the last one repeats."""

SILENT_S: Final = 300.0
"""Least time for which a stream over HTTP may be silent. Notifications are rare."""

MAX_PAGES: Final = 10
"""Most pages of one listing."""

MAX_LISTING_BYTES: Final = 4 << 20
"""Longest listing, all pages together, as JSON: 64 tools with the longest schemas take 1 MB. In
memory it takes up to 28 times as much (empty lists; measured with mcp 2.3)."""

MAX_ERROR_CHARS: Final = 4096
"""Characters of an error that are searched for addresses: it may have any length."""

_ADDRESS: Final = re.compile(r"\b\w+://[^\s'\"]+")

_log = logging.getLogger(__name__)


class McpClient:
    """Connection to one MCP server. Runs on a `ToolLoop`; any thread may read `listing` and
    `problem`."""

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        *,
        is_heard: bool = False,
        retry_s: Sequence[float] = RETRY_S,
        longest_call_s: float = 0,
    ) -> None:
        """`is_heard`: the command may write to this process's stderr. `longest_call_s`: time limit
        of the longest call. Environment variables named in the settings are read at each
        connection."""
        self.name = name
        self.listing = Listing({}, ())
        """The server's tools; empty while it is not connected."""
        self.problem: str | None = "it is not connected yet"
        """Why the server can't be called now; None where it can."""
        self._settings = settings
        self._is_heard = is_heard
        self._retry_s = retry_s
        self._silent_s = max(SILENT_S, longest_call_s + ANSWER_S)
        self._client: Client | None = None
        self._news = asyncio.Event()
        self._deadlines: list[float] = []
        """Times at which the calls in progress reach their limits, s."""
        self._check_at: float | None = None
        """Time at which the server is checked although calls run, s: one of several was cancelled.
        None: none was."""
        self._num_failures = 0
        """Consecutive failures to connect and stay connected."""
        self._has_long_line = False
        """True once the command has written a line that is too long."""

    async def live(self) -> None:
        """Stay connected until the anyio scope of this task is cancelled."""
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
        """Call a tool and return its text. Raises ToolError. Runs on the loop of `live`."""
        client = self._client
        if client is None:
            raise ToolError(f"{name} can't be reached now")
        if name not in self.listing.definitions:
            raise ToolError(f"{name} is not there any more")
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        params = CallToolRequestParams(name=name, arguments=arguments)
        deadline = anyio.current_time() + timeout_s
        self._deadlines.append(deadline)
        is_cancelled = True
        try:
            result = await client.session.send_request(
                CallToolRequest(params=params), CallToolResult, timeout_s
            )
            is_cancelled = False
        except Exception as error:
            is_cancelled = False
            self._news.set()  # check that the server is alive
            raise ToolError(f"{name} failed: {_reason(error)}") from None
        finally:
            self._deadlines.remove(deadline)
            if is_cancelled and self._check_at is None:
                self._check_at = max(self._deadlines, default=0.0)
            if self._check_at is not None and not self._deadlines:
                self._news.set()
        if result.is_error:
            raise ToolError(one_line(result_text(result), 1000))
        return result_text(result)

    async def _connected(self) -> None:
        """Connect, and return when the connection has ended. Raises where it fails."""
        from mcp import Client
        from mcp.types import Implementation

        self._news.clear()
        ended = asyncio.Event()
        self._has_long_line = False
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
        if self._has_long_line:
            longest = mcp_stdio.MAX_LINE_CHARS >> 20
            raise ToolError(f"it wrote a line of more than {longest} MiB")

    async def _transport(self, stack: AsyncExitStack, ended: asyncio.Event) -> Any:
        settings = self._settings
        if settings.url:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            from .mcp_http import MAX_ANSWER_BYTES, bounded_client

            headers = _from_environment(settings.headers)
            timeout = httpx2.Timeout(ANSWER_S, read=self._silent_s)
            http = await stack.enter_async_context(bounded_client(headers, timeout))
            return streamable_http_client(
                settings.url, http_client=http, max_sse_event_size=MAX_ANSWER_BYTES
            )
        from mcp import StdioServerParameters, stdio_client

        heard: TextIO | None = sys.__stderr__ if self._is_heard else None
        errlog = heard or stack.enter_context(_nowhere())
        command, *arguments = settings.command
        env = _from_environment(settings.env)
        server = StdioServerParameters(
            command=command, args=arguments, env=env, encoding=mcp_stdio.ENCODING
        )

        def end() -> None:
            self._has_long_line = True
            ended.set()
            self._news.set()

        mcp_stdio.watch_lines(end)
        return _watched(stdio_client(server, errlog), ended, self._news)

    async def _look_after(self, client: "Client", ended: asyncio.Event) -> None:
        """Wait for a notification or LOOK_EVERY_S, and list the tools. Raises where that fails."""
        with anyio.move_on_after(LOOK_EVERY_S):
            await self._news.wait()
        has_news = self._news.is_set()
        self._news.clear()
        is_due = self._check_at is not None and anyio.current_time() >= self._check_at
        if ended.is_set() or (self._deadlines and not (has_news or is_due)):
            return
        self._check_at = None
        await self._list(client)
        if not has_news:
            self._num_failures = 0  # it has stayed for a while
        await anyio.sleep(SETTLE_S)

    async def _list(self, client: "Client") -> None:
        from mcp.types import PaginatedRequestParams

        tools: list[Any] = []
        num_bytes = 0
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
            page = await client.session.list_tools(params=params)
            num_bytes += len(page.model_dump_json())
            if num_bytes > MAX_LISTING_BYTES:
                raise ToolError(f"its list of tools has more than {MAX_LISTING_BYTES >> 20} MiB")
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        listing = listing_of(tools, self._settings.tools, self._settings.background)
        if listing == self.listing:
            return
        before, self.listing = self.listing, listing
        names = ", ".join(listing.definitions) or "none"
        _log.info("MCP server %s: tools: %s", self.name, names)
        for problem in listing.problems if listing.problems != before.problems else ():
            _log.warning("MCP server %s: %s", self.name, problem)

    async def _listen(self, client: "Client") -> None:
        """Subscribe to changes of the tools, where a server needs a subscription."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        while True:
            with contextlib.suppress(SubscriptionLost, TimeoutError):
                try:
                    async with client.listen(tools_list_changed=True) as changes:
                        async for _ in changes:
                            self._news.set()
                except (ListenNotSupportedError, MCPError):
                    return  # it notifies without a subscription, or never: LOOK_EVERY_S covers that
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
    """Values of environment variables. Raises ToolError with the name of one that is not set."""
    for variable in names.values():
        if variable not in os.environ:
            raise ToolError(f"the environment variable {variable} is not set")
    return {name: os.environ[variable] for name, variable in names.items()}


@asynccontextmanager
async def _watched(transport: Any, ended: asyncio.Event, news: asyncio.Event) -> AsyncIterator[Any]:
    """Wrap a transport so that both events are set when the other side has closed it."""
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
    """The reason of an error in a few words, without the request, and without addresses: the
    library quotes the target of a redirect, whose path may be a key, and `/readyz` shows the reason
    without one."""
    from pydantic import ValidationError

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"there is no command {one_line(error.filename, 80)}"
    if isinstance(error, ValidationError):
        return "its answer is not as MCP has it"
    # By name: the library may be what could not be loaded.
    is_plain = isinstance(error, ToolError) or type(error).__name__ == "MCPError"
    said = one_line(_ADDRESS.sub("another address", str(error)[:MAX_ERROR_CHARS]))
    return said if is_plain else f"{type(error).__name__}: {said}"
