"""Real MCP servers in processes of their own: those that work, and those that do not."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.config.layers import load_config
from agent.config.tools import McpSettings
from agent.tools.api import ToolError
from agent.tools.mcp_client import LOOK_EVERY_S, McpClient
from agent.tools.mcp_sanitize import Listing
from agent.tools.mcp_tools import McpServers, McpTool
from latency_budget.account.clock import ManualClock
from tests.support.session import virtual_time

HERE = Path(__file__).parents[2]
LIBRARY = [sys.executable, str(HERE / "support" / "service" / "mcp_server.py")]
ODD = [sys.executable, str(HERE / "support" / "service" / "mcp_odd_server.py")]
PATIENCE_S = 60


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.005)


class Server:
    """What a service knows of one server."""

    def __init__(self, servers: McpServers) -> None:
        self._servers = servers

    def names(self) -> list[str]:
        return [tool.name for tool in self._servers.tools("it")]

    @property
    def problem(self) -> str | None:
        return self._servers.problems().get("it")

    def tool(self, name: str) -> McpTool:
        (found,) = (tool for tool in self._servers.tools("it") if tool.name == name)
        return found

    async def call(self, name: str, arguments: str = "{}") -> str:
        return await self.tool(name).call(arguments)

    async def ready(self) -> None:
        await until(lambda: self.problem is None)


@asynccontextmanager
async def connected(settings: str) -> AsyncIterator[Server]:
    """`settings`: of [mcp.it]."""
    text = f'[agents.default]\nserver_tools = ["mcp:it"]\n[mcp.it]\n{settings}'
    servers = McpServers(load_config(file_text=text), retry_s=(0.05,))
    await servers.start()
    try:
        yield Server(servers)
    finally:
        await servers.close()


@asynccontextmanager
async def by(transport: str) -> AsyncIterator[Server]:
    """The library's server, as a command or at an address."""
    if transport == "command":
        async with connected(f"command = {LIBRARY}") as server:
            await server.ready()
            yield server
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *LIBRARY, str(port), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with connected(f'url = "http://127.0.0.1:{port}/mcp"') as server:
            await server.ready()
            yield server
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def failure(calling: Coroutine[Any, Any, str]) -> str:
    with pytest.raises(ToolError) as caught:
        await calling
    return str(caught.value)


@pytest.mark.parametrize("transport", ["command", "url"])
async def test_a_server_of_tools(transport: str, tmp_path: Path) -> None:
    async with by(transport) as server, asyncio.TaskGroup() as group:
        assert await server.call("add", '{"a": 1, "b": 2}') == "3"
        assert '"sky": "clear"' in await server.call("forecast", '{"city": "Paris"}')
        assert await server.call("picture") == "A dot:\n[image, not shown: image/png]"
        wrong = await failure(server.call("add", '{"a": 1}'))
        assert "Field required" in wrong
        assert "\n" not in wrong
        assert "fail" in await failure(server.call("fail"))
        assert "an object" in await failure(server.call("add", "["))

        # At once: one that never answers keeps nobody waiting, and hears that it is given up.
        marker = tmp_path / "marker"
        hanging = group.create_task(server.call("hang", f'{{"marker": "{marker}"}}'))
        await until(marker.exists)
        assert await server.call("add", '{"a": 2, "b": 2}') == "4"
        hanging.cancel()
        await until(lambda: marker.read_text() == "cancelled")

        vanished = server.tool("learn")
        assert "learned" not in server.names()
        await vanished.call("{}")
        await until(lambda: "learned" in server.names())
        assert await server.call("learned") == "as learned"

        gone = await failure(server.call("crash"))
        assert gone.startswith("crash failed: ")
        if transport == "url":
            await until(lambda: server.problem is not None)
            assert server.names() == []
            lost = await failure(vanished.call("{}"))
            assert lost == "learn can't be reached now"
        else:  # it is started anew, without what it had learned
            await until(lambda: server.names() and "learned" not in server.names())
            assert await server.call("add", '{"a": 3, "b": 2}') == "5"


async def test_a_command_gets_its_variables_and_ends_with_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUR_TOKEN", "value")
    monkeypatch.setenv("OUR_SECRET", "value")
    settings = f"""
        command = {LIBRARY}
        env = {{ TOKEN = "OUR_TOKEN" }}
        tools = ["variable", "process_id", "missing"]
    """
    async with connected(settings) as server:
        await server.ready()
        assert server.names() == ["process_id", "variable"]
        assert await server.call("variable", '{"name": "TOKEN"}') == "value"
        assert await server.call("variable", '{"name": "OUR_SECRET"}') == "(none)"
        number = int(await server.call("process_id"))
        os.kill(number, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


async def test_a_server_that_talks_rubbish(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(f'command = {ODD}\nbackground = ["fine"]') as server:
        await server.ready()
        assert server.names() == ["fine", "rubbish", "change"]
        before, other = server.tool("fine"), server.tool("change")
        assert (before.is_background, before.timeout_s) == (True, 120)
        assert (other.is_background, other.timeout_s) == (False, 10)
        assert await server.call("fine") == "fine"
        rubbish = await failure(server.call("rubbish"))
        assert rubbish == "rubbish failed: its answer is not as MCP has it"
        assert await server.call("change") == "fine"
        await until(lambda: server.names() == ["finer", "fine", "rubbish", "change"])
        assert await before.call('{"n": 1}') == "fine"
    told = [record.getMessage() for record in caplog.records]
    assert "MCP server it: it has two tools 'fine'; the second is left out" in told
    assert not [text for text in told if "\x1b" in text or "not JSON" in text]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('command = ["no-such-command"]', "there is no command no-such-command"),
        (f'command = ["{sys.executable}", "-c", "pass"]', "Connection closed"),
        ('url = "http://127.0.0.1:9/mcp"', "ConnectError: All connection attempts failed"),
        ('url = "http://127.0.0.1:9/mcp"\nheaders = { A = "NOT_SET" }', "variable NOT_SET is not"),
    ],
)
async def test_a_server_that_can_not_be_had(settings: str, problem: str) -> None:
    async with connected(settings) as server:
        await until(lambda: problem in (server.problem or ""))
        assert server.names() == []


class Library:
    """The library's client of a server with one thread, which works on a call until `done`."""

    def __init__(self) -> None:
        self.session = self
        self.done = asyncio.Event()
        self.num_calls = self.num_lists = 0

    async def send_request(self, *_: object) -> Any:
        from mcp.types import CallToolResult, TextContent

        self.num_calls += 1
        await self.done.wait()
        return CallToolResult(content=[TextContent(type="text", text="done")])

    async def list_tools(self, **_: object) -> Any:
        from mcp.types import ListToolsResult

        self.num_lists += 1
        return ListToolsResult(tools=[])


@pytest.mark.parametrize("is_hung", [False, True])
def test_a_cancelled_call_has_the_server_checked_when_the_others_are_over(*, is_hung: bool) -> None:
    """Or have reached their limits."""

    async def story(clock: ManualClock) -> None:
        library, ended = Library(), asyncio.Event()
        client = McpClient("it", McpSettings(command=("it",)))
        client._client, client.listing = library, Listing({"job": "{}"}, ())  # type: ignore[assignment]

        async def look() -> None:
            while not ended.is_set():
                await client._look_after(library, ended)  # type: ignore[arg-type]

        async with asyncio.TaskGroup() as group:
            group.create_task(look())
            job = group.create_task(client.call("job", {}, 5 * LOOK_EVERY_S))
            other = group.create_task(client.call("job", {}, 5 * LOOK_EVERY_S))
            await until(lambda: library.num_calls == 2)
            other.cancel()
            await asyncio.sleep(4 * LOOK_EVERY_S)
            assert library.num_lists == 0, "it would have been ended for its silence"
            if is_hung:
                await asyncio.sleep(2.5 * LOOK_EVERY_S)
                assert library.num_lists == 1
            library.done.set()
            assert await job == "done"
            ended.set()
            client._news.set()
            await asyncio.sleep(0)
        assert library.num_lists == 1

    virtual_time.run(story)
