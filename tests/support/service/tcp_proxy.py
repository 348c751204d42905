"""A network that breaks: TCP between a client and a server, on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK = 1 << 16


class Link:
    """One connection, of two halves."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.is_frozen = False
        """True: no byte passes, and neither side is closed."""
        self.gone = asyncio.Event()
        self._writers = near, far

    def cut(self) -> None:
        """Break both halves, without a word."""
        self.gone.set()
        for writer in self._writers:
            writer.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                if self.is_frozen:
                    await self.gone.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


class TcpProxy:
    """Passes bytes on until its mode changes. Belongs to the event loop."""

    def __init__(self, port: int) -> None:
        self.port = 0
        """Port to which clients connect."""
        self.refuses = False
        """New connections are broken at once."""
        self.refused = asyncio.Event()
        """One was."""
        self._target = port
        self._links: set[Link] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def cut(self) -> None:
        """Break all connections there are."""
        for link in list(self._links):
            link.cut()

    def freeze(self) -> None:
        """The network is gone, and neither end has noticed. New connections pass."""
        for link in self._links:
            link.is_frozen = True

    async def end(self) -> None:
        """Returns when no connection is left."""
        self.cut()
        await self._idle.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            self.refused.set()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        link = Link(writer, far_writer)
        self._links.add(link)
        self._idle.clear()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(link.pump(reader, far_writer))
                group.create_task(link.pump(far_reader, writer))
        finally:
            link.cut()
            self._links.discard(link)
            if not self._links:
                self._idle.set()


@asynccontextmanager
async def tcp_proxy(port: int) -> AsyncIterator[TcpProxy]:
    """Run a proxy to a server on this port."""
    proxy = TcpProxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
