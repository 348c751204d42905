"""A network cable between clients and the service, that can be cut and that keeps what it carried.

Bytes pass unchanged in both directions. Of connections without TLS the frames of the server are
read on the way, so that other parsers can be shown what these clients were sent.
"""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, suppress
from typing import Final

from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

MAX_EVENT_BYTES: Final = 1 << 20
"""What stock clients read in a frame. A longer one is an error of the service."""


class Cable:
    """Belongs to one event loop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._plugs: set[asyncio.StreamWriter] = set()
        self.frames: list[str] = []
        """Text frames of the server, in the order in which they passed."""

    @property
    def port(self) -> int:
        """Where clients connect to."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        """Break what is connected, without a word."""
        for plug in self._plugs:
            plug.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        ends = {writer, there_writer}
        self._plugs |= ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, there_writer, None))
                group.create_task(_pass_on(there_reader, writer, Tap(self.frames)))
        finally:
            self._plugs -= ends
            for end in ends:
                end.transport.abort()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tap: "Tap | None"
) -> None:
    with suppress(OSError):  # of a connection that broke, also "not connected" at its end
        while data := await reader.read(1 << 16):
            if tap is not None:
                tap.read(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()


class Tap:
    """Takes the text frames out of what one server sends on one connection."""

    def __init__(self, frames: list[str]) -> None:
        self._frames = frames
        self._stream = StreamReader()
        self._parser = self._parse()
        self._is_over = False

    def read(self, data: bytes) -> None:
        if self._is_over:
            return
        self._stream.feed_data(data)
        try:
            next(self._parser)
        except StopIteration:
            self._is_over = True

    def _parse(self) -> Generator[None, None, None]:
        first = yield from self._stream.read_line(1 << 14)
        if not first.startswith(b"HTTP/1.1 101"):
            return  # no WebSocket, or one inside TLS
        while (yield from self._stream.read_line(1 << 14)).strip():
            pass
        while True:
            frame = yield from Frame.parse(
                self._stream.read_exact, mask=False, max_size=MAX_EVENT_BYTES
            )
            assert frame.fin
            if frame.opcode is Opcode.TEXT:
                self._frames.append(bytes(frame.data).decode())


@asynccontextmanager
async def cable_to(port: int) -> AsyncIterator[Cable]:
    """A cable to a service of this machine, for as long as it is needed."""
    cable = Cable(port)
    cable._server = await asyncio.start_server(cable._carry, "127.0.0.1", 0)
    try:
        yield cable
    finally:
        cable.cut()
        cable._server.close()
        await cable._server.wait_closed()
