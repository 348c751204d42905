"""Real MCP servers in processes of their own: those that work, and those that do not."""

import asyncio
import codecs
import contextlib
import gzip
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agent.config.layers import load_config
from agent.config.tools import McpSettings
from agent.tools.api import ToolError
from agent.tools.mcp_client import LOOK_EVERY_S, McpClient
from agent.tools.mcp_http import (
    MAX_ANSWER_BYTES,
    MAX_COOKIE_CHARS,
    MAX_COOKIES,
    AnswerTooLongError,
    bounded_client,
)
from agent.tools.mcp_sanitize import Listing
from agent.tools.mcp_stdio import ENCODING, MAX_LINE_CHARS, watch_lines
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
        assert server.names() == ["fine", "rubbish", "change", "endless"]
        before, other = server.tool("fine"), server.tool("change")
        assert (before.is_background, before.timeout_s) == (True, 120)
        assert (other.is_background, other.timeout_s) == (False, 10)
        assert await server.call("fine") == "fine"
        rubbish = await failure(server.call("rubbish"))
        assert rubbish == "rubbish failed: its answer is not as MCP has it"
        assert await server.call("change") == "fine"
        await until(lambda: server.names() == ["finer", "fine", "rubbish", "change", "endless"])
        assert await before.call('{"n": 1}') == "fine"
    told = [record.getMessage() for record in caplog.records]
    assert "MCP server it: it has two tools 'fine'; the second is left out" in told
    assert not [text for text in told if "\x1b" in text or "not JSON" in text]


async def test_a_line_without_an_end_ends_the_connection_and_another_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with connected(f"command = {ODD}") as server:
        await server.ready()
        failed = await failure(server.call("endless"))
        assert failed == "endless failed: Connection closed"
        await until(lambda: "it wrote a line of more than 4 MiB; it is tried again" in caplog.text)
        await server.ready()
        assert await server.call("fine") == "fine"


def test_lines_are_counted_over_pieces() -> None:
    found: list[str] = []
    watch_lines(lambda: found.append("too long"))
    kinds = codecs.getincrementaldecoder(ENCODING)
    fits, too_long = kinds("strict"), kinds("strict")
    half = b"x" * (MAX_LINE_CHARS // 2)
    for _ in range(3):
        assert fits.decode(half) == half.decode()
        assert fits.decode(half) == half.decode()
        assert fits.decode(b"\nab\ncd\n") == "\nab\ncd\n"
    assert fits.decode("ä".encode()[:1]) == ""
    assert fits.decode("ä".encode()[1:], final=True) == "ä"
    assert found == []
    assert too_long.decode(b"a\n" + half) == "a\n" + half.decode()
    assert too_long.decode(half) == half.decode()
    assert too_long.decode(b"x\nmore\n") == too_long.decode(b"and more\n") == ""
    assert found == ["too long"]
    assert "über\n".encode(ENCODING) == "über\n".encode()


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


@asynccontextmanager
async def answering(head: str, pieces: Sequence[bytes]) -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP server with one answer to every request: its address, and the requests' heads.
    `head`: status and headers of the answer. A connection has one answer."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
            writer.write(f"HTTP/1.1 {head}\r\nconnection: close\r\n\r\n".encode())
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/mcp", heads


JSON = "200 OK\r\ncontent-type: application/json"
EVENTS = "200 OK\r\ncontent-type: text/event-stream"
MIB = b"a" * (1 << 20)


@pytest.mark.parametrize(
    ("head", "pieces", "problem"),
    [
        (
            f"{JSON}\r\ncontent-encoding: gzip",
            [gzip.compress(MIB)],
            "compresses its answers (gzip)",
        ),
        (f"{EVENTS}\r\ncontent-encoding: br", [b"\x0b"], "compresses its answers (br)"),
        (JSON, [b'{"jsonrpc":"2.0","id":0,"result":{"x":"', *[MIB] * 5, b'"}}'], "more than 4 MiB"),
        (EVENTS, [b"data: ", *[MIB] * 5, b"\n\n"], f"exceeded the {MAX_ANSWER_BYTES} byte limit"),
    ],
)
async def test_answers_that_would_take_the_memory(
    head: str, pieces: list[bytes], problem: str
) -> None:
    async with answering(head, pieces) as (url, heads), connected(f'url = "{url}"') as server:
        await until(lambda: problem in (server.problem or ""))
        assert server.names() == []
    assert all("\r\naccept-encoding: identity\r\n" in each for each in heads)


async def test_a_redirect_is_told_without_its_address() -> None:
    """Its path may be a key, and the problem is shown at `/readyz` without one."""
    head = "307 Temporary Redirect\r\nlocation: https://tools.example/s3cret/mcp"
    async with answering(head, []) as (url, _), connected(f'url = "{url}"') as server:
        await until(lambda: "Redirect to another address not followed" in (server.problem or ""))
        assert "s3cret" not in (server.problem or "")


@pytest.mark.parametrize(
    ("method", "head", "num_mib", "is_cut"),
    [
        ("POST", JSON, 4, False),
        ("POST", JSON, 5, True),
        ("POST", EVENTS, 5, False),  # lasts as long as the connection; its events are bounded
        ("GET", EVENTS, 5, False),
        ("DELETE", EVENTS, 5, True),  # these are read whole
        ("POST", EVENTS.replace("200 OK", "307 Temporary Redirect"), 5, True),
        ("POST", EVENTS.replace("200 OK", "400 Bad Request"), 5, True),
    ],
)
async def test_bound_of_an_answer(method: str, head: str, num_mib: int, *, is_cut: bool) -> None:
    headers, timeout = {"Accept-Encoding": "br"}, httpx2.Timeout(PATIENCE_S)
    num_bytes = 0
    async with (
        answering(head, [MIB] * num_mib) as (url, heads),
        bounded_client(headers, timeout) as http,
        http.stream(method, url) as answer,
    ):
        with pytest.raises(AnswerTooLongError) if is_cut else contextlib.nullcontext():
            async for piece in answer.aiter_bytes():
                num_bytes += len(piece)
    assert num_bytes <= MAX_ANSWER_BYTES if is_cut else num_bytes == num_mib << 20
    assert heads[0].count("accept-encoding") == 1
    assert "accept-encoding: identity" in heads[0]


async def test_few_cookies_are_sent_back() -> None:
    """A load balancer may find the server of a session by one."""
    lines = "".join(f"\r\nset-cookie: c{n}={n}" for n in range(MAX_COOKIES + 1))
    head = f"{JSON}\r\nset-cookie: long={'x' * MAX_COOKIE_CHARS}{lines}"
    async with (
        answering(head, [b"{}"]) as (url, heads),
        bounded_client({}, httpx2.Timeout(PATIENCE_S)) as http,
    ):
        for _ in range(3):
            await http.post(url)
    sent = "; ".join(f"c{n}={n}" for n in range(MAX_COOKIES))
    assert "cookie:" not in heads[0]
    assert [f"\r\ncookie: {sent}\r\n" in each for each in heads[1:]] == [True, True]


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


@pytest.mark.parametrize(("page_bytes", "num_pages"), [(3 << 20, 2), (1 << 19, 8), (100, 10)])
async def test_the_pages_of_a_listing_are_bounded_together(page_bytes: int, num_pages: int) -> None:
    class Paging(Library):
        async def list_tools(self, **_: object) -> Any:
            from mcp.types import ListToolsResult, Tool

            self.num_lists += 1
            tool = Tool(name=f"t{self.num_lists}", description="x" * page_bytes, input_schema={})
            return ListToolsResult(tools=[tool], next_cursor="more")

    library = Paging()
    client = McpClient("it", McpSettings(command=("it",)))
    is_too_long = page_bytes * num_pages >= 4 << 20
    with (
        pytest.raises(ToolError, match="its list of tools has more than 4 MiB")
        if is_too_long
        else contextlib.nullcontext()
    ):
        await client._list(library)  # type: ignore[arg-type]
    assert library.num_lists == num_pages
    assert len(client.listing.definitions) == (0 if is_too_long else num_pages)


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
