"""The listening socket of the service."""

import asyncio
import socket

import pytest
import uvloop

from agent.server.server import listen


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_small_writes_are_not_held_back(make_loop: object) -> None:
    async def is_set() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen("127.0.0.1", 0) as listener:
            async with await asyncio.start_server(connected, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                writer.close()
                return await accepted

    with asyncio.Runner(loop_factory=make_loop) as runner:  # type: ignore[arg-type]
        assert runner.run(is_set()) != 0
