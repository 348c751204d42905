"""A server on in-memory connections, driven byte by byte without a port."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import uvicorn
from uvicorn.server import ServerState

from agent.config.access import AccessSettings
from agent.http.hardening.http_protocol import UNLIMITED, connection_types
from agent.http.hardening.websocket_protocol import WebSocketProtocol

HANDSHAKE: Final = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)
PIECE_OF_A_FRAME: Final = b"\x81\xfe\x10\x00" + bytes(100)
WHOLE_FRAME: Final = b"\x81\x81" + bytes(4) + b"x"

App = Callable[[Any, Any, Any], Awaitable[None]]


class Wire(asyncio.Transport):
    """A peer that never reads: what is closed stays open until it is aborted."""

    def __init__(self, address: str) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": (address, 2)})
        self.sent = b""
        self.is_read = True
        self.closing = False
        self.aborted = asyncio.Event()
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True
        self.aborted.set()
        self.protocol.connection_lost(None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self.protocol)

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class ServerUnderTest:
    """The shared state of a server and connections to it."""

    def __init__(self, app: App, access: AccessSettings = UNLIMITED, **settings: Any) -> None:
        self._http, voice = connection_types(access)
        self._config = uvicorn.Config(
            app, ws=cast(Any, voice), log_config=None, lifespan="off", **settings
        )
        self._config.load()
        self._state = ServerState()

    def connect(self, address: str = "127.0.0.1") -> Wire:
        wire = Wire(address)
        wire.protocol = self._http(self._config, self._state, {})
        wire.protocol.connection_made(wire)
        return wire

    async def call(self, address: str = "127.0.0.1", path: str = "/v1/realtime") -> Wire:
        """Open a WebSocket and return it once the server accepted it."""
        wire = self.connect(address)
        wire.protocol.data_received(HANDSHAKE.replace(b"/v1/realtime", path.encode()))
        assert isinstance(wire.protocol, WebSocketProtocol)
        for _ in range(5):
            await asyncio.sleep(0)
        assert b" 101 " in wire.sent
        return wire


async def busy(scope: Any, receive: Any, send: Any) -> None:
    """ASGI application that accepts the WebSocket and reads nothing."""
    await receive()
    await send({"type": "websocket.accept"})
    await asyncio.Event().wait()


async def brief(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": 1008})


async def end(wire: Wire) -> None:
    for task in list(wire.protocol.tasks):
        task.cancel()
    await asyncio.gather(*wire.protocol.tasks, return_exceptions=True)
    if not wire.aborted.is_set():
        wire.abort()
