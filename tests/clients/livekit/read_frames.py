"""Has LiveKit's session read the frames in a file, one a line: `python -m ... FRAMES`.

Its parser is its session, so it is connected to a server that says what is in the file and nothing
else: one connection for each `session.created`. It has to handle every event. The frames must also
fit the models of the `openai` package that it brings, of which it makes objects without a check.
"""

import asyncio
import json
import logging
import sys
from collections import Counter
from pathlib import Path

import aiohttp
from aiohttp import web
from livekit.plugins.openai import realtime
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.clients.livekit.scenarios import Log
from tests.clients.scene import PATIENCE_S


def conversations(lines: list[str]) -> list[list[str]]:
    """Of one connection each."""
    found: list[list[str]] = []
    for line in lines:
        if json.loads(line)["type"] == "session.created":
            found.append([])
        found[-1].append(line)
    return found


async def read(frames: list[str]) -> None:
    """Raises AssertionError with what it complains of."""

    async def say(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for frame in frames:
            await socket.send_str(frame)
        async for _ in socket:
            pass
        return socket

    application = web.Application()
    application.router.add_get("/v1/realtime", say)
    server = web.AppRunner(application)
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    port = server.addresses[0][1]
    log = Log()
    logging.getLogger("livekit").addHandler(log)
    num_read = 0
    all_read = asyncio.Event()

    def count(_: object) -> None:
        nonlocal num_read
        num_read += 1
        if num_read == len(frames):
            all_read.set()

    async with aiohttp.ClientSession() as http:
        maker = realtime.RealtimeModel(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="x", http_session=http
        )
        session = maker.session()
        session.on("openai_server_event_received", count)
        async with asyncio.timeout(PATIENCE_S):
            await all_read.wait()
        await asyncio.sleep(0)  # for the last one, which is handled behind that
        await session.aclose()
        await maker.aclose()
    await server.cleanup()
    logging.getLogger("livekit").removeHandler(log)
    assert [text for text in log.texts if text == "failed to handle event"] == []


def main() -> None:
    lines = Path(sys.argv[1]).read_text().splitlines()
    model: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)
    for line in lines:
        event = json.loads(line)
        if event.get("previous_item_id", "") is None:
            del event["previous_item_id"]  # documented as nullable, typed as a string
        model.validate_python(event)
    for frames in conversations(lines):
        asyncio.run(read(frames))
    for kind, count in sorted(Counter(json.loads(line)["type"] for line in lines).items()):
        print(f"{count:6} {kind}")


if __name__ == "__main__":
    main()
