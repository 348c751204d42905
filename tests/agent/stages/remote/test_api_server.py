"""Connections to servers that send what no server should: cookies, tiny pieces, broken records."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.config.layers import load_config
from agent.config.remote_models import RemoteModel
from agent.http.auth.tls import certificate_of, keep_own, server_context
from agent.stages.remote.api_server import (
    MAX_ERROR_CHARS,
    PIECES_PER_TURN,
    ApiServer,
    ServerOptions,
    pieces_of,
)
from agent.stages.remote.model_server import _events
from agent.stages.remote.remote_error import RemoteError
from tests.support.service.model_servers import Answer, head, http, scripted_server

JSON = "application/json"


@asynccontextmanager
async def api_of(url: str) -> AsyncIterator[ApiServer]:
    api = ApiServer("model server", RemoteModel(url, "tiny"), ServerOptions(), 1)
    try:
        yield api
    finally:
        await api.close()


async def posted(api: ApiServer) -> bytes:
    async with api.answer("/x", (JSON,), json={}) as response:
        return await response.aread()


async def test_cookies_are_not_kept() -> None:
    answer = Answer([http(200, JSON, b"{}", "set-cookie: seen=1; Max-Age=9999")], "keep")
    async with scripted_server(answer) as scripted, api_of(scripted.url) as api:
        for _ in range(2):
            assert await posted(api) == b"{}"
        assert len(scripted.heads) == 2
        assert not [each for each in scripted.heads if "cookie" in each.lower()]


@pytest.mark.parametrize("location", ["mailto:]", "http://xn--a", "//elsewhere.example/"])
async def test_a_redirect_to_whatever_address_is_named(location: str) -> None:
    moved = Answer([http(307, JSON, b"{}", f"location: {location}")], "keep")
    async with scripted_server(moved) as scripted, api_of(scripted.url) as api:
        with pytest.raises(RemoteError, match="answers with a redirect"):
            await posted(api)


class Ready(httpx.AsyncByteStream):
    """A body that is there at once, as what one read of the network holds."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (Ready(*[b"a"] * 400), pieces_of),
        (Ready(b"data:{}\n\n" * 400), _events),
        (Ready(*[b"data:{}\n\n"] * 400), _events),
    ],
)
async def test_other_tasks_get_turns_while_one_read_is_handled(
    body: Ready, read: Callable[[httpx.Response], AsyncGenerator[Any, None]]
) -> None:
    num_turns = 0

    async def other_call() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        other = group.create_task(other_call())
        async with aclosing(read(httpx.Response(200, stream=body))) as items:
            found = [item async for item in items]
        other.cancel()
    assert len(found) == 400
    assert num_turns >= 400 // PIECES_PER_TURN


async def test_a_record_that_cannot_be_decrypted_is_the_servers_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    config = load_config({"access.tls_self_signed": True})
    certificate = certificate_of(config)
    assert certificate is not None
    keep_own(config, certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head(JSON))
        plain = writer.transport._ssl_protocol._transport  # type: ignore[attr-defined]
        plain.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        await reader.read()
        writer.close()

    context = server_context(certificate)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server, api_of(url) as api:
        with pytest.raises(RemoteError, match="broke the connection off"):
            await posted(api)


async def test_a_long_error_is_cut_before_it_is_looked_at() -> None:
    async with api_of("http://127.0.0.1:9/v1") as api:
        shown = api.shown(" " * 100_000 + "at last")
        assert shown == ""
        assert len(api.shown("x" * 100_000)) == MAX_ERROR_CHARS
