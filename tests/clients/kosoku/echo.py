"""`python -m tests.clients.kosoku.echo ours|roomy`: a WebSocket echo server."""

import asyncio
import sys
from typing import Final

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from agent.codec.json_frame import MAX_FRAME_BYTES
from agent.config.access import AccessSettings
from agent.config.schema import Config
from agent.server.event_loop import loop_factory
from agent.server.server import listen, make_server

LARGEST_BYTES: Final = 16 << 20
"""Of the cases' messages."""


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    while (message := await socket.receive())["type"] == "websocket.receive":
        kind = "text" if message.get("text") is not None else "bytes"
        await socket.send({"type": "websocket.send", kind: message[kind]})


async def serve_ours(max_bytes: int) -> None:
    # Hundreds of connections from one address, one after the other, are the cases themselves.
    config = Config(access=AccessSettings(connections_per_s=0))
    server = make_server(Starlette(routes=[WebSocketRoute("/{path:path}", echo)]), config)
    server.config.ws_max_size = max_bytes
    listener = listen("127.0.0.1", 0)
    print(listener.getsockname()[1], flush=True)
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        match sys.argv[1]:
            case "ours":
                runner.run(serve_ours(MAX_FRAME_BYTES))
            case "roomy":
                runner.run(serve_ours(LARGEST_BYTES))
            case other:
                sys.exit(f"ours, roomy or library, not {other}")
