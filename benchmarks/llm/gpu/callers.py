"""Callers of `sockets` in a separate process, which imports little and so starts quickly."""

import asyncio
import base64
import json
from typing import Final

FRAME_S: Final = 0.02
_FRAME_BYTES: Final = 640
"""Bytes of 20 ms of 16-bit samples at 16 kHz."""


def call_all(port: int, number: int) -> None:
    """Send audio on `number` connections until the server closes them. Blocks."""
    asyncio.run(_call_all(port, number))


async def _call_all(port: int, number: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(_call(port))


async def _call(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    audio = base64.b64encode(bytes(range(1, 129)) * (_FRAME_BYTES // 128)).decode()
    sequence = 0
    while not reader.at_eof():
        message = {"type": "audio", "sequence": sequence, "audio": audio}
        writer.write(json.dumps(message).encode() + b"\n")
        await reader.readline()
        await asyncio.sleep(FRAME_S)
        sequence += 1
    writer.close()
