"""Webhooks that can't be delivered: one endpoint refuses connections, one takes them and is silent.

A call that is over before the fault passes leaves a message for each. When the endpoints are back,
both have to get it, by the retries alone.
"""

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from agent.client.call import connect
from agent.http.auth.cli_credentials import entry_at
from benchmarks.callers.server_process import free_port

from .fault_case import Aftermath, FaultCase, FaultSite, Surroundings

DELIVERED_S: Final = 90.0
"""Timeout in s of the delivery, once the endpoints are back. Attempts follow one another after 5,
20 and 80 s, up to a fifth later, and one that hangs takes 15 s."""
FAILED_S: Final = 30.0
"""Timeout in s of the first attempt."""
MAX_HEAD: Final = 1 << 16
SECRET: Final = "BENCH_WEBHOOK_SECRET"

_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Endpoint:
    """An HTTP server on loopback that answers, or is silent. Belongs to the event loop."""

    def __init__(self) -> None:
        self.port = free_port()
        self.answers = True
        self.tried = asyncio.Event()
        """A connection was taken and not answered."""
        self.delivered: list[str] = []
        """Calls of the delivered messages, in order."""
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self.port, limit=MAX_HEAD
            )

    async def close(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def has(self, session_id: str) -> None:
        """Wait for the message of a call."""
        while session_id not in self.delivered:
            self._news.clear()
            await self._news.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            if not self.answers:
                self.tried.set()
                await reader.read()  # until the other side gives up
            else:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                headers = _headers(head)
                body = await reader.readexactly(int(headers["content-length"]))
                self.delivered.append(_session_of(body))
                self._news.set()
                writer.write(_OK)
                await writer.drain()
        writer.close()


def _headers(head: str) -> dict[str, str]:
    lines = [line.partition(":") for line in head.split("\r\n")[1:] if line]
    return {name.lower(): value.strip() for name, _, value in lines}


def _session_of(body: bytes) -> str:
    """Id of the call that a message is of."""
    return str(json.loads(body)["data"]["id"])


class Webhooks(Surroundings):
    """Two endpoints: one that will refuse, one that will be silent."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.endpoints = {"refuses": Endpoint(), "silent": Endpoint()}
        self.settings = "".join(
            f'[webhooks.{name}]\nurl = "http://127.0.0.1:{each.port}/"\n'
            f'secret_env = "{SECRET}"\nallow_private = true\n'
            for name, each in self.endpoints.items()
        )
        secret = base64.b64encode(secrets.token_bytes(32)).decode()
        self.environment = {SECRET: f"whsec_{secret}"}
        self.session_id = ""
        """The call that ended while the endpoints were away."""


@asynccontextmanager
async def around_webhooks(folder: Path) -> AsyncIterator[Webhooks]:
    """Endpoints that answer, until the fault strikes."""
    webhooks = Webhooks(folder)
    try:
        for each in webhooks.endpoints.values():
            await each.open()
        yield webhooks
    finally:
        for each in webhooks.endpoints.values():
            each.answers = True
            await each.close()


def _webhooks(site: FaultSite) -> Webhooks:
    assert isinstance(site.around, Webhooks)
    return site.around


async def _take_away(site: FaultSite) -> None:
    """Make the endpoints fail, and end a call, of which they are to be told. Returns when the
    silent one was tried."""
    webhooks = _webhooks(site)
    await webhooks.endpoints["refuses"].close()
    silent = webhooks.endpoints["silent"]
    silent.answers = False
    async with connect(site.url, api_key=entry_at(site.url).api_key) as call:
        webhooks.session_id = call.session_id
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FAILED_S):
            await silent.tried.wait()


async def _bring_back(site: FaultSite) -> None:
    webhooks = _webhooks(site)
    webhooks.endpoints["silent"].answers = True
    await webhooks.endpoints["refuses"].open()


async def delivered(site: FaultSite) -> Aftermath:
    """Wait until both endpoints have the message of the call that ended without them."""
    webhooks = _webhooks(site)
    wanted = webhooks.session_id
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DELIVERED_S):
            for each in webhooks.endpoints.values():
                await each.has(wanted)
    seen, why = [], []
    for name, each in webhooks.endpoints.items():
        if wanted in each.delivered:
            seen.append(f"the endpoint that {_WAYS[name]} has the message")
        else:
            why.append(f"the endpoint that {_WAYS[name]} did not get the message")
    if not webhooks.endpoints["silent"].tried.is_set():
        why.append("no endpoint was tried while they were away")
    return Aftermath(seen=seen, why=why)


_WAYS: Final = {"refuses": "refused", "silent": "was silent"}

WEBHOOK_CASES: Final[tuple[FaultCase, ...]] = (
    FaultCase(
        "webhooks unreachable (one refuses, one never answers)",
        _take_away,
        _bring_back,
        around=around_webhooks,
        look=delivered,
    ),
)
