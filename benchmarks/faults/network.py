"""A bad network between a caller and the server: a TCP proxy on loopback.

TCP hides loss and reordering from both ends and shows them as pauses; so a lost packet is a pause
of a retransmission here. `tc netem` in a network namespace would lose real packets, and needs root
and a kernel that has it. Packets of a call by WebRTC are reordered in `reordered_call.py`.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

CHUNK: Final = 1 << 14
QUEUED: Final = 64
"""Chunks on their way. With more the sender waits, as with a full window."""


@dataclass(frozen=True, slots=True)
class NetworkQuality:
    """What the network does to each chunk, both ways."""

    delay_s: float = 0.0
    loss: float = 0.0
    """Share of the chunks that wait for a retransmission."""
    retransmission_s: float = 0.25
    bytes_per_s: float | None = None
    half_open: bool = False
    """Nothing passes any more, and neither end is told."""


GOOD: Final = NetworkQuality()


class BadNetwork:
    """Passes bytes on as its quality says, which may change. Belongs to the event loop."""

    def __init__(self, target: int, seed: int = 1) -> None:
        self.port = 0
        self.quality = GOOD
        self._target = target
        self._random = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Break all connections at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as group:
                for source, sink in ((reader, far_writer), (far_reader, writer)):
                    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED)
                    group.create_task(self._take(source, queue))
                    group.create_task(self._give(queue, sink))
        finally:
            for each in pair:
                each.transport.abort()
            self._writers -= pair

    async def _take(
        self, reader: asyncio.StreamReader, queue: "asyncio.Queue[tuple[float, bytes]]"
    ) -> None:
        loop = asyncio.get_running_loop()
        data = b"-"
        while data:
            data = b""
            with contextlib.suppress(ConnectionError):
                data = await reader.read(CHUNK)
            quality = self.quality
            wait_s = quality.delay_s
            if data and self._random.random() < quality.loss:
                wait_s += quality.retransmission_s
            await queue.put((loop.time() + wait_s, data))

    async def _give(
        self, queue: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while True:
                due_s, data = await queue.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                if not data:
                    break
                if self.quality.half_open:
                    continue  # swallowed
                if self.quality.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self.quality.bytes_per_s)
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def bad_network(target: int) -> AsyncIterator[BadNetwork]:
    """Run a proxy to a server on this port."""
    network = BadNetwork(target)
    server = await asyncio.start_server(network.serve, "127.0.0.1", 0)
    network.port = server.sockets[0].getsockname()[1]
    try:
        yield network
    finally:
        server.close()
        network.cut()
